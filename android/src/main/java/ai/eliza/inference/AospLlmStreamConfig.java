package ai.eliza.inference;

/** How a stream of {@link AospStreamingLlmBinding} generates; the values here are those that the Android agent sends. */
public final class AospLlmStreamConfig {
    /** How many tokens at most; a negative number goes on until the model stops or the context is full. */
    public int maxTokens = 512;
    /** 0 or below takes the likeliest token. */
    public float temperature = 0.7f;
    /** Only the likeliest tokens that are so probable together; 1: all. */
    public float topP = 0.9f;
    /** Only the so many likeliest tokens; 0 or below: all. */
    public int topK = 40;
    /** Divides the logits of repeated tokens; 1: off. */
    public float repeatPenalty = 1.1f;
    /** The slot of a stream without a {@link #promptCacheKey}, 0 to 15; -1 takes a fresh one. */
    public int slotId = -1;
    /**
     * Streams of a context with the same key have the same slot, so what their prompts have in common is evaluated once. A new key
     * takes the slot unused for longest, and the key that had it loses it. Null leaves the slot to {@link #slotId}.
     */
    public String promptCacheKey;
    /** There is no drafter: above 0 is refused with {@link ElizaException.Unsupported}. */
    public int draftMin;
    /** As {@link #draftMin}. */
    public int draftMax;
    /** Never read, since nothing is drafted. */
    public String dflashDrafterPath;
    /** Has no effect: thinking is asked for by the prompt's template, and here a prompt is tokens. */
    public boolean disableThinking;
}
