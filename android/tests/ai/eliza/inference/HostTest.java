package ai.eliza.inference;

import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** A host on the Java machine: every call, every conversion, every way a generation can end. */
final class HostTest {
    private static final String PROMPT = "Once upon a time";
    private static final List<String> NAMES = Arrays.asList("Tom", "Lily", "Ben", "Lucy", "Max");

    private static String model;

    private HostTest() {}

    public static void main(String[] arguments) throws Exception {
        model = arguments[0];
        // Native code must be as quiet as this says: what it wrote would stand between these lines.
        Object[][] cases = {
            {"nothing is loaded early", (Testing.Call) HostTest::nothingIsLoadedEarly},
            {"versions", (Testing.Call) HostTest::versions},
            {"failures by code", (Testing.Call) HostTest::failuresByCode},
            {"bytes", (Testing.Call) HostTest::bytes},
            {"vulkan is not touched", (Testing.Call) HostTest::vulkanIsNotTouched},
            {"wrong files", (Testing.Call) HostTest::wrongFiles},
            {"wrong options", (Testing.Call) HostTest::wrongOptions},
            {"progress", (Testing.Call) HostTest::progress},
            {"closed sessions", (Testing.Call) HostTest::closedSessions},
            {"tokens and back", (Testing.Call) HostTest::tokensAndBack},
            {"prompts", (Testing.Call) HostTest::prompts},
            {"every way gives the same", (Testing.Call) HostTest::everyWayGivesTheSame},
            {"wrong calls", (Testing.Call) HostTest::wrongCalls},
            {"lengths", (Testing.Call) HostTest::lengths},
            {"sampling options", (Testing.Call) HostTest::samplingOptions},
            {"chains", (Testing.Call) HostTest::chains},
            {"busy while generating", (Testing.Call) HostTest::busyWhileGenerating},
            {"cancel", (Testing.Call) HostTest::cancel},
            {"cancel at random moments", (Testing.Call) HostTest::cancelAtRandomMoments},
            {"cancel a prefill", (Testing.Call) HostTest::cancelPrefill},
            {"interrupts", (Testing.Call) HostTest::interrupts},
            {"a listener that throws", (Testing.Call) HostTest::listenerThatThrows},
            {"a listener that goes on", (Testing.Call) HostTest::listenerThatGoesOn},
            {"close in a listener", (Testing.Call) HostTest::closeInListener},
            {"close under other threads", (Testing.Call) HostTest::closeUnderOtherThreads},
            {"eight threads", (Testing.Call) HostTest::eightThreads},
            {"garbage collection", (Testing.Call) HostTest::garbageCollection},
            {"tries", (Testing.Call) HostTest::tries},
            {"names", (Testing.Call) HostTest::names},
            {"scores", (Testing.Call) HostTest::scores},
            {"refused payloads", (Testing.Call) HostTest::refusedPayloads},
        };
        for (Object[] one : cases) {
            long begin = System.nanoTime();
            try {
                ((Testing.Call) one[1]).run();
            } catch (Throwable failed) {
                System.out.println("FAILED " + one[0]);
                failed.printStackTrace(System.out);
                System.exit(1);
            }
            System.out.println("ok " + one[0] + " (" + (System.nanoTime() - begin) / 1000000 + " ms)");
        }
    }

    private static Session open(int context) {
        return ElizaInference.open(new OpenOptions(model).contextSize(context).threads(2));
    }

    private static void ignoreEos(Session session) {
        SamplingOptions options = session.samplingOptions();
        options.ignoreEos = true;
        session.configure(options);
    }

    /** What a generation gave. */
    private static final class Result {
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

    private static Result pull(Session session) throws InterruptedException {
        Result result = new Result();
        while (result.reason == FinishReason.NONE) {
            result.add(session.next());
        }
        return result;
    }

    private static Result greedy(Session session, int maxNewTokens) throws InterruptedException {
        session.prefill(PROMPT);
        session.generate(maxNewTokens, 0, 1);
        return pull(session);
    }

