package ai.eliza.inference;

/** Where the random numbers of a draw come from. */
public enum Generator {
    /** Each draw is a function of seed and position. */
    COUNTER,
    /** llama.cpp's, with the tokens of llama.cpp for the same seed, samplers and logits. */
    MT19937,
}
