package ai.eliza.inference;

/** JSON that is written. */
final class Json {
    private Json() {}

    /** Appends a member to an object that is not closed yet and has one before. */
    static void add(StringBuilder object, String key, String value) {
        object.append(',').append(quoted(key)).append(':').append(value);
    }

    /** A list of parts that are JSON. */
    static String list(Object[] parts) {
        StringBuilder all = new StringBuilder("[");
        for (Object part : parts) {
            all.append(all.length() == 1 ? "" : ",").append(part);
        }
        return all.append(']').toString();
    }

    /** A list of texts. */
    static String texts(String[] texts) {
        String[] quoted = new String[texts.length];
        for (int i = 0; i < texts.length; i++) {
            quoted[i] = quoted(texts[i]);
        }
        return list(quoted);
    }

    /** A text as a JSON string. */
    static String quoted(String text) {
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
