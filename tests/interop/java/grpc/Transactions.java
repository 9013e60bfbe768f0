import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Transactions of a producer that is given nothing but an access point: ended by itself, by the answer to a check, and through the
 * loss of the master. Arguments: the access point, a topic, a group, and the word "transactions".
 * It prints "passed ended" and "passed checked", then "begun 1", and waits for a line; then "passed survived" and "passed unseen".
 */
final class Transactions {
    private static final long PATIENCE_MS = 90_000;
    private static final PrintStream OUT = System.out;

    private interface Promise {
        void keep() throws Exception;
    }

    private final List<String> asked = new CopyOnWriteArrayList<>();
    private final Set<String> seen = ConcurrentHashMap.newKeySet();
    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final String topic;
    private final Producer producer;

    private Transactions(String[] words) throws Exception {
        topic = words[1];
        ClientConfiguration place = ClientConfiguration.newBuilder().setEndpoints(words[0]).build();
        provider.newPushConsumerBuilder().setClientConfiguration(place).setConsumerGroup(words[2])
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                seen.add(text(message));
                return ConsumeResult.SUCCESS;
            }).build();
        producer = provider.newProducerBuilder().setClientConfiguration(place).setTopics(topic)
            .setTransactionChecker(this::decide).build();
    }

    public static void main(String[] words) throws Exception {
        new Transactions(words).run();
        System.exit(0);
    }

    private void run() throws Exception {
        report("ended", () -> {
            begin("own-commit").commit();
            begin("own-rollback").rollback();
            await("the committed message", () -> seen.contains("own-commit"));
        });
        report("checked", () -> {
            for (String body : List.of("orphan-commit", "orphan-rollback", "orphan-unknown")) {
                begin(body);
            }
            await("the orphans", () -> seen.containsAll(List.of("orphan-commit", "orphan-unknown"))
                && asked.contains("orphan-rollback"));
        });
        Transaction commit = begin("late-commit");
        Transaction rollback = begin("late-rollback");
        begin("lost-commit");
        say("begun 1");
        new Scanner(System.in).nextLine();
        report("survived", () -> {
            patiently(commit::commit);
            patiently(rollback::rollback);
            await("what was begun before", () -> seen.containsAll(List.of("late-commit", "lost-commit")));
        });
        report("unseen", () -> {
            if (seen.stream().anyMatch(body -> body.endsWith("rollback"))) {
                throw new AssertionError("what was rolled back came: " + seen);
            }
        });
    }

    private TransactionResolution decide(MessageView message) {
        String body = text(message);
        asked.add(body);
        if (body.endsWith("unknown") && Collections.frequency(asked, body) == 1) {
            return TransactionResolution.UNKNOWN;
        }
        return body.endsWith("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
    }

    private Transaction begin(String body) throws Exception {
        Transaction transaction = producer.beginTransaction();
        Message message = provider.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8)).build();
        producer.send(message, transaction);
        return transaction;
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static void patiently(Promise attempt) throws Exception {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (true) {
            try {
                attempt.keep();
                return;
            } catch (Exception failed) {
                if (System.currentTimeMillis() > deadline) {
                    throw failed;
                }
                Thread.sleep(50);
            }
        }
    }

    private static void await(String what, java.util.function.BooleanSupplier holds) throws InterruptedException {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            if (System.currentTimeMillis() > deadline) {
                throw new AssertionError("not within " + PATIENCE_MS + " ms: " + what);
            }
            Thread.sleep(20);
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
