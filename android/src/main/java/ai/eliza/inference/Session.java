package ai.eliza.inference;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReentrantLock;

/**
 * An open model with a context of its own, in which one generation runs at a time. Close it: what it holds is not on Java's heap,
 * and the garbage collector does not free it.
 *
 * <p>Every method may be called on any thread. {@link #cancel}, {@link #close}, {@link #usage}, {@link #tokenize},
 * {@link #detokenize}, {@link #sampled} and what asks about the model or its tokens may be called at any time; the others fail with {@link ElizaException.Busy} while a prefill or a generation
 * runs, and change nothing then. After {@link #close} all but close throw {@link ElizaException.Closed}.
 */
public final class Session implements AutoCloseable {
    /** The slot argument that takes the slot whose tokens a prompt goes on from, else an empty one, else the one idle for longest. */
    public static final int FRESH_SLOT = -1;

    /** Tokens that a step holds at most, unless a test wants another number. */
    static final int STEP_TOKENS = 64;
    private static final int STEP_TEXT_BYTES = 4096;
    /** How long a wait goes on before it looks whether its thread was interrupted, and lets other threads look for a step. */
    private static final int SLICE_MILLIS = 50;

    private final long number;
    private final Room room;
    /** Held while a thread is in the native library for a step, which is a slice of its wait at most. */
    final ReentrantLock pulling = new ReentrantLock(true);
    /** A listener has not heard the end of its generation. It begins under {@link #pulling}, so no thread pulls its steps. */
    private volatile boolean listening;

    Session(long number, int stepTokens) {
        this.number = number;
        room = new Room(stepTokens, STEP_TEXT_BYTES);
    }

    /** Where native code leaves a step: token ids, and after them text. */
    static final class Room {
        final int tokens;
        final int textBytes;
        private final ByteBuffer bytes;
        private final IntBuffer ids;

        Room(int tokens, int textBytes) {
            this.tokens = tokens;
            this.textBytes = textBytes;
            bytes = ByteBuffer.allocateDirect(tokens * 4 + textBytes).order(ByteOrder.nativeOrder());
            ids = bytes.asIntBuffer();
        }

        /** The step that is here, by the number that native code gave with it. */
        private Step unpack(long packed) {
            int[] found = new int[(int) (packed >>> 32) & 0x0fffffff];
            byte[] text = new byte[(int) packed];
            ids.position(0);
            ids.get(found);
            bytes.position(tokens * 4);
            bytes.get(text);
            FinishReason reason = FinishReason.of((int) (packed >>> 60));
            return new Step(found, new String(text, StandardCharsets.UTF_8), reason);
        }
    }

    static Session open(OpenOptions options) {
        long number = Native.open(Utf8.direct(options.path, "path"), options.whole(),
            Utf8.directOrNull(options.device, "device"), Utf8.directOrNull(options.tensorSplit, "tensorSplit"),
            Utf8.directOrNull(options.tensorDevices, "tensorDevice"),
            Utf8.directOrNull(options.kvType, "kvType"), Utf8.directOrNull(options.kvTypeV, "kvTypeV"),
            Utf8.directOrNull(options.draft, "draft"), Utf8.directOrNull(options.storeDirectory, "store"), options.storeBytes,
            Utf8.directOrNull(options.vocab, "vocab"), Utf8.directOrNull(options.apiKey, "apiKey"),
            Utf8.directOrNull(options.certificates, "certificates"), options.serverTimeoutMs,
            Utf8.directOrNull(options.fallback, "fallback"), options.vocabOnly, options.progress);
        return new Session(number, STEP_TOKENS);
    }

