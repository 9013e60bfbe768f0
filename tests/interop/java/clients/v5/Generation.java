import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Where the clients 5.x differ, and what only they can do. */
final class Generation {
    private Generation() {
    }

    static MQClientAPIImpl api(DefaultMQProducer producer) {
        return producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static String offsetId(MessageExt message) {
        return ((MessageClientExt) message).getOffsetMsgId();
    }

    /** Let a consumer consume one message; what it says of that. */
    static String consumeDirectly(Place place, String group, String client, String topic, String offsetId) throws Exception {
        return api(place.producer()).consumeMessageDirectly(place.master, group, client, topic, offsetId, 15_000).getConsumeResult().name();
    }

    static void add(Map<String, Checks.Body> checks) {
        PopChecks.add(checks);
        checks.put("heartbeat-v2", Generation::heartbeatV2);
        checks.put("send-auto-batch", Generation::autoBatch);
        checks.put("timer", TimerChecks::timer);
        checks.put("timer-recall", TimerChecks::recall);
        checks.put("send-compressed-lz4", place -> compressed(place, CompressionType.LZ4));
        checks.put("send-compressed-zstd", place -> compressed(place, CompressionType.ZSTD));
    }

    /** Heartbeats that name the subscriptions only when they changed. */
    private static void heartbeatV2(Place place) throws Exception {
        String topic = place.topic(2);
        Received received = new Received();
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        for (int index = 0; index < 2; index++) {
            members[index] = place.push(place.group(), topic, "*");
            members[index].setUseHeartbeatV2(true);
            members[index].registerMessageListener(received);
            members[index].start();
        }
        for (DefaultMQPushConsumer each : members) {
            Place.await("each has one queue", () -> each.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
                .keySet().stream().filter(queue -> queue.getTopic().equals(topic)).count() == 1);
        }
        place.send(topic, 10);
        Checks.equal(Place.numbers(0, 10), received.sorted(10), "bodies");
    }

    private static void autoBatch(Place place) throws Exception {
        String topic = place.topic(1);
        place.producer().setAutoBatch(true);
        List<CompletableFuture<SendResult>> results = new ArrayList<>();
        for (String number : Place.numbers(0, 30)) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            results.add(result);
            place.producer().send(new Message(topic, Place.bytes(number)), new SendCallback() {
                @Override
                public void onSuccess(SendResult sent) {
                    result.complete(sent);
                }

                @Override
                public void onException(Throwable thrown) {
                    result.completeExceptionally(thrown);
                }
            });
        }
        for (CompletableFuture<SendResult> each : results) {
            Place.sent(each.get(Place.PATIENCE_S, TimeUnit.SECONDS));
        }
        Received received = place.receive(place.group(), topic, "*");
        Checks.equal(Place.numbers(0, 30).stream().sorted().collect(Collectors.toList()), received.sorted(30), "bodies");
    }

    private static void compressed(Place place, CompressionType type) throws Exception {
        place.producer().setCompressType(type);
        SendChecks.compressed(place, type.getValue());
    }
}
