package ai.eliza.inference;

import java.util.LinkedHashMap;
import java.util.Map;

/** A host on the Java machine: every call, every conversion, every way a generation can end. */
final class HostTest {
    private HostTest() {}

    public static void main(String[] arguments) {
        Host.model = arguments[0];
        Map<String, Testing.Call> cases = new LinkedHashMap<>();
        BasicsTest.cases(cases);
        StreamTest.cases(cases);
        ConcurrencyTest.cases(cases);
        TrieTest.cases(cases);
        SavedTest.cases(cases);
        AospTest.cases(cases);
        AskingTest.cases(cases);
        // Native code must be as quiet as this says: what it wrote would stand between these lines.
        cases.forEach((name, test) -> {
            long begin = System.nanoTime();
            try {
                test.run();
            } catch (Throwable failed) {
                System.out.println("FAILED " + name);
                failed.printStackTrace(System.out);
                System.exit(1);
            }
            System.out.println("ok " + name + " (" + (System.nanoTime() - begin) / 1000000 + " ms)");
        });
    }
}
