package ai.eliza.inference;

/**
 * A part of a text, of which {@link Grammar#spans(Span...)} is made; {@code docs/spans.md} has what each kind matches.
 * Methods change the span and return it. One that does not go with its kind is refused by {@link Session#setGrammar}.
 */
public final class Span {
    private final StringBuilder source;

    private Span(String kind) {
        source = new StringBuilder("{\"kind\":\"").append(kind).append('"');
    }

    /** Exactly this text. */
    public static Span literal(String text) {
        return new Span("literal").with("text", Json.quoted(text));
    }

    /** One of these values, as they are written: quotes of JSON are part of them. */
    public static Span choice(Value... values) {
        return new Span("choice").with("values", Json.list(values));
    }

    /** One of these values. */
    public static Span choice(String... values) {
        Value[] all = new Value[values.length];
        for (int i = 0; i < all.length; i++) {
            all[i] = value(values[i]);
        }
        return choice(all);
    }

    /** These spans, any number of times. */
    public static Span repeat(Span... spans) {
        return new Span("repeat").with("spans", Json.list(spans));
    }

    /** A number of JSON. */
    public static Span number() {
        return new Span("number");
    }

    /** A number without point and exponent. */
    public static Span integer() {
        return number().with("integer", "true");
    }

    /** {@code true} or {@code false}. */
    public static Span bool() {
        return new Span("boolean");
    }

    /** A JSON string with its quotes. */
    public static Span string() {
        return new Span("string");
    }

    /** What is between the quotes of a JSON string; it ends where the next span can begin. */
    public static Span stringWithoutQuotes() {
        return string().with("quotes", "false");
    }

    /** Any JSON value. */
    public static Span json() {
        return new Span("json");
    }

    /** A JSON value that fits a schema, which is JSON too. */
    public static Span json(String schema) {
        return json().with("schema", schema);
    }

    /** Any text up to and with the first of these; without them up to where the model ends it. */
    public static Span free(String... until) {
        return until.length == 0 ? new Span("free") : new Span("free").with("until", Json.texts(until));
    }

    /** A value of a choice, followed by these spans, and then by what comes after the choice. */
    public static Value value(String text, Span... spans) {
        return new Value(text, spans);
    }

    /** A name that comes back in events. */
    public Span key(String name) {
        return with("key", Json.quoted(name));
    }

    /** The legal token with the greatest logit is taken, as in choices unless this says otherwise. */
    public Span greedy() {
        return with("sampling", "\"greedy\"");
    }

    /** It is sampled as everything else in the generation. */
    public Span sampledAsSession() {
        return with("sampling", "\"session\"");
    }

    /** It is sampled with these numbers in place of the session's: top-k of 0 and top-p of 1 remove nothing. */
    public Span sampled(double temperature, int topK, double topP) {
        return with("sampling", "{\"temperature\":" + temperature + ",\"top_k\":" + topK + ",\"top_p\":" + topP + "}");
    }

    /** The least number, or the least count of a repeat. */
    public Span min(long least) {
        return with("min", Long.toString(least));
    }

    /** The greatest number, or the greatest count of a repeat. */
    public Span max(long greatest) {
        return with("max", Long.toString(greatest));
    }

    /** What is between the items of a repeat. */
    public Span separator(String text) {
        return with("separator", Json.quoted(text));
    }

    /** The most characters of a string. */
    public Span maxLength(int characters) {
        return with("max_length", Integer.toString(characters));
    }

    /** No white space in a JSON value. */
    public Span compact() {
        return with("compact", "true");
    }

    /** The JSON of the payload. */
    @Override
    public String toString() {
        return source + "}";
    }

    private Span with(String key, String value) {
        Json.add(source, key, value);
        return this;
    }

    /** One of the values of a choice. */
    public static final class Value {
        private final String text;
        private final Span[] spans;

        private Value(String text, Span[] spans) {
            this.text = text;
            this.spans = spans.clone();
        }

        /** The JSON of the payload. */
        @Override
        public String toString() {
            String value = Json.quoted(text);
            return spans.length == 0 ? value : "{\"value\":" + value + ",\"spans\":" + Json.list(spans) + "}";
        }
    }
}
