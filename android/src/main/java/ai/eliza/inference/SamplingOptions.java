package ai.eliza.inference;

/**
 * How the generations of a session sample. {@link Session#samplingOptions()} gives what is in force: change what is wanted, and
 * pass it to {@link Session#configure}. Temperature and top-p are arguments of generate.
 */
public final class SamplingOptions {
    /** Seed of the draws; a negative one is chosen anew for each generation. */
    public long seed;
    /** Only the so many likeliest tokens; 0 or below: all. */
    public int topK;
    /** Only tokens at least so likely, relative to the likeliest; 0: all. */
    public float minP;
    /** Divides the logits of repeated tokens; 1: off. */
    public float repeatPenalty;
    /** How many of the last tokens the penalties see; 0 or below turns them off. */
    public int repeatLastN;
    /** Subtracted from the logit of every token seen; 0: off. */
    public float presencePenalty;
    /** Subtracted from the logit of a token for each time it was seen; 0: off. */
    public float frequencyPenalty;
    /** Generation ends before the first of these texts that appears; none may be empty. */
    public String[] stop = {};
    /** Tokens whose logits are shifted. */
    public int[] logitBiasIds = {};
    /** By how much each of them is shifted. */
    public float[] logitBiasValues = {};
    /** Generation ends where a constrained span ends, with {@link FinishReason#SPAN}. */
    public boolean stopAtSpanEnd;
    /** A token trie that only deserves a warning (made for another model) is refused. */
    public boolean strictTrie;
    /** Forbids end-of-generation tokens where no token trie decides. */
    public boolean ignoreEos;

    /** How many candidates {@link Session#sampled} reports, likeliest first; 0: none. */
    public int candidates;

    /** What a full context does. */
    public ContextFull onContextFull = ContextFull.STOP;
    /** Tokens in front that a shift keeps, a begin-of-text token included; 0 with {@link ContextFull#STOP}. */
    public int nKeep;

    /** Spells control tokens in the text, which else have none, for {@link Session#chatPartsJson}. */
    public boolean specialText;

    SamplingOptions() {}
}
