package ai.eliza.inference;

/** Carries log lines to a sink. The library calls no Java for them: they wait there, the newest 256, and a thread asks. */
final class LogLines implements Runnable {
    private static final int EVERY_MILLIS = 50;
    private static LogLines current;

    private final LogSink sink;

    private LogLines(LogSink sink) {
        this.sink = sink;
    }

    static synchronized void goTo(LogSink sink) {
        current = null;
        Native.endLog();
        if (sink != null) {
            Native.nextLogLine(new int[1]); // from now on they wait
            current = new LogLines(sink);
            Thread thread = new Thread(current, "eliza log");
            thread.setDaemon(true);
            thread.start();
        }
    }

    @Override
    public void run() {
        int[] level = new int[1];
        try {
            while (true) {
                String line;
                synchronized (LogLines.class) {
                    if (current != this) {
                        return;
                    }
                    line = Native.nextLogLine(level);
                }
                if (line == null) {
                    Thread.sleep(EVERY_MILLIS);
                } else {
                    sink.onLine(LogLevel.of(level[0]), line);
                }
            }
        } catch (InterruptedException interrupted) {
            // The thread is not the host's; an interrupt that reaches it can only mean that this should end.
        } finally {
            end(this);
        }
    }

    private static synchronized void end(LogLines over) {
        if (current == over) {
            current = null;
            Native.endLog();
        }
    }
}
