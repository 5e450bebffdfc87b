package ai.eliza.inference;

import static ai.eliza.inference.Host.PROMPT;
import static ai.eliza.inference.Host.await;
import static ai.eliza.inference.Host.greedy;
import static ai.eliza.inference.Host.ignoreEos;
import static ai.eliza.inference.Host.open;
import static ai.eliza.inference.Host.pull;
import static ai.eliza.inference.Testing.check;
import static ai.eliza.inference.Testing.same;
import static ai.eliza.inference.Testing.thrown;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/** Several threads, calls from inside listeners, cancelling and closing while work runs, the collector. */
final class ConcurrencyTest {
    private ConcurrencyTest() {}

    static void cases(Map<String, Testing.Call> cases) {
        cases.put("busy while generating", ConcurrencyTest::busyWhileGenerating);
        cases.put("cancel", ConcurrencyTest::cancel);
        cases.put("cancel at random moments", ConcurrencyTest::cancelAtRandomMoments);
        cases.put("cancel a prefill", ConcurrencyTest::cancelPrefill);
        cases.put("interrupts", ConcurrencyTest::interrupts);
        cases.put("a listener that throws", ConcurrencyTest::listenerThatThrows);
        cases.put("a listener that goes on", ConcurrencyTest::listenerThatGoesOn);
        cases.put("close in a listener", ConcurrencyTest::closeInListener);
        cases.put("close under other threads", ConcurrencyTest::closeUnderOtherThreads);
        cases.put("eight threads", ConcurrencyTest::eightThreads);
        cases.put("slots at once", ConcurrencyTest::slotsAtOnce);
        cases.put("garbage collection", ConcurrencyTest::garbageCollection);
        cases.put("L16: poll does not wait for next", ConcurrencyTest::pollDoesNotWaitForNext);
        cases.put("L16: a listener hears every step", ConcurrencyTest::listenerHearsEveryStep);
    }

