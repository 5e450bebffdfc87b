package ai.eliza.inference;

import java.util.Arrays;
import java.util.stream.Collectors;

/** How to open a model. Only the path has no default. */
public final class OpenOptions {
    final String path;
    int contextSize;
    int threads;
    int gpuLayers;
    int slots;
    int nBatch;
    int snapshots;
    int parallel;
    boolean concurrentSlots;
    int maxSlowdownPercent;
    String draft;
    String storeDirectory;
    long storeBytes;
    String vocab;
    String apiKey;
    String certificates;
    int serverTimeoutMs;
    String fallback;
    String device;
    String tensorSplit;
    String tensorDevices;
    String kvType;
    String kvTypeV;
    boolean vocabOnly;
    LoadListener progress;

    /**
     * Opens this GGUF file, on the CPU unless {@link #gpuLayers} says otherwise. Or the model of a server, whose address is
     * "KIND:URL#MODEL", such as "vllm:https://host:8000/v1#name"; kinds are vllm, sglang, llama-server and openai, and without a
     * name the server's first model answers; see {@link #vocab}.
     */
    public OpenOptions(String path) {
        this.path = path;
    }

    /**
     * Context in tokens, shared by the slots: 0, the default, chooses min(4096, what the model was trained with), otherwise it is
     * rounded up to a power of two and capped at what the model was trained with.
     */
    public OpenOptions contextSize(int tokens) {
        contextSize = tokens;
        return this;
    }

    /** Threads that compute; 0, the default, is one for each performance core. */
    public OpenOptions threads(int count) {
        threads = count;
        return this;
    }

    /**
     * Layers on the GPU, counted from the end: -1 is all. With 0, the default, Vulkan is not touched. Where no GPU works
     * anything else fails with the reason.
     */
    public OpenOptions gpuLayers(int count) {
        gpuLayers = count;
        return this;
    }

    /** How many conversations share the context, 1 to 16; 0, the default, is 16. */
    public OpenOptions slots(int count) {
        slots = count;
        return this;
    }

    /**
     * The most tokens of a prompt that one pass evaluates, 1 to 512; 0, the default, is 512. Fewer take less memory and more
     * passes.
     */
    public OpenOptions nBatch(int tokens) {
        nBatch = tokens;
        return this;
    }

    /**
     * How many earlier recurrent states, and earlier windows of sliding layers, are kept, after which a prompt can go on, 1 to 256;
     * 0, the default, keeps as many as fit into a share of the cache. Models with neither need none.
     */
    public OpenOptions snapshots(int count) {
        snapshots = count;
        return this;
    }

    /**
     * How many sessions share an engine, 1 to 16; 0, the default, is 1. Sessions that are opened with the same file and the same
     * options join the engine of the first: they generate at the same time, and every step reads the weights once for all of them,
     * which changes no token of anybody's. Each has a context of its own and {@link #slots} slots, 16 in all; the memory for all of
     * them is taken by the first. Where an engine has no place left, another one is made.
     */
    public OpenOptions parallel(int sessions) {
        parallel = sessions;
        return this;
    }

    /**
     * Whether slots can have sessions of their own, made by {@link Session#openSlot}, which generate at the same time and share the
     * context; false, the default: the slots of a session take turns.
     */
    public OpenOptions concurrentSlots(boolean concurrent) {
        concurrentSlots = concurrent;
        return this;
    }

    /**
     * While prompts of others are read, a session's time for a token grows to at most this many percent of the time without them, as
     * well as the passes so far tell; 0, the default, is 250, and 100 lets prompts wait for the tokens of all others.
     */
    public OpenOptions maxSlowdownPercent(int percent) {
        maxSlowdownPercent = percent;
        return this;
    }

