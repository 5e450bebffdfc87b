package ai.eliza.inference;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** The binding of the Android agent over {@link Session}, and what opens and ends its contexts. */
public final class AospStreaming implements AospStreamingLlmBinding {
    private static final int SLOTS = 16;
    private static final int MAX_STEP_TOKENS = 512;
    private static final int MIN_TEXT_BYTES = 8;
    private static final int MAX_TEXT_BYTES = 65536;

    private final Map<Long, Context> contexts = new HashMap<>();
    private final Map<Long, Stream> streams = new HashMap<>();
    private long issued;

    /** A slot, and the name of the conversation that it holds. */
    private static final class Slot {
        final int number;
        String key;

        Slot(int number) {
            this.number = number;
        }
    }

    /** An open model, and the stream that is open on it. */
    private static final class Context {
        final Session session;
        /** The slot used last is the last one. */
        final List<Slot> slots = new ArrayList<>(SLOTS);
        Stream stream;

        Context(Session session) {
            this.session = session;
            for (int number = 0; number < SLOTS; number++) {
                slots.add(new Slot(number));
            }
        }

        /** The slot of a new stream: of its key, or else of its number. */
        int slot(String key, int number) {
            int at = 0;
            while (at < SLOTS && !(key == null ? slots.get(at).number == number : key.equals(slots.get(at).key))) {
                at++;
            }
            if (at == SLOTS && key == null) {
                return number; // a fresh one, or none that there is
            }
            Slot used = slots.remove(at % SLOTS); // a new key takes the one unused for longest
            used.key = key;
            slots.add(used);
            return used.number;
        }
    }

    private enum State { OPEN, GENERATING, OVER }

    /** Whoever works with one holds its monitor, but not while waiting for a step; cancelling needs none. */
    private static final class Stream {
        final long id;
        final Context context;
        final Session session;
        final int maxTokens;
        final float temperature;
        final float topP;
        final int slot;
        /** The session's last prompt or restore is this stream's. */
        boolean prompted;
        State state = State.OPEN;
        Session.Room room;

        Stream(long id, Context context, AospLlmStreamConfig config) {
            this.id = id;
            this.context = context;
            session = context.session;
            maxTokens = config.maxTokens;
            temperature = config.temperature;
            topP = config.topP;
            slot = context.slot(config.promptCacheKey, config.slotId);
        }

        void checkNotOver() {
            if (state == State.OVER) {
                throw refused("Stream " + id + " is over");
            }
        }
    }

    @Override
    public boolean llmStreamSupported() {
        try {
            Native.load();
            return true;
        } catch (UnsatisfiedLinkError missing) {
            return false;
        }
    }

    /** Opens a model. Blocks while the file is loaded; the numbers mean what they do in {@link OpenOptions}. */
    public long openContext(String modelPath, int contextSizeTokens, int numThreads, int gpuLayers) {
        OpenOptions options = new OpenOptions(modelPath).contextSize(contextSizeTokens).threads(numThreads)
            .gpuLayers(gpuLayers).slots(SLOTS);
        Session session = ElizaInference.open(options);
        synchronized (this) {
            contexts.put(++issued, new Context(session));
            return issued;
        }
    }

    /** The session of a context, for its tokens, its usage, and what its streams do not report. Closing it is the context's part. */
    public synchronized Session session(long ctx) {
        return context(ctx).session;
    }

    /** Ends a context and the stream on it. Closing again does nothing. */
    public void closeContext(long ctx) {
        Context closing;
        Stream stream;
        synchronized (this) {
            closing = contexts.remove(ctx);
            stream = closing == null ? null : closing.stream;
        }
        if (closing == null) {
            return;
        }
        if (stream != null) {
            llmStreamClose(stream.id);
        }
        closing.session.close();
    }

    @Override
    public synchronized long llmStreamOpen(long ctx, AospLlmStreamConfig config) {
        Context on = context(ctx);
        if (on.stream != null) {
            throw ElizaException.of(-40, "Busy: context " + ctx + " has stream " + on.stream.id + " open");
        }
        if (config.draftMin > 0 || config.draftMax > 0) {
            throw ElizaException.of(-1, "Not supported: draftMin is " + config.draftMin + " and draftMax " + config.draftMax
                + ", but there is no speculative decoding: both must be 0");
        }
        SamplingOptions options = on.session.samplingOptions();
        options.topK = config.topK;
        options.repeatPenalty = config.repeatPenalty;
        on.session.configure(options);
        on.stream = new Stream(++issued, on, config);
        streams.put(issued, on.stream);
        return issued;
    }

