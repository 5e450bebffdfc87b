package ai.eliza.inference;

/** Runs GGUF language models on the device. Everything begins with {@link #open}. */
public final class ElizaInference {
    private ElizaInference() {}

    /** As {@link #open(OpenOptions)}, with defaults for everything but the GGUF file. */
    public static Session open(String path) {
        return open(new OpenOptions(path));
    }

    /**
     * Opens a model with a context of its own. Blocks while the file is loaded; sessions on one file share its weights.
     *
     * @throws ElizaException a file that cannot be read or is no model, an option out of range, too little memory, a GPU asked
     *     for where none works, a load that the listener cancelled
     * @throws UnsatisfiedLinkError the native library could not be loaded
     */
    public static Session open(OpenOptions options) {
        Native.load();
        return Session.open(options);
    }

    /** The version of the C interface that the native library has: {@code eliza-stream/MAJOR.MINOR.PATCH}. */
    public static String abiVersion() {
        Native.load();
        return Native.abiVersion();
    }

    /** How many threads a session computes with that was opened with {@code threads} 0. */
    public static int defaultThreadCount() {
        Native.load();
        return Native.defaultThreadCount();
    }
}
