package ai.eliza.inference;

/** What a generation does when its tokens fill the context; the order is that of the numbers in the C interface. */
public enum ContextFull {
    /** It ends with {@link FinishReason#CONTEXT}. */
    STOP,
    /** The first {@link SamplingOptions#nKeep} tokens and the last half of the others stay, those between go, and it goes on. */
    SHIFT
}
