package android.widget;

import android.content.Context;
import android.view.View;

/** A stand-in. */
public class TextView extends View {
    private volatile String text = "";

    public TextView(Context context) {
        super(context);
    }

    public void setText(CharSequence shown) {
        text = shown.toString();
    }

    public CharSequence getText() {
        return text;
    }
}