    /**
     * Opens a session of one slot of this one, with options, trie or grammar, usage and cancel of its own, which generates at the
     * same time as this session and those of its other slots: every step reads the weights once for all of them, which changes no
     * token of anybody's. This session must have been opened with {@link OpenOptions#concurrentSlots}.
     *
     * <p>The new session has this slot alone, with the tokens in it, whether a call names it or -1; this one has it again once the
     * new one is closed, and keeps one slot at least. The sampling options are those that this session has now. All share its
     * context: where that is full, a slot is emptied whose session has no prompt and generates nothing.
     *
     * @param slotId the slot; -1 takes one that has no session, an empty one where there is one
     * @throws ElizaException.Unsupported where the slots of this session take turns
     * @throws ElizaException.InvalidArgument for a slot that does not exist or has a session, and the last one without
     * @throws ElizaException.Busy while this session is at work, and for the slot whose prompt waits for its generate
     */
    public Session openSlot(int slotId) {
        return new Session(Native.openSlot(number, slotId), STEP_TOKENS);
    }

    /**
     * What is open, as one JSON object: names, architecture, sizes, special tokens by role, the tokens that end a generation,
     * context, slots, threads, device. What the file does not say is null.
     */
    public String describeJson() {
        return Native.describe(number);
    }

    /** The metadata of the file as one JSON object; of an array with more than 16 elements type and length alone. */
    public String metadataJson() {
        return Native.metadata(number, null);
    }

    /** One value of the file's metadata as JSON, arrays whole. */
    public String metadataJson(String key) {
        return Native.metadata(number, Utf8.direct(key, "key"));
    }

    /** Whether a token ends a generation. */
    public boolean isEog(int token) {
        return Native.isEog(number, token);
    }

    /** A token of the vocabulary as one JSON object: its text in the file, what it spells, score, attributes. */
    public String tokenJson(int token) {
        return Native.token(number, token);
    }

    /**
     * The prompt that the model's chat template makes of messages, as one JSON object: {@code text}, and {@code tokens} to
     * prefill. {@code inputsJson} is an object with {@code messages}, and where wanted {@code tools}, {@code
     * add_generation_prompt} and what else the template reads. What messages spell is text: no special token comes of them.
     *
     * @throws ElizaException.InvalidArgument where the template refuses the messages
     * @throws ElizaException.Unsupported where the file has no template, and its tokens are of no known family
     */
    public String chatPromptJson(String inputsJson) {
        return Native.chatPrompt(number, Utf8.direct(inputsJson, "inputsJson"));
    }

    /**
     * Takes an answer apart: the parts that {@code text}, its next piece, completes, as a JSON array of objects with {@code
     * type}: {@code answer} or {@code reasoning} with {@code text}, {@code tool_call} with {@code name}, {@code arguments} (a
     * JSON object as text) and where the model gives one {@code id}. How the text is cut changes nothing. Control tokens have to
     * be spelled in it: {@link SamplingOptions#specialText}.
     *
     * @param inputsJson begins a new answer, the one to the prompt of the same inputs; null goes on with the one that was begun
     * @param last ends the answer: the parts are then also those that were held back
     * @throws ElizaException.InvalidArgument where no answer was begun, and as {@link #chatPromptJson}
     */
    public String chatPartsJson(String inputsJson, String text, boolean last) {
        return Native.chatParts(number, Utf8.directOrNull(inputsJson, "inputsJson"), Utf8.direct(text, "text"), last);
    }

    /** The tokens of a text, with those in front that the model wants there (usually BOS), as for a prompt. */
    public int[] tokenize(String text) {
        return tokenize(text, true, false);
    }

    /**
     * The tokens of a text.
     *
     * @param addSpecial adds the begin- and end-of-text tokens that the model wants (usually BOS)
     * @param parseSpecial reads the text of special tokens as those tokens: for templates, not for what users wrote
     */
    public int[] tokenize(String text, boolean addSpecial, boolean parseSpecial) {
        return Native.tokenize(number, Utf8.direct(text, "text"), addSpecial, parseSpecial);
    }

    /** The text of tokens, without special ones. What is not UTF-8 becomes U+FFFD. */
    public String detokenize(int[] tokens) {
        return new String(Native.detokenize(number, tokens, true, false), StandardCharsets.UTF_8);
    }

