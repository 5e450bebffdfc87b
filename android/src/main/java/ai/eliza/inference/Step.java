package ai.eliza.inference;

/** What a generation has produced since the step before. */
public final class Step {
    private final int[] tokens;
    private final String text;
    private final FinishReason finishReason;

    Step(int[] tokens, String text, FinishReason finishReason) {
        this.tokens = tokens;
        this.text = text;
        this.finishReason = finishReason;
    }

    /** The new tokens; often one, none where only text is left. The array is the caller's. */
    public int[] tokens() {
        return tokens;
    }

    /** The whole characters that they complete. A NUL character is U+FFFD. */
    public String text() {
        return text;
    }

    /** Whether this is the last step of the generation. */
    public boolean done() {
        return finishReason != FinishReason.NONE;
    }

    /** Why the generation ended; {@link FinishReason#NONE} in all steps but the last. */
    public FinishReason finishReason() {
        return finishReason;
    }
}