    /**
     * The GGUF file of a draft model, a small one: what it guesses is evaluated in the pass of the token before, where that has paid.
     * It changes no token. With another vocabulary it guesses by text, which pays less. The model's own file, where that has a block
     * that predicts further tokens (NextN, MTP): the block guesses. It works on the CPU, takes memory for weights and a context of
     * its own, and goes with neither {@link #parallel} nor {@link #concurrentSlots}.
     */
    public OpenOptions draft(String path) {
        draft = path;
        return this;
    }

    /**
     * The folder in which {@link Session#persist} keeps conversations, which is created where it is not there, and the most bytes
     * that they take: those used the longest time ago are removed; 0 is no limit. Without it there is none.
     */
    public OpenOptions store(String directory, long maxBytes) {
        storeDirectory = directory;
        storeBytes = maxBytes;
        return this;
    }

    /**
     * For a model on a server: the GGUF file with the model's vocabulary, which needs no tensors; null, the default: the server
     * tokenizes, and a token of the session is a byte of its texts.
     */
    public OpenOptions vocab(String path) {
        vocab = path;
        return this;
    }

    /** The key that is sent to a server, over https or to this machine alone; null, the default, is none. */
    public OpenOptions apiKey(String key) {
        apiKey = key;
        return this;
    }

    /** A PEM file with the only certificates of servers that are trusted; null, the default, trusts those of the platform. */
    public OpenOptions certificates(String path) {
        certificates = path;
        return this;
    }

    /** How long a server may be silent, in milliseconds; 0, the default, is 60000. */
    public OpenOptions serverTimeoutMs(int milliseconds) {
        serverTimeoutMs = milliseconds;
        return this;
    }

    /**
     * A model in the place of this one, a file or an address; may be called several times. Every prompt is given to the first model
     * that can be opened, has room for it and does not fail before its first token; the usage says which. All have the vocabulary of
     * the first that was opened; those after it are opened when they are needed.
     */
    public OpenOptions fallback(String model) {
        fallback = fallback == null ? model : fallback + "\n" + model;
        return this;
    }

    /** The device by name, or several GPUs, separated by semicolons, which divide the layers; null, the default, is the best. */
    public OpenOptions device(String name) {
        device = name;
        return this;
    }

    /**
     * How large a part of the weights that are on GPUs each of several has, relative to the others: one for each that {@link #device}
     * names; where that names one or none, the best so many GPUs are taken. None, the default, divides by their free memory.
     */
    public OpenOptions tensorSplit(double... shares) {
        tensorSplit = Arrays.stream(shares).mapToObj(Double::toString).collect(Collectors.joining(","));
        return this;
    }

    /**
     * Places tensors whatever their layer: those of whose names this regular expression matches some part, on the device "cpu" or
     * "gpu". Of several such rules the first that matches counts. ("exps", "cpu") keeps experts on the CPU.
     */
    public OpenOptions tensorDevice(String pattern, String device) {
        String rule = pattern + "=" + device;
        tensorDevices = tensorDevices == null ? rule : tensorDevices + ";" + rule;
        return this;
    }

    /** Format of the key/value memory: f16, f32 or q8_0; null, the default, is f16. */
    public OpenOptions kvType(String name) {
        kvType = name;
        return this;
    }

    /** Format of the values in the key/value memory, where it is not that of the keys; null, the default, is {@link #kvType}. */
    public OpenOptions kvTypeV(String name) {
        kvTypeV = name;
        return this;
    }

    /**
     * Opens the vocabulary alone, without weights: tokens, tries, metadata and what the model is can be asked for, and every call
     * that needs weights throws {@link ElizaException.Unsupported}. The other options but the path have no effect then.
     */
    public OpenOptions vocabOnly(boolean alone) {
        vocabOnly = alone;
        return this;
    }

    /** Who hears the progress of the load; null, the default, is nobody. */
    public OpenOptions progress(LoadListener listener) {
        progress = listener;
        return this;
    }

    /** The numbers, in the order in which native code takes them. */
    int[] whole() {
        return new int[] {contextSize, threads, gpuLayers, slots, nBatch, snapshots, parallel, maxSlowdownPercent,
            concurrentSlots ? 1 : 0};
    }
}
