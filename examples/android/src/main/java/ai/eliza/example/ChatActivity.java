package ai.eliza.example;

import ai.eliza.inference.ElizaException;
import ai.eliza.inference.ElizaInference;
import ai.eliza.inference.OpenOptions;
import ai.eliza.inference.SamplingOptions;
import ai.eliza.inference.Session;
import ai.eliza.inference.Step;
import ai.eliza.inference.StepListener;
import android.app.Activity;
import android.os.Bundle;
import android.widget.Button;
import android.widget.EditText;
import android.widget.LinearLayout;
import android.widget.ScrollView;
import android.widget.TextView;
import java.io.File;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/**
 * A chat with the model {@code model.gguf} in the app's files.
 *
 * <p>The model is opened, and prompts are read, on a thread of its own; text comes on the session's thread; both show it on the
 * activity's. While an answer comes the button stops it. Each prompt begins with the conversation so far, of which nothing is
 * read again.
 */
public final class ChatActivity extends Activity {
    private static final int CONTEXT = 1024;
    private static final int MOST_TOKENS = 200;

    private final ExecutorService worker = Executors.newSingleThreadExecutor();
    private final StringBuilder transcript = new StringBuilder();
    private TextView text;
    private EditText input;
    private Button button;
    /** Null until the model is open, and after the activity has ended. */
    private volatile Session session;
    private volatile boolean ended;
    private boolean answering;

    @Override
    protected void onCreate(Bundle saved) {
        super.onCreate(saved);
        text = new TextView(this);
        input = new EditText(this);
        button = new Button(this);
        button.setText("Send");
        button.setEnabled(false);
        button.setOnClickListener(view -> {
            if (answering) {
                session.cancel();
            } else {
                ask(input.getText().toString());
            }
        });
        ScrollView scroll = new ScrollView(this);
        scroll.addView(text);
        LinearLayout page = new LinearLayout(this);
        page.setOrientation(LinearLayout.VERTICAL);
        page.addView(input);
        page.addView(button);
        page.addView(scroll);
        setContentView(page);
        File model = new File(getFilesDir(), "model.gguf");
        worker.execute(() -> open(model));
    }

    private void open(File model) {
        try {
            Session opened = ElizaInference.open(new OpenOptions(model.getPath()).contextSize(CONTEXT));
            SamplingOptions options = opened.samplingOptions();
            options.stop = new String[] {"\nUser:"};
            opened.configure(options);
            session = opened;
            if (ended) {
                opened.close();
            }
            show("", true);
        } catch (ElizaException failure) {
            show(failure.getMessage(), false);
        }
    }

    private void ask(String question) {
        if (question.trim().isEmpty()) {
            return;
        }
        answering = true;
        button.setText("Stop");
        input.setText("");
        if (transcript.length() > 0) {
            transcript.append('\n');
        }
        transcript.append("User: ").append(question).append("\nAssistant:");
        text.setText(transcript);
        String prompt = transcript.toString();
        worker.execute(() -> {
            try {
                session.prefill(session.tokenize(prompt), 0);
                session.generate(MOST_TOKENS, 0.7f, 0.95f, new StepListener() {
                    @Override
                    public void onStep(Step step) {
                        show(step.text(), step.done());
                    }

                    @Override
                    public void onFailure(ElizaException failure) {
                        end(failure);
                    }
                });
            } catch (ElizaException failure) {
                end(failure);
            }
        });
    }

    /** The end of an answer that did not come to one; the user knows of a stop. */
    private void end(ElizaException failure) {
        show(failure instanceof ElizaException.Cancelled ? "" : failure.getMessage(), true);
    }

    /** Adds to what is shown, from any thread; {@code ready} for a question. */
    private void show(String more, boolean ready) {
        runOnUiThread(() -> {
            transcript.append(more);
            text.setText(transcript);
            if (ready) {
                answering = false;
                button.setText("Send");
                button.setEnabled(true);
            }
        });
    }

    @Override
    protected void onDestroy() {
        ended = true;
        worker.shutdown();
        Session open = session;
        if (open != null) {
            open.close();
        }
        super.onDestroy();
    }
}
