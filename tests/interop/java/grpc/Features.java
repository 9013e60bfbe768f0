import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.Consumer;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.RecallReceipt;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/**
 * Every feature of the clients is a check of its own, with a topic and a group of its own: all that it is given begins with one word.
 * Arguments: the access point, that word, and checks (all if none is named), which run at once. It prints "passed CHECK" or "failed
 * CHECK: why" for each.
 */
final class Features {
    private static final long PATIENCE_MS = 120_000;
    private static final int MANY = 1000;
    private static final PrintStream OUT = System.out;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration place;
    private static String prefix;
    private static Producer producer;

    private interface Promise {
        void keep() throws Exception;
    }

    public static void main(String[] words) throws Exception {
        place = ClientConfiguration.newBuilder().setEndpoints(words[0]).setRequestTimeout(Duration.ofSeconds(10)).build();
        prefix = words[1];
        producer = PROVIDER.newProducerBuilder().setClientConfiguration(place).build();
        Map<String, Promise> checks = new HashMap<>();
        checks.put("simple", Features::simple);
        checks.put("push", Features::push);
        checks.put("filter-tags", Features::filterTags);
        checks.put("filter-sql92", Features::filterSql);
        checks.put("fifo", Features::fifo);
        checks.put("priority", Features::priority);
        checks.put("delay", Features::delay);
        checks.put("dead-letter", Features::deadLetter);
        checks.put("renewal", Features::renewal);
        checks.put("many-topics", Features::manyTopics);
        if (words.length > 2) {
            checks.keySet().retainAll(List.of(words).subList(2, words.length));
        }
        ExecutorService threads = Executors.newFixedThreadPool(checks.size());
        checks.forEach((name, check) -> threads.execute(() -> report(name, check)));
        threads.shutdown();
        threads.awaitTermination(2 * PATIENCE_MS, TimeUnit.MILLISECONDS);
        System.exit(0);
    }

    private static void simple() throws Exception {
        for (int number = 0; number < 20; number++) {
            send("simple", number, made -> { });
        }
        try (SimpleConsumer consumer = simpleConsumer("simple", topic("simple"))) {
            Set<String> seen = ConcurrentHashMap.newKeySet();
            List<MessageView> first = new ArrayList<>();
            await("all of them, one of them twice", () -> {
                for (MessageView each : receive(consumer)) {
                    if (text(each).equals("7") && first.isEmpty()) {
                        first.add(each);
                        keep(() -> consumer.changeInvisibleDuration(each, Duration.ofSeconds(1)));
                    } else {
                        seen.add(text(each) + (each.getDeliveryAttempt() == 1 ? "" : " again"));
                        keep(() -> consumer.ack(each));
                    }
                }
                return seen.size() == 20;
            });
            require(seen.contains("7 again"), "the postponed one came again: " + seen);
        }
    }