    @Override
    public void llmStreamPrefill(long stream, int[] tokens) {
        Stream on = stream(stream);
        synchronized (on) {
            on.checkNotOver();
            on.session.prefill(tokens, on.slot);
            on.prompted = true;
        }
    }

    @Override
    public Step llmStreamNext(long stream, int maxTokensPerStep, int maxTextBytes) throws InterruptedException {
        Stream on = stream(stream);
        if (maxTextBytes < MIN_TEXT_BYTES) {
            throw refused("maxTextBytes is " + maxTextBytes + ", must be " + MIN_TEXT_BYTES + " or more");
        }
        int tokens = Math.min(Math.max(maxTokensPerStep, 1), MAX_STEP_TOKENS);
        int bytes = Math.min(maxTextBytes, MAX_TEXT_BYTES);
        Session.Room room;
        synchronized (on) {
            on.checkNotOver();
            if (on.state == State.OPEN) {
                if (!on.prompted) {
                    throw ElizaException.of(-40, "Busy: stream " + stream + " has no prompt yet");
                }
                on.session.generate(on.maxTokens, on.temperature, on.topP);
                on.state = State.GENERATING;
            }
            if (on.room == null || on.room.tokens != tokens || on.room.textBytes != bytes) {
                on.room = new Session.Room(tokens, bytes);
            }
            room = on.room;
        }
        boolean over = true;
        try {
            Step step = on.session.pull(Long.MAX_VALUE, room, false);
            over = step.done();
            return step;
        } catch (InterruptedException interrupted) {
            over = false;
            throw interrupted;
        } finally {
            if (over) {
                synchronized (on) {
                    on.state = State.OVER;
                }
            }
        }
    }

    @Override
    public void llmStreamCancel(long stream) {
        stream(stream).session.cancel();
    }

    @Override
    public void llmStreamSaveSlot(long stream, String filename) {
        Stream on = stream(stream);
        synchronized (on) {
            if (!on.prompted) {
                throw refused("Stream " + stream + " has no prompt yet that could be saved");
            }
            on.session.saveSlot(-1, filename);
        }
    }

    @Override
    public void llmStreamRestoreSlot(long stream, String filename) {
        Stream on = stream(stream);
        synchronized (on) {
            on.checkNotOver();
            on.session.restoreSlot(on.slot, filename);
            on.prompted = true;
        }
    }

    @Override
    public void llmStreamClose(long stream) {
        Stream closing;
        synchronized (this) {
            closing = streams.remove(stream);
        }
        if (closing == null) {
            return;
        }
        try {
            end(closing);
        } catch (ElizaException.Closed closed) {
            // So is the stream.
        } finally {
            synchronized (this) {
                closing.context.stream = null;
            }
        }
    }

    @Override
    public void llmStreamSetTokenTrie(long stream, String triePayloadJson, int mode) {
        Stream on = stream(stream);
        synchronized (on) {
            on.checkNotOver();
            on.session.setTokenTrie(triePayloadJson, mode);
        }
    }

    @Override
    public void llmStreamClearTokenTrie(long stream) {
        Stream on = stream(stream);
        synchronized (on) {
            on.session.clearTokenTrie();
        }
    }

    private Context context(long ctx) {
        Context found = contexts.get(ctx);
        if (found == null) {
            throw refused("Context " + ctx + " is not open");
        }
        return found;
    }

    private synchronized Stream stream(long id) {
        Stream found = streams.get(id);
        if (found == null) {
            throw refused("Stream " + id + " is not open");
        }
        return found;
    }

    private static ElizaException refused(String why) {
        return ElizaException.of(-2, "Invalid argument: " + why);
    }

    /** Leaves the session idle, without what the stream had set. */
    private static void end(Stream closing) {
        closing.session.cancel();
        boolean interrupted = false;
        synchronized (closing) {
            while (closing.state == State.GENERATING) {
                try {
                    if (closing.session.pull(Long.MAX_VALUE, closing.room, false).done()) {
                        closing.state = State.OVER;
                    }
                } catch (InterruptedException again) {
                    interrupted = true;
                } catch (ElizaException over) {
                    // It failed, or another thread has had its last step.
                    closing.state = State.OVER;
                }
            }
            closing.state = State.OVER;
            closing.session.clearTokenTrie();
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }
}
