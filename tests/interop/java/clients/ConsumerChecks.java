import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** What administrators ask about consumers, and let them do: through the broker, with consumers that run. */
final class ConsumerChecks {
    private ConsumerChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("reset-offset", ConsumerChecks::reset);
        checks.put("consumer-asked", ConsumerChecks::asked);
    }

    private static long committed(Place place, DefaultMQPushConsumer consumer, String topic) throws Exception {
        long sum = 0;
        Map<String, Map<MessageQueue, Long>> status = Generation.api(place.producer())
            .invokeBrokerToGetConsumerStatus(place.master, topic, place.group(), consumer.buildMQClientId(), 5000);
        for (Long offset : status.get(consumer.buildMQClientId()).values()) {
            sum += Math.max(0, offset);
        }
        return sum;
    }

    /** A consumer that runs is told to begin again, and does. */
    private static void reset(Place place) throws Exception {
        String topic = place.topic(2);
        place.send(topic, 0, 6);
        Received received = new Received();
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        received.sorted(6);
        Place.await("it counts them as consumed", () -> committed(place, consumer, topic) == 6);
        Map<MessageQueue, Long> targets = Generation.api(place.producer())
            .invokeBrokerToResetOffset(place.master, topic, place.group(), 0, true, 5000);
        Checks.equal(2, targets.size(), "queues");
        Checks.equal(0L, targets.values().stream().mapToLong(Long::longValue).sum(), "offsets");
        List<String> again = received.sorted(12).stream().distinct().collect(Collectors.toList());
        Checks.equal(Place.numbers(0, 6), again, "bodies");
        Place.await("it counts them as consumed again", () -> committed(place, consumer, topic) == 6);
        place.send(topic, 6, 2);
        Place.await("what is sent later", () -> received.bodies().containsAll(Place.numbers(6, 8)));
        Checks.equal(14, received.all().size(), "messages");
    }

    /** Questions that the broker passes on to the consumer. */
    private static void asked(Place place) throws Exception {
        String topic = place.topic(2);
        String offsetId = place.send(topic, 0, 1).get(0).getOffsetMsgId();
        Received received = new Received();
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        received.sorted(1);
        String client = consumer.buildMQClientId();
        var api = Generation.api(place.producer());
        var connection = api.getConsumerConnectionList(place.master, place.group(), 5000);
        Checks.equal(client, connection.getConnectionSet().iterator().next().getClientId(), "client");
        Checks.equal("*", connection.getSubscriptionTable().get(topic).getSubString(), "subscription");
        var info = api.getConsumerRunningInfo(place.master, place.group(), client, false, 15_000);
        long queues = info.getMqTable().keySet().stream().filter(each -> each.getTopic().equals(topic)).count();
        Checks.equal(2L, queues, "queues that it has");
        String result = Generation.consumeDirectly(place, place.group(), client, topic, offsetId);
        Checks.equal("CR_SUCCESS", result, "result");
        Checks.equal(2, received.all().size(), "times that it got the message");
        Place.await("it is in the statistics", () ->
            api.getConsumeStats(place.master, place.group(), topic, 5000).computeTotalDiff() == 0);
    }
}
