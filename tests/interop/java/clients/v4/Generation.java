import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/** Where the clients 4.9 differ, and what only they can do. */
final class Generation {
    private Generation() {
    }

    static MQClientAPIImpl api(DefaultMQProducer producer) {
        return producer.getDefaultMQProducerImpl().getmQClientFactory().getMQClientAPIImpl();
    }

    static void broadcast(DefaultMQPushConsumer consumer) {
        consumer.setMessageModel(MessageModel.BROADCASTING);
    }

    static String offsetId(MessageExt message) {
        return ((MessageClientExt) message).getOffsetMsgId();
    }

    /** Let a consumer consume one message; what it says of that. */
    static String consumeDirectly(Place place, String group, String client, String topic, String offsetId) throws Exception {
        return api(place.producer()).consumeMessageDirectly(place.master, group, client, offsetId, 15_000).getConsumeResult().name();
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("request-reply-sync", SendChecks::requestReplySync);
    }
}