    /** A listener that keeps what it hears, checks that the end comes once, and can be held and told to act. */
    private static class Recorder implements StepListener {
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

    private static void await(CountDownLatch latch) {
        try {
            check(latch.await(60, TimeUnit.SECONDS), "nothing came for a minute");
        } catch (InterruptedException interrupted) {
            throw new AssertionError(interrupted);
        }
    }

    private static void nothingIsLoadedEarly() throws Exception {
        for (String name : new String[] {"ElizaInference", "Session", "Native", "ElizaException", "OpenOptions"}) {
            Class.forName("ai.eliza.inference." + name);
        }
        check(!maps().contains("elizainference_jni"), "looking at the classes loads the library");
    }

    private static String maps() throws Exception {
        Path maps = Paths.get("/proc/self/maps");
        return Files.exists(maps) ? new String(Files.readAllBytes(maps), StandardCharsets.UTF_8) : "";
    }

    private static void versions() {
        check(ElizaInference.abiVersion().startsWith("eliza-stream/1."), ElizaInference.abiVersion());
        check(ElizaInference.defaultThreadCount() >= 1, ElizaInference.defaultThreadCount());
    }

    private static void failuresByCode() throws Exception {
        Object[][] kinds = {
            {-1, ElizaException.Unsupported.class, "Not supported: "},
            {-2, ElizaException.InvalidArgument.class, "Invalid argument: "},
            {-3, ElizaException.InvalidModel.class, "Model cannot be loaded: "},
            {-4, ElizaException.Fault.class, "Internal fault: "},
            {-5, ElizaException.OutOfMemory.class, "Out of memory: "},
            {-7, ElizaException.Cancelled.class, "Cancelled"},
            {-10, ElizaException.Io.class, "model.gguf: "},
            {-20, ElizaException.NotANumber.class, "row 3"},
            {-30, ElizaException.RefusedTrie.class, "descriptors[0]: "},
            {-40, ElizaException.Busy.class, "Busy: "},
            {-50, ElizaException.Device.class, "Device failure: "},
        };
        String why = "h\u00e9 \ud83d\ude00 \0 why";
        for (Object[] kind : kinds) {
            int code = (Integer) kind[0];
            boolean plain = code == -7 || code == -20;
            Class<? extends ElizaException> type = ((Class<?>) kind[1]).asSubclass(ElizaException.class);
            ElizaException failure = thrown(type, kind[2] + (plain ? "" : why), () -> Testing.fail(code, Utf8.direct(why, "why")));
            same(failure.code(), code);
        }
        Testing.fail(-6, Utf8.direct(why, "why"));
        ElizaException fault = thrown(ElizaException.Fault.class, "a beam broke",
            () -> Testing.panic(Utf8.direct("a beam broke", "why")));
        same(fault.code(), -4);
        check(fault.getMessage().contains("testing.rs:"), fault);
        same(ElizaException.of(-99, "new").getClass(), ElizaException.class);
    }

    private static void bytes() throws Exception {
        for (String text : new String[] {"", "a", "h\u00e9llo \ud83d\ude00 \0 end"}) {
            same(new String(Testing.echo(Utf8.direct(text, "text")), StandardCharsets.UTF_8), text);
        }
        thrown(ElizaException.InvalidArgument.class, "text", () -> Utf8.direct("half \ud83d", "text"));
        int[] ends = new int[3];
        Utf8.direct(new String[] {"\u00e9", "", "ab"}, "names", ends);
        same(Arrays.toString(ends), "[2, 2, 4]");
        // A buffer that is not direct is a fault of the caller, not of the process.
        thrown(ElizaException.Fault.class, "JNI", () -> Testing.echo(java.nio.ByteBuffer.allocate(4)));
    }

    private static void vulkanIsNotTouched() throws Exception {
        try (Session session = open(256)) {
            greedy(session, 5);
            check(!maps().contains("libvulkan"), "a session on the CPU loads the Vulkan loader");
        }
    }

