import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A client that signs, as the original's does it. Arguments: name servers, access key, secret key, a topic that it may send to
 * and read, one that it may not, and its group. Prints "passed NAME" or "failed NAME: why" for each check.
 */
public class AccessChecks {
    private static final int MESSAGES = 20;

    public static void main(String[] words) throws Exception {
        String servers = words[0];
        RPCHook hook = new AclClientRPCHook(new SessionCredentials(words[1], words[2]));
        RPCHook wrong = new AclClientRPCHook(new SessionCredentials(words[1], words[2] + "x"));
        check("send", () -> send(servers, hook, words[3]));
        check("batch-and-keys", () -> sendBatch(servers, hook, words[3]));
        check("receive", () -> receive(servers, hook, words[3], words[5]));
        check("refused-topic", () -> refused(servers, hook, words[4]));
        check("refused-secret", () -> refused(servers, wrong, words[3]));
        check("refused-unsigned", () -> refused(servers, null, words[3]));
        System.exit(0);
    }

    private interface Check {
        void run() throws Exception;
    }

    private static void check(String name, Check check) {
        try {
            check.run();
            System.out.println("passed " + name);
        } catch (Throwable error) {
            System.out.println("failed " + name + ": " + error);
            error.printStackTrace(System.out);
        }
    }

    private static DefaultMQProducer producer(String servers, RPCHook hook) throws MQClientException {
        DefaultMQProducer producer = new DefaultMQProducer("producers", hook);
        producer.setNamesrvAddr(servers);
        producer.setInstanceName("p" + System.nanoTime());
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private static void send(String servers, RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = producer(servers, hook);
        try {
            for (int number = 0; number < MESSAGES; number++) {
                byte[] body = ("message " + number + " \u00e4\u20ac").getBytes(StandardCharsets.UTF_8);
                SendStatus status = producer.send(new Message(topic, "tag", "key" + number, body)).getSendStatus();
                if (status != SendStatus.SEND_OK) {
                    throw new IllegalStateException("status " + status);
                }
            }
        } finally {
            producer.shutdown();
        }
    }

    private static void sendBatch(String servers, RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = producer(servers, hook);
        try {
            producer.send(java.util.Arrays.asList(
                new Message(topic, "tag", "b1", new byte[] {1}), new Message(topic, "tag", "b2", new byte[] {2})));
        } finally {
            producer.shutdown();
        }
    }

    private static void receive(String servers, RPCHook hook, String topic, String group) throws Exception {
        Set<String> keys = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName("c" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> keys.add(message.getKeys()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            while (keys.size() < MESSAGES + 2) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("received only " + keys);
                }
                Thread.sleep(20);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static void refused(String servers, RPCHook hook, String topic) throws Exception {
        DefaultMQProducer producer = producer(servers, hook);
        try {
            producer.send(new Message(topic, "body".getBytes(StandardCharsets.UTF_8)));
            throw new IllegalStateException("it was sent");
        } catch (MQBrokerException error) {
            if (error.getResponseCode() != 16) {
                throw error;
            }
        } catch (MQClientException error) {
            // the route was refused, which this client tells by the code of the name server's answer, or by finding no route
            if (error.getResponseCode() != 16 && !String.valueOf(error.getMessage()).contains("No route info")) {
                throw error;
            }
        } finally {
            producer.shutdown();
        }
    }
}
