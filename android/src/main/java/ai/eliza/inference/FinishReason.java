package ai.eliza.inference;

/** Why a generation ended; the order is that of the numbers in the C interface. */
public enum FinishReason {
    /** It has not ended, or there was none. */
    NONE,
    /** The model ended its answer, or a stop string was met. */
    STOP,
    /** As many tokens as were asked for. */
    LENGTH,
    /** {@link Session#cancel()} or {@link Session#close()}. */
    CANCELLED,
    /** It failed; the exception said why. */
    ERROR,
    /** The context is full. */
    CONTEXT,
    /** A constrained span ended, and {@link SamplingOptions#stopAtSpanEnd} is set. */
    SPAN;

    private static final FinishReason[] BY_NUMBER = values();

    static FinishReason of(int number) {
        return BY_NUMBER[number];
    }
}
