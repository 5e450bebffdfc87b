package ai.eliza.inference;

import java.util.ArrayList;
import java.util.List;

/** What {@link Session#setGrammar(Grammar)} holds a generation to. Methods change the grammar and return it. */
public final class Grammar {
    /** What is taken without sampling where a grammar leaves no choice. */
    public enum JumpAhead {
        /** Forced text, tokenized as the model writes it. */
        BYTES("bytes"),
        /** Tokens that are the only legal one. */
        TOKENS("tokens"),
        /** Nothing. */
        OFF("off");

        final String text;

        JumpAhead(String text) {
            this.text = text;
        }
    }

    private final StringBuilder source;
    private final List<String> triggers = new ArrayList<>();

    private Grammar(String key, String value) {
        source = new StringBuilder("{").append(Json.quoted(key)).append(':').append(value);
    }

    /** A grammar in GBNF; its rule {@code root} has to match the text. */
    public static Grammar gbnf(String text) {
        return new Grammar("gbnf", Json.quoted(text));
    }

    /** A grammar in GBNF, of which this rule has to match the text. */
    public static Grammar gbnf(String text, String root) {
        return gbnf(text).with("root", Json.quoted(root));
    }

    /** A JSON schema, as JSON. */
    public static Grammar schema(String json) {
        return new Grammar("json_schema", json);
    }

    /** A regular expression that the whole text has to match. */
    public static Grammar regex(String pattern) {
        return new Grammar("regex", Json.quoted(pattern));
    }

    /** A grammar in llguidance's dialect of Lark, for a library that was built with the feature {@code llguidance}. */
    public static Grammar lark(String text) {
        return new Grammar("lark", Json.quoted(text));
    }

    /** A response skeleton, as JSON. */
    public static Grammar skeleton(String json) {
        return new Grammar("skeleton", json);
    }

    /** Spans that make up the text. */
    public static Grammar spans(Span... spans) {
        return spans(Json.list(spans));
    }

    /** Spans that make up the text: a JSON array. */
    public static Grammar spans(String json) {
        return new Grammar("spans", json);
    }

    /** With spans: texts after the first of which they begin; what comes before is free. */
    public Grammar afterTexts(String... texts) {
        return with("after", Json.texts(texts));
    }

    /** With spans: the model goes on freely after the last one. */
    public Grammar thenFree() {
        return with("then", "\"free\"");
    }

    /** No white space in the JSON of a schema. */
    public Grammar compact() {
        return with("compact", "true");
    }

    /** What becomes of keywords of a schema that no grammar can keep; they are refused unless this says otherwise. */
    public enum Keywords {
        /** They are refused. */
        EXACT("exact"),
        /** They are ignored. */
        LENIENT("lenient"),
        /** The schema is read as llama.cpp does. */
        LLAMA_CPP("llama.cpp");

        private final String text;

        Keywords(String text) {
            this.text = text;
        }
    }

    /** What becomes of keywords of a schema that no grammar can keep. */
    public Grammar keywords(Keywords how) {
        return with("keywords", Json.quoted(how.text));
    }

    /** Generates freely up to this text, with which the grammar begins. Of several triggers the first counts. */
    public Grammar afterWord(String word) {
        return after("word", Json.quoted(word));
    }

    /** The same with a regular expression; the grammar begins with its first group, else with all that it matched. */
    public Grammar afterPattern(String pattern) {
        return after("pattern", Json.quoted(pattern));
    }

    /** The same with a token. */
    public Grammar afterToken(int token) {
        return after("token", Integer.toString(token));
    }

    /** What is taken without sampling where the grammar leaves no choice; without it {@link JumpAhead#BYTES}. */
    public Grammar jumpAhead(JumpAhead what) {
        return with("jump_ahead", Json.quoted(what.text));
    }

    /** What {@code eliza_inference_set_grammar} takes. */
    public String json() {
        if (triggers.isEmpty()) {
            return source + "}";
        }
        return source + ",\"lazy\":true,\"triggers\":[" + String.join(",", triggers) + "]}";
    }

    private Grammar with(String key, String value) {
        Json.add(source, key, value);
        return this;
    }

    private Grammar after(String type, String value) {
        triggers.add("{\"type\":" + Json.quoted(type) + ",\"value\":" + value + "}");
        return this;
    }
}
