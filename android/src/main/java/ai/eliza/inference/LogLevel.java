package ai.eliza.inference;

/** What a log line is about; the order is that of the numbers in the C interface, of which the first is 1. */
public enum LogLevel {
    /** Something failed. */
    ERROR,
    /** Something is not as it should be, and work goes on. */
    WARN,
    /** A rare event, such as a model loaded. */
    INFO,
    /** Details for finding a fault. */
    DEBUG;

    private static final LogLevel[] BY_NUMBER = values();

    static LogLevel of(int number) {
        return BY_NUMBER[number - 1];
    }
}
