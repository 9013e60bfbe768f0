import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * A producer, a simple consumer and a push consumer with their defaults, given nothing but an access point.
 * Arguments: the access point, a topic, and a word that both groups begin with. It prints "passed connect" when all have met, then
 * "acknowledged COUNT" now and then, until it reads a line; then everything acknowledged must arrive at both consumers.
 */
final class FirstConnection {
    private static final int FIRST = 8;
    private static final long PATIENCE_MS = 90_000;
    private static final PrintStream OUT = System.out;

    private interface Promise {
        void keep() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        String topic = words[1];
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration place = ClientConfiguration.newBuilder().setEndpoints(words[0]).build();
        Map<String, FilterExpression> everything = Collections.singletonMap(topic, FilterExpression.SUB_ALL);
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Set<String> pushed = ConcurrentHashMap.newKeySet();
        Set<String> taken = ConcurrentHashMap.newKeySet();
        Map<String, AtomicInteger> failures = new ConcurrentHashMap<>();
        AtomicInteger acks = new AtomicInteger();
        AtomicBoolean stop = new AtomicBoolean();

        report("connect", () -> {
            provider.newPushConsumerBuilder().setClientConfiguration(place).setConsumerGroup(words[2] + "-push")
                .setSubscriptionExpressions(everything)
                .setMessageListener(message -> {
                    pushed.add(text(message));
                    return ConsumeResult.SUCCESS;
                }).build();
            SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(place)
                .setConsumerGroup(words[2] + "-simple").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(everything).build();
            Producer producer = provider.newProducerBuilder().setClientConfiguration(place).setTopics(topic).build();
            for (int number = 0; number < FIRST; number++) {
                producer.send(message(provider, topic, number));
                acknowledged.add("" + number);
            }
            daemon(() -> {
                while (true) {
                    counted(failures, () -> {
                        for (MessageView each : consumer.receive(32, Duration.ofSeconds(20))) {
                            taken.add(text(each)); // an ack whose answer is lost may count all the same
                            consumer.ack(each);
                            acks.incrementAndGet();
                        }
                    });
                }
            });
            await("both consumers have the first messages",
                () -> acks.get() >= FIRST && taken.containsAll(acknowledged) && pushed.containsAll(acknowledged));
            daemon(() -> {
                for (int number = FIRST; !stop.get(); number++) {
                    int present = number;
                    boolean sent = false;
                    while (!sent && !stop.get()) {
                        sent = counted(failures, () -> producer.send(message(provider, topic, present)));
                    }
                    if (sent) {
                        acknowledged.add("" + number);
                    }
                    pause(5);
                }
            });
        });
        daemon(() -> {
            while (!stop.get()) {
                say("acknowledged " + acknowledged.size());
                pause(100);
            }
        });
        new Scanner(System.in).nextLine();
        stop.set(true);
        pause(500);
        say("acknowledged " + acknowledged.size() + " in the end, failed attempts: " + failures);
        report("survive-simple", () -> await("the simple consumer has all", () -> taken.containsAll(acknowledged)));
        report("survive-push", () -> await("the push consumer has all", () -> pushed.containsAll(acknowledged)));
        System.exit(0);
    }

    private static Message message(ClientServiceProvider provider, String topic, int number) {
        return provider.newMessageBuilder().setTopic(topic).setBody(("" + number).getBytes(StandardCharsets.UTF_8)).build();
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    /** Whether it went well; a failure is counted by its kind. */
    private static boolean counted(Map<String, AtomicInteger> failures, Promise attempt) {
        try {
            attempt.keep();
            return true;
        } catch (Exception failed) {
            failures.computeIfAbsent(failed.getClass().getSimpleName(), each -> new AtomicInteger()).incrementAndGet();
            pause(20);
            return false;
        }
    }

    private static void daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException ended) {
            throw new IllegalStateException(ended);
        }
    }

    private static void await(String what, java.util.function.BooleanSupplier holds) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("not within " + PATIENCE_MS + " ms: " + what);
            }
            pause(20);
        }
    }

    private static void report(String name, Promise promise) {
        String result = "passed " + name;
        try {
            promise.keep();
        } catch (Throwable thrown) {
            result = "failed " + name + ": " + thrown.toString().replaceAll("\\s+", " ");
        }
        say(result);
    }

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }
}