    /** {@link #prefill(int[], int)} with the tokens of a text in a fresh slot. */
    public void prefill(String prompt) {
        prefill(tokenize(prompt), FRESH_SLOT);
    }

    /**
     * Evaluates a prompt and keeps its state; what the slot already holds of it is reused. Blocks until done;
     * {@link #cancel} from another thread ends it with {@link ElizaException.Cancelled}. Success arms the token trie again.
     *
     * @param slot {@link #FRESH_SLOT}, or the number of a conversation from 0 up
     */
    public void prefill(int[] tokens, int slot) {
        checkHeard();
        Native.prefill(number, tokens, slot);
    }

    /**
     * The model's own logits of the last positions of the prompt, before any bias, penalty or chain: a row for each, the oldest
     * first, with a number for every token of the vocabulary. After a prefill and before the generation, which may follow as if
     * nothing had happened. Blocks until done; {@link #cancel} from another thread ends it.
     *
     * @param nLast how many positions, 1 to 512; all but the last are evaluated once more
     */
    public float[] logits(int nLast) {
        checkHeard();
        return Native.logits(number, nLast);
    }

    /** {@link #embed(int[][], EmbedOptions)} with the tokens of texts, as the model's file says. */
    public float[][] embed(List<String> texts) {
        int[][] tokens = new int[texts.size()][];
        for (int i = 0; i < tokens.length; i++) {
            tokens[i] = tokenize(texts.get(i));
        }
        return embed(tokens, new EmbedOptions());
    }

    /**
     * Embeddings: a row of numbers for each text, given as its tokens, in their order. Short texts share passes, so many at once
     * take far less time than one by one. With {@link Pooling#NONE} a text's rows, one for each token, follow each other. A text
     * that is longer than the context is refused, never cut. Blocks until done; {@link #cancel} from another thread ends it. A
     * prompt that waits for its generation is forgotten.
     */
    public float[][] embed(int[][] texts, EmbedOptions options) {
        checkHeard();
        int[] ends = new int[texts.length];
        int all = 0;
        for (int i = 0; i < texts.length; i++) {
            all += texts[i].length;
            ends[i] = all;
        }
        int[] tokens = new int[all];
        for (int i = 0; i < texts.length; i++) {
            System.arraycopy(texts[i], 0, tokens, ends[i] - texts[i].length, texts[i].length);
        }
        return Native.embed(number, tokens, ends, options.pooling.ordinal(), options.dimensions, options.normalize);
    }

    /**
     * How well each text answers a question, by a model with a classifier (a reranker): higher is better. Some models give
     * probabilities, others any number. Blocks as {@link #embed(int[][], EmbedOptions)} does.
     */
    public float[] rank(String query, List<String> texts) {
        checkHeard();
        int[] ends = new int[texts.size()];
        ByteBuffer joined = Utf8.direct(texts.toArray(new String[0]), "texts", ends);
        return Native.rank(number, Utf8.direct(query, "query"), joined, ends);
    }

    /**
     * How the last token that was drawn in a slot was drawn, null before the first; may be asked at any time. Tokens that a token
     * trie forced are not drawn.
     *
     * @param slot the slot from 0 up, or {@link #FRESH_SLOT} for that of prompts in a fresh slot
     */
    public Sampled sampled(int slot) {
        double[] numbers = Native.sampled(number, slot);
        return numbers == null ? null : new Sampled(numbers);
    }

    /**
     * Starts a generation after a prefill and returns at once; {@link #next} or {@link #poll} then give its steps.
     *
     * @param maxNewTokens how many tokens at most; a negative number goes on until the model stops or the context is full
     * @param temperature 0 or below takes the likeliest token; NaN leaves it to the model and the chain
     * @param topP 1 keeps all tokens; NaN leaves it to the model and the chain
     */
    public void generate(int maxNewTokens, float temperature, float topP) {
        checkHeard();
        Native.generate(number, maxNewTokens, temperature, topP);
    }

