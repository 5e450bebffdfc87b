package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.ignoreEos;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Host.pull;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Slots saved to files, and restored. */
final class SavedTest {
    private SavedTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("a saved stream goes on", SavedTest::goesOn);
        cases.put("a saved span goes on", SavedTest::spanGoesOn);
        cases.put("refused slots", SavedTest::refused);
        cases.put("conversations", SavedTest::conversations);
    }

    private static Session openWithSeed() {
        Session session = open(256);
        SamplingOptions options = session.samplingOptions();
        options.ignoreEos = true;
        options.seed = 7;
        session.configure(options);
        return session;
    }

    private static List<Integer> tokens(Session session, int count, float temperature) throws InterruptedException {
        session.generate(count, temperature, 1);
        return pull(session).tokens;
    }

    private static List<Integer> joined(List<Integer> begin, List<Integer> rest) {
        List<Integer> whole = new ArrayList<>(begin);
        whole.addAll(rest);
        return whole;
    }

    private static void goesOn() throws Exception {
        Path file = Files.createTempFile("\u00e4 slot", "");
        for (float temperature : new float[] {0, 1}) {
            try (Session uninterrupted = openWithSeed(); Session first = openWithSeed(); Session second = openWithSeed()) {
                uninterrupted.prefill(PROMPT);
                List<Integer> whole = tokens(uninterrupted, 20, temperature);
                int[] prompt = first.tokenize(PROMPT);
                first.prefill(prompt, 2);
                List<Integer> begin = tokens(first, 8, temperature);
                first.saveSlot(-1, file.toString());
                same(second.restoreSlot(3, file.toString()), prompt.length + 8);
                same(joined(begin, tokens(second, 12, temperature)), whole);
                // The session that saved is as it was.
                first.prefill(PROMPT);
                first.saveSlot(-1, file.toString());
                same(tokens(first, 20, temperature), whole);
                same(second.restoreSlot(Session.FRESH_SLOT, file.toString()), prompt.length);
                same(tokens(second, 20, temperature), whole);
            }
        }
        Files.delete(file);
    }

    private static void spanGoesOn() throws Exception {
        Path file = Files.createTempFile("slot", "");
        try (Session uninterrupted = openWithSeed(); Session first = openWithSeed(); Session second = openWithSeed()) {
            List<String> names = Arrays.asList("a name that is long", "another of them");
            String trie = first.buildTokenTrie("name", names, "", "\n", false).json();
            for (Session session : new Session[] {uninterrupted, first}) {
                session.setTokenTrie(trie, TrieMode.GREEDY);
                session.prefill(PROMPT);
            }
            List<Integer> whole = tokens(uninterrupted, 12, 0);
            List<Integer> begin = tokens(first, 3, 0);
            same(first.usage().spanTokens, 3L);
            first.saveSlot(-1, file.toString());
            thrown(ElizaException.RefusedSlot.class, "trie", () -> second.restoreSlot(0, file.toString()));
            second.setTokenTrie(trie, TrieMode.GREEDY);
            second.restoreSlot(0, file.toString());
            same(joined(begin, tokens(second, 9, 0)), whole);
        }
        Files.delete(file);
    }

    private static void conversations() throws Exception {
        Path folder = Files.createTempDirectory("store");
        OpenOptions options = new OpenOptions(Host.model).contextSize(256).threads(2).slots(3).snapshots(8);
        try (Session session = ElizaInference.open(options.store(folder.toString(), 1 << 20))) {
            ignoreEos(session);
            int[] prompt = session.tokenize(PROMPT);
            session.prewarm(prompt, 1);
            while (!session.usageJson().contains("\"prewarms\":0")) Thread.sleep(1);
            session.pinSlot(1, true);
            session.prefill(prompt, 0);
            same(session.usage().promptTokensReused, prompt.length - 1L);
            same(session.usage().evaluatedTokens, 1L);
            List<Integer> whole = tokens(session, 20, 0);
            session.prefill(prompt, 0);
            List<Integer> begin = tokens(session, 8, 0);
            session.persist(0, "tom/\u017c");
            same(session.resume(Session.FRESH_SLOT, "nobody"), 0);
            same(session.resume(2, "tom/\u017c"), prompt.length + 8);
            same(session.usage().promptTokensRestored, prompt.length + 7L);
            same(session.usage().snapshots, 0L);
            same(joined(begin, tokens(session, 12, 0)), whole);
            same(session.forget("tom/\u017c"), true);
            same(session.forget("tom/\u017c"), false);
            thrown(ElizaException.InvalidArgument.class, "key", () -> session.persist(0, ""));
            thrown(ElizaException.InvalidArgument.class, "-1", () -> session.pinSlot(-1, true));
            thrown(ElizaException.InvalidArgument.class, "no tokens", () -> session.prewarm(new int[0], 0));
        }
        try (Session session = open(256)) {
            thrown(ElizaException.InvalidArgument.class, "without a store", () -> session.resume(0, "a"));
        }
        thrown(ElizaException.InvalidArgument.class, "-1", () -> ElizaInference.open(options.store(folder.toString(), -1)));
        thrown(ElizaException.Io.class, Host.model, () -> ElizaInference.open(options.store(Host.model, 0)));
        Files.delete(folder.resolve("lock"));
        Files.delete(folder);
    }

    private static void refused() throws Exception {
        Path folder = Files.createTempDirectory("slots");
        Path file = folder.resolve("good");
        Path damaged = folder.resolve("damaged");
        String nowhere = folder.resolve("nowhere").resolve("slot").toString();
        try (Session session = open(256)) {
            ignoreEos(session);
            session.prefill(PROMPT);
            List<Integer> whole = tokens(session, 20, 0);
            thrown(ElizaException.InvalidArgument.class, "empty", () -> session.saveSlot(9, file.toString()));
            thrown(ElizaException.InvalidArgument.class, "slot 99", () -> session.saveSlot(99, file.toString()));
            session.prefill(PROMPT);
            List<Integer> begin = tokens(session, 8, 0);
            same(thrown(ElizaException.Io.class, nowhere, () -> session.saveSlot(-1, nowhere)).code(), -10);
            session.saveSlot(-1, file.toString());
            session.restoreSlot(-1, file.toString());
            byte[] bytes = Files.readAllBytes(file);
            bytes[bytes.length - 1] ^= 1;
            byte[][] contents = {bytes, Arrays.copyOf(bytes, bytes.length - 1), {}};
            for (byte[] content : contents) {
                Files.write(damaged, content);
                ElizaException refused =
                    thrown(ElizaException.RefusedSlot.class, damaged.toString(), () -> session.restoreSlot(-1, damaged.toString()));
                same(refused.code(), -60);
            }
            thrown(ElizaException.Io.class, nowhere, () -> session.restoreSlot(-1, nowhere));
            thrown(ElizaException.InvalidArgument.class, "slot 99", () -> session.restoreSlot(99, file.toString()));
            thrown(ElizaException.InvalidArgument.class, "surrogate", () -> session.saveSlot(-1, "\ud83d"));
            // The restore before all that still counts.
            same(joined(begin, tokens(session, 12, 0)), whole);
        }
        Files.delete(damaged);
        Files.delete(file);
        Files.delete(folder);
    }
}
