package android.widget;

import android.content.Context;

/** A stand-in. */
public class ScrollView extends LinearLayout {
    public ScrollView(Context context) {
        super(context);
    }
}
