package ai.eliza.inference;

import static ai.eliza.inference.Testing.check;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/** What the tests of a host share: sessions, and what their generations give. */
final class Host {
    static final String PROMPT = "Once upon a time";

    /** The model of this run. */
    static String model;

    private Host() {}

    static Session open(int context) {
        return ElizaInference.open(new OpenOptions(model).contextSize(context).threads(2));
    }

    static void ignoreEos(Session session) {
        SamplingOptions options = session.samplingOptions();
        options.ignoreEos = true;
        session.configure(options);
    }

    /** What a generation gave. */
    static final class Result {
        final List<Integer> tokens = new ArrayList<>();
        final StringBuilder text = new StringBuilder();
        FinishReason reason = FinishReason.NONE;

        void add(Step step) {
            check(reason == FinishReason.NONE, "a step behind the end");
            for (int token : step.tokens()) {
                tokens.add(token);
            }
            text.append(step.text());
            reason = step.finishReason();
        }
    }

    static Result pull(Session session) throws InterruptedException {
        Result result = new Result();
        while (result.reason == FinishReason.NONE) {
            result.add(session.next());
        }
        return result;
    }

    static Result greedy(Session session, int maxNewTokens) throws InterruptedException {
        session.prefill(PROMPT);
        session.generate(maxNewTokens, 0, 1);
        return pull(session);
    }

    /** A listener that keeps what it hears, checks that the end comes once, and can be held and told to act. */
    static class Recorder implements StepListener {
        final Result result = new Result();
        final CountDownLatch began = new CountDownLatch(1);
        final CountDownLatch ended = new CountDownLatch(1);
        final CountDownLatch gate;
        volatile ElizaException failure;

        Recorder(boolean held) {
            gate = new CountDownLatch(held ? 1 : 0);
        }

        @Override
        public void onStep(Step step) {
            began.countDown();
            await(gate);
            check(ended.getCount() == 1, "something is heard behind the end");
            check(Thread.currentThread().isDaemon(), "the listener's thread keeps the process alive");
            result.add(step);
            act(step);
            if (step.done()) {
                ended.countDown();
            }
        }

        @Override
        public void onFailure(ElizaException failed) {
            check(ended.getCount() == 1, "something is heard behind the end");
            failure = failed;
            ended.countDown();
        }

        void act(Step step) {}

        Result end() {
            await(ended);
            check(failure == null, failure);
            return result;
        }
    }

    static void await(CountDownLatch latch) {
        try {
            check(latch.await(60, TimeUnit.SECONDS), "nothing came for a minute");
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }
}
