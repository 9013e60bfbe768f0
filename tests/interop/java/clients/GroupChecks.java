import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageQueue;

/** Who gets which queue, and from where: members that come and go, first offsets, committed ones. */
final class GroupChecks {
    private GroupChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("rebalance", GroupChecks::rebalance);
        checks.put("consume-from-first", place -> from(place, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, true));
        checks.put("consume-from-last", place -> from(place, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, false));
        checks.put("consume-from-timestamp", place -> from(place, ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, false));
        checks.put("offsets-resumed", GroupChecks::resumed);
        checks.put("offsets-of-lite-pull-resumed", GroupChecks::liteResumed);
        checks.put("subscription-changed", GroupChecks::changed);
    }

    private static List<MessageQueue> queues(DefaultMQPushConsumer consumer, String topic) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().entrySet().stream()
            .filter(each -> each.getKey().getTopic().equals(topic) && !each.getValue().isDropped())
            .map(Map.Entry::getKey).sorted().collect(Collectors.toList());
    }

    private static void rebalance(Place place) throws Exception {
        String topic = place.topic(4);
        Received received = new Received();
        DefaultMQPushConsumer first = place.push(place.group(), topic, "*");
        first.registerMessageListener(received);
        first.start();
        Place.await("the first has all", () -> queues(first, topic).size() == 4);
        place.send(topic, 0, 8);
        received.sorted(8);
        DefaultMQPushConsumer second = place.push(place.group(), topic, "*");
        second.registerMessageListener(received);
        second.start();
        Place.await("each has two", () -> queues(first, topic).size() == 2 && queues(second, topic).size() == 2);
        List<MessageQueue> both = new ArrayList<>(queues(first, topic));
        both.addAll(queues(second, topic));
        Checks.equal(4L, both.stream().distinct().count(), "different queues");
        place.send(topic, 10, 8);
        Place.await("what is sent to both", () -> received.bodies().containsAll(Place.numbers(10, 18)));
        second.shutdown();
        Place.await("the first has all again", () -> queues(first, topic).size() == 4);
        place.send(topic, 20, 8);
        Place.await("what is sent to the one", () -> received.bodies().containsAll(Place.numbers(20, 28)));
    }

    /**
     * A new group gets what is sent after its start, from wherever it begins. What was there before it gets too when it begins
     * with the first; with the others that is the broker's choice, as long as the topic is young.
     */
    private static void from(Place place, ConsumeFromWhere where, boolean all) throws Exception {
        String topic = place.topic(2);
        place.send(topic, 10, 8);
        Received received = new Received();
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setConsumeFromWhere(where);
        if (where == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP) {
            consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(System.currentTimeMillis() - 3_600_000)));
        }
        consumer.registerMessageListener(received);
        consumer.start();
        Place.await("it has its queues", () -> queues(consumer, topic).size() == 2);
        place.send(topic, 20, 8);
        Place.await("what is sent later", () -> received.bodies().containsAll(Place.numbers(20, 28)));
        if (all || where == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP) {
            Place.await("what was there", () -> received.bodies().containsAll(Place.numbers(10, 18)));
        }
        Checks.equal((long) received.all().size(), received.bodies().stream().distinct().count(), "no message twice");
    }

    private static void resumed(Place place) throws Exception {
        String topic = place.topic(2);
        place.send(topic, 0, 8);
        Received before = new Received();
        DefaultMQPushConsumer first = place.push(place.group(), topic, "*");
        first.registerMessageListener(before);
        first.start();
        before.sorted(8);
        long committed = 8;
        Place.await("its offsets are committed", () -> {
            long sum = 0;
            for (MessageQueue each : queues(first, topic)) {
                first.getOffsetStore().persist(each);
                sum += first.getOffsetStore().readOffset(each, org.apache.rocketmq.client.consumer.store.ReadOffsetType.READ_FROM_STORE);
            }
            return sum == committed;
        });
        first.shutdown();
        place.send(topic, 8, 8);
        Received after = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(8, 16).stream().sorted().collect(Collectors.toList()), after.sorted(8), "after the restart");
    }

    private static void liteResumed(Place place) throws Exception {
        String topic = place.topic(1);
        place.send(topic, 0, 4);
        for (int round = 0; round < 2; round++) {
            org.apache.rocketmq.client.consumer.DefaultLitePullConsumer consumer = place.lite(place.group());
            consumer.setAutoCommit(false);
            consumer.subscribe(topic, "*");
            consumer.start();
            List<String> got = new ArrayList<>();
            Place.await("four", () -> {
                consumer.poll().forEach(each -> got.add(Place.text(each.getBody())));
                return got.size() >= 4;
            });
            Checks.equal(Place.numbers(4 * round, 4 * round + 4), got, "round " + round);
            consumer.commitSync();
            int committed = 4 * round + 4;
            MessageQueue queue = consumer.fetchMessageQueues(topic).iterator().next();
            Place.await("its offset is committed", () -> Long.valueOf(committed).equals(consumer.committed(queue)));
            consumer.shutdown();
            place.send(topic, 4 * round + 4, 4);
        }
    }

    /** A member that subscribes to one more topic and leaves the other. */
    private static void changed(Place place) throws Exception {
        String one = place.topic("-one", 1);
        String other = place.topic("-other", 1);
        Received received = new Received();
        DefaultMQPushConsumer consumer = place.push(place.group(), one, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        place.send(one, 0, 1);
        received.sorted(1);
        consumer.subscribe(other, "*");
        consumer.unsubscribe(one);
        place.send(other, 1, 1);
        Checks.equal(Place.numbers(0, 2), received.sorted(2), "bodies");
        Place.await("the queue of the first is given up", () -> queues(consumer, one).isEmpty());
    }
}
