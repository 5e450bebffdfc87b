package ai.eliza.inference;

import java.util.List;

/** The payload that {@link Session#buildTokenTrie} made of names. */
public final class TokenTrie {
    private final String json;
    private final List<String> warnings;

    TokenTrie(String json, List<String> warnings) {
        this.json = json;
        this.warnings = warnings;
    }

    /** The payload for {@link Session#setTokenTrie}. */
    public String json() {
        return json;
    }

    /** What one should know about it, a sentence each; mostly nothing. */
    public List<String> warnings() {
        return warnings;
    }
}
