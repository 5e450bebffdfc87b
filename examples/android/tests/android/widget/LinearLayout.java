package android.widget;

import android.content.Context;
import android.view.View;
import java.util.ArrayList;
import java.util.List;

/** A stand-in. */
public class LinearLayout extends View {
    public static final int VERTICAL = 1;
    public final List<View> children = new ArrayList<>();

    public LinearLayout(Context context) {
        super(context);
    }

    public void setOrientation(int orientation) {}

    public void addView(View child) {
        children.add(child);
    }
}
