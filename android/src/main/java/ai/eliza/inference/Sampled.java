package ai.eliza.inference;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** How a token was drawn. */
public final class Sampled {
    private final int token;
    private final double logprob;
    private final double probability;
    private final List<Candidate> candidates;

    /** A token that could have been drawn. */
    public static final class Candidate {
        private final int token;
        private final double logit;
        private final double probability;

        private Candidate(int token, double logit, double probability) {
            this.token = token;
            this.logit = logit;
            this.probability = probability;
        }

        /** The token. */
        public int token() {
            return token;
        }

        /** Its logit after biases, penalties and temperature. */
        public double logit() {
            return logit;
        }

        /** Its probability among the tokens that the chain left. */
        public double probability() {
            return probability;
        }
    }

    /** Token, logarithm and probability, and after them token, logit and probability of each candidate. */
    Sampled(double[] numbers) {
        token = (int) numbers[0];
        logprob = numbers[1];
        probability = numbers[2];
        List<Candidate> found = new ArrayList<>(numbers.length / 3 - 1);
        for (int at = 3; at < numbers.length; at += 3) {
            found.add(new Candidate((int) numbers[at], numbers[at + 1], numbers[at + 2]));
        }
        candidates = Collections.unmodifiableList(found);
    }

    /** The token. */
    public int token() {
        return token;
    }

    /** The natural logarithm of {@link #probability()}. */
    public double logprob() {
        return logprob;
    }

    /** Its probability among the tokens that the chain left. */
    public double probability() {
        return probability;
    }

    /** The tokens that the chain left, likeliest first: as many as {@link SamplingOptions#candidates} asked for. */
    public List<Candidate> candidates() {
        return candidates;
    }
}
