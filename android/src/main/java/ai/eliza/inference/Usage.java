package ai.eliza.inference;

/** Counters and times since the last prefill began; times are microseconds. */
public final class Usage {
    /** Why the generation ended. */
    public final FinishReason finishReason;
    /** Tokens of the prompt, reused ones included. */
    public final long promptTokens;
    /** Prompt tokens that were still in the slot and not evaluated again. */
    public final long promptTokensReused;
    /** Tokens emitted; an end-of-generation token is not. */
    public final long completionTokens;
    /** Emitted tokens that the token trie or the grammar left no choice about. */
    public final long forcedTokens;
    /** Sampled tokens that the token trie or the grammar left a choice about. */
    public final long branchingSteps;
    /** Emitted tokens for which the token trie or the grammar allowed some tokens only. */
    public final long spanTokens;
    /** How many tokens it allowed there, added up. */
    public final long spanCandidates;
    /** Model evaluations, those of the prompt included. */
    public final long forwardPasses;
    /** How many more it would have taken to evaluate the generated tokens one by one. */
    public final long forwardPassesSaved;
    /** Logits computed. */
    public final long logitsComputed;
    /** From the start of the prefill to its end. */
    public final long prefillMicros;
    /** From the start of the generation to its first token; 0 until then. */
    public final long firstTokenMicros;
    /** From the start of the generation to its end; grows while it runs. */
    public final long decodeMicros;

    /** Sampled tokens with a choice for which all logits were computed, not those of the legal tokens alone. */
    public final long wholeRowSteps;
    /** Kernels started on a GPU. */
    public final long gpuDispatches;
    /** Command buffers given to a GPU. */
    public final long gpuSubmissions;
    /** How often the host waited for a GPU. */
    public final long gpuWaits;
    /** Bytes written to a GPU. */
    public final long gpuBytesUploaded;
    /** Bytes read from a GPU. */
    public final long gpuBytesRead;
    /** How often a full context was shifted to go on. */
    public final long contextShifts;
    /** Spent choosing tokens on the host; where a device samples, that is part of its pass and takes none. */
    public final long sampleMicros;
    /** Tokens that were chosen, by host or device: all but those that a token trie or a grammar left no choice about. */
    public final long sampledTokens;
    /** Reused prompt tokens that came from a file, by a restore or resume. */
    public final long promptTokensRestored;
    /** Tokens evaluated, of the prompt and of what was generated, repeated ones counted each time. */
    public final long evaluatedTokens;
    /** Earlier recurrent states and windows of sliding layers that are kept now, of all slots. */
    public final long snapshots;
    /** Token masks that were computed for the grammar while the generation ran; others were known. */
    public final long grammarMasks;
    /** States of the grammar that were known at the end of the generation. */
    public final long grammarStates;
    /** Tokens that were guessed and evaluated before they were sampled. */
    public final long draftedTokens;
    /** Those of them that were sampled: each saved a pass. */
    public final long acceptedTokens;

    Usage(long[] counters) {
        finishReason = FinishReason.of((int) counters[0]);
        promptTokens = counters[1];
        promptTokensReused = counters[2];
        completionTokens = counters[3];
        forcedTokens = counters[4];
        branchingSteps = counters[5];
        spanTokens = counters[6];
        spanCandidates = counters[7];
        forwardPasses = counters[8];
        forwardPassesSaved = counters[9];
        logitsComputed = counters[10];
        prefillMicros = counters[11];
        firstTokenMicros = counters[12];
        decodeMicros = counters[13];
        wholeRowSteps = counters[14];
        gpuDispatches = counters[15];
        gpuSubmissions = counters[16];
        gpuWaits = counters[17];
        gpuBytesUploaded = counters[18];
        gpuBytesRead = counters[19];
        contextShifts = counters[20];
        sampleMicros = counters[21];
        sampledTokens = counters[22];
        promptTokensRestored = counters[23];
        evaluatedTokens = counters[24];
        snapshots = counters[25];
        grammarMasks = counters[26];
        grammarStates = counters[27];
        draftedTokens = counters[28];
        acceptedTokens = counters[29];
    }
}
