package ai.eliza.inference;

/** How {@link Session#embed} makes rows of texts. */
public final class EmbedOptions {
    Pooling pooling = Pooling.DEFAULT;
    int dimensions;
    boolean normalize = true;

    /** How the rows of a text's tokens become one; without it as the model's file says. */
    public EmbedOptions pooling(Pooling pooling) {
        this.pooling = pooling;
        return this;
    }

    /** Keeps so many of a row's first numbers, for models that are trained for it (Matryoshka); 0: all. */
    public EmbedOptions dimensions(int dimensions) {
        this.dimensions = dimensions;
        return this;
    }

    /** Whether each row is divided by its length, so that products of rows are cosines; without it they are. */
    public EmbedOptions normalize(boolean normalize) {
        this.normalize = normalize;
        return this;
    }
}
