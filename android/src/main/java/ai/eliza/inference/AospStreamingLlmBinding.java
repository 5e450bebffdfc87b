package ai.eliza.inference;

/** The token trie under the names of the AOSP streaming adapter; the stream is a {@link Session}. */
public final class AospStreamingLlmBinding {
    private AospStreamingLlmBinding() {}

    /**
     * {@link Session#setTokenTrie(String, TrieMode)} with the mode as a number: 0 greedy, 1 sampled, 2 score. After a failure, an
     * unknown mode included, generate fails until a set succeeds or the trie is cleared.
     */
    public static void llmStreamSetTokenTrie(Session stream, String triePayloadJson, int mode) {
        stream.setTokenTrie(triePayloadJson, mode);
    }

    /** {@link Session#clearTokenTrie()}. */
    public static void llmStreamClearTokenTrie(Session stream) {
        stream.clearTokenTrie();
    }
}
