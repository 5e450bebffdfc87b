package ai.eliza.inference;

import java.nio.ByteBuffer;

/**
 * The native methods. Texts are UTF-8 in direct buffers, all of whose capacity counts; a session is the number that
 * {@link #open} gave. Every method throws {@link ElizaException}.
 */
final class Native {
    private static boolean loaded;

    private Native() {}

    /**
     * Loads the library, the first time: the file that the property {@code ai.eliza.inference.library} names, or
     * {@code elizainference_jni} from where the system looks for an app's libraries. Not in a static initialiser: what fails there
     * is only said once, and it would run whenever the class is looked at.
     */
    static synchronized void load() {
        if (loaded) {
            return;
        }
        String file = System.getProperty("ai.eliza.inference.library");
        if (file == null) {
            System.loadLibrary("elizainference_jni");
        } else {
            System.load(file);
        }
        loaded = true;
    }

    static native String abiVersion();

    static native int defaultThreadCount();

    static native String nextLogLine(int[] level);

    static native void endLog();

    static native String devices();

    static native String plan(ByteBuffer path, int[] whole, ByteBuffer device, ByteBuffer tensorSplit, ByteBuffer tensorDevices,
        ByteBuffer kvType, ByteBuffer kvTypeV, ByteBuffer draft);

    static native String fileMetadata(ByteBuffer path, ByteBuffer key);

    static native long open(ByteBuffer path, int[] whole, ByteBuffer device, ByteBuffer tensorSplit, ByteBuffer tensorDevices,
        ByteBuffer kvType, ByteBuffer kvTypeV, ByteBuffer draft, ByteBuffer storeDirectory, long storeBytes, ByteBuffer vocab,
        ByteBuffer apiKey, ByteBuffer certificates, int serverTimeoutMs, ByteBuffer fallback, boolean vocabOnly, LoadListener progress);

    static native long openSlot(long session, int slot);

    static native void close(long session);

    static native int[] tokenize(long session, ByteBuffer text, boolean addSpecial, boolean parseSpecial);

    static native byte[] detokenize(long session, int[] tokens, boolean removeSpecial, boolean unparseSpecial);

    static native String describe(long session);

    static native String metadata(long session, ByteBuffer key);

    static native boolean isEog(long session, int token);

    static native String token(long session, int token);

    static native String chatPrompt(long session, ByteBuffer inputs);

    static native String chatParts(long session, ByteBuffer inputs, ByteBuffer text, boolean last);

    static native void prefill(long session, int[] tokens, int slot);

    static native float[] logits(long session, int nLast);

    static native float[][] embed(long session, int[] tokens, int[] ends, int pooling, int dimensions, boolean normalize);

    static native float[] rank(long session, ByteBuffer query, ByteBuffer texts, int[] ends);

    static native double[] sampled(long session, int slot);

    static native void generate(long session, int maxNewTokens, float temperature, float topP);

    static native long next(long session, int timeoutMillis, ByteBuffer step, int tokensCap);

    static native void saveSlot(long session, int slot, ByteBuffer path);

    static native int restoreSlot(long session, int slot, ByteBuffer path);

    static native void persist(long session, int slot, ByteBuffer key);

    static native int resume(long session, int slot, ByteBuffer key);

    static native boolean forget(long session, ByteBuffer key);

    static native void prewarm(long session, int[] tokens, int slot);

    static native void pinSlot(long session, int slot, boolean pinned);

    static native void cancel(long session);

    static native long[] usage(long session);

    static native String usageJson(long session);

    static native long samplingOptions(long session, int[] whole, float[] real);

    static native void configure(long session, long seed, int[] whole, float[] real, ByteBuffer stop, int[] stopEnds,
        int[] biasIds, float[] biasValues, ByteBuffer breakers, int[] breakerEnds, ByteBuffer samplers,
        ByteBuffer reasoningStart, ByteBuffer reasoningEnd);

    static native void setChain(long session, int slot, ByteBuffer chain);

    static native void setTokenTrie(long session, ByteBuffer payload, int mode);

    static native void clearTokenTrie(long session);

    static native void armTokenTrie(long session, ByteBuffer path);

    static native void setGrammar(long session, ByteBuffer source);

    static native void clearGrammar(long session);

    static native String[] buildTokenTrie(long session, ByteBuffer path, ByteBuffer names, int[] nameEnds,
        ByteBuffer before, ByteBuffer after, boolean parseSpecial);

    static native Object[] scoreTokenTrie(long session);
}