    private static void busyWhileGenerating() throws Exception {
        try (Session session = Testing.noop(Host.model, Session.STEP_TOKENS)) {
            SamplingOptions options = session.samplingOptions();
            Host.Recorder recorder = new Host.Recorder(true);
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, recorder);
            await(recorder.began);
            Testing.Call[] calls = {
                () -> session.generate(5, 0, 1),
                () -> session.generate(5, 0, 1, new Host.Recorder(false)),
                () -> session.prefill(PROMPT),
                () -> session.configure(options),
                () -> session.setChain(-1, "temp=0.5"),
                () -> session.setTokenTrie("{}", TrieMode.GREEDY),
                session::clearTokenTrie,
                () -> session.armTokenTrie(null),
                session::scoreTokenTrie,
                () -> session.logits(1),
                () -> session.saveSlot(-1, "a"),
                () -> session.restoreSlot(-1, "a"),
            };
            for (Testing.Call call : calls) {
                same(thrown(ElizaException.Busy.class, "Busy", call).code(), -40);
            }
            thrown(ElizaException.InvalidArgument.class, "listener", session::next);
            check(session.tokenize("a").length > 0 && session.usage().finishReason == FinishReason.NONE, session.usage());
            session.cancel();
            // The worker is free soon, but the listener has not heard it.
            while (session.usage().finishReason == FinishReason.NONE) {
                Thread.sleep(1);
            }
            thrown(ElizaException.Busy.class, "listener", () -> session.prefill(PROMPT));
            thrown(ElizaException.Busy.class, "listener", () -> session.generate(5, 0, 1));
            recorder.gate.countDown();
            same(recorder.end().reason, FinishReason.CANCELLED);
            same(greedy(session, 5).tokens.size(), 5);
        }
    }

    private static void cancel() throws Exception {
        try (Session session = open(512)) {
            ignoreEos(session);
            session.cancel();
            same(greedy(session, 5).tokens.size(), 5);
            session.prefill(PROMPT);
            session.cancel();
            session.generate(5, 0, 1);
            same(pull(session).tokens.size(), 5);
            session.prefill(PROMPT);
            session.generate(-1, 0, 1);
            session.cancel();
            FinishReason reason = pull(session).reason;
            check(reason == FinishReason.CANCELLED || reason == FinishReason.CONTEXT, reason);
            same(greedy(session, 5).tokens.size(), 5);
        }
        try (Session session = Testing.noop(Host.model, 1)) {
            Host.Recorder recorder = new Host.Recorder(false) {
                @Override
                void act(Step step) {
                    if (result.tokens.size() == 5) {
                        session.cancel();
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, recorder);
            same(recorder.end().reason, FinishReason.CANCELLED);
        }
    }

    private static void cancelAtRandomMoments() throws Exception {
        Random random = new Random(7);
        try (Session session = open(1024)) {
            ignoreEos(session);
            Host.Result whole = greedy(session, 200);
            for (int round = 0; round < 60; round++) {
                Host.Recorder recorder = new Host.Recorder(false);
                session.prefill(PROMPT);
                session.generate(200, 0, 1, recorder);
                long moment = System.nanoTime() + random.nextInt(15000000);
                while (System.nanoTime() < moment && recorder.ended.getCount() > 0) {
                    Thread.yield();
                }
                session.cancel();
                Host.Result result = recorder.end();
                check(result.reason == FinishReason.CANCELLED || result.reason == FinishReason.LENGTH, result.reason);
                same(result.tokens, whole.tokens.subList(0, result.tokens.size()));
                check(whole.text.toString().startsWith(result.text.toString().replaceAll("\ufffd*$", "")), result.text);
            }
        }
    }

    private static void cancelPrefill() throws Exception {
        try (Session session = open(512)) {
            int[] prompt = new int[500];
            int[] tokens = session.tokenize(PROMPT);
            for (int round = 0; round < 10; round++) {
                for (int i = 0; i < prompt.length; i++) {
                    prompt[i] = tokens[(i * 7 + i / 3 + round) % tokens.length];
                }
                Thread canceller = new Thread(session::cancel);
                canceller.start();
                try {
                    session.prefill(prompt, -1);
                } catch (ElizaException.Cancelled cancelled) {
                    same(cancelled.code(), -7);
                }
                canceller.join();
            }
            session.prefill(prompt, -1);
            same(session.usage().promptTokens, 500L);
        }
    }

    private static void interrupts() throws Exception {
        try (Session session = Testing.noop(Host.model, 1)) {
            session.prefill(PROMPT);
            session.generate(-1, 0, 1);
            Thread.currentThread().interrupt();
            thrown(InterruptedException.class, "interrupted", () -> {
                try {
                    session.next();
                } catch (InterruptedException interrupted) {
                    throw new InterruptedException("interrupted");
                }
            });
            same(session.next().tokens().length, 1);
            session.cancel();
        }
        // In the middle of a wait that nothing else ends: the worker is held by a listener's thread of another session's pool.
        try (Session session = open(512)) {
            session.prefill(PROMPT);
            session.generate(1, 0, 1);
            pull(session);
            AtomicReference<Throwable> outcome = new AtomicReference<>();
            Thread waiter = new Thread(() -> {
                try {
                    session.prefill(PROMPT);
                    session.generate(-1, 0, 1);
                    while (!session.next().done()) {
                        Thread.sleep(1000);
                    }
                } catch (Throwable thrown) {
                    outcome.set(thrown);
                }
            });
            waiter.start();
            Thread.sleep(20);
            waiter.interrupt();
            waiter.join(30000);
            check(!waiter.isAlive(), "an interrupted wait goes on");
            session.cancel();
        }
    }

    private static void listenerThatThrows() throws Exception {
        AtomicReference<Throwable> uncaught = new AtomicReference<>();
        CountDownLatch caught = new CountDownLatch(1);
        Thread.UncaughtExceptionHandler before = Thread.getDefaultUncaughtExceptionHandler();
        Thread.setDefaultUncaughtExceptionHandler((thread, thrown) -> {
            uncaught.set(thrown);
            caught.countDown();
        });
        try (Session session = Testing.noop(Host.model, 1)) {
            IllegalStateException mine = new IllegalStateException("mine");
            session.prefill(PROMPT);
            session.generate(-1, 0, 1, new Host.Recorder(false) {
                @Override
                void act(Step step) {
                    throw mine;
                }
            });
            await(caught);
            same(uncaught.get(), mine);
            // The generation was cancelled, and the session goes on.
            while (session.usage().finishReason == FinishReason.NONE) {
                Thread.sleep(1);
            }
            same(session.usage().finishReason, FinishReason.CANCELLED);
            same(greedy(session, 5).tokens.size(), 5);
        } finally {
            Thread.setDefaultUncaughtExceptionHandler(before);
        }
        thrown(NullPointerException.class, "listener", () -> {
            try (Session session = open(256)) {
                session.prefill(PROMPT);
                session.generate(5, 0, 1, null);
            }
        });
    }

    /** In its last step a listener may begin the next turn. */
    private static void listenerThatGoesOn() throws Exception {
        try (Session session = open(512)) {
            ignoreEos(session);
            Host.Recorder second = new Host.Recorder(false);
            Host.Recorder first = new Host.Recorder(false) {
                @Override
                void act(Step step) {
                    if (step.done()) {
                        session.prefill(PROMPT);
                        session.generate(20, 0, 1, second);
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(20, 0, 1, first);
            first.end();
            same(second.end().tokens, first.result.tokens);
        }
    }

    private static void closeInListener() throws Exception {
        for (int round = 0; round < 10; round++) {
            Session session = Testing.noop(Host.model, 1);
            int last = round;
            Host.Recorder recorder = new Host.Recorder(false) {
                @Override
                void act(Step step) {
                    if (result.tokens.size() == last) {
                        session.close();
                        session.close();
                    }
                }
            };
            session.prefill(PROMPT);
            session.generate(100, 0, 1, recorder);
            Host.Result result = recorder.end();
            check(result.reason == FinishReason.CANCELLED || last == 0, result.reason);
            session.close();
            thrown(ElizaException.Closed.class, "closed", session::usage);
        }
    }

    private static void closeUnderOtherThreads() throws Exception {
        for (int round = 0; round < 20; round++) {
            Session session = round % 2 == 0 ? Testing.noop(Host.model, 1) : open(512);
            AtomicReference<Throwable> outcome = new AtomicReference<>();
            Thread busy = new Thread(() -> {
                try {
                    for (;;) {
                        session.prefill(PROMPT);
                        session.generate(200, 0, 1);
                        pull(session);
                        session.usage();
                        session.tokenize(PROMPT);
                    }
                } catch (Throwable thrown) {
                    outcome.set(thrown);
                }
            });
            busy.start();
            Thread.sleep(round / 2);
            session.close();
            busy.join(60000);
            check(!busy.isAlive(), "a call hangs on a closed session");
            Throwable thrown = outcome.get();
            check(thrown instanceof ElizaException.Closed || thrown instanceof ElizaException.Busy
                || thrown instanceof ElizaException.Cancelled || thrown instanceof ElizaException.InvalidArgument, thrown);
        }
    }

    /** Slots of one session generate at the same time, as each would alone. */
    private static void slotsAtOnce() throws Exception {
        List<Integer> alone;
        try (Session session = open(256)) {
            ignoreEos(session);
            alone = greedy(session, 60).tokens;
            thrown(ElizaException.Unsupported.class, "take turns", () -> session.openSlot(0));
        }
        OpenOptions options = new OpenOptions(Host.model).contextSize(512).threads(2).slots(3).concurrentSlots(true);
        Session session = ElizaInference.open(options);
        ignoreEos(session);
        try (Session one = session.openSlot(1); Session other = session.openSlot(Session.FRESH_SLOT)) {
            thrown(ElizaException.InvalidArgument.class, "Slot 1 is that of another handle", () -> session.openSlot(1));
            thrown(ElizaException.InvalidArgument.class, "the last", () -> session.openSlot(Session.FRESH_SLOT));
            Host.Recorder[] recorders = new Host.Recorder[3];
            Session[] all = {session, one, other};
            for (int i = 0; i < all.length; i++) {
                all[i].prefill(PROMPT);
                all[i].generate(60, 0, 1, recorders[i] = new Host.Recorder(false));
            }
            for (Host.Recorder recorder : recorders) {
                same(recorder.end().tokens, alone);
            }
            session.close();
            same(greedy(other, 60).tokens, alone);
        }
    }

    private static void eightThreads() throws Exception {
        eightThreads(1);
        eightThreads(8);
    }

    /** Threads with a session each, so many of which share an engine. */
    private static void eightThreads(int parallel) throws Exception {
        OpenOptions options = new OpenOptions(Host.model).contextSize(256).threads(2).parallel(parallel).maxSlowdownPercent(300);
        List<Integer> alone;
        try (Session session = open(256)) {
            ignoreEos(session);
            alone = greedy(session, 60).tokens;
        }
        Thread[] threads = new Thread[8];
        List<Throwable> failures = java.util.Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < threads.length; i++) {
            boolean listens = i % 2 == 0;
            threads[i] = new Thread(() -> {
                try (Session session = ElizaInference.open(options)) {
                    ignoreEos(session);
                    for (int round = 0; round < 5; round++) {
                        session.prefill(PROMPT);
                        Host.Result result;
                        if (listens) {
                            Host.Recorder recorder = new Host.Recorder(false);
                            session.generate(60, 0, 1, recorder);
                            result = recorder.end();
                        } else {
                            session.generate(60, 0, 1);
                            result = pull(session);
                        }
                        same(result.tokens, alone);
                    }
                } catch (Throwable failed) {
                    failures.add(failed);
                }
            });
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        check(failures.isEmpty(), failures);
    }

    /** Two hundred generations while the collector runs: the process does not grow. */
    private static void garbageCollection() throws Exception {
        try (Session session = open(256)) {
            ignoreEos(session);
            List<Integer> whole = greedy(session, 30).tokens;
            long warm = 0;
            for (int round = 0; round < 200; round++) {
                Host.Recorder recorder = new Host.Recorder(false);
                session.prefill(PROMPT);
                session.generate(30, 0, 1, recorder);
                if (round % 25 == 0) {
                    System.gc();
                }
                if (round % 20 == 0) {
                    open(256).close();
                }
                same(recorder.end().tokens, whole);
                if (round == 99) {
                    warm = residentKib();
                }
            }
            System.gc();
            long now = residentKib();
            check(now <= warm + warm / 20, "resident memory went from " + warm + " to " + now + " KiB");
        }
    }

    private static long residentKib() throws Exception {
        Path status = Paths.get("/proc/self/status");
        if (!Files.exists(status)) {
            return 0;
        }
        for (String line : Files.readAllLines(status)) {
            if (line.startsWith("VmRSS:")) {
                return Long.parseLong(line.replaceAll("[^0-9]", ""));
            }
        }
        throw new AssertionError("no VmRSS");
    }

    private static void pollDoesNotWaitForNext() throws Exception {
        try (Session session = open(256)) {
            ignoreEos(session);
            session.prefill(PROMPT);
            session.generate(5, 0, 1);
            CountDownLatch held = new CountDownLatch(1);
            CountDownLatch release = new CountDownLatch(1);
            // As a thread in next does while the library has no step for it.
            Thread next = new Thread(() -> {
                session.pulling.lock();
                held.countDown();
                try {
                    release.await(10, TimeUnit.SECONDS);
                } catch (InterruptedException interrupted) {
                    throw new AssertionError(interrupted);
                } finally {
                    session.pulling.unlock();
                }
            });
            next.start();
            await(held);
            check(session.poll(0) == null && next.isAlive(), "poll(0) waits");
            check(session.poll(20) == null && next.isAlive(), "poll(20) waits for longer");
            Thread.currentThread().interrupt();
            try {
                session.next();
                check(false, "next did not hear the interrupt");
            } catch (InterruptedException interrupted) {
                check(next.isAlive(), "an interrupt waits");
            }
            release.countDown();
            same(pull(session).tokens.size(), 5);
        }
    }

    private static void listenerHearsEveryStep() throws Exception {
        AtomicReference<Throwable> stolen = new AtomicReference<>();
        CountDownLatch over = new CountDownLatch(1);
        try (Session session = Testing.noop(Host.model, 1)) {
            Thread thief = new Thread(() -> {
                while (over.getCount() == 1 && stolen.get() == null) {
                    try {
                        if (session.poll(0) != null) {
                            stolen.set(new AssertionError("another thread had a step of the listener"));
                        }
                    } catch (ElizaException.InvalidArgument nothing) {
                        // No generation, or one with a listener.
                    } catch (Throwable failed) {
                        stolen.set(failed);
                    }
                }
            });
            thief.start();
            for (int round = 0; round < 1000 && stolen.get() == null; round++) {
                Host.Recorder recorder = new Host.Recorder(false);
                session.prefill(PROMPT);
                session.generate(20, 0, 1, recorder);
                same(recorder.end().tokens.size(), 20);
            }
            over.countDown();
            thief.join();
            check(stolen.get() == null, stolen.get());
        }
    }
}
