package ai.eliza.inference;

/** How the rows of a text's tokens become one; the order is that of the numbers in the C interface. */
public enum Pooling {
    /** As the model's file says. */
    DEFAULT,
    /** Not at all: the row of every token. */
    NONE,
    /** Their mean. */
    MEAN,
    /** The first token's. */
    CLS,
    /** The last token's. */
    LAST,
    /** Scores by the model's classifier, a number for each of its labels. */
    RANK
}
