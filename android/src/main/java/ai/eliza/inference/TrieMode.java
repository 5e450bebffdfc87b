package ai.eliza.inference;

/** How a token is chosen inside a constrained span; the order is that of the numbers in the C interface. */
public enum TrieMode {
    /** The likeliest legal token. */
    GREEDY,
    /** Temperature and truncations over the legal tokens, then a draw. */
    SAMPLED,
    /** Every leaf is scored by its log-probability, and the best one wins. */
    SCORE_LEAVES
}
