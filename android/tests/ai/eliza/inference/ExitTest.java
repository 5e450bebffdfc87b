package ai.eliza.inference;

/** Ends the process in one of several ways while generations run that would never end. */
final class ExitTest {
    private ExitTest() {}

    @SuppressWarnings({"deprecation", "removal"}) // Thread.stop, where there is one
    public static void main(String[] arguments) throws Exception {
        Session heard = Testing.noop(arguments[1], 1);
        heard.prefill("Once upon a time");
        heard.generate(-1, 0, 1, new StepListener() {
            @Override
            public void onStep(Step step) {}

            @Override
            public void onFailure(ElizaException failure) {}
        });
        Session pulled = Testing.noop(arguments[1], 1);
        pulled.prefill("Once upon a time");
        pulled.generate(-1, 0, 1);
        Thread puller = new Thread(() -> {
            try {
                while (!pulled.next().done()) {}
            } catch (InterruptedException | ElizaException.Closed end) {
                // As it was told.
            }
        });
        boolean thrower = arguments[0].equals("thread_throws");
        puller.setDaemon(!thrower && !arguments[0].startsWith("thread_is"));
        puller.start();
        Thread.sleep(50);
        switch (arguments[0]) {
            case "return":
                return;
            case "exit":
                System.exit(7);
                return;
            case "halt":
                Runtime.getRuntime().halt(7);
                return;
            case "throw":
                throw new IllegalStateException("thrown in main");
            case "thread_throws":
                pulled.close();
                puller.join();
                Thread other = new Thread(() -> {
                    heard.usage();
                    throw new IllegalStateException("thrown in a thread");
                });
                other.start();
                return;
            case "thread_is_interrupted":
                puller.interrupt();
                return;
            case "thread_is_stopped":
                try {
                    puller.stop();
                } catch (UnsupportedOperationException newer) {
                    puller.interrupt();
                }
                return;
            case "close_and_return":
                heard.close();
                pulled.close();
                return;
            default:
                throw new IllegalArgumentException(arguments[0]);
        }
    }
}
