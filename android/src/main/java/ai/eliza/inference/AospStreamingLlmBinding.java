package ai.eliza.inference;

/**
 * The interface that the streaming code of the Android agent calls, under its names; {@link AospStreaming} implements it. Where
 * that code passes an object of named arguments, they are parameters here, in the same order.
 *
 * <p>A context is an open model, a stream is one generation on it; both are numbers that are never used again. A context does one
 * thing at a time: it has one stream open at most, and keeps the prompts of its slots between streams.
 *
 * <p>Every method may be called on any thread. What fails throws {@link ElizaException}.
 */
public interface AospStreamingLlmBinding {
    /** Whether the native library is there and can be loaded. */
    boolean llmStreamSupported();

    /** Opens a stream on a context; {@link ElizaException.Busy} while another is open there. */
    long llmStreamOpen(long ctx, AospLlmStreamConfig config);

    /** Evaluates a prompt and keeps its state; what its slot already holds of it is reused. Blocks until done. */
    void llmStreamPrefill(long stream, int[] tokens);

    /**
     * Waits for the next step. The first call starts the generation, so that what is set by then counts for it.
     *
     * @param maxTokensPerStep how many tokens at most, 1 to 512; the agent takes 32
     * @param maxTextBytes how many bytes of text at most, 8 or more; the agent takes 1024
     */
    Step llmStreamNext(long stream, int maxTokensPerStep, int maxTextBytes) throws InterruptedException;

    /** Asks the running prefill or generation to stop; never waits. */
    void llmStreamCancel(long stream);

    /** {@link Session#saveSlot} with the slot of the stream. Refused before a prefill or restore, and while it generates. */
    void llmStreamSaveSlot(long stream, String filename);

    /** {@link Session#restoreSlot} into the slot of the stream, in place of a prefill or before one. */
    void llmStreamRestoreSlot(long stream, String filename);

    /**
     * Ends a stream and clears its token trie. A running generation is cancelled, and its end waited for, which is about a
     * token away. Closing again does nothing.
     */
    void llmStreamClose(long stream);

    /**
     * {@link Session#setTokenTrie(String, TrieMode)} with the mode as a number: 0 greedy, 1 sampled, 2 score. Before the stream's
     * first step. After a failure, an unknown mode included, the generation fails until a set succeeds or the trie is cleared.
     */
    void llmStreamSetTokenTrie(long stream, String triePayloadJson, int mode);

    /** {@link Session#clearTokenTrie()}; closing the stream does it too. */
    void llmStreamClearTokenTrie(long stream);
}
