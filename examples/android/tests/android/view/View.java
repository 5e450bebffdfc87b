package android.view;

import android.content.Context;

/** A stand-in: a click is a call. */
public class View {
    /** Hears clicks. */
    public interface OnClickListener {
        void onClick(View view);
    }

    private OnClickListener listener;
    private volatile boolean enabled = true;

    public View(Context context) {}

    public void setOnClickListener(OnClickListener heard) {
        listener = heard;
    }

    public void setEnabled(boolean on) {
        enabled = on;
    }

    public boolean isEnabled() {
        return enabled;
    }

    public boolean performClick() {
        listener.onClick(this);
        return true;
    }
}
