package android.app;

import android.content.Context;
import android.os.Bundle;
import android.view.View;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A stand-in: what runs on the activity's thread runs on one thread here too. */
public class Activity extends Context {
    public final ExecutorService ui = Executors.newSingleThreadExecutor();
    public View content;

    protected void onCreate(Bundle saved) {}

    protected void onDestroy() {}

    public void setContentView(View view) {
        content = view;
    }

    public final void runOnUiThread(Runnable action) {
        ui.execute(action);
    }
}