    /** As {@link #generate(int, float, float)}, with a listener that hears the steps. */
    public void generate(int maxNewTokens, float temperature, float topP, StepListener listener) {
        if (listener == null) {
            throw new NullPointerException("listener");
        }
        Thread thread = new Thread(() -> deliver(listener), "eliza listener");
        thread.setDaemon(true);
        pulling.lock();
        try {
            generate(maxNewTokens, temperature, topP);
            listening = true;
        } finally {
            pulling.unlock();
        }
        try {
            thread.start();
        } catch (Throwable noThread) {
            listening = false;
            cancel();
            throw noThread;
        }
    }

    /** Waits for the next step of the generation. An interrupt ends the wait, not the generation. */
    public Step next() throws InterruptedException {
        return poll(Long.MAX_VALUE);
    }

    /**
     * Waits at most so many milliseconds for the next step; null where there was none, or where another thread that waits for
     * steps is to have the next one. With 0 or less it does not wait.
     */
    public Step poll(long timeoutMillis) throws InterruptedException {
        return pull(timeoutMillis, room, false);
    }

    /**
     * Asks the running prefill or generation to stop; never waits. A generation ends within about a token, with
     * {@link FinishReason#CANCELLED}. Nothing happens when nothing runs.
     */
    public void cancel() {
        Native.cancel(number);
    }

    /**
     * Saves a slot to a file: its tokens, its part of the KV cache, and for the slot of the last prefill or restore where its
     * generation stopped, the place inside a span of a token trie included. Blocks until done; {@link #cancel} from another thread
     * ends it. The session is as before. A file that is there is replaced as a whole; after a failure it is as before. It holds
     * the prompt.
     *
     * @param slotId the slot from 0 up, or -1 for that of the last prefill or restore
     */
    public void saveSlot(int slotId, String path) {
        checkHeard();
        Native.saveSlot(number, slotId, Utf8.direct(path, "path"));
    }

    /**
     * Brings what {@link #saveSlot} wrote into a slot, in place of what that holds, and gives how many tokens the stream then has.
     * Blocks until done; {@link #cancel} from another thread ends it. The file may come from another process or device; the
     * model and the type of the KV cache are the same. A generate may follow at once, without a prefill, and goes on where the
     * saved stream stopped; a prefill reuses what was restored as far as the prompts agree. Where a token trie held the stream, the
     * same has to be set in the same mode before.
     *
     * <p>A file that is damaged, of another model, longer than the context or held by another trie is refused with
     * {@link ElizaException.RefusedSlot}, and nothing has changed.
     *
     * @param slotId {@link #FRESH_SLOT}, or the slot from 0 up
     */
    public int restoreSlot(int slotId, String path) {
        checkHeard();
        return Native.restoreSlot(number, slotId, Utf8.direct(path, "path"));
    }

    /**
     * Keeps a slot in the folder {@link OpenOptions#store} under a key of the host's choice, as {@link #saveSlot} saves it, in place
     * of what is kept under that key. Where the folder is limited, the conversations that were used the longest time ago are removed
     * for it. A process that ends meanwhile and a full disk leave what was kept before.
     *
     * @param slotId the slot from 0 up, or -1 for that of the last prefill or restore
     */
    public void persist(int slotId, String key) {
        checkHeard();
        Native.persist(number, slotId, Utf8.direct(key, "key"));
    }

    /**
     * Restores what {@link #persist} kept under a key, in this process or an earlier one, as {@link #restoreSlot} does, and gives
     * how many tokens the stream then has; 0, and nothing changes, where nothing is kept under that key.
     *
     * @param slotId {@link #FRESH_SLOT}, or the slot from 0 up
     */
    public int resume(int slotId, String key) {
        checkHeard();
        return Native.resume(number, slotId, Utf8.direct(key, "key"));
    }

