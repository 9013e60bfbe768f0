import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
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
        checks.put("timer", TimerChecks::timer);
        checks.put("send-compressed-lz4", place -> compressed(place, CompressionType.LZ4));
        checks.put("send-compressed-zstd", place -> compressed(place, CompressionType.ZSTD));
    }

    private static void compressed(Place place, CompressionType type) throws Exception {
        place.producer().setCompressType(type);
        SendChecks.compressed(place, type.getValue());
    }
}
