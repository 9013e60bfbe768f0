import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What takes its time by nature: delays, retries, dead letters. */
final class SlowChecks {
    private SlowChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("delay-level", SlowChecks::delayLevel);
        checks.put("retry", SlowChecks::retry);
        checks.put("dead-letter", SlowChecks::deadLetter);
        checks.put("dead-letter-orderly", SlowChecks::deadLetterOrderly);
    }

    private static void delayLevel(Place place) throws Exception {
        String topic = place.topic(2);
        Received received = place.receive(place.group(), topic, "*");
        int[] levels = {2, 1, 0};
        long[] delays = {5000, 1000, 0};
        for (int number = 0; number < levels.length; number++) {
            Message message = new Message(topic, "tag" + number, Place.bytes("" + number));
            message.setDelayTimeLevel(levels[number]);
            Place.sent(place.producer().send(message));
        }
        received.sorted(3);
        List<MessageExt> stored = received.all();
        stored.sort(Comparator.comparingLong(MessageExt::getStoreTimestamp));
        List<String> order = stored.stream().map(each -> Place.text(each.getBody())).collect(Collectors.toList());
        Checks.equal(List.of("2", "1", "0"), order, "order of coming");
        for (MessageExt each : stored) {
            int number = Integer.parseInt(Place.text(each.getBody()));
            long waited = each.getStoreTimestamp() - each.getBornTimestamp();
            Checks.check(waited >= delays[number], "level " + levels[number] + " came after " + waited + " ms");
            Checks.equal(topic, each.getTopic(), "topic");
            Checks.equal("tag" + number, each.getTags(), "tag");
        }
    }

    /** A message that is refused twice comes back as it was; the other one does not. */
    private static void retry(Place place) throws Exception {
        String topic = place.topic(1);
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        Received received = new Received() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> some, ConsumeConcurrentlyContext context) {
                super.consumeMessage(some, context);
                context.setDelayLevelWhenNextConsume(1);
                MessageExt message = some.get(0);
                boolean told = Place.text(message.getBody()).equals("1");
                if (told) {
                    times.add(message.getReconsumeTimes());
                }
                boolean refused = told && message.getReconsumeTimes() < 2;
                return refused ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        };
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.registerMessageListener(received);
        consumer.start();
        Message message = new Message(topic, "tag", "key", Place.bytes("1"));
        message.putUserProperty("colour", "blue");
        String id = Place.sent(place.producer().send(message)).getMsgId();
        place.send(topic, 2, 1);
        Checks.equal(List.of("1", "1", "1", "2"), received.sorted(4), "bodies");
        for (MessageExt each : received.all()) {
            if (Place.text(each.getBody()).equals("1")) {
                Checks.equal(topic, each.getTopic(), "topic");
                Checks.equal("tag", each.getTags(), "tag");
                Checks.equal("key", each.getKeys(), "key");
                Checks.equal("blue", each.getUserProperty("colour"), "user property");
                Checks.equal(id, each.getMsgId(), "id");
            }
        }
        Checks.equal(List.of(0, 1, 2), times, "attempts before");
    }

    private static void deadLetter(Place place) throws Exception {
        String topic = place.topic(1);
        AtomicInteger attempts = new AtomicInteger();
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setMaxReconsumeTimes(1);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            attempts.addAndGet(messages.size());
            context.setDelayLevelWhenNextConsume(1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        String id = place.send(topic, 1).get(0).getMsgId();
        expectDeadLetter(place, topic, id);
        Checks.equal(2, attempts.get(), "attempts");
    }

    private static void deadLetterOrderly(Place place) throws Exception {
        String topic = place.topic(1);
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setMaxReconsumeTimes(1);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            String body = Place.text(messages.get(0).getBody());
            seen.add(body);
            context.setSuspendCurrentQueueTimeMillis(100);
            return body.equals("0") ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        String id = place.send(topic, 2).get(0).getMsgId();
        expectDeadLetter(place, topic, id);
        Place.await("the next in the queue", () -> seen.contains("1"));
        Checks.equal(List.of("0", "0", "1"), seen, "attempts");
    }

    private static void expectDeadLetter(Place place, String topic, String id) throws Exception {
        DefaultMQPullConsumer reader = place.pull(place.group("-reader"));
        String dead = "%DLQ%" + place.group();
        Received found = new Received();
        Place.await("a dead letter", () -> {
            MessageQueue queue;
            try {
                queue = reader.fetchSubscribeMessageQueues(dead).iterator().next();
            } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                return false;
            }
            PullResult result = reader.pull(queue, "*", 0, 32);
            if (result.getMsgFoundList() != null) {
                result.getMsgFoundList().forEach(found::add);
            }
            return !found.all().isEmpty();
        });
        MessageExt letter = found.only();
        Checks.equal("0", Place.text(letter.getBody()), "body");
        Checks.equal(id, letter.getMsgId(), "id");
        Checks.equal(topic, letter.getProperty("RETRY_TOPIC"), "original topic");
    }
}
