package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Host.pull;
import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** What a host asks. Run as a program it prints the answers, which are then held against those of the command line. */
final class AskingTest {
    private static final int ROWS = 3;

    private AskingTest() {}

    public static void main(String[] arguments) {
        Host.model = arguments[0];
        answer("devices", ElizaInference.devicesJson());
        answer("plan", ElizaInference.planJson(new OpenOptions(Host.model).contextSize(256).slots(1).kvType("q8_0")));
        answer("metadata", ElizaInference.fileMetadataJson(Host.model));
        try (Session session = open(256)) {
            answer("model", session.describeJson());
            session.prefill(PROMPT);
            StringBuilder bits = new StringBuilder();
            for (float logit : session.logits(ROWS)) {
                bits.append(bits.length() == 0 ? "[" : ",").append(Float.floatToRawIntBits(logit));
            }
            answer("logits", bits.append("]").toString());
        }
    }

    private static void answer(String question, String json) {
        System.out.println(question + " " + json);
    }

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("asked without a session", AskingTest::withoutSession);
        cases.put("asked of a session", AskingTest::ofSession);
        cases.put("log lines", AskingTest::logLines);
        cases.put("logits", AskingTest::logits);
        cases.put("embeddings", AskingTest::embeddings);
        cases.put("ranks", AskingTest::ranks);
        cases.put("sampled tokens", AskingTest::sampled);
        cases.put("a vocabulary alone", AskingTest::vocabularyAlone);
        cases.put("batches and types of the cache", AskingTest::batchesAndTypes);
    }

    private static void embeddings() throws Exception {
        List<String> texts = Arrays.asList(PROMPT, "a little dog");
        try (Session session = open(256)) {
            int[][] tokens = {session.tokenize(texts.get(0)), session.tokenize(texts.get(1))};
            float[][] rows = session.embed(tokens, new EmbedOptions().pooling(Pooling.NONE).normalize(false));
            int width = rows[0].length / tokens[0].length;
            same(tokens[1].length * width, rows[1].length);
            float[][] last = session.embed(tokens, new EmbedOptions().pooling(Pooling.LAST).normalize(false));
            for (int text = 0; text < 2; text++) {
                float[] own = Arrays.copyOfRange(rows[text], rows[text].length - width, rows[text].length);
                check(Arrays.equals(own, last[text]), "the last row of text " + text);
            }
            float[][] cut = session.embed(tokens, new EmbedOptions().pooling(Pooling.MEAN).dimensions(8));
            double squares = 0;
            for (float number : cut[1]) {
                squares += number * number;
            }
            check(cut[1].length == 8 && Math.abs(squares - 1) < 1e-4, "8 numbers of length 1, not " + squares);
            same(0, session.embed(new int[0][], new EmbedOptions()).length);
            thrown(ElizaException.InvalidArgument.class, "text 0 has no tokens",
                () -> session.embed(new int[][] {{}}, new EmbedOptions()));
            thrown(ElizaException.InvalidArgument.class, "classifier", () -> session.rank("Who?", texts));
        }
    }

    private static void ranks() throws Exception {
        String path = Host.model.replaceFirst("[^/]*$", "bert.gguf");
        List<String> texts = Arrays.asList("a little dog", "a little girl");
        try (Session session = ElizaInference.open(path)) {
            float[] scores = session.rank("Who?", texts);
            float[] swapped = session.rank("Who?", Arrays.asList(texts.get(1), texts.get(0)));
            check(Math.abs(scores[0] - swapped[1]) < 1e-4 && scores[0] != scores[1], "scores in the order of the texts");
            same(2, session.embed(texts).length);
            thrown(ElizaException.Unsupported.class, "gives embeddings", () -> session.prefill(PROMPT));
        }
    }

    private static void withoutSession() throws Exception {
        check(ElizaInference.devicesJson().contains("\"kind\":\"cpu\""), ElizaInference.devicesJson());
        OpenOptions small = new OpenOptions(Host.model).contextSize(256);
        check(ElizaInference.planJson(small).contains("\"fits\":true"), ElizaInference.planJson(small));
        thrown(ElizaException.InvalidArgument.class, "gpuLayers is -2", () -> ElizaInference.planJson(small.gpuLayers(-2)));
        thrown(ElizaException.Io.class, "/no/such", () -> ElizaInference.planJson(new OpenOptions("/no/such/model.gguf")));
        String all = ElizaInference.fileMetadataJson(Host.model);
        check(all.contains("\"tokenizer.ggml.tokens\":{\"length\":") || all.contains("\"tokenizer.ggml.tokens\":{\"type\":"), all);
        same(ElizaInference.fileMetadataJson(Host.model, "general.architecture"), "\"llama\"");
        check(ElizaInference.fileMetadataJson(Host.model, "tokenizer.ggml.tokens").startsWith("[\""), "no tokens");
        thrown(ElizaException.InvalidArgument.class, "no.such.key", () -> ElizaInference.fileMetadataJson(Host.model, "no.such.key"));
        thrown(ElizaException.Io.class, "/no/such", () -> ElizaInference.fileMetadataJson("/no/such/model.gguf"));
        thrown(ElizaException.InvalidArgument.class, "surrogate", () -> ElizaInference.fileMetadataJson(Host.model, "\ud83d"));
    }

    private static int vocabulary(String model) {
        return Integer.parseInt(model.replaceFirst(".*\"n_vocab\":(\\d+).*", "$1"));
    }

    private static void ofSession() throws Exception {
        try (Session session = open(256)) {
            String model = session.describeJson();
            check(model.contains("\"architecture\":\"llama\"") && model.contains("\"context\":256"), model);
            same(session.metadataJson(), ElizaInference.fileMetadataJson(Host.model));
            same(session.metadataJson("general.architecture"), "\"llama\"");
            thrown(ElizaException.InvalidArgument.class, "no.such.key", () -> session.metadataJson("no.such.key"));
            String inputs = "{\"messages\": [{\"role\": \"user\", \"content\": \"Once <s>\"}], \"add_generation_prompt\": true}";
            String prompt = session.chatPromptJson(inputs);
            check(prompt.startsWith("{\"text\":\"<s>user: Once <s>\\nassistant:\",\"tokens\":[1,"), prompt);
            check(!prompt.substring(prompt.indexOf('[')).contains(",1,"), prompt);
            thrown(ElizaException.InvalidArgument.class, "messages", () -> session.chatPromptJson("{}"));
            thrown(ElizaException.InvalidArgument.class, "no answer", () -> session.chatPartsJson(null, "a", false));
            same(session.chatPartsJson(inputs, "Hello \ud83d\ude00", false), "[{\"type\":\"answer\",\"text\":\"Hello \ud83d\ude00\"}]");
            same(session.chatPartsJson(null, " there ", false), "[{\"type\":\"answer\",\"text\":\" there\"}]");
            same(session.chatPartsJson(null, "", true), "[{\"type\":\"answer\",\"text\":\" \"}]");
            thrown(ElizaException.InvalidArgument.class, "no answer", () -> session.chatPartsJson(null, "", true));
            // The tokens of which it is said one by one are those of the list.
            StringBuilder ends = new StringBuilder("\"eog\":[");
            int tokens = vocabulary(model);
            for (int token = 0; token < tokens; token++) {
                boolean end = session.isEog(token);
                String json = session.tokenJson(token);
                check(json.contains("\"id\":" + token + ",") && json.contains("\"is_eog\":" + end), json);
                if (end) {
                    ends.append(ends.toString().endsWith("[") ? "" : ",").append(token);
                }
            }
            check(model.contains(ends.append("]")), ends);
            for (int outside : new int[] {-1, tokens, Integer.MAX_VALUE}) {
                thrown(ElizaException.InvalidArgument.class, "token " + outside, () -> session.isEog(outside));
                thrown(ElizaException.InvalidArgument.class, "token " + outside, () -> session.tokenJson(outside));
            }
        }
    }

    private static void logLines() throws Exception {
        BlockingQueue<String> heard = new LinkedBlockingQueue<>();
        LogSink sink = (level, line) -> {
            check(Thread.currentThread().isDaemon(), "the log's thread keeps the process alive");
            heard.add(level + " " + line);
        };
        try (Session session = open(256)) {
            String strange = "{\"modelId\": \"no such model\", \"descriptors\": [{\"path\": \"a\", \"leaves\": "
                + "[{\"name\": \"x\", \"tokens\": [3]}]}]}";
            session.setTokenTrie(strange, TrieMode.GREEDY);
            ElizaInference.setLogSink(sink);
            session.setTokenTrie(strange, TrieMode.GREEDY);
            hear(heard, "WARN", "no such model");
            ElizaInference.setLogSink(sink); // in place of itself
            session.setTokenTrie(strange, TrieMode.GREEDY);
            hear(heard, "WARN", "no such model");
            ElizaInference.setLogSink(null);
            ElizaInference.setLogSink(null);
            heard.clear();
            session.setTokenTrie(strange, TrieMode.GREEDY);
            check(heard.poll(200, TimeUnit.MILLISECONDS) == null, "a line behind the end of the log");
            CountDownLatch over = new CountDownLatch(1);
            Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
            Thread.setDefaultUncaughtExceptionHandler((thread, thrown) -> over.countDown());
            ElizaInference.setLogSink((level, line) -> {
                throw new IllegalStateException("mine");
            });
            session.setTokenTrie(strange, TrieMode.GREEDY);
            Host.await(over);
            Thread.setDefaultUncaughtExceptionHandler(before);
            ElizaInference.setLogSink(sink);
            session.setTokenTrie(strange, TrieMode.GREEDY);
            hear(heard, "WARN", "no such model");
            ElizaInference.setLogSink(null);
        }
    }

    private static void hear(BlockingQueue<String> heard, String level, String part) throws InterruptedException {
        String line = "";
        while (line != null && !(line.startsWith(level) && line.contains(part))) {
            line = heard.poll(60, TimeUnit.SECONDS);
        }
        check(line != null, "no line with " + part);
    }

    private static void logits() throws Exception {
        try (Session session = open(256)) {
            thrown(ElizaException.Busy.class, "prefill", () -> session.logits(1));
            Host.Result expected = greedy(session, 20);
            int[] prompt = session.tokenize(PROMPT);
            session.prefill(prompt, Session.FRESH_SLOT);
            float[] rows = session.logits(prompt.length);
            int width = rows.length / prompt.length;
            same(width, vocabulary(session.describeJson()));
            float[] last = session.logits(1);
            check(Arrays.equals(last, Arrays.copyOfRange(rows, rows.length - width, rows.length)), "two rows of one position differ");
            int likeliest = 0;
            for (int token = 0; token < width; token++) {
                likeliest = last[token] > last[likeliest] ? token : likeliest;
            }
            same(likeliest, expected.tokens.get(0));
            for (int wrong : new int[] {-1, 0, 513, prompt.length + 1}) {
                thrown(ElizaException.InvalidArgument.class, "", () -> session.logits(wrong));
            }
            session.generate(20, 0, 1);
            same(pull(session).tokens, expected.tokens);
        }
    }

    private static void sampled() throws Exception {
        try (Session session = open(256)) {
            check(session.sampled(Session.FRESH_SLOT) == null, "something was drawn before the first draw");
            SamplingOptions options = session.samplingOptions();
            same(options.candidates, 0);
            options.seed = 7;
            options.topK = 5;
            options.candidates = 3;
            options.ignoreEos = true;
            session.configure(options);
            same(session.samplingOptions().candidates, 3);
            session.prefill(PROMPT);
            session.generate(10, 1, 1);
            List<Integer> tokens = pull(session).tokens;
            Sampled drawn = session.sampled(Session.FRESH_SLOT);
            same(drawn.token(), tokens.get(9));
            check(Math.abs(Math.exp(drawn.logprob()) - drawn.probability()) < 1e-5, drawn.logprob());
            same(drawn.candidates().size(), 3);
            double sum = 0;
            double before = 1;
            for (Sampled.Candidate one : drawn.candidates()) {
                check(one.probability() <= before && one.probability() > 0, one.probability());
                before = one.probability();
                sum += before;
                if (one.token() == drawn.token()) {
                    same(one.probability(), drawn.probability());
                }
            }
            check(sum <= 1.00001, sum);
            check(drawn.candidates().get(0).logit() >= drawn.candidates().get(2).logit(), "the candidates are not sorted");
            Usage usage = session.usage();
            same(usage.sampledTokens, 10L);
            check(usage.contextShifts == 0 && usage.gpuDispatches == 0 && usage.gpuBytesRead == 0, usage);
            options.candidates = -1;
            thrown(ElizaException.InvalidArgument.class, "candidates is -1", () -> session.configure(options));
        }
    }

    private static void vocabularyAlone() throws Exception {
        try (Session whole = open(256); Session words = ElizaInference.open(new OpenOptions(Host.model).vocabOnly(true))) {
            check(words.describeJson().contains("\"vocab_only\":true"), words.describeJson());
            int[] tokens = whole.tokenize(PROMPT);
            check(Arrays.equals(words.tokenize(PROMPT), tokens), "other tokens");
            same(words.detokenize(tokens), whole.detokenize(tokens));
            List<String> names = Arrays.asList("one", "two");
            same(words.buildTokenTrie("a", names, "", "", false).json(), whole.buildTokenTrie("a", names, "", "", false).json());
            same(words.tokenJson(1), whole.tokenJson(1));
            Testing.Call[] calls = {
                () -> words.prefill(tokens, 0),
                () -> words.saveSlot(0, "a"),
                () -> words.restoreSlot(0, "a"),
            };
            for (Testing.Call call : calls) {
                same(thrown(ElizaException.Unsupported.class, "ocabulary", call).code(), -1);
            }
        }
    }

    private static void batchesAndTypes() throws Exception {
        OpenOptions[] refused = {
            new OpenOptions(Host.model).nBatch(-1),
            new OpenOptions(Host.model).nBatch(513),
            new OpenOptions(Host.model).gpuLayers(-1).tensorSplit(0.5, -1),
            new OpenOptions(Host.model).kvTypeV("q9"),
        };
        String[] reasons = {"nBatch is -1", "n_batch is 513", "`-1.0`", "q9"};
        for (int i = 0; i < refused.length; i++) {
            OpenOptions options = refused[i];
            thrown(ElizaException.InvalidArgument.class, reasons[i], () -> ElizaInference.open(options));
        }
        Host.Result expected;
        try (Session session = open(256)) {
            expected = greedy(session, 20);
        }
        try (Session session = ElizaInference.open(new OpenOptions(Host.model).contextSize(256).threads(2).nBatch(2))) {
            same(greedy(session, 20).tokens, expected.tokens);
            check(session.describeJson().contains("\"n_batch\":2"), session.describeJson());
            check(session.usage().forwardPasses >= (session.tokenize(PROMPT).length + 1) / 2 + 19, session.usage().forwardPasses);
        }
        try (Session session = ElizaInference.open(new OpenOptions(Host.model).contextSize(256).kvType("f32").kvTypeV("q8_0"))) {
            String model = session.describeJson();
            check(model.contains("\"kv_type\":\"f32\"") && model.contains("\"kv_type_v\":\"q8_0\""), model);
            greedy(session, 5);
        }
    }
}