    private static void wrongFiles() throws Exception {
        ElizaException missing = thrown(ElizaException.Io.class, "/no/such/m\u00f6del \ud83d\ude00.gguf",
            () -> ElizaInference.open("/no/such/m\u00f6del \ud83d\ude00.gguf"));
        same(missing.code(), -10);
        Path wrong = Files.createTempFile("\u00e4 model", ".gguf");
        Files.write(wrong, "this is not a model at all".getBytes(StandardCharsets.UTF_8));
        same(thrown(ElizaException.InvalidModel.class, "magic", () -> ElizaInference.open(wrong.toString())).code(), -3);
        Files.delete(wrong);
        thrown(NullPointerException.class, "", () -> {
            try {
                ElizaInference.open((String) null);
            } catch (NullPointerException nothing) {
                throw new NullPointerException("as everywhere in Java");
            }
        });
    }

    private static void wrongOptions() throws Exception {
        OpenOptions[] refused = {
            new OpenOptions(model).contextSize(-1),
            new OpenOptions(model).threads(-1),
            new OpenOptions(model).slots(-1),
            new OpenOptions(model).slots(17),
            new OpenOptions(model).gpuLayers(-2),
            new OpenOptions(model).kvType("q9"),
        };
        String[] reasons = {"contextSize is -1", "threads is -1", "slots is -1", "17 slots", "gpuLayers is -2", "q9"};
        for (int i = 0; i < refused.length; i++) {
            OpenOptions options = refused[i];
            thrown(ElizaException.InvalidArgument.class, reasons[i], () -> ElizaInference.open(options));
        }
        OpenOptions all = new OpenOptions(model).contextSize(256).threads(1).slots(2).kvType("f32").gpuLayers(0);
        try (Session session = ElizaInference.open(all)) {
            check(session.usageJson().contains("\"context\":256"), session.usageJson());
        }
    }

    private static void progress() throws Exception {
        List<Float> heard = new ArrayList<>();
        Thread here = Thread.currentThread();
        LoadListener listens = fraction -> {
            same(Thread.currentThread(), here);
            heard.add(fraction);
            return true;
        };
        ElizaInference.open(new OpenOptions(model).progress(listens)).close();
        check(!heard.isEmpty() && heard.get(heard.size() - 1) == 1, heard);
        same(thrown(ElizaException.Cancelled.class, "Cancelled",
            () -> ElizaInference.open(new OpenOptions(model).progress(fraction -> false))).code(), -7);
        IllegalStateException mine = new IllegalStateException("mine");
        same(thrown(IllegalStateException.class, "mine", () -> ElizaInference.open(new OpenOptions(model).progress(fraction -> {
            throw mine;
        }))), mine);
    }

    private static void closedSessions() throws Exception {
        Session session = open(256);
        SamplingOptions options = session.samplingOptions();
        session.close();
        session.close();
        Testing.Call[] calls = {
            () -> session.tokenize("a"),
            () -> session.detokenize(new int[] {1}),
            () -> session.prefill("a"),
            () -> session.prefill(new int[] {1}, 0),
            () -> session.generate(5, 0, 1),
            () -> session.generate(5, 0, 1, new Recorder(false)),
            session::next,
            () -> session.poll(0),
            session::cancel,
            session::samplingOptions,
            () -> session.configure(options),
            () -> session.setChain(-1, null),
            () -> session.buildTokenTrie("a", NAMES, "", "", false),
            () -> session.setTokenTrie("{}", TrieMode.GREEDY),
            session::clearTokenTrie,
            () -> session.armTokenTrie(null),
            session::scoreTokenTrie,
            session::usage,
            session::usageJson,
        };
        for (Testing.Call call : calls) {
            same(thrown(ElizaException.Closed.class, "closed", call).code(), -1);
        }
        session.close();
        for (long foreign : new long[] {0, -1, Long.MAX_VALUE, Long.MIN_VALUE}) {
            thrown(ElizaException.Closed.class, "closed", () -> Native.usage(foreign));
            Native.close(foreign);
        }
    }

