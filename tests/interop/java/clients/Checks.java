import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Runs every feature check and prints one line for each: "passed NAME" or "failed NAME: why".
 * Arguments: the name servers, the master's address, and a word that all topics and groups begin with;
 * more arguments name the only checks to run.
 */
final class Checks {
    static final int AT_ONCE = 12;

    interface Body {
        void run(Place place) throws Exception;
    }

    public static void main(String[] words) throws Exception {
        Map<String, Body> checks = new LinkedHashMap<>();
        SlowChecks.add(checks);
        TransactionChecks.add(checks);
        Generation.add(checks);
        ConsumerChecks.add(checks);
        GroupChecks.add(checks);
        PushChecks.add(checks);
        PullChecks.add(checks);
        SendChecks.add(checks);
        QueryChecks.add(checks);
        if (words.length > 3) {
            checks.keySet().retainAll(java.util.Arrays.asList(words).subList(3, words.length));
        }
        ExecutorService workers = Executors.newFixedThreadPool(AT_ONCE);
        checks.forEach((name, body) -> workers.execute(() -> run(new Place(words[0], words[1], words[2], name), body)));
        workers.shutdown();
        if (!workers.awaitTermination(10, TimeUnit.MINUTES)) {
            say("failed to end");
        }
        System.exit(0); // whatever threads a client left behind
    }

    private static void run(Place place, Body body) {
        long start = System.nanoTime();
        String result = "passed " + place.name;
        try {
            body.run(place);
        } catch (Throwable thrown) {
            String why = thrown.toString().replaceAll("\\s+", " ");
            for (StackTraceElement each : thrown.getStackTrace()) {
                if (each.getFileName() != null && each.getFileName().endsWith("Checks.java")) {
                    why += " at " + each.getFileName() + ":" + each.getLineNumber();
                    break;
                }
            }
            result = "failed " + place.name + ": " + why;
        }
        say(result + " (" + TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - start) + " ms)");
        try {
            place.close();
        } catch (Throwable thrown) {
            say("failed " + place.name + ": closing: " + thrown);
        }
    }

    private static void say(String line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object expected, Object actual, String what) {
        check(java.util.Objects.equals(expected, actual), what + ": expected " + expected + ", got " + actual);
    }
}
