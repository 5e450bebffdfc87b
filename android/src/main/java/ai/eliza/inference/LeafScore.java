package ai.eliza.inference;

/** How probable one leaf of a token trie is as what follows the prompt. */
public final class LeafScore {
    private final String path;
    private final String name;
    private final int tokens;
    private final double logprob;

    LeafScore(String path, String name, int tokens, double logprob) {
        this.path = path;
        this.name = name;
        this.tokens = tokens;
        this.logprob = logprob;
    }

    /** The path of the descriptor that the leaf belongs to. */
    public String path() {
        return path;
    }

    /** The leaf's name. */
    public String name() {
        return name;
    }

    /** How many tokens it has. */
    public int tokens() {
        return tokens;
    }

    /**
     * The natural logarithm of the probability that exactly this leaf follows, by the model's own logits; minus infinity for one
     * that cannot.
     */
    public double logprob() {
        return logprob;
    }
}