    private static void tokensAndBack() throws Exception {
        try (Session session = open(256)) {
            String text = "Once upon a time, h\u00e9llo \ud83d\ude00\n";
            int[] tokens = session.tokenize(text);
            check(tokens.length > 3 && session.detokenize(tokens).contains(text), session.detokenize(tokens));
            same(session.tokenize("", false, false).length, 0);
            same(session.detokenize(new int[0]), "");
            thrown(ElizaException.InvalidArgument.class, "tokens[1] is 1073741824",
                () -> session.detokenize(new int[] {1, 1 << 30}));
            thrown(ElizaException.InvalidArgument.class, "tokens[0] is -1", () -> session.detokenize(new int[] {-1}));
            thrown(ElizaException.InvalidArgument.class, "surrogate", () -> session.tokenize("\ude00"));
        }
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
        Result whole;
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
            Result polled = new Result();
            for (int i = 0; polled.reason == FinishReason.NONE; i++) {
                Step step = session.poll(i < 20 ? 0 : 5);
                if (step != null) {
                    polled.add(step);
                }
            }
            same(polled.tokens, whole.tokens);
            same(polled.text.toString(), whole.text.toString());

            Recorder recorder = new Recorder(false);
            session.prefill(PROMPT);
            session.generate(100, 0, 1, recorder);
            same(recorder.end().tokens, whole.tokens);
            same(recorder.result.text.toString(), whole.text.toString());
            same(recorder.result.reason, FinishReason.LENGTH);
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
            thrown(ElizaException.Busy.class, "prefill", () -> session.generate(5, 0, 1, new Recorder(false)));
            Recorder held = new Recorder(true);
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
            Result none = greedy(session, 0);
            check(none.tokens.isEmpty() && none.text.length() == 0 && none.reason == FinishReason.LENGTH, none.tokens);
            Result full = greedy(session, -1);
            same(full.reason, FinishReason.CONTEXT);
            Usage usage = session.usage();
            same(usage.finishReason, FinishReason.CONTEXT);
            same(usage.completionTokens, (long) full.tokens.size());
            check(usage.promptTokens + usage.completionTokens >= 256, usage.completionTokens);
            check(usage.firstTokenMicros > 0 && usage.decodeMicros >= usage.firstTokenMicros, usage.decodeMicros);
        }
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
            same(session.samplingOptions().ignoreEos, true);

            Result free = greedy(session, 60);
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
            Result stopped = greedy(session, 60);
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
            Result greedy = greedy(session, 20);
            session.setChain(Session.FRESH_SLOT, "top_k=1;temp=1.5");
            session.prefill(PROMPT);
            session.generate(20, Float.NaN, Float.NaN);
            same(pull(session).tokens, greedy.tokens);
            thrown(ElizaException.InvalidArgument.class, "top_q", () -> session.setChain(-1, "top_q=1"));
            thrown(ElizaException.InvalidArgument.class, "99", () -> session.setChain(99, "temp=1"));
            session.setChain(-1, null);
        }
    }

