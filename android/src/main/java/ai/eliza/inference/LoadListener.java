package ai.eliza.inference;

/** Hears how much of a model is loaded, on the thread that opens it. */
public interface LoadListener {
    /**
     * A fraction of the model is loaded, 0 to 1. Answering false cancels the load: the open fails with
     * {@link ElizaException.Cancelled}. So does an exception, which is then what open throws.
     */
    boolean onProgress(float fraction);
}