    /** Removes what {@link #persist} kept under a key; whether there was something. */
    public boolean forget(String key) {
        return Native.forget(number, Utf8.direct(key, "key"));
    }

    /**
     * Evaluates a prompt when the session has nothing else to do, and returns at once: a later prompt that begins with it, in
     * whatever slot, does not evaluate it again. For the part that many conversations begin with, or for the next turn while the
     * user types. Every call that needs the model ends it; how many prompts wait is {@code prewarms} in {@link #usageJson}. An error
     * that comes later is logged.
     *
     * @param slotId {@link #FRESH_SLOT}, or the slot from 0 up
     */
    public void prewarm(int[] tokens, int slotId) {
        Native.prewarm(number, tokens, slotId);
    }

    /**
     * Pins a slot, or unpins it: a pinned one keeps its tokens when others need room, and no prompt takes it as its fresh slot.
     * Fails with {@link ElizaException.Busy} while the session is at work.
     */
    public void pinSlot(int slotId, boolean pinned) {
        Native.pinSlot(number, slotId, pinned);
    }

    /** What is in force: at first the library's defaults under those that the model file brings. */
    public SamplingOptions samplingOptions() {
        SamplingOptions options = new SamplingOptions();
        int[] whole = new int[16];
        float[] real = new float[16];
        options.seed = Native.samplingOptions(number, whole, real);
        options.topK = whole[0];
        options.repeatLastN = whole[1];
        options.stopAtSpanEnd = whole[2] != 0;
        options.strictTrie = whole[3] != 0;
        options.ignoreEos = whole[4] != 0;
        options.candidates = whole[5];
        options.onContextFull = whole[6] != 0 ? ContextFull.SHIFT : ContextFull.STOP;
        options.nKeep = whole[7];
        options.specialText = whole[8] != 0;
        options.dryAllowedLength = whole[9];
        options.dryLastN = whole[10];
        options.mirostat = whole[11];
        options.minKeep = whole[12];
        options.generator = whole[13] != 0 ? Generator.MT19937 : Generator.COUNTER;
        options.reasoningBudget = whole[14];
        options.noGuessing = whole[15] != 0;
        options.minP = real[0];
        options.repeatPenalty = real[1];
        options.presencePenalty = real[2];
        options.frequencyPenalty = real[3];
        options.topNSigma = real[4];
        options.typicalP = real[5];
        options.xtcProbability = real[6];
        options.xtcThreshold = real[7];
        options.dynatempRange = real[8];
        options.dynatempExponent = real[9];
        options.dryMultiplier = real[10];
        options.dryBase = real[11];
        options.mirostatTau = real[12];
        options.mirostatEta = real[13];
        options.adaptiveTarget = real[14];
        options.adaptiveDecay = real[15];
        return options;
    }

    /** Sets how later generations sample; it holds until set again. Refused options change nothing. */
    public void configure(SamplingOptions options) {
        if (options.logitBiasIds.length != options.logitBiasValues.length) {
            throw ElizaException.of(-2, "Invalid argument: logitBiasIds has " + options.logitBiasIds.length
                + " entries, logitBiasValues " + options.logitBiasValues.length);
        }
        int[] whole = {
            options.topK,
            options.repeatLastN,
            options.stopAtSpanEnd ? 1 : 0,
            options.strictTrie ? 1 : 0,
            options.ignoreEos ? 1 : 0,
            options.candidates,
            options.onContextFull.ordinal(),
            options.nKeep,
            options.specialText ? 1 : 0,
            options.dryAllowedLength,
            options.dryLastN,
            options.mirostat,
            options.minKeep,
            options.generator.ordinal(),
            options.reasoningBudget,
            options.noGuessing ? 1 : 0,
        };
        float[] real = {
            options.minP,
            options.repeatPenalty,
            options.presencePenalty,
            options.frequencyPenalty,
            options.topNSigma,
            options.typicalP,
            options.xtcProbability,
            options.xtcThreshold,
            options.dynatempRange,
            options.dynatempExponent,
            options.dryMultiplier,
            options.dryBase,
            options.mirostatTau,
            options.mirostatEta,
            options.adaptiveTarget,
            options.adaptiveDecay,
        };
        int[] ends = new int[options.stop.length];
        ByteBuffer stop = Utf8.direct(options.stop, "stop", ends);
        int[] breakerEnds = new int[options.dryBreakers.length];
        ByteBuffer breakers = Utf8.direct(options.dryBreakers, "dryBreakers", breakerEnds);
        Native.configure(number, options.seed, whole, real, stop, ends, options.logitBiasIds, options.logitBiasValues, breakers,
            breakerEnds, Utf8.directOrNull(options.samplers, "samplers"),
            Utf8.directOrNull(options.reasoningStart, "reasoningStart"),
            Utf8.directOrNull(options.reasoningEnd, "reasoningEnd"));
    }

