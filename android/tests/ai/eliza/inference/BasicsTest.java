package ai.eliza.inference;

import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.open;
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
import java.util.Map;

/** What needs no stream: loading, versions, failures, files, options, tokens. */
final class BasicsTest {
    private BasicsTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("nothing is loaded early", BasicsTest::nothingIsLoadedEarly);
        cases.put("versions", BasicsTest::versions);
        cases.put("failures by code", BasicsTest::failuresByCode);
        cases.put("bytes", BasicsTest::bytes);
        cases.put("vulkan is not touched", BasicsTest::vulkanIsNotTouched);
        cases.put("wrong files", BasicsTest::wrongFiles);
        cases.put("wrong options", BasicsTest::wrongOptions);
        cases.put("progress", BasicsTest::progress);
        cases.put("closed sessions", BasicsTest::closedSessions);
        cases.put("tokens and back", BasicsTest::tokensAndBack);
    }

    private static void nothingIsLoadedEarly() throws Exception {
        for (String name : new String[] {"ElizaInference", "Session", "Native", "ElizaException", "OpenOptions"}) {
            Class.forName("ai.eliza.inference." + name);
        }
        check(!maps().contains("elizainference_jni"), "looking at the classes loads the library");
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
            {-60, ElizaException.RefusedSlot.class, "slot: the saved slot was refused: magic: "},
            {-70, ElizaException.Remote.class, "vllm:http://host: "},
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

    private static String maps() throws Exception {
        Path maps = Paths.get("/proc/self/maps");
        return Files.exists(maps) ? new String(Files.readAllBytes(maps), StandardCharsets.UTF_8) : "";
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
            new OpenOptions(Host.model).contextSize(-1),
            new OpenOptions(Host.model).threads(-1),
            new OpenOptions(Host.model).slots(-1),
            new OpenOptions(Host.model).slots(17),
            new OpenOptions(Host.model).gpuLayers(-2),
            new OpenOptions(Host.model).kvType("q9"),
        };
        String[] reasons = {"contextSize is -1", "threads is -1", "slots is -1", "17 slots", "gpuLayers is -2", "q9"};
        for (int i = 0; i < refused.length; i++) {
            OpenOptions options = refused[i];
            thrown(ElizaException.InvalidArgument.class, reasons[i], () -> ElizaInference.open(options));
        }
        OpenOptions all = new OpenOptions(Host.model).contextSize(256).threads(1).slots(2).kvType("f32").gpuLayers(0);
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
        ElizaInference.open(new OpenOptions(Host.model).progress(listens)).close();
        check(!heard.isEmpty() && heard.get(heard.size() - 1) == 1, heard);
        same(thrown(ElizaException.Cancelled.class, "Cancelled",
            () -> ElizaInference.open(new OpenOptions(Host.model).progress(fraction -> false))).code(), -7);
        IllegalStateException mine = new IllegalStateException("mine");
        same(thrown(IllegalStateException.class, "mine", () -> ElizaInference.open(new OpenOptions(Host.model).progress(fraction -> {
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
            () -> session.generate(5, 0, 1, new Host.Recorder(false)),
            session::next,
            () -> session.poll(0),
            () -> session.saveSlot(-1, "a"),
            () -> session.restoreSlot(-1, "a"),
            session::cancel,
            session::samplingOptions,
            () -> session.configure(options),
            () -> session.setChain(-1, null),
            () -> session.buildTokenTrie("a", Arrays.asList("b"), "", "", false),
            () -> session.setTokenTrie("{}", TrieMode.GREEDY),
            session::clearTokenTrie,
            () -> session.armTokenTrie(null),
            session::scoreTokenTrie,
            session::usage,
            session::usageJson,
            session::describeJson,
            session::metadataJson,
            () -> session.metadataJson("a"),
            () -> session.isEog(0),
            () -> session.tokenJson(0),
            () -> session.logits(1),
            () -> session.sampled(0),
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
}
