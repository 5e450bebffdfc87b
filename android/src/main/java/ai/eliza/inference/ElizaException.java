package ai.eliza.inference;

/**
 * A call of the library failed. The class says what kind of failure it is, {@link #code()} is the number that the C interface
 * has for it (the header's {@code ELIZA_ERR_*}), and the message names the thing: a file, a key, a token, a limit.
 */
public class ElizaException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final int code;

    ElizaException(int code, String message) {
        super(message);
        this.code = code;
    }

    /** The number of the failure in the C interface. */
    public final int code() {
        return code;
    }

    /** The session is closed. */
    public static final class Closed extends ElizaException {
        private static final long serialVersionUID = 1;

        Closed(int code, String message) {
            super(code, message);
        }
    }

    /** This build or machine does not do what was asked for. */
    public static final class Unsupported extends ElizaException {
        private static final long serialVersionUID = 1;

        Unsupported(int code, String message) {
            super(code, message);
        }
    }

    /** An argument is outside its range. */
    public static final class InvalidArgument extends ElizaException {
        private static final long serialVersionUID = 1;

        InvalidArgument(int code, String message) {
            super(code, message);
        }
    }

    /** The file is not a model that can run. */
    public static final class InvalidModel extends ElizaException {
        private static final long serialVersionUID = 1;

        InvalidModel(int code, String message) {
            super(code, message);
        }
    }

    /** A fault of the library itself. Close the session, and report the message as a bug. */
    public static final class Fault extends ElizaException {
        private static final long serialVersionUID = 1;

        Fault(int code, String message) {
            super(code, message);
        }
    }

    /** Memory could not be had, or the context is full. */
    public static final class OutOfMemory extends ElizaException {
        private static final long serialVersionUID = 1;

        OutOfMemory(int code, String message) {
            super(code, message);
        }
    }

    /** The work was cancelled. (A cancelled generation does not throw: it ends with {@link FinishReason#CANCELLED}.) */
    public static final class Cancelled extends ElizaException {
        private static final long serialVersionUID = 1;

        Cancelled(int code, String message) {
            super(code, message);
        }
    }

    /** The operating system refused a file. */
    public static final class Io extends ElizaException {
        private static final long serialVersionUID = 1;

        Io(int code, String message) {
            super(code, message);
        }
    }

    /** The model computed a value that is not a number. */
    public static final class NotANumber extends ElizaException {
        private static final long serialVersionUID = 1;

        NotANumber(int code, String message) {
            super(code, message);
        }
    }

    /** A token trie was refused. */
    public static final class RefusedTrie extends ElizaException {
        private static final long serialVersionUID = 1;

        RefusedTrie(int code, String message) {
            super(code, message);
        }
    }

    /** The session is at work, or was not prefilled since the last generation. */
    public static final class Busy extends ElizaException {
        private static final long serialVersionUID = 1;

        Busy(int code, String message) {
            super(code, message);
        }
    }

    /** A GPU or its driver failed. */
    public static final class Device extends ElizaException {
        private static final long serialVersionUID = 1;

        Device(int code, String message) {
            super(code, message);
        }
    }

    /** A saved slot was refused. */
    public static final class RefusedSlot extends ElizaException {
        private static final long serialVersionUID = 1;

        RefusedSlot(int code, String message) {
            super(code, message);
        }
    }

    /** A server failed, refused, was silent for too long, or answered what was not asked for. */
    public static final class Remote extends ElizaException {
        private static final long serialVersionUID = 1;

        Remote(int code, String message) {
            super(code, message);
        }
    }

    /** The exception of a code. Native code calls it. */
    static ElizaException of(int code, String message) {
        switch (code) {
            case 0: return new Closed(-1, message); // the one code that the C interface has for two things
            case -1: return new Unsupported(code, message);
            case -2: return new InvalidArgument(code, message);
            case -3: return new InvalidModel(code, message);
            case -4: return new Fault(code, message);
            case -5: return new OutOfMemory(code, message);
            case -7: return new Cancelled(code, message);
            case -10: return new Io(code, message);
            case -20: return new NotANumber(code, message);
            case -30: return new RefusedTrie(code, message);
            case -40: return new Busy(code, message);
            case -50: return new Device(code, message);
            case -60: return new RefusedSlot(code, message);
            case -70: return new Remote(code, message);
            default: return new ElizaException(code, message);
        }
    }
}
