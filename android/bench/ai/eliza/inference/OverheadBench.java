package ai.eliza.inference;

import java.util.Arrays;
import java.util.concurrent.CountDownLatch;

/**
 * What Java adds to a token over the C interface, on a session without a model: one token a step, pulled here, heard by a
 * listener, and pulled in C. Medians of rounds that take turns. <em>Ready</em>: all tokens wait, so that the time is that of the
 * calls alone; <em>live</em>: from the start of the generation on.
 */
final class OverheadBench {
    private static final int TOKENS = 100000;
    private static final int ROUNDS = 15;
    private static final String[] WAYS = {"C, ready", "Java, ready", "C, live", "Java, live", "Java listener, live"};

    private OverheadBench() {}

    public static void main(String[] arguments) throws Exception {
        String model = arguments[0];
        Testing.noop(model, 1).close();
        double[][] nanos = new double[WAYS.length][ROUNDS];
        for (int round = -5; round < ROUNDS; round++) {
            long[] spent = {
                Testing.pullInC(Utf8.direct(model, "model"), TOKENS, true),
                pull(model, true),
                Testing.pullInC(Utf8.direct(model, "model"), TOKENS, false),
                pull(model, false),
                listen(model),
            };
            for (int way = 0; way < spent.length && round >= 0; way++) {
                nanos[way][round] = (double) spent[way] / TOKENS;
            }
        }
        double[] medians = new double[WAYS.length];
        for (int way = 0; way < WAYS.length; way++) {
            Arrays.sort(nanos[way]);
            medians[way] = nanos[way][ROUNDS / 2];
            System.out.printf("%-20s %8.0f ns a token (median of %d; %.0f to %.0f)%n", WAYS[way], medians[way], ROUNDS,
                nanos[way][0], nanos[way][ROUNDS - 1]);
        }
        System.out.printf("over C, ready: pull %.2f us%n", (medians[1] - medians[0]) / 1000);
        System.out.printf("over C, live:  pull %.2f us, listener %.2f us%n", (medians[3] - medians[2]) / 1000,
            (medians[4] - medians[2]) / 1000);
    }

    private static long pull(String model, boolean ready) throws InterruptedException {
        try (Session session = Testing.noop(model, 1)) {
            session.prefill(new int[] {1}, 0);
            long begin = System.nanoTime();
            session.generate(TOKENS, 0, 1);
            while (ready && session.usage().finishReason == FinishReason.NONE) {
                Thread.yield();
            }
            begin = ready ? System.nanoTime() : begin;
            int tokens = 0;
            for (Step step = session.next(); ; step = session.next()) {
                tokens += step.tokens().length;
                if (step.done()) {
                    break;
                }
            }
            Testing.same(tokens, TOKENS);
            return System.nanoTime() - begin;
        }
    }

    private static long listen(String model) throws InterruptedException {
        try (Session session = Testing.noop(model, 1)) {
            session.prefill(new int[] {1}, 0);
            CountDownLatch ended = new CountDownLatch(1);
            long begin = System.nanoTime();
            session.generate(TOKENS, 0, 1, new StepListener() {
                private int tokens;

                @Override
                public void onStep(Step step) {
                    tokens += step.tokens().length;
                    if (step.done()) {
                        Testing.same(tokens, TOKENS);
                        ended.countDown();
                    }
                }

                @Override
                public void onFailure(ElizaException failure) {
                    failure.printStackTrace();
                }
            });
            ended.await();
            return System.nanoTime() - begin;
        }
    }
}
