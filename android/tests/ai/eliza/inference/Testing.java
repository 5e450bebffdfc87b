package ai.eliza.inference;

import java.nio.ByteBuffer;

/** What a library with the feature {@code testing} has for tests, and what the tests share. */
final class Testing {
    private Testing() {}

    static native void fail(int code, ByteBuffer message);

    static native void panic(ByteBuffer message);

    static native byte[] echo(ByteBuffer buffer);

    static native long openNoop(ByteBuffer path);

    static native long pullInC(ByteBuffer path, int tokens, boolean ready);

    /** A session that says the same for ever, with the vocabulary of a model. */
    static Session noop(String model, int stepTokens) {
        Native.load();
        return new Session(openNoop(Utf8.direct(model, "model")), stepTokens);
    }

    static void check(boolean condition, Object found) {
        if (!condition) {
            throw new AssertionError(String.valueOf(found));
        }
    }

    static void same(Object found, Object expected) {
        check(found.equals(expected), "found " + found + ", expected " + expected);
    }

    interface Call {
        void run() throws Exception;
    }

    /** The exception of this kind that a call throws; its message has the part. */
    static <E extends Throwable> E thrown(Class<E> kind, String part, Call call) throws Exception {
        try {
            call.run();
        } catch (Throwable thrown) {
            check(thrown.getClass() == kind && thrown.getMessage().contains(part), thrown);
            return kind.cast(thrown);
        }
        throw new AssertionError("nothing was thrown, expected " + kind.getName() + " with " + part);
    }
}
