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
    /** Where random numbers come from. */
    public Generator generator = Generator.COUNTER;
    /**
     * The samplers and their order, such as {@code penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature}; null: the
     * order in force, at first the file's, else this one.
     */
    public String samplers;
    /** Only tokens whose logit is at most so many standard deviations below the greatest; 0 or below: all. */
    public float topNSigma;
    /** Only tokens of the most typical surprise with this probability in sum; 1 or above: all. */
    public float typicalP;
    /** XTC: how often all tokens of at least the threshold's probability are removed but the least likely; 0: never. */
    public float xtcProbability;
    /** The probability from which on XTC removes tokens; above 0.5: none. */
    public float xtcThreshold;
    /** Half the width of the range in which the temperature grows with the entropy; 0: a plain temperature. */
    public float dynatempRange;
    /** The power to which the normalised entropy is raised. */
    public float dynatempExponent;
    /** DRY: subtracted from the logit of a token that prolongs a repetition of the allowed length; 0: off. */
    public float dryMultiplier;
    /** DRY: the factor for each token that the repetition is longer; below 1 turns it off. */
    public float dryBase;
    /** DRY: the length in tokens from which on a repetition counts. */
    public int dryAllowedLength;
    /** DRY: its window in tokens; 0 or below turns it off. */
    public int dryLastN;
    /**
     * DRY: texts at which a repetition ends. With none the texts in force, at first a line feed, a colon, a quotation mark and an
     * asterisk; {@code none} alone is no text.
     */
    public String[] dryBreakers = {};
    /** 1 or 2: this version of mirostat in place of all samplers but the temperature; 0: none. */
    public int mirostat;
    /** The surprise of a token that mirostat aims at, in bits. */
    public float mirostatTau;
    /** How far mirostat moves with every token. */
    public float mirostatEta;
    /** Adaptive-p: draw near this probability; below 0: off. */
    public float adaptiveTarget;
    /** How much of its mean adaptive-p keeps with every token, 0 to 0.99. */
    public float adaptiveDecay;
    /** The tokens that top-p, min-p, typical-p and XTC keep at least. */
    public int minKeep;
    /** How many tokens the model may think in each block, before {@link #reasoningEnd} is forced. Only with that. */
    public int reasoningBudget;
    /** The text with which thinking begins, such as {@code <think>}; only with {@link #reasoningEnd}. */
    public String reasoningStart;
    /** The text with which thinking ends, such as {@code </think>}; null: no limit. */
    public String reasoningEnd;
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

    /**
     * Never evaluates tokens that the text suggests before they are sampled. That changes no token; it is done where it has paid in the
     * generation so far.
     */
    public boolean noGuessing;

    SamplingOptions() {}
}
