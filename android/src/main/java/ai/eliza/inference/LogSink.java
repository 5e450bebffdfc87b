package ai.eliza.inference;

/** Hears the library's log, on a daemon thread of its own, soon after a line was written. */
public interface LogSink {
    /**
     * A line; none holds text of a prompt or of what was generated. An exception thrown here ends the log; it goes to the thread's
     * handler of uncaught exceptions.
     */
    void onLine(LogLevel level, String message);
}
