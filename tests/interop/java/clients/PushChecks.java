import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Push consumers: concurrent, orderly, broadcast, and what they filter. */
final class PushChecks {
    private PushChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("push-concurrent", PushChecks::concurrent);
        checks.put("push-orderly", PushChecks::orderly);
        checks.put("push-orderly-suspend", PushChecks::orderlySuspend);
        checks.put("push-broadcast", PushChecks::broadcast);
        checks.put("push-batch", PushChecks::batch);
        checks.put("filter-tags", PushChecks::tags);
        checks.put("filter-sql92", PushChecks::sql);
    }

    private static void concurrent(Place place) throws Exception {
        String topic = place.topic(4);
        Received received = place.receive(place.group(), topic, "*");
        place.send(topic, 100);
        Checks.equal(Place.numbers(0, 100).stream().sorted().collect(Collectors.toList()), received.sorted(100), "bodies");
    }

    /** Two members, the second of which joins in the middle: a queue is with one at a time, and in order. */
    private static void orderly(Place place) throws Exception {
        String topic = place.topic(4);
        Orderly seen = new Orderly();
        start(place, topic, seen);
        AtomicBoolean stop = new AtomicBoolean();
        List<Throwable> thrown = Collections.synchronizedList(new ArrayList<>());
        AtomicInteger sent = new AtomicInteger();
        Thread sender = new Thread(() -> {
            try {
                for (int number = 0; !stop.get(); number++) {
                    Message message = new Message(topic, Place.bytes("" + number));
                    Place.sent(place.producer().send(message, (queues, each, key) -> queues.get((int) key % 4), number));
                    sent.incrementAndGet();
                    Thread.sleep(5);
                }
            } catch (Throwable each) {
                thrown.add(each);
            }
        });
        place.producer();
        sender.start();
        try {
            Place.await("the first member gets some", () -> seen.count() > 20);
            start(place, topic, seen);
            Place.await("both members get some", () -> seen.members() == 2);
            int now = sent.get();
            Place.await("more is sent", () -> sent.get() > now + 100);
        } finally {
            stop.set(true);
            sender.join();
        }
        Checks.equal(List.of(), thrown, "thrown by the sender");
        Place.await("everything is received", () -> seen.count() == sent.get());
        Checks.equal(0, seen.overlaps.get(), "a queue was with two members at a time");
        seen.checkOrder();
    }

    private static void start(Place place, String topic, Orderly seen) throws Exception {
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.registerMessageListener(seen.listener(consumer.getInstanceName()));
        consumer.start();
    }

    /** What the orderly members of one group got: each queue's numbers in the order of their first coming. */
    static final class Orderly {
        final AtomicInteger overlaps = new AtomicInteger();
        private final Map<Integer, AtomicInteger> inside = new ConcurrentHashMap<>();
        private final Map<Integer, LinkedHashSet<Integer>> numbers = new TreeMap<>();
        private final java.util.Set<String> members = ConcurrentHashMap.newKeySet();

        MessageListenerOrderly listener(String member) {
            return (messages, context) -> {
                int queue = context.getMessageQueue().getQueueId();
                AtomicInteger count = inside.computeIfAbsent(queue, each -> new AtomicInteger());
                if (count.incrementAndGet() > 1) {
                    overlaps.incrementAndGet();
                }
                members.add(member);
                messages.forEach(each -> add(queue, Integer.parseInt(Place.text(each.getBody()))));
                count.decrementAndGet();
                return ConsumeOrderlyStatus.SUCCESS;
            };
        }

        private synchronized void add(int queue, int number) {
            numbers.computeIfAbsent(queue, each -> new LinkedHashSet<>()).add(number);
        }

        int members() {
            return members.size();
        }

        synchronized int count() {
            return numbers.values().stream().mapToInt(LinkedHashSet::size).sum();
        }

        synchronized boolean containsAll(java.util.Set<String> bodies) {
            return bodies.stream().allMatch(each -> numbers.values().stream().anyMatch(known -> known.contains(Integer.valueOf(each))));
        }

        synchronized void checkOrder() {
            numbers.forEach((queue, known) -> {
                List<Integer> sorted = new ArrayList<>(known);
                Collections.sort(sorted);
                Checks.equal(sorted, new ArrayList<>(known), "order of queue " + queue);
            });
        }
    }

    /** A message that is put off holds back those behind it. */
    private static void orderlySuspend(Place place) throws Exception {
        String topic = place.topic(1);
        place.send(topic, 6);
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.registerMessageListener((List<MessageExt> messages, ConsumeOrderlyContext context) -> {
            String number = Place.text(messages.get(0).getBody());
            if (number.equals("2") && times.size() < 2) {
                times.add(messages.get(0).getReconsumeTimes());
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            order.add(number);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        Place.await("all six", () -> order.size() >= 6);
        Checks.equal(Place.numbers(0, 6), order, "order");
        Checks.equal(List.of(0, 1), times, "attempts before");
    }

    private static void broadcast(Place place) throws Exception {
        String topic = place.topic(2);
        Received[] all = {new Received(), new Received()};
        for (Received each : all) {
            DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
            Generation.broadcast(consumer);
            consumer.registerMessageListener(each);
            consumer.start();
        }
        place.send(topic, 10);
        for (Received each : all) {
            Checks.equal(Place.numbers(0, 10), each.sorted(10), "bodies");
        }
    }

    private static void batch(Place place) throws Exception {
        String topic = place.topic(1);
        place.send(topic, 64);
        List<Integer> sizes = Collections.synchronizedList(new ArrayList<>());
        Received received = new Received() {
            @Override
            public org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> some, org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext context) {
                sizes.add(some.size());
                return super.consumeMessage(some, context);
            }
        };
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setConsumeMessageBatchMaxSize(16);
        consumer.registerMessageListener(received);
        consumer.start();
        received.sorted(64);
        Checks.check(Collections.max(sizes) == 16, "sizes of batches: " + sizes);
    }

    private static void tags(Place place) throws Exception {
        String topic = place.topic(2);
        String[] tags = {"A", "B", "C", null, "Äö", "B"};
        for (int number = 0; number < tags.length; number++) {
            Place.sent(place.producer().send(new Message(topic, tags[number], Place.bytes("" + number))));
        }
        Received two = place.receive(place.group("-two"), topic, "A || B");
        Received wide = place.receive(place.group("-wide"), topic, "Äö");
        Received all = place.receive(place.group("-all"), topic, "*");
        Checks.equal(List.of("0", "1", "5"), two.sorted(3), "A || B");
        Checks.equal(List.of("4"), wide.sorted(1), "Äö");
        Checks.equal(Place.numbers(0, 6), all.sorted(6), "all");
        Place.sent(place.producer().send(new Message(topic, "C", Place.bytes("6"))));
        Place.sent(place.producer().send(new Message(topic, "A", Place.bytes("7"))));
        Checks.equal(List.of("0", "1", "5", "7"), two.sorted(4), "A || B later");
    }

    private static void sql(Place place) throws Exception {
        String topic = place.topic(2);
        String[] colours = {"red", "blue", "red", "green", null};
        for (int number = 0; number < colours.length; number++) {
            Message message = new Message(topic, number % 2 == 0 ? "even" : "odd", Place.bytes("" + number));
            message.putUserProperty("n", "" + number);
            if (colours[number] != null) {
                message.putUserProperty("colour", colours[number]);
            }
            Place.sent(place.producer().send(message));
        }
        Received range = select(place, topic, "-range", "n BETWEEN 1 AND 3");
        Received colour = select(place, topic, "-colour", "colour IN ('red', 'green') AND n > 0");
        Received tagged = select(place, topic, "-tagged", "TAGS = 'even' AND colour IS NULL");
        Checks.equal(List.of("1", "2", "3"), range.sorted(3), "range");
        Checks.equal(List.of("2", "3"), colour.sorted(2), "colour");
        Checks.equal(List.of("4"), tagged.sorted(1), "tagged");
        try {
            select(place, topic, "-wrong", "n BETWEEN AND");
            throw new IllegalStateException("a wrong expression was taken");
        } catch (org.apache.rocketmq.client.exception.MQClientException refused) {
            Checks.check(refused.getMessage() != null, "no reason");
        }
    }

    private static Received select(Place place, String topic, String suffix, String expression) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = place.push(place.group(suffix), topic, null);
        consumer.subscribe(topic, MessageSelector.bySql(expression));
        consumer.registerMessageListener(received);
        consumer.start();
        return received;
    }
}
