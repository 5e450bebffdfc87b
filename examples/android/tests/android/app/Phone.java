package android.app;

import android.view.View;
import android.widget.Button;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.TextView;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;

/** Uses an activity as a person does: asks, reads, stops an answer, leaves. Its arguments: the activity's class. */
public final class Phone {
    private final Activity activity;
    private EditText input;
    private Button button;
    private TextView text;

    private Phone(Activity used) {
        activity = used;
    }

    private <T> T onUi(Callable<T> action) throws Exception {
        return activity.ui.submit(action).get(60, TimeUnit.SECONDS);
    }

    private void waitFor(String label) throws Exception {
        for (int i = 0; i < 6000; i++) {
            if (button.isEnabled() && button.getText().toString().equals(label)) {
                return;
            }
            Thread.sleep(10);
        }
        throw new IllegalStateException("the button never said " + label + ": " + text.getText());
    }

    private void ask(String question) throws Exception {
        String label = onUi(() -> {
            input.setText(question);
            button.performClick();
            return button.getText().toString();
        });
        if (!label.equals("Stop")) {
            throw new IllegalStateException("the button says " + label + " while an answer is made");
        }
    }

    private void use() throws Exception {
        onUi(() -> {
            activity.onCreate(null);
            LinearLayout page = (LinearLayout) activity.content;
            input = (EditText) page.children.get(0);
            button = (Button) page.children.get(1);
            View shown = ((LinearLayout) page.children.get(2)).children.get(0);
            text = (TextView) shown;
            return null;
        });
        waitFor("Send");
        ask("Who are you?");
        waitFor("Send");
        ask("Tell me a long story");
        onUi(button::performClick);
        waitFor("Send");
        System.out.println(text.getText());
        onUi(() -> {
            activity.onDestroy();
            return null;
        });
        activity.ui.shutdown();
    }

    public static void main(String[] arguments) throws Exception {
        new Phone((Activity) Class.forName(arguments[0]).getDeclaredConstructor().newInstance()).use();
    }
}
