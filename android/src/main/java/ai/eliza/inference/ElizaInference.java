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

    /**
     * The devices of this machine, best first, as a JSON array: name, kind, score, the reason for it, memory (null where the system
     * does not tell), and on DX12 what compiles shaders.
     */
    public static String devicesJson() {
        Native.load();
        return Native.devices();
    }

    /**
     * What opening a model with these options would take, as one JSON object: whether it fits, bytes by device and component, the
     * largest context and number of layers on the GPU. Reads the header of the file alone.
     */
    public static String planJson(OpenOptions options) {
        Native.load();
        return Native.plan(Utf8.direct(options.path, "path"), options.whole(), Utf8.directOrNull(options.device, "device"),
            Utf8.directOrNull(options.tensorSplit, "tensorSplit"), Utf8.directOrNull(options.tensorDevices, "tensorDevice"),
            Utf8.directOrNull(options.kvType, "kvType"), Utf8.directOrNull(options.kvTypeV, "kvTypeV"),
            Utf8.directOrNull(options.draft, "draft"));
    }

    /** The metadata of a GGUF file as one JSON object; of an array with more than 16 elements type and length alone. */
    public static String fileMetadataJson(String path) {
        Native.load();
        return Native.fileMetadata(Utf8.direct(path, "path"), null);
    }

    /** One value of a file's metadata as JSON, arrays whole. */
    public static String fileMetadataJson(String path, String key) {
        Native.load();
        return Native.fileMetadata(Utf8.direct(path, "path"), Utf8.direct(key, "key"));
    }

    /**
     * Sends the library's log lines to a sink, among them what is strange about a token trie; null ends that. The process has one
     * sink: a new one takes the place of the one before, and lines that this one has not heard are gone.
     *
     * @throws ElizaException.Unsupported the process has a logger of Rust that is not the library's
     */
    public static void setLogSink(LogSink sink) {
        Native.load();
        LogLines.goTo(sink);
    }
}