    private static void push() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        try (PushConsumer consumer = pushConsumer("push", FilterExpression.SUB_ALL, message -> seen.add(text(message)))) {
            for (int number = 0; number < 50; number++) {
                send("push", number, made -> { });
            }
            await("all of them", () -> seen.size() == 50);
        }
    }

    private static void filterTags() throws Exception {
        Queue<String> seen = new ConcurrentLinkedQueue<>();
        FilterExpression wanted = new FilterExpression("a || b", FilterExpressionType.TAG);
        for (int number = 0; number < 30; number++) {
            String tag = "cab".substring(number % 3, number % 3 + 1);
            send("filter-tags", number, made -> made.setTag(tag));
        }
        try (PushConsumer consumer = pushConsumer("filter-tags", wanted, message -> seen.add(message.getTag().get()))) {
            await("those with the tags", () -> seen.size() == 20);
            require(!seen.contains("c"), "nothing else: " + seen);
        }
    }

    private static void filterSql() throws Exception {
        Queue<String> seen = new ConcurrentLinkedQueue<>();
        FilterExpression wanted = new FilterExpression("n BETWEEN 5 AND 8 OR color = 'blue'", FilterExpressionType.SQL92);
        for (int number = 0; number < 20; number++) {
            String named = "" + number;
            String color = number == 19 ? "blue" : "red";
            send("filter-sql92", number, made -> made.addProperty("n", named).addProperty("color", color));
        }
        try (PushConsumer consumer = pushConsumer("filter-sql92", wanted, message -> seen.add(text(message)))) {
            await("those that match", () -> seen.size() == 5);
            require(Set.of("5", "6", "7", "8", "19").equals(Set.copyOf(seen)), "these alone: " + seen);
        }
    }

    private static void fifo() throws Exception {
        Map<String, Queue<String>> seen = new ConcurrentHashMap<>();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        for (int number = 0; number < 10; number++) {
            for (String group : List.of("one", "two", "three")) {
                send("fifo", number, made -> made.setMessageGroup(group));
            }
        }
        MessageListener listener = message -> {
            String group = message.getMessageGroup().get();
            if (group.equals("two") && text(message).equals("3") && failed.add("two")) {
                return ConsumeResult.FAILURE;
            }
            seen.computeIfAbsent(group, each -> new ConcurrentLinkedQueue<>()).add(text(message));
            return ConsumeResult.SUCCESS;
        };
        try (PushConsumer consumer = listening("fifo", FilterExpression.SUB_ALL, listener)) {
            await("all of them", () -> seen.values().stream().mapToInt(Queue::size).sum() >= 30);
            List<String> order = IntStream.range(0, 10).mapToObj(each -> "" + each).collect(Collectors.toList());
            seen.forEach((group, bodies) -> require(order.equals(new ArrayList<>(bodies)), group + " in order: " + bodies));
            require(!failed.isEmpty(), "one was refused in between");
        }
    }

    private static void priority() throws Exception {
        for (int number = 0; number < 6; number++) {
            int priority = number < 3 ? 0 : 3;
            send("priority", number, made -> made.setPriority(priority));
        }
        try (SimpleConsumer consumer = simpleConsumer("priority", topic("priority"))) {
            List<String> seen = new ArrayList<>();
            await("all of them", () -> {
                for (MessageView each : receive(consumer, 1)) {
                    seen.add(text(each));
                    keep(() -> consumer.ack(each));
                }
                return seen.size() == 6;
            });
            require(seen.equals(List.of("3", "4", "5", "0", "1", "2")), "the higher priority first: " + seen);
        }
    }

    private static void delay() throws Exception {
        long due = System.currentTimeMillis() + 15_000; // the first sends take seconds on a busy machine
        SendReceipt kept = send("delay", 0, made -> made.setDeliveryTimestamp(due));
        SendReceipt taken = send("delay", 1, made -> made.setDeliveryTimestamp(due));
        RecallReceipt receipt = producer.recallMessage(topic("delay"), taken.getRecallHandle());
        require(receipt.getMessageId().equals(taken.getMessageId()), "the id of what was recalled: " + receipt);
        refused(taken);
        List<String> seen = new ArrayList<>();
        try (SimpleConsumer consumer = simpleConsumer("delay", topic("delay"))) {
            await("what was kept", () -> {
                for (MessageView each : receive(consumer)) {
                    require(System.currentTimeMillis() >= due, "not early");
                    require(each.getDeliveryTimestamp().get() == due, "the time that was asked for: " + each);
                    seen.add(text(each));
                    keep(() -> consumer.ack(each));
                }
                return !seen.isEmpty() && System.currentTimeMillis() > due + 1000;
            });
        }
        require(seen.equals(List.of("0")), "only what was kept: " + seen);
        refused(kept);
    }

    private static void refused(SendReceipt sent) {
        try {
            producer.recallMessage(topic("delay"), sent.getRecallHandle());
        } catch (ClientException expected) {
            return;
        }
        throw new IllegalStateException("a recall in vain was answered as if it had not been");
    }

    private static void deadLetter() throws Exception {
        Queue<Integer> attempts = new ConcurrentLinkedQueue<>();
        MessageListener listener = message -> {
            attempts.add(message.getDeliveryAttempt());
            return ConsumeResult.FAILURE;
        };
        try (PushConsumer consumer = listening("dead-letter", FilterExpression.SUB_ALL, listener)) {
            send("dead-letter", 0, made -> made.setTag("t").addProperty("kept", "yes"));
            List<MessageView> found = new ArrayList<>();
            await("the dead letter", () -> {
                try (SimpleConsumer dead = simpleConsumer("dead-letter-readers", "%DLQ%" + group("dead-letter"))) {
                    found.addAll(receive(dead));
                } catch (Exception notYet) {
                    return false; // the topic comes with its first message
                }
                return !found.isEmpty();
            });
            MessageView dead = found.get(0);
            require(text(dead).equals("0") && "yes".equals(dead.getProperties().get("kept")), "what it was: " + dead);
            require(List.of(1, 2).equals(new ArrayList<>(attempts)), "delivered twice: " + attempts);
        }
    }

    private static void renewal() throws Exception {
        Queue<Integer> attempts = new ConcurrentLinkedQueue<>();
        Set<String> done = ConcurrentHashMap.newKeySet();
        MessageListener listener = message -> {
            attempts.add(message.getDeliveryAttempt());
            pause(70_000); // longer than a message stays hidden without being renewed
            done.add(text(message));
            return ConsumeResult.SUCCESS;
        };
        try (PushConsumer consumer = listening("renewal", FilterExpression.SUB_ALL, listener)) {
            send("renewal", 0, made -> { });
            await("the slow listener", () -> done.size() == 1);
            pause(3000);
            require(List.of(1).equals(new ArrayList<>(attempts)), "delivered once: " + attempts);
        }
    }

    private static void manyTopics() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        Map<String, FilterExpression> wanted = new HashMap<>();
        for (int number = 0; number < MANY; number++) {
            wanted.put(topic("many-" + number), FilterExpression.SUB_ALL);
        }
        try (PushConsumer consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(place)
            .setConsumerGroup(group("many")).setSubscriptionExpressions(wanted)
            .setMessageListener(message -> {
                seen.add(message.getTopic());
                return ConsumeResult.SUCCESS;
            }).build()) {
            for (int number = 0; number < MANY; number++) {
                send("many-" + number, number, made -> { });
            }
            await("one of each topic", () -> seen.size() == MANY);
        }
    }

    // ---- short forms

    private static String topic(String check) {
        return prefix + "-" + check;
    }

    private static String group(String check) {
        return prefix + "-" + check;
    }

    private static SendReceipt send(String check, int number, Consumer<MessageBuilder> more) throws ClientException {
        MessageBuilder made = PROVIDER.newMessageBuilder().setTopic(topic(check));
        made.setBody(("" + number).getBytes(StandardCharsets.UTF_8));
        more.accept(made);
        return producer.send(made.build());
    }

    private static SimpleConsumer simpleConsumer(String check, String topic) throws ClientException {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(place).setConsumerGroup(group(check))
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    private static PushConsumer pushConsumer(String check, FilterExpression wanted, Consumer<MessageView> seen) throws ClientException {
        return listening(check, wanted, message -> {
            seen.accept(message);
            return ConsumeResult.SUCCESS;
        });
    }

    private static PushConsumer listening(String check, FilterExpression wanted, MessageListener listener) throws ClientException {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(place).setConsumerGroup(group(check))
            .setSubscriptionExpressions(Collections.singletonMap(topic(check), wanted)).setMessageListener(listener).build();
    }

    private static List<MessageView> receive(SimpleConsumer consumer) {
        return receive(consumer, 32);
    }

    private static List<MessageView> receive(SimpleConsumer consumer, int most) {
        try {
            return consumer.receive(most, Duration.ofSeconds(20));
        } catch (ClientException failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static void keep(Promise promise) {
        try {
            promise.keep();
        } catch (Exception failed) {
            throw new IllegalStateException(failed);
        }
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static void require(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    private static void await(String what, BooleanSupplier holds) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.getAsBoolean()) {
            require(System.currentTimeMillis() < deadline, "not within " + PATIENCE_MS + " ms: " + what);
            pause(20);
        }
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException ended) {
            throw new IllegalStateException(ended);
        }
    }

    private static void report(String name, Promise promise) {
        String result = "passed " + name;
        try {
            promise.keep();
        } catch (Throwable failed) {
            result = ("failed " + name + ": " + failed).replaceAll("\\s+", " ");
        }
        synchronized (OUT) {
            OUT.println(result);
        }
    }
}
