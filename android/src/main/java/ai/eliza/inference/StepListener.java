package ai.eliza.inference;

/**
 * Hears a generation: its steps in order, the last one {@link Step#done() done}; or, where it fails, the steps until then and one
 * {@link #onFailure}. Called on one thread of its own, which is a daemon and has no lock of the session, so every method of the
 * session may be called, {@link Session#cancel()} and {@link Session#close()} as well.
 */
public interface StepListener {
    /**
     * The generation goes on, or ends. An exception thrown here cancels the generation; it goes to the thread's handler of
     * uncaught exceptions, and nothing more is heard.
     */
    void onStep(Step step);

    /** The generation failed. */
    void onFailure(ElizaException failure);
}