    /**
     * Sets the sampler chain of later generations on a slot in place of the options, for example
     * {@code top_k=40;top_p=0.95;min_p=0.05;temp=0.8}; null goes back to the options.
     */
    public void setChain(int slot, String chain) {
        Native.setChain(number, slot, Utf8.directOrNull(chain, "chain"));
    }

    /**
     * Makes the payload of a token trie with one descriptor, whose leaves are these names as the model would write them there.
     *
     * @param before the text before the name in the reply; the prompt ends with it. Empty: the name begins a text
     * @param after the closing delimiter, a part of every leaf. Empty: a leaf ends with its name
     * @param parseSpecial reads the text of special tokens as those tokens, in all three texts
     */
    public TokenTrie buildTokenTrie(String path, List<String> names, String before, String after, boolean parseSpecial) {
        int[] ends = new int[names.size()];
        ByteBuffer joined = Utf8.direct(names.toArray(new String[0]), "names", ends);
        String[] built = Native.buildTokenTrie(number, Utf8.direct(path, "path"), joined, ends,
            Utf8.direct(before, "before"), Utf8.direct(after, "after"), parseSpecial);
        List<String> warnings = Arrays.asList(built).subList(1, built.length);
        return new TokenTrie(built[0], Collections.unmodifiableList(new ArrayList<>(warnings)));
    }

    /**
     * Constrains what follows to the leaves of a token trie, and arms its first descriptor. It persists until it is cleared or
     * replaced, and each prefill arms it again. After a failure other than {@link ElizaException.Busy} generate fails until a set
     * succeeds or the trie is cleared.
     *
     * @param payloadJson {@code {"modelId": "…", "descriptors": [{"path": "…", "leaves": [{"name": "…", "tokens": [1, 2]}]}]}}
     */
    public void setTokenTrie(String payloadJson, TrieMode mode) {
        setTokenTrie(payloadJson, mode.ordinal());
    }

    void setTokenTrie(String payloadJson, int mode) {
        Native.setTokenTrie(number, Utf8.direct(payloadJson, "payloadJson"), mode);
    }

    /** Removes the constraint, and the bar that a refused payload left. Nothing happens when there is none. */
    public void clearTokenTrie() {
        Native.clearTokenTrie(number);
    }

    /** Arms one descriptor of the trie, by its path; null arms the next in payload order, after the last the first. */
    public void armTokenTrie(String path) {
        Native.armTokenTrie(number, Utf8.directOrNull(path, "path"));
    }

    /**
     * Scores every leaf of the descriptor armed last as what follows the prompt, the most probable first. Blocks until done;
     * {@link #cancel} from another thread ends it. A generate may follow as if nothing had happened.
     */
    public List<LeafScore> scoreTokenTrie() {
        Object[] parts = Native.scoreTokenTrie(number);
        String path = (String) parts[0];
        String[] names = (String[]) parts[1];
        int[] tokens = (int[]) parts[2];
        double[] logprobs = (double[]) parts[3];
        List<LeafScore> scores = new ArrayList<>(names.length);
        for (int i = 0; i < names.length; i++) {
            scores.add(new LeafScore(path, names[i], tokens[i], logprobs[i]));
        }
        return scores;
    }

