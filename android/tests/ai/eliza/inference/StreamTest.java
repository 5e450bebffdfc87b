package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.await;
import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.ignoreEos;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Host.pull;
import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** One stream: prompts, pull and listener, options, lengths. */
final class StreamTest {
    private StreamTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("prompts", StreamTest::prompts);
        cases.put("every way gives the same", StreamTest::everyWayGivesTheSame);
        cases.put("a draft model changes nothing of what is said", StreamTest::draftModel);
        cases.put("a server, and a model in its place", StreamTest::servers);
        cases.put("wrong calls", StreamTest::wrongCalls);
        cases.put("lengths", StreamTest::lengths);
        cases.put("a context that is shifted", StreamTest::shifted);
        cases.put("sampling options", StreamTest::samplingOptions);
        cases.put("chains", StreamTest::chains);
    }

    private static void prompts() throws Exception {
        try (Session session = open(256)) {
            thrown(ElizaException.InvalidArgument.class, "no tokens", () -> session.prefill(new int[0], -1));
            thrown(ElizaException.InvalidArgument.class, "slot 99", () -> session.prefill(new int[] {1}, 99));
            thrown(ElizaException.InvalidArgument.class, "token 1 is -7", () -> session.prefill(new int[] {1, -7}, 0));
            same(thrown(ElizaException.OutOfMemory.class, "", () -> session.prefill(new int[300], 0)).code(), -5);
            int[] tokens = session.tokenize("Once upon a time there was a little cat");
            for (int round = 0; round < 2; round++) {
                session.prefill(tokens, 3);
                Usage usage = session.usage();
                same(usage.promptTokens, (long) tokens.length);
                check(round == 0 ? usage.promptTokensReused == 0 : usage.promptTokensReused > 0, usage.promptTokensReused);
            }
        }
    }

    private static void everyWayGivesTheSame() throws Exception {
        Host.Result whole;
        try (Session session = open(512)) {
            ignoreEos(session);
            whole = greedy(session, 100);
            same(whole.tokens.size(), 100);
            same(whole.reason, FinishReason.LENGTH);
            // Java's own decoder over the bytes of all tokens; a NUL in a step is U+FFFD.
            int[] ids = whole.tokens.stream().mapToInt(Integer::intValue).toArray();
            same(whole.text.toString().trim(), session.detokenize(ids).replace('\0', '\ufffd').trim());

            session.prefill(PROMPT);
            session.generate(100, 0, 1);
            Host.Result polled = new Host.Result();
            for (int i = 0; polled.reason == FinishReason.NONE; i++) {
                Step step = session.poll(i < 20 ? 0 : 5);
                if (step != null) {
                    polled.add(step);
                }
            }
            same(polled.tokens, whole.tokens);
            same(polled.text.toString(), whole.text.toString());

            Host.Recorder recorder = new Host.Recorder(false);
            session.prefill(PROMPT);
            session.generate(100, 0, 1, recorder);
            same(recorder.end().tokens, whole.tokens);
            same(recorder.result.text.toString(), whole.text.toString());
            same(recorder.result.reason, FinishReason.LENGTH);
        }
    }

    private static void draftModel() throws Exception {
        OpenOptions options = new OpenOptions(Host.model).contextSize(256).threads(1).draft(Host.model);
        try (Session alone = open(256); Session drafted = ElizaInference.open(options)) {
            ignoreEos(alone);
            ignoreEos(drafted);
            same(greedy(drafted, 60).tokens, greedy(alone, 60).tokens);
        }
        thrown(ElizaException.Io.class, "draft.gguf", () -> ElizaInference.open(options.draft("/nonexistent/draft.gguf")));
        thrown(ElizaException.InvalidArgument.class, "parallel is 2",
            () -> ElizaInference.open(options.draft(Host.model).parallel(2)));
    }

    private static void servers() throws Exception {
        String address = "vllm:http://127.0.0.1:9/v1#name";
        String key = "sk-0123456789";
        OpenOptions options = new OpenOptions(address).threads(1).apiKey(key).serverTimeoutMs(500);
        thrown(ElizaException.Io.class, "vocab.gguf", () -> ElizaInference.open(options.vocab("/nonexistent/vocab.gguf")));
        ElizaException failure = thrown(ElizaException.Remote.class, "vllm:http://127.0.0.1:9: the connection failed",
            () -> ElizaInference.open(options.vocab(Host.model)));
        check(!failure.getMessage().contains(key), failure);
        thrown(ElizaException.Io.class, "roots.pem", () -> ElizaInference.open(options.certificates("/nonexistent/roots.pem")));
        options.certificates(null).fallback("/nonexistent/model.gguf").fallback(Host.model);
        try (Session alone = open(0); Session answered = ElizaInference.open(options)) {
            ignoreEos(alone);
            ignoreEos(answered);
            same(greedy(answered, 20).tokens, greedy(alone, 20).tokens);
            check(answered.usageJson().contains("\"served_by\":\"" + Host.model + "\""), answered.usageJson());
        }
    }

    private static void wrongCalls() throws Exception {
        try (Session session = open(256)) {
            thrown(ElizaException.InvalidArgument.class, "", session::next);
            thrown(ElizaException.Busy.class, "prefill", () -> session.generate(5, 0, 1));
            session.prefill(PROMPT);
            thrown(ElizaException.InvalidArgument.class, "", () -> session.poll(0));
            thrown(ElizaException.InvalidArgument.class, "emperature",
                () -> session.generate(5, Float.POSITIVE_INFINITY, 1));
            session.generate(5, 0, 1);
            pull(session);
            thrown(ElizaException.InvalidArgument.class, "", session::next);
            thrown(ElizaException.Busy.class, "prefill", () -> session.generate(5, 0, 1, new Host.Recorder(false)));
            Host.Recorder held = new Host.Recorder(true);
            session.prefill(PROMPT);
            session.generate(5, 0, 1, held);
            await(held.began);
            held.gate.countDown();
            held.end();
            greedy(session, 5);
        }
    }

    private static void lengths() throws Exception {
        try (Session session = open(256)) {
            ignoreEos(session);
            Host.Result none = greedy(session, 0);
            check(none.tokens.isEmpty() && none.text.length() == 0 && none.reason == FinishReason.LENGTH, none.tokens);
            Host.Result full = greedy(session, -1);
            same(full.reason, FinishReason.CONTEXT);
            Usage usage = session.usage();
            same(usage.finishReason, FinishReason.CONTEXT);
            same(usage.completionTokens, (long) full.tokens.size());
            check(usage.promptTokens + usage.completionTokens >= 256, usage.completionTokens);
            check(usage.firstTokenMicros > 0 && usage.decodeMicros >= usage.firstTokenMicros, usage.decodeMicros);
        }
    }

    private static void shifted() throws Exception {
        try (Session session = open(64)) {
            ignoreEos(session);
            Host.Result full = greedy(session, 150);
            same(full.reason, FinishReason.CONTEXT);
            SamplingOptions options = session.samplingOptions();
            check(options.onContextFull == ContextFull.STOP && options.nKeep == 0, options.nKeep);
            options.nKeep = 4;
            thrown(ElizaException.InvalidArgument.class, "nKeep is 4", () -> session.configure(options));
            options.onContextFull = ContextFull.SHIFT;
            session.configure(options);
            check(session.samplingOptions().onContextFull == ContextFull.SHIFT && session.samplingOptions().nKeep == 4, "not kept");
            Host.Result shifted = greedy(session, 150);
            same(shifted.reason, FinishReason.LENGTH);
            same(shifted.tokens.size(), 150);
            same(shifted.tokens.subList(0, full.tokens.size()), full.tokens);
            check(session.usage().contextShifts > 1, session.usage().contextShifts);
            options.nKeep = -1;
            thrown(ElizaException.InvalidArgument.class, "nKeep is -1", () -> session.configure(options));
        }
    }

    /** Every sampler has its options; wrong ones are named. */
    private static void chained(Session session) throws Exception {
        SamplingOptions before = session.samplingOptions();
        SamplingOptions options = session.samplingOptions();
        check(options.generator == Generator.COUNTER && options.mirostat == 0 && options.dryLastN == 64, options.dryLastN);
        options.generator = Generator.MT19937;
        options.samplers = "dry;typ_p;xtc;temperature";
        options.dryMultiplier = 0.5f;
        options.dryBreakers = new String[] {"a", "\n"};
        options.typicalP = 0.75f;
        options.xtcProbability = 0.25f;
        options.dynatempRange = 0.125f;
        options.adaptiveTarget = 0.5f;
        options.minKeep = 2;
        options.reasoningBudget = 10;
        options.reasoningStart = "a";
        options.reasoningEnd = "b";
        session.configure(options);
        SamplingOptions now = session.samplingOptions();
        check(now.generator == Generator.MT19937 && now.dryMultiplier == 0.5f && now.typicalP == 0.75f, now.typicalP);
        check(now.xtcProbability == 0.25f && now.dynatempRange == 0.125f && now.adaptiveTarget == 0.5f, now.dynatempRange);
        check(now.minKeep == 2 && now.reasoningBudget == 10, now.minKeep);
        options.mirostat = 3;
        thrown(ElizaException.InvalidArgument.class, "mirostat is 3", () -> session.configure(options));
        options.mirostat = 2;
        options.samplers = "top_q";
        thrown(ElizaException.InvalidArgument.class, "top_q", () -> session.configure(options));
        // Null would keep the order that is in force.
        before.samplers = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        session.configure(before);
    }

    private static void samplingOptions() throws Exception {
        try (Session session = open(512)) {
            SamplingOptions options = session.samplingOptions();
            check(options.seed == -1 && options.topK == 40 && options.stop.length == 0, options.seed);
            options.ignoreEos = true;
            List<List<Integer>> drawn = new ArrayList<>();
            for (int seed : new int[] {1, 1, 2}) {
                options.seed = seed;
                session.configure(options);
                session.prefill(PROMPT);
                session.generate(60, 1, 1);
                drawn.add(pull(session).tokens);
            }
            same(drawn.get(0), drawn.get(1));
            check(!drawn.get(0).equals(drawn.get(2)), "two seeds draw the same");
            same(session.samplingOptions().seed, 2L);
            chained(session);
            same(session.samplingOptions().ignoreEos, true);

            Host.Result free = greedy(session, 60);
            options.logitBiasIds = new int[] {free.tokens.get(0)};
            options.logitBiasValues = new float[] {Float.NEGATIVE_INFINITY};
            session.configure(options);
            check(!greedy(session, 20).tokens.contains(free.tokens.get(0)), "a forbidden token");
            options.logitBiasValues = new float[] {1, 2};
            thrown(ElizaException.InvalidArgument.class, "logitBiasValues 2", () -> session.configure(options));
            options.logitBiasIds = new int[0];
            options.logitBiasValues = new float[0];

            int at = free.text.length() / 2;
            at -= Character.isLowSurrogate(free.text.charAt(at)) ? 1 : 0;
            String stop = new String(Character.toChars(free.text.codePointAt(at)));
            options.stop = new String[] {"never in any text at all \u00e9", stop};
            session.configure(options);
            Host.Result stopped = greedy(session, 60);
            same(stopped.reason, FinishReason.STOP);
            same(stopped.text.toString(), free.text.substring(0, free.text.indexOf(stop)));
            options.stop = new String[] {"a", ""};
            thrown(ElizaException.InvalidArgument.class, "stop[1] is empty", () -> session.configure(options));
            options.stop = new String[0];
            options.minP = Float.NaN;
            thrown(ElizaException.InvalidArgument.class, "min_p", () -> session.configure(options));
        }
    }

    private static void chains() throws Exception {
        try (Session session = open(256)) {
            ignoreEos(session);
            Host.Result greedy = greedy(session, 20);
            session.setChain(Session.FRESH_SLOT, "top_k=1;temp=1.5");
            session.prefill(PROMPT);
            session.generate(20, Float.NaN, Float.NaN);
            same(pull(session).tokens, greedy.tokens);
            thrown(ElizaException.InvalidArgument.class, "top_q", () -> session.setChain(-1, "top_q=1"));
            thrown(ElizaException.InvalidArgument.class, "99", () -> session.setChain(99, "temp=1"));
            session.setChain(-1, null);
        }
    }
}
