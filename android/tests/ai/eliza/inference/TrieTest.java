package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Host.pull;
import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Token tries through Java; their rules themselves are tested where they are written. */
final class TrieTest {
    private static final List<String> NAMES = Arrays.asList("Tom", "Lily", "Ben", "Lucy", "Max");

    private TrieTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("tries", TrieTest::tries);
        cases.put("names", TrieTest::names);
        cases.put("scores", TrieTest::scores);
        cases.put("refused payloads", TrieTest::refusedPayloads);
        cases.put("grammars", TrieTest::grammars);
    }

    private static String held(Session session, Grammar grammar) throws InterruptedException {
        session.setGrammar(grammar);
        session.prefill(session.tokenize(PROMPT, true, false), -1);
        session.generate(80, 1.5f, 1);
        Host.Result result = pull(session);
        same(result.reason, FinishReason.STOP);
        return result.text.toString();
    }

    private static void grammars() throws Exception {
        try (Session session = open(512)) {
            String text = held(session, Grammar.gbnf("root ::= \"He said \\\"\" (\"yes\" | \"no\") \"\\\".\""));
            check(text.matches("He said \"(yes|no)\"\\."), text);
            check(session.usage().forcedTokens > 0 && session.usage().grammarStates > 0, session.usage().forcedTokens);
            for (Grammar.JumpAhead jump : Grammar.JumpAhead.values()) {
                text = held(session, Grammar.gbnf("root ::= \"x\"\nother ::= [0-9]{3} \"-\\u00e9\"", "other").jumpAhead(jump));
                check(text.matches("[0-9]{3}-\u00e9"), text);
            }
            text = held(session, Grammar.spans(Span.literal("{\"to\":"), Span.choice(Span.value("\"a\""), Span.value("\"b\"",
                Span.literal(",\"n\":"), Span.integer().min(3).max(5).key("n"))).sampledAsSession(), Span.literal("}")));
            check(text.matches("\\{\"to\":(\"a\"|\"b\",\"n\":[345])\\}"), text);
            text = held(session, Grammar.spans(Span.literal("["), Span.repeat(Span.bool()).separator(",").min(1).max(3), Span.literal("] \""),
                Span.stringWithoutQuotes().maxLength(9).sampled(0.7, 5, 0.9), Span.literal("\" "),
                Span.json("{\"enum\":[1,null]}").compact().greedy(), Span.choice("!", "?"), Span.number(), Span.literal(";")));
            check(text.matches("\\[(true|false)(,(true|false)){0,2}\\] \".*\" (1|null)[!?][-0-9.eE+]+;"), text);
            same(Grammar.spans(Span.free("</a>", "\"").key("k")).afterTexts("x", "y").thenFree().json(),
                "{\"spans\":[{\"kind\":\"free\",\"until\":[\"</a>\",\"\\\"\"],\"key\":\"k\"}],\"after\":[\"x\",\"y\"],\"then\":\"free\"}");
            thrown(ElizaException.InvalidArgument.class, "spans[0]: `max` is 1", () -> session.setGrammar(Grammar.spans(Span.integer().min(9).max(1))));
            thrown(ElizaException.InvalidArgument.class, "line 1", () -> session.setGrammar(Grammar.gbnf("root ::= [")));
            session.prefill(session.tokenize(PROMPT, true, false), -1);
            thrown(ElizaException.InvalidArgument.class, "line 1", () -> session.generate(1, 0, 1));
            session.clearGrammar();
            session.generate(1, 0, 1);
            pull(session);
            String schema = Grammar.schema("{\"not\":{}}").keywords(Grammar.Keywords.LLAMA_CPP).json();
            same(schema, "{\"json_schema\":{\"not\":{}},\"keywords\":\"llama.cpp\"}");
            same(Grammar.lark("start: \"a\"").json(), "{\"lark\":\"start: \\\"a\\\"\"}");
            String json = Grammar.gbnf("a").afterWord("x\"\n").afterToken(3).json();
            same(json, "{\"gbnf\":\"a\",\"lazy\":true,\"triggers\":[{\"type\":\"word\",\"value\":\"x\\\"\\u000a\"},"
                + "{\"type\":\"token\",\"value\":3}]}");
        }
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
        Host.Result result = pull(session);
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
                    session.setTokenTrie(json, 1);
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
            session.clearTokenTrie();
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
            Host.Result result = pull(session);
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
                thrown(ElizaException.RefusedTrie.class, reasons[i], () -> session.generate(5, 0, 1, new Host.Recorder(false)));
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
                () -> session.setTokenTrie(good, 7));
            session.prefill(PROMPT);
            thrown(ElizaException.InvalidArgument.class, "mode is 7", () -> session.generate(5, 0, 1));
            session.clearTokenTrie();
            session.generate(5, 0, 1);
            pull(session);
        }
    }
}