    /**
     * Holds what follows to a grammar, from its start; it takes the place of a token trie. It persists until it is cleared or
     * replaced, and each prefill begins it again. After a failure other than {@link ElizaException.Busy} generate fails until a set
     * succeeds or {@link #clearGrammar} is called. Where only an end-of-generation token is legal the generation ends.
     */
    public void setGrammar(Grammar grammar) {
        setGrammar(grammar.json());
    }

    /** The same with the JSON that {@link Grammar#json} makes, as the header says of {@code eliza_inference_set_grammar}. */
    public void setGrammar(String json) {
        Native.setGrammar(number, Utf8.direct(json, "json"));
    }

    /** Removes the grammar, and the bar that a refused one left. Nothing happens when there is none; a token trie stays. */
    public void clearGrammar() {
        Native.clearGrammar(number);
    }

    /** What the last prompt and the generation after it used; also while it runs. */
    public Usage usage() {
        return new Usage(Native.usage(number));
    }

    /** Usage, and what numbers cannot say (model, device, sizes), as one JSON object. */
    public String usageJson() {
        return Native.usageJson(number);
    }

    /**
     * Ends the session. A running generation is cancelled and its listener still hears the end; nothing is waited for while one runs,
     * and memory is freed after it. Closing again does nothing.
     */
    @Override
    public void close() {
        Native.close(number);
    }

    private void checkHeard() {
        if (listening) {
            throw ElizaException.of(-40, "Busy: the listener has not heard the end of its generation yet");
        }
    }

    /** As {@link #poll}, with a room of the caller's; {@code heard}: for the listener. */
    Step pull(long timeoutMillis, Room room, boolean heard) throws InterruptedException {
        long begin = System.nanoTime();
        while (true) {
            checkPulled(heard);
            if (!pulling.tryLock(left(timeoutMillis, begin), TimeUnit.MILLISECONDS)) {
                return null;
            }
            long left = left(timeoutMillis, begin);
            try {
                checkPulled(heard);
                long packed = Native.next(number, (int) Math.min(left, SLICE_MILLIS), room.bytes, room.tokens);
                if (packed != 0) {
                    return room.unpack(packed);
                }
            } finally {
                pulling.unlock();
            }
            if (left <= SLICE_MILLIS) {
                return null;
            }
        }
    }

    private static long left(long timeoutMillis, long begin) {
        return Math.max(timeoutMillis - TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begin), 0);
    }

    private void checkPulled(boolean heard) {
        if (listening && !heard) {
            throw ElizaException.of(-2, "Invalid argument: the generation has a listener, there is nothing to pull");
        }
    }

    /** The listener's thread. */
    private void deliver(StepListener listener) {
        boolean over = false;
        try {
            while (!over) {
                Step heard = null;
                ElizaException failure = null;
                try {
                    heard = pull(Long.MAX_VALUE, room, true);
                } catch (ElizaException.Closed closed) {
                    heard = new Step(new int[0], "", FinishReason.CANCELLED);
                } catch (ElizaException failed) {
                    failure = failed;
                } catch (InterruptedException interrupted) {
                    // The thread is not the host's; an interrupt that reaches it can only mean that this should end.
                    cancelIfOpen();
                    continue;
                }
                over = failure != null || heard.done();
                // From the end on the listener may prefill again.
                listening = !over;
                if (failure != null) {
                    listener.onFailure(failure);
                } else {
                    listener.onStep(heard);
                }
            }
        } finally {
            // The listener threw in the middle.
            if (!over) {
                listening = false;
                cancelIfOpen();
            }
        }
    }

    private void cancelIfOpen() {
        try {
            cancel();
        } catch (ElizaException.Closed closed) {
            // Then it is cancelled.
        }
    }
}
