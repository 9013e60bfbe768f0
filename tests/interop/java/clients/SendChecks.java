import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to send, read back by a push consumer. */
final class SendChecks {
    private SendChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("send-sync", SendChecks::sync);
        checks.put("send-async", SendChecks::async);
        checks.put("send-oneway", SendChecks::oneway);
        checks.put("send-batch", SendChecks::batch);
        checks.put("send-to-queue", SendChecks::toQueue);
        checks.put("send-selector", SendChecks::selector);
        checks.put("send-properties", SendChecks::properties);
        checks.put("send-compressed-zlib", place -> compressed(place, 3));
        checks.put("send-large", SendChecks::large);
        checks.put("send-too-large", SendChecks::tooLarge);
        checks.put("namespace", SendChecks::namespace);
        checks.put("send-to-unknown-topic", SendChecks::unknownTopic);
        checks.put("request-reply", SendChecks::requestReply);
    }

    private static void sync(Place place) throws Exception {
        String topic = place.topic(4);
        List<SendResult> results = place.send(topic, 8);
        Checks.equal(8L, results.stream().map(SendResult::getMsgId).distinct().count(), "different ids");
        Received received = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(0, 8), received.sorted(8), "bodies");
        Checks.equal(
            results.stream().map(SendResult::getMsgId).sorted().collect(Collectors.toList()),
            received.all().stream().map(MessageExt::getMsgId).sorted().collect(Collectors.toList()),
            "ids");
    }

    private static void async(Place place) throws Exception {
        String topic = place.topic(4);
        List<CompletableFuture<SendResult>> results = new ArrayList<>();
        for (int number = 0; number < 8; number++) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            results.add(result);
            place.producer().send(new Message(topic, Place.bytes("" + number)), callback(result));
        }
        for (CompletableFuture<SendResult> each : results) {
            Place.sent(each.get(Place.PATIENCE_S, TimeUnit.SECONDS));
        }
        Checks.equal(Place.numbers(0, 8), place.receive(place.group(), topic, "*").sorted(8), "bodies");
    }

    private static SendCallback callback(CompletableFuture<SendResult> result) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable thrown) {
                result.completeExceptionally(thrown);
            }
        };
    }

    private static void oneway(Place place) throws Exception {
        String topic = place.topic(4);
        for (String number : Place.numbers(0, 8)) {
            place.producer().sendOneway(new Message(topic, Place.bytes(number)));
        }
        Checks.equal(Place.numbers(0, 8), place.receive(place.group(), topic, "*").sorted(8), "bodies");
    }

    private static void batch(Place place) throws Exception {
        String topic = place.topic(1);
        List<Message> messages = new ArrayList<>();
        for (String number : Place.numbers(0, 5)) {
            messages.add(new Message(topic, "tag" + number, "key" + number, Place.bytes(number)));
        }
        SendResult result = Place.sent(place.producer().send(messages));
        Checks.equal(5, result.getMsgId().split(",").length, "unique ids");
        Checks.equal(5, result.getOffsetMsgId().split(",").length, "offset ids");
        Checks.equal(0L, result.getQueueOffset(), "first queue offset");
        Received received = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(0, 5), received.sorted(5), "bodies");
        for (MessageExt each : received.all()) {
            String number = Place.text(each.getBody());
            Checks.equal("tag" + number, each.getTags(), "tag");
            Checks.equal("key" + number, each.getKeys(), "key");
            Checks.equal(Long.valueOf(number), each.getQueueOffset(), "queue offset");
        }
    }

    private static void toQueue(Place place) throws Exception {
        String topic = place.topic(4);
        List<MessageQueue> queues = place.producer().fetchPublishMessageQueues(topic);
        MessageQueue queue = queues.stream().filter(each -> each.getQueueId() == 2).findFirst().get();
        for (String number : Place.numbers(0, 3)) {
            SendResult result = Place.sent(place.producer().send(new Message(topic, Place.bytes(number)), queue));
            Checks.equal(queue, result.getMessageQueue(), "queue");
            Checks.equal(Long.valueOf(number), result.getQueueOffset(), "queue offset");
        }
        Received received = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(0, 3), received.sorted(3), "bodies");
        Checks.check(received.all().stream().allMatch(each -> each.getQueueId() == 2), "in another queue");
    }

    private static void selector(Place place) throws Exception {
        String topic = place.topic(4);
        for (int number = 0; number < 8; number++) {
            SendResult result = Place.sent(place.producer().send(
                new Message(topic, Place.bytes("" + number)), (queues, message, key) -> queues.get((int) key % 4), number));
            Checks.equal(number % 4, result.getMessageQueue().getQueueId(), "queue");
        }
        Received received = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(0, 8), received.sorted(8), "bodies");
        for (MessageExt each : received.all()) {
            Checks.equal(Integer.parseInt(Place.text(each.getBody())) % 4, each.getQueueId(), "queue");
        }
    }

    private static void properties(Place place) throws Exception {
        String topic = place.topic(1);
        Message message = new Message(topic, "TagÄ", "", 17, Place.bytes("ünïcödé"), true);
        message.setKeys(Arrays.asList("k1", "k2"));
        message.putUserProperty("colour", "blau-grün");
        message.putUserProperty("n", "42");
        SendResult result = Place.sent(place.producer().send(message));
        MessageExt got = place.receive(place.group(), topic, "*").only();
        Checks.equal("ünïcödé", Place.text(got.getBody()), "body");
        Checks.equal("TagÄ", got.getTags(), "tag");
        Checks.equal("k1 k2", got.getKeys(), "keys");
        Checks.equal("blau-grün", got.getUserProperty("colour"), "user property");
        Checks.equal("42", got.getUserProperty("n"), "user property");
        Checks.equal(17, got.getFlag(), "flag");
        Checks.equal(result.getMsgId(), got.getMsgId(), "id");
        Checks.check(got.getBornTimestamp() <= got.getStoreTimestamp(), "stored before it was born");
        Checks.check(got.getStoreHost().toString().endsWith(place.master), "store host " + got.getStoreHost());
    }

    /** A body of 100 000 bytes that gets smaller. `type` must be in the bits 8 to 10 of the stored message's system flag. */
    static void compressed(Place place, int type) throws Exception {
        String topic = place.topic(1);
        byte[] body = new byte[100_000];
        Random random = new Random(1);
        for (int index = 0; index < body.length; index++) {
            body[index] = (byte) random.nextInt(4);
        }
        Place.sent(place.producer().send(new Message(topic, body)));
        MessageExt got = place.receive(place.group(), topic, "*").only();
        Checks.check(Arrays.equals(body, got.getBody()), "another body");
        Checks.equal(type, got.getSysFlag() >> 8 & 7, "type of compression");
        Checks.check(got.getStoreSize() < 60_000, "stored with " + got.getStoreSize() + " bytes");
    }

    private static byte[] incompressible(int size) {
        byte[] body = new byte[size];
        new Random(2).nextBytes(body);
        return body;
    }

    private static void large(Place place) throws Exception {
        String topic = place.topic(1);
        byte[] body = incompressible(4_000_000);
        place.producer().setSendMsgTimeout(30_000);
        Place.sent(place.producer().send(new Message(topic, body)));
        MessageExt got = place.receive(place.group(), topic, "*").only();
        Checks.check(Arrays.equals(body, got.getBody()), "another body");
    }

    /** The client's own limit is raised, so that the broker says no. */
    private static void tooLarge(Place place) throws Exception {
        String topic = place.topic(1);
        place.producer().setMaxMessageSize(16_000_000);
        place.producer().setSendMsgTimeout(30_000);
        try {
            place.producer().send(new Message(topic, incompressible(5_000_000)));
            throw new AssertionError("it was taken");
        } catch (MQBrokerException refused) {
            Checks.equal(13, refused.getResponseCode(), "response code");
        }
        place.send(topic, 1);
        Checks.equal(List.of("0"), place.receive(place.group(), topic, "*").sorted(1), "bodies");
    }

    /** Clients with a namespace put it before the names of topics and groups, and hide it from their users. */
    private static void namespace(Place place) throws Exception {
        String space = place.group().replace("-", "_");
        place.makeTopic(space + "%inner", 2);
        place.producer().setNamespace(space);
        AtomicInteger attempts = new AtomicInteger();
        Received received = new Received() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> some, ConsumeConcurrentlyContext context) {
                super.consumeMessage(some, context);
                context.setDelayLevelWhenNextConsume(1);
                return attempts.incrementAndGet() == 1 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        };
        DefaultMQPushConsumer consumer = place.push("inner", null, null);
        consumer.setNamespace(space);
        consumer.subscribe("inner", "*");
        consumer.registerMessageListener(received);
        consumer.start();
        Place.sent(place.producer().send(new Message("inner", Place.bytes("a"))));
        Checks.equal(List.of("a", "a"), received.sorted(2), "bodies");
        Checks.equal("inner", received.all().get(1).getTopic(), "topic");
    }

    private static void unknownTopic(Place place) throws Exception {
        String topic = place.group("-never-made");
        Place.sent(place.producer().send(new Message(topic, Place.bytes("made by sending"))));
        Checks.equal("made by sending", Place.text(place.receive(place.group(), topic, "*").only().getBody()), "body");
        Checks.equal(4, place.producer().fetchPublishMessageQueues(topic).size(), "queues");
    }

    /** By callback, with a selector: the one way to ask in which the clients of both generations wait for the answer. */
    private static void requestReply(Place place) throws Exception {
        String topic = place.topic(2);
        answer(place, topic);
        for (String number : Place.numbers(0, 3)) {
            CompletableFuture<Message> reply = new CompletableFuture<>();
            RequestCallback callback = new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    reply.complete(message);
                }

                @Override
                public void onException(Throwable thrown) {
                    reply.completeExceptionally(thrown);
                }
            };
            MessageQueueSelector second = (queues, message, argument) -> queues.get(1);
            place.producer().request(new Message(topic, Place.bytes(number)), second, null, callback, 30_000);
            Checks.equal("reply to " + number, Place.text(reply.get(40, TimeUnit.SECONDS).getBody()), "reply");
        }
    }

    /** The clients 5.3.3 return from this call when the request is sent, mostly before its answer is there. */
    static void requestReplySync(Place place) throws Exception {
        String topic = place.topic(2);
        answer(place, topic);
        for (String number : Place.numbers(0, 3)) {
            Message reply = place.producer().request(new Message(topic, Place.bytes(number)), 30_000);
            Checks.equal("reply to " + number, Place.text(reply.getBody()), "reply");
        }
    }

    /** A consumer that answers every request on the topic. */
    private static void answer(Place place, String topic) throws Exception {
        DefaultMQProducer producer = place.producer();
        DefaultMQPushConsumer responder = place.push(place.group(), topic, "*");
        responder.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (MessageExt each : messages) {
                    Message reply = MessageUtil.createReplyMessage(each, Place.bytes("reply to " + Place.text(each.getBody())));
                    Place.sent(producer.send(reply));
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            } catch (Exception thrown) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
        });
        responder.start();
    }
}