    private static void busyWhileGenerating() throws Exception {
        try (Session session = Testing.noop(model, Session.STEP_TOKENS)) {
            SamplingOptions options = session.samplingOptions();
            Recorder recorder = new Recorder(true);
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, recorder);
            await(recorder.began);
            Testing.Call[] calls = {
                () -> session.generate(5, 0, 1),
                () -> session.generate(5, 0, 1, new Recorder(false)),
                () -> session.prefill(PROMPT),
                () -> session.configure(options),
                () -> session.setChain(-1, "temp=0.5"),
                () -> session.setTokenTrie("{}", TrieMode.GREEDY),
                session::clearTokenTrie,
                () -> session.armTokenTrie(null),
                session::scoreTokenTrie,
            };
            for (Testing.Call call : calls) {
                same(thrown(ElizaException.Busy.class, "Busy", call).code(), -40);
            }
            thrown(ElizaException.InvalidArgument.class, "listener", session::next);
            check(session.tokenize("a").length > 0 && session.usage().finishReason == FinishReason.NONE, session.usage());
            session.cancel();
            // The worker is free soon, but the listener has not heard it.
            while (session.usage().finishReason == FinishReason.NONE) {
                Thread.sleep(1);
            }
            thrown(ElizaException.Busy.class, "listener", () -> session.prefill(PROMPT));
            thrown(ElizaException.Busy.class, "listener", () -> session.generate(5, 0, 1));
            recorder.gate.countDown();
            same(recorder.end().reason, FinishReason.CANCELLED);
            same(greedy(session, 5).tokens.size(), 5);
        }
    }

    private static void cancel() throws Exception {
        try (Session session = open(512)) {
            ignoreEos(session);
            session.cancel();
            same(greedy(session, 5).tokens.size(), 5);
            session.prefill(PROMPT);
            session.cancel();
            session.generate(5, 0, 1);
            same(pull(session).tokens.size(), 5);
            session.prefill(PROMPT);
            session.generate(-1, 0, 1);
            session.cancel();
            FinishReason reason = pull(session).reason;
            check(reason == FinishReason.CANCELLED || reason == FinishReason.CONTEXT, reason);
            same(greedy(session, 5).tokens.size(), 5);
        }
        try (Session session = Testing.noop(model, 1)) {
            Recorder recorder = new Recorder(false) {
                @Override
                void act(Step step) {
                    if (result.tokens.size() == 5) {
                        session.cancel();
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, recorder);
            same(recorder.end().reason, FinishReason.CANCELLED);
        }
    }

    private static void cancelAtRandomMoments() throws Exception {
        Random random = new Random(7);
        try (Session session = open(1024)) {
            ignoreEos(session);
            Result whole = greedy(session, 200);
            for (int round = 0; round < 60; round++) {
                Recorder recorder = new Recorder(false);
                session.prefill(PROMPT);
                session.generate(200, 0, 1, recorder);
                long moment = System.nanoTime() + random.nextInt(15000000);
                while (System.nanoTime() < moment && recorder.ended.getCount() > 0) {
                    Thread.yield();
                }
                session.cancel();
                Result result = recorder.end();
                check(result.reason == FinishReason.CANCELLED || result.reason == FinishReason.LENGTH, result.reason);
                same(result.tokens, whole.tokens.subList(0, result.tokens.size()));
                check(whole.text.toString().startsWith(result.text.toString().replaceAll("\ufffd*$", "")), result.text);
            }
        }
    }

    private static void cancelPrefill() throws Exception {
        try (Session session = open(512)) {
            int[] prompt = new int[500];
            int[] tokens = session.tokenize(PROMPT);
            for (int round = 0; round < 10; round++) {
                for (int i = 0; i < prompt.length; i++) {
                    prompt[i] = tokens[(i * 7 + i / 3 + round) % tokens.length];
                }
                Thread canceller = new Thread(session::cancel);
                canceller.start();
                try {
                    session.prefill(prompt, -1);
                } catch (ElizaException.Cancelled cancelled) {
                    same(cancelled.code(), -7);
                }
                canceller.join();
            }
            session.prefill(prompt, -1);
            same(session.usage().promptTokens, 500L);
        }
    }

    private static void interrupts() throws Exception {
        try (Session session = Testing.noop(model, 1)) {
            session.prefill(PROMPT);
            session.generate(-1, 0, 1);
            Thread.currentThread().interrupt();
            thrown(InterruptedException.class, "interrupted", () -> {
                try {
                    session.next();
                } catch (InterruptedException interrupted) {
                    throw new InterruptedException("interrupted");
                }
            });
            same(session.next().tokens().length, 1);
            session.cancel();
        }
        // In the middle of a wait that nothing else ends: the worker is held by a listener's thread of another session's pool.
        try (Session session = open(512)) {
            session.prefill(PROMPT);
            session.generate(1, 0, 1);
            pull(session);
            AtomicReference<Throwable> outcome = new AtomicReference<>();
            Thread waiter = new Thread(() -> {
                try {
                    session.prefill(PROMPT);
                    session.generate(-1, 0, 1);
                    while (!session.next().done()) {
                        Thread.sleep(1000);
                    }
                } catch (Throwable thrown) {
                    outcome.set(thrown);
                }
            });
            waiter.start();
            Thread.sleep(20);
            waiter.interrupt();
            waiter.join(30000);
            check(!waiter.isAlive(), "an interrupted wait goes on");
            session.cancel();
        }
    }

    private static void listenerThatThrows() throws Exception {
        AtomicReference<Throwable> uncaught = new AtomicReference<>();
        CountDownLatch caught = new CountDownLatch(1);
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, thrown) -> {
            uncaught.set(thrown);
            caught.countDown();
        });
        try (Session session = Testing.noop(model, 1)) {
            IllegalStateException mine = new IllegalStateException("mine");
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, new Recorder(false) {
                @Override
                void act(Step step) {
                    throw mine;
                }
            });
            await(caught);
            same(uncaught.get(), mine);
            // The generation was cancelled, and the session goes on.
            while (session.usage().finishReason == FinishReason.NONE) {
                Thread.sleep(1);
            }
            same(session.usage().finishReason, FinishReason.CANCELLED);
            same(greedy(session, 5).tokens.size(), 5);
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
        thrown(NullPointerException.class, "listener", () -> {
            try (Session session = open(256)) {
                session.prefill(PROMPT);
                session.generate(5, 0, 1, null);
            }
        });
    }

    /** In its last step a listener may begin the next turn. */
    private static void listenerThatGoesOn() throws Exception {
        try (Session session = open(512)) {
            ignoreEos(session);
            Recorder second = new Recorder(false);
            Recorder first = new Recorder(false) {
                @Override
                void act(Step step) {
                    if (step.done()) {
                        session.prefill(PROMPT);
                        session.generate(20, 0, 1, second);
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(20, 0, 1, first);
            first.end();
            same(second.end().tokens, first.result.tokens);
        }
    }

    private static void closeInListener() throws Exception {
        for (int round = 0; round < 10; round++) {
            Session session = Testing.noop(model, 1);
            int last = round;
            Recorder recorder = new Recorder(false) {
                @Override
                void act(Step step) {
                    if (result.tokens.size() == last) {
                        session.close();
                        session.close();
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(100, 0, 1, recorder);
            Result result = recorder.end();
            check(result.reason == FinishReason.CANCELLED || last == 0, result.reason);
            session.close();
            thrown(ElizaException.Closed.class, "closed", session::usage);
        }
    }

    private static void closeUnderOtherThreads() throws Exception {
        for (int round = 0; round < 20; round++) {
            Session session = round % 2 == 0 ? Testing.noop(model, 1) : open(512);
            AtomicReference<Throwable> outcome = new AtomicReference<>();
            Thread busy = new Thread(() -> {
                try {
                    for (;;) {
                        session.prefill(PROMPT);
                        session.generate(200, 0, 1);
                        pull(session);
                        session.usage();
                        session.tokenize(PROMPT);
                    }
                } catch (Throwable thrown) {
                    outcome.set(thrown);
                }
            });
            busy.start();
            Thread.sleep(round / 2);
            session.close();
            busy.join(60000);
            check(!busy.isAlive(), "a call hangs on a closed session");
            Throwable thrown = outcome.get();
            check(thrown instanceof ElizaException.Closed || thrown instanceof ElizaException.Busy
                || thrown instanceof ElizaException.Cancelled || thrown instanceof ElizaException.InvalidArgument, thrown);
        }
    }

    private static void eightThreads() throws Exception {
        List<Integer> alone;
        try (Session session = open(256)) {
            ignoreEos(session);
            alone = greedy(session, 60).tokens;
        }
        Thread[] threads = new Thread[8];
        List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < threads.length; i++) {
            boolean listens = i % 2 == 0;
            threads[i] = new Thread(() -> {
                try (Session session = open(256)) {
                    ignoreEos(session);
                    for (int round = 0; round < 5; round++) {
                        session.prefill(PROMPT);
                        Result result;
                        if (listens) {
                            Recorder recorder = new Recorder(false);
                            session.generate(60, 0, 1, recorder);
                            result = recorder.end();
                        } else {
                            session.generate(60, 0, 1);
                            result = pull(session);
                        }
                        same(result.tokens, alone);
                    }
                } catch (Throwable failed) {
                    failures.add(failed);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        check(failures.isEmpty(), failures);
    }

    /** Two hundred generations while the collector runs: the process does not grow. */
    private static void garbageCollection() throws Exception {
        try (Session session = open(256)) {
            ignoreEos(session);
            List<Integer> whole = greedy(session, 30).tokens;
            long warm = 0;
            for (int round = 0; round < 200; round++) {
                Recorder recorder = new Recorder(false);
                session.prefill(PROMPT);
                session.generate(30, 0, 1, recorder);
                if (round % 25 == 0) {
                    System.gc();
                }
                if (round % 20 == 0) {
                    open(256).close();
                }
                same(recorder.end().tokens, whole);
                if (round == 99) {
                    warm = residentKib();
                }
            }
            System.gc();
            long now = residentKib();
            check(now <= warm + warm / 20, "resident memory went from " + warm + " to " + now + " KiB");
        }
    }

    private static long residentKib() throws Exception {
        Path status = Paths.get("/proc/self/status");
        if (!Files.exists(status)) {
            return 0;
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        throw new AssertionError("no VmRSS");
    }

    private static String payload(Session session) {
        StringBuilder json = new StringBuilder("{\"modelId\":\"\",\"descriptors\":[");
        json.append(descriptor(session, "hero", NAMES.subList(0, 3))).append(',');
        return json.append(descriptor(session, "friend", NAMES.subList(3, 5))).append("]}").toString();
    }

    private static String descriptor(Session session, String path, List<String> names) {
        List<String> leaves = new ArrayList<>();
        for (String name : names) {
            int[] tokens = session.tokenize(name, false, false);
            leaves.add("{\"name\":\"" + name + "\",\"tokens\":" + Arrays.toString(tokens) + "}");
        }
        return "{\"path\":\"" + path + "\",\"leaves\":[" + String.join(",", leaves) + "]}";
    }

    private static Session openForSpans() {
        Session session = open(512);
        SamplingOptions options = session.samplingOptions();
        options.stopAtSpanEnd = true;
        session.configure(options);
        return session;
    }

    private static String span(Session session, List<String> names) throws InterruptedException {
        session.generate(50, 1.5f, 1);
        Result result = pull(session);
        same(result.reason, FinishReason.SPAN);
        String name = result.text.toString().trim();
        check(names.contains(name), name);
        check(session.usage().spanTokens == result.tokens.size(), session.usage().spanTokens);
        return name;
    }

    private static void tries() throws Exception {
        List<String> heroes = NAMES.subList(0, 3);
        List<String> friends = NAMES.subList(3, 5);
        try (Session session = openForSpans()) {
            String json = payload(session);
            for (TrieMode mode : TrieMode.values()) {
                if (mode == TrieMode.SAMPLED) {
                    AospStreamingLlmBinding.llmStreamSetTokenTrie(session, json, 1);
                } else {
                    session.setTokenTrie(json, mode);
                }
                session.prefill(PROMPT);
                span(session, heroes);
                session.armTokenTrie("friend");
                session.prefill(PROMPT);
                span(session, friends);
                session.armTokenTrie(null);
                session.prefill(PROMPT);
                span(session, heroes);
            }
            thrown(ElizaException.InvalidArgument.class, "villain", () -> session.armTokenTrie("villain"));
            AospStreamingLlmBinding.llmStreamClearTokenTrie(session);
            session.clearTokenTrie();
            same(greedy(session, 30).tokens.size(), (int) session.usage().completionTokens);
            same(session.usage().spanTokens, 0L);
        }
    }

    private static void names() throws Exception {
        try (Session session = openForSpans()) {
            List<String> names = new ArrayList<>(Arrays.asList("REPLY", "REPLY_ALL", "h\u00e9 \ud83d\ude00", "\"q\""));
            TokenTrie trie = session.buildTokenTrie("action", names, "action: ", "|", false);
            session.setTokenTrie(trie.json(), TrieMode.SAMPLED);
            session.prefill("Once upon a time, action: ");
            session.generate(80, 1.5f, 1);
            Result result = pull(session);
            same(result.reason, FinishReason.SPAN);
            String text = result.text.toString();
            check(text.endsWith("|") && names.contains(text.substring(0, text.length() - 1)), text);
            names.add("REPLY");
            trie = session.buildTokenTrie("action", names, "", "", false);
            check(trie.warnings().size() >= 2 && trie.warnings().toString().contains("REPLY"), trie.warnings());
            thrown(ElizaException.InvalidArgument.class, "no names",
                () -> session.buildTokenTrie("action", new ArrayList<>(), "", "", false));
            thrown(ElizaException.InvalidArgument.class, "empty",
                () -> session.buildTokenTrie("action", Arrays.asList("a", ""), "", "", false));
            // More names than a native method has references for.
            List<String> many = new ArrayList<>();
            for (int i = 0; i < 200; i++) {
                many.add("name " + i + ".");
            }
            session.setTokenTrie(session.buildTokenTrie("many", many, "", "", false).json(), TrieMode.GREEDY);
            session.prefill(PROMPT);
            same(session.scoreTokenTrie().size(), 200);
        }
    }

    private static void scores() throws Exception {
        try (Session session = openForSpans()) {
            thrown(ElizaException.InvalidArgument.class, "no token trie", session::scoreTokenTrie);
            session.setTokenTrie(payload(session), TrieMode.SCORE_LEAVES);
            same(thrown(ElizaException.Busy.class, "prefill", session::scoreTokenTrie).code(), -40);
            for (String path : new String[] {"hero", "friend"}) {
                session.armTokenTrie(path);
                session.prefill(PROMPT);
                List<LeafScore> scores = session.scoreTokenTrie();
                same(scores.size(), path.equals("hero") ? 3 : 2);
                double before = 0;
                for (LeafScore score : scores) {
                    check(score.path().equals(path) && score.tokens() > 0, score.path());
                    check(score.logprob() <= before && score.logprob() > -1000, score.logprob());
                    before = score.logprob();
                }
                same(span(session, NAMES), scores.get(0).name());
            }
        }
    }

    private static void refusedPayloads() throws Exception {
        String head = "{\"modelId\":\"\",\"descriptors\":[{\"path\":\"a\",\"leaves\":[{\"name\":\"\ud83d\ude00\",\"tokens\":";
        String[] refused = {"", "{", "[]", "{\"descriptors\":[]}", head + "[1073741824]}]}]}", head + "[-1]}]}]}", head + "\"1\"}]}]}"};
        String[] reasons = {"", "", "", "", "1073741824", "-1", "tokens"};
        try (Session session = open(256)) {
            String good = payload(session);
            for (int i = 0; i < refused.length; i++) {
                String json = refused[i];
                same(thrown(ElizaException.RefusedTrie.class, reasons[i],
                    () -> session.setTokenTrie(json, TrieMode.GREEDY)).code(), -30);
                session.prefill(PROMPT);
                thrown(ElizaException.RefusedTrie.class, reasons[i], () -> session.generate(5, 0, 1));
                thrown(ElizaException.RefusedTrie.class, reasons[i], () -> session.generate(5, 0, 1, new Recorder(false)));
                if (i % 2 == 0) {
                    session.clearTokenTrie();
                } else {
                    session.setTokenTrie(good, TrieMode.GREEDY);
                }
                greedy(session, 5);
                session.clearTokenTrie();
            }
            // As much for a mode that does not exist, by the names of the AOSP adapter.
            thrown(ElizaException.InvalidArgument.class, "mode is 7",
                () -> AospStreamingLlmBinding.llmStreamSetTokenTrie(session, good, 7));
            session.prefill(PROMPT);
            thrown(ElizaException.InvalidArgument.class, "mode is 7", () -> session.generate(5, 0, 1));
            session.clearTokenTrie();
            session.generate(5, 0, 1);
            pull(session);
        }
    }
}
