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
        source = new StringBuilder("{").append(quoted(key)).append(':').append(value);
    }

    /** A grammar in GBNF; its rule {@code root} has to match the text. */
    public static Grammar gbnf(String text) {
        return new Grammar("gbnf", quoted(text));
    }

    /** A grammar in GBNF, of which this rule has to match the text. */
    public static Grammar gbnf(String text, String root) {
        return gbnf(text).with("root", quoted(root));
    }

    /** A JSON schema, as JSON. */
    public static Grammar schema(String json) {
        return new Grammar("json_schema", json);
    }

    /** A regular expression that the whole text has to match. */
    public static Grammar regex(String pattern) {
        return new Grammar("regex", quoted(pattern));
    }

    /** A response skeleton, as JSON. */
    public static Grammar skeleton(String json) {
        return new Grammar("skeleton", json);
    }

    /** Spans that make up the text: a JSON array. */
    public static Grammar spans(String json) {
        return new Grammar("spans", json);
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
        return with("keywords", quoted(how.text));
    }

    /** Generates freely up to this text, with which the grammar begins. Of several triggers the first counts. */
    public Grammar afterWord(String word) {
        return after("word", quoted(word));
    }

    /** The same with a regular expression; the grammar begins with its first group, else with all that it matched. */
    public Grammar afterPattern(String pattern) {
        return after("pattern", quoted(pattern));
    }

    /** The same with a token. */
    public Grammar afterToken(int token) {
        return after("token", Integer.toString(token));
    }

    /** What is taken without sampling where the grammar leaves no choice; without it {@link JumpAhead#BYTES}. */
    public Grammar jumpAhead(JumpAhead what) {
        return with("jump_ahead", quoted(what.text));
    }

    /** What {@code eliza_inference_set_grammar} takes. */
    public String json() {
        if (triggers.isEmpty()) {
            return source + "}";
        }
        return source + ",\"lazy\":true,\"triggers\":[" + String.join(",", triggers) + "]}";
    }

    private Grammar with(String key, String value) {
        source.append(',').append(quoted(key)).append(':').append(value);
        return this;
    }

    private Grammar after(String type, String value) {
        triggers.add("{\"type\":" + quoted(type) + ",\"value\":" + value + "}");
        return this;
    }

    /** A text as a JSON string. */
    private static String quoted(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
