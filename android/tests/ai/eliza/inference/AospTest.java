package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** The binding of the Android agent, compared with the sessions that it uses. */
final class AospTest {
    private static final int NOBODY = 999999;

    private AospTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("aosp streams", AospTest::streams);
        cases.put("aosp tries", AospTest::tries);
        cases.put("aosp slots by name", AospTest::slotsByName);
        cases.put("aosp saved slots", AospTest::savedSlots);
        cases.put("aosp refusals", AospTest::refusals);
        cases.put("aosp cancel and close", AospTest::cancelAndClose);
    }

    private static AospLlmStreamConfig config(int maxTokens) {
        AospLlmStreamConfig config = new AospLlmStreamConfig();
        config.maxTokens = maxTokens;
        config.temperature = 0;
        config.topP = 1;
        config.repeatPenalty = 1;
        return config;
    }

    private static long context(AospStreaming aosp) {
        return aosp.openContext(Host.model, 512, 2, 0);
    }

    private static Host.Result pull(AospStreamingLlmBinding aosp, long stream) throws InterruptedException {
        Host.Result result = new Host.Result();
        while (result.reason == FinishReason.NONE) {
            Step step = aosp.llmStreamNext(stream, 3, 1024);
            check(step.tokens().length <= 3, step.tokens().length);
            result.add(step);
        }
        return result;
    }

    private static Host.Result run(AospStreaming aosp, long ctx, AospLlmStreamConfig config, String trie) throws Exception {
        long stream = aosp.llmStreamOpen(ctx, config);
        aosp.llmStreamPrefill(stream, aosp.session(ctx).tokenize(PROMPT));
        if (trie != null) {
            aosp.llmStreamSetTokenTrie(stream, trie, 0);
        }
        Host.Result result = pull(aosp, stream);
        thrown(ElizaException.InvalidArgument.class, "is over", () -> aosp.llmStreamNext(stream, 32, 1024));
        thrown(ElizaException.InvalidArgument.class, "is over", () -> aosp.llmStreamPrefill(stream, new int[] {1}));
        aosp.llmStreamClose(stream);
        aosp.llmStreamClose(stream);
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.llmStreamNext(stream, 32, 1024));
        return result;
    }

    private static void streams() throws Exception {
        AospStreaming aosp = new AospStreaming();
        check(aosp.llmStreamSupported(), "the library is loaded");
        thrown(ElizaException.Io.class, "/no/such", () -> aosp.openContext("/no/such/model.gguf", 0, 0, 0));
        long ctx = context(aosp);
        Host.Result expected;
        try (Session session = open(512)) {
            expected = greedy(session, 40);
        }
        for (int round = 0; round < 2; round++) {
            Host.Result found = run(aosp, ctx, config(40), null);
            same(found.tokens, expected.tokens);
            same(found.text.toString(), expected.text.toString());
            same(found.reason, expected.reason);
        }
        // What the options say is done: a penalty changes the tokens, one candidate leaves nothing to draw.
        AospLlmStreamConfig changed = config(40);
        changed.repeatPenalty = 2;
        check(!run(aosp, ctx, changed, null).tokens.equals(expected.tokens), "the penalty has no effect");
        changed.repeatPenalty = 1;
        changed.temperature = 1.5f;
        changed.topK = 1;
        same(run(aosp, ctx, changed, null).tokens, expected.tokens);
        aosp.closeContext(ctx);
        aosp.closeContext(ctx);
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.llmStreamOpen(ctx, config(1)));
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.session(ctx));
    }

    private static void tries() throws Exception {
        AospStreaming aosp = new AospStreaming();
        long ctx = context(aosp);
        String trie = aosp.session(ctx).buildTokenTrie("a", Arrays.asList("a name", "another"), "", "\n", false).json();
        Host.Result free = run(aosp, ctx, config(8), null);
        Host.Result held = run(aosp, ctx, config(8), trie);
        check(held.text.toString().trim().startsWith("a"), held.text);
        check(!held.tokens.equals(free.tokens), "the trie has no effect");
        same(run(aosp, ctx, config(8), null).tokens, free.tokens);
        long stream = aosp.llmStreamOpen(ctx, config(8));
        aosp.llmStreamPrefill(stream, aosp.session(ctx).tokenize(PROMPT));
        thrown(ElizaException.RefusedTrie.class, "", () -> aosp.llmStreamSetTokenTrie(stream, "{}", 0));
        thrown(ElizaException.RefusedTrie.class, "", () -> aosp.llmStreamNext(stream, 32, 1024));
        aosp.llmStreamSetTokenTrie(stream, trie, 0);
        aosp.llmStreamClearTokenTrie(stream);
        same(pull(aosp, stream).tokens, free.tokens);
        aosp.closeContext(ctx);
    }

    private static long reused(AospStreaming aosp, long ctx, AospLlmStreamConfig config, int[] tokens) {
        long stream = aosp.llmStreamOpen(ctx, config);
        aosp.llmStreamPrefill(stream, tokens);
        aosp.llmStreamClose(stream);
        return aosp.session(ctx).usage().promptTokensReused;
    }

    private static void slotsByName() throws Exception {
        AospStreaming aosp = new AospStreaming();
        long ctx = context(aosp);
        int[][] prompts = new int[17][];
        for (int i = 0; i < prompts.length; i++) {
            prompts[i] = aosp.session(ctx).tokenize(i + " " + PROMPT);
            AospLlmStreamConfig config = config(1);
            config.promptCacheKey = "conversation " + i;
            reused(aosp, ctx, config, prompts[i]);
        }
        AospLlmStreamConfig config = config(1);
        for (int i = 16; i > 0; i--) {
            config.promptCacheKey = "conversation " + i;
            check(reused(aosp, ctx, config, prompts[i]) >= prompts[i].length - 1, i);
        }
        // The seventeenth name took the slot of the first.
        config.promptCacheKey = "conversation 0";
        check(reused(aosp, ctx, config, prompts[0]) < prompts[0].length - 1, "a slot for each of 17 names");
        // Which was that of the name unused for longest: the sixteenth, by the loop above.
        config.promptCacheKey = "conversation 16";
        check(reused(aosp, ctx, config, prompts[16]) < prompts[16].length - 1, "the name used last lost its slot");
        config.slotId = 3;
        config.promptCacheKey = null;
        reused(aosp, ctx, config, prompts[5]);
        check(reused(aosp, ctx, config, prompts[5]) >= prompts[5].length - 1, "the number does not say which slot");
        aosp.closeContext(ctx);
    }

    private static void savedSlots() throws Exception {
        Path file = Files.createTempFile("aosp slot", "");
        AospStreaming aosp = new AospStreaming();
        for (String key : new String[] {null, "story"}) {
            long first = context(aosp);
            long second = context(aosp);
            int[] tokens = aosp.session(first).tokenize(PROMPT);
            Host.Result whole = run(aosp, first, config(20), null);
            AospLlmStreamConfig config = config(8);
            config.promptCacheKey = key;
            long stream = aosp.llmStreamOpen(first, config);
            thrown(ElizaException.InvalidArgument.class, "no prompt", () -> aosp.llmStreamSaveSlot(stream, file.toString()));
            aosp.llmStreamPrefill(stream, tokens);
            Host.Result result = pull(aosp, stream);
            aosp.llmStreamSaveSlot(stream, file.toString());
            aosp.closeContext(first);
            config.maxTokens = 12;
            long restored = aosp.llmStreamOpen(second, config);
            thrown(ElizaException.Busy.class, "no prompt", () -> aosp.llmStreamNext(restored, 32, 1024));
            aosp.llmStreamRestoreSlot(restored, file.toString());
            result.reason = FinishReason.NONE;
            Host.Result rest = pull(aosp, restored);
            result.tokens.addAll(rest.tokens);
            same(result.tokens, whole.tokens);
            aosp.closeContext(second);
        }
        Files.delete(file);
    }

    private static void refusals() throws Exception {
        AospStreaming aosp = new AospStreaming();
        long ctx = context(aosp);
        AospLlmStreamConfig config = config(8);
        config.dflashDrafterPath = "drafter.gguf";
        config.disableThinking = true;
        aosp.llmStreamClose(aosp.llmStreamOpen(ctx, config));
        config.draftMin = 4;
        same(thrown(ElizaException.Unsupported.class, "draftMin is 4", () -> aosp.llmStreamOpen(ctx, config)).code(), -1);
        config.draftMin = 0;
        config.draftMax = 16;
        same(thrown(ElizaException.Unsupported.class, "draftMax 16", () -> aosp.llmStreamOpen(ctx, config)).code(), -1);
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.llmStreamOpen(NOBODY, config(8)));
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.llmStreamCancel(NOBODY));
        AospLlmStreamConfig wrong = config(8);
        wrong.slotId = 16;
        long nowhere = aosp.llmStreamOpen(ctx, wrong);
        thrown(ElizaException.InvalidArgument.class, "slot 16", () -> aosp.llmStreamPrefill(nowhere, new int[] {1}));
        same(thrown(ElizaException.Busy.class, "stream " + nowhere, () -> aosp.llmStreamOpen(ctx, config(8))).code(), -40);
        aosp.llmStreamClose(nowhere);
        long stream = aosp.llmStreamOpen(ctx, config(8));
        thrown(ElizaException.Busy.class, "no prompt", () -> aosp.llmStreamNext(stream, 32, 1024));
        aosp.llmStreamPrefill(stream, aosp.session(ctx).tokenize(PROMPT));
        thrown(ElizaException.InvalidArgument.class, "maxTextBytes is 7", () -> aosp.llmStreamNext(stream, 32, 7));
        aosp.llmStreamNext(stream, Integer.MIN_VALUE, Integer.MAX_VALUE);
        aosp.closeContext(ctx);
        thrown(ElizaException.InvalidArgument.class, "not open", () -> aosp.llmStreamNext(stream, 32, 1024));
    }

    private static void cancelAndClose() throws Exception {
        AospStreaming aosp = new AospStreaming();
        long ctx = context(aosp);
        Host.ignoreEos(aosp.session(ctx));
        int[] tokens = aosp.session(ctx).tokenize(PROMPT);
        Host.Result free = run(aosp, ctx, config(8), null);
        for (int round = 0; round < 20; round++) {
            long stream = aosp.llmStreamOpen(ctx, config(-1));
            aosp.llmStreamPrefill(stream, tokens);
            aosp.llmStreamNext(stream, 1, 1024);
            CountDownLatch begun = new CountDownLatch(1);
            Thread other = new Thread(() -> {
                begun.countDown();
                try {
                    while (!aosp.llmStreamNext(stream, 1, 1024).done()) { }
                } catch (ElizaException.InvalidArgument gone) {
                    // The thread that closed it had the last step.
                } catch (InterruptedException interrupted) {
                    throw new AssertionError(interrupted);
                }
            });
            other.start();
            Host.await(begun);
            if (round % 2 == 0) {
                aosp.llmStreamCancel(stream);
            }
            Thread.currentThread().interrupt();
            aosp.llmStreamClose(stream);
            check(Thread.interrupted(), "closing lost an interrupt");
            other.join(60000);
            check(!other.isAlive(), "a thread still waits for a closed stream");
        }
        same(run(aosp, ctx, config(8), null).tokens, free.tokens);
        aosp.closeContext(ctx);
    }
}
