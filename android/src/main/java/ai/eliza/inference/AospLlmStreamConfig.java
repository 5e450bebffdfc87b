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
    /** The conversation's slot from 0 to 15, or -1: that of {@link #promptCacheKey}, or a fresh one where that is null. */
    public int slotId = -1;
    /**
     * A name for the conversation. The context keeps a slot for each of the 16 names used last, and a stream of the same name finds
     * there what the stream before it left, so that only what is new of its prompt is evaluated. Has no effect where
     * {@link #slotId} says which slot.
     */
    public String promptCacheKey;
    /** How many tokens a drafter proposes at least. Has no effect: there is no drafter. */
    public int draftMin;
    /** How many it proposes at most. Above 0 together with a drafter is refused: there is none. */
    public int draftMax;
    /** The drafter's file. Has no effect with {@link #draftMax} 0 or below, and is refused otherwise. */
    public String dflashDrafterPath;
    /** Has no effect: it is for the template that makes the prompt, and a stream gets tokens. */
    public boolean disableThinking;
}
