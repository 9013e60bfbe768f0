import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** What one check works with: its own topics and groups, and clients that end with it. */
final class Place implements AutoCloseable {
    static final long PATIENCE_S = 60;
    private static final AtomicInteger INSTANCES = new AtomicInteger();

    interface Condition {
        boolean holds() throws Exception;
    }

    interface Ending {
        void end() throws Exception;
    }

    final String name;
    final String master;
    private final String nameServers;
    private final String prefix;
    private final Deque<Ending> endings = new ArrayDeque<>();
    private DefaultMQProducer producer;

    Place(String nameServers, String master, String prefix, String name) {
        this.nameServers = nameServers;
        this.master = master;
        this.prefix = prefix;
        this.name = name;
    }

    /** A topic of this check that has so many queues and is in the routes. */
    String topic(int queues) throws Exception {
        return topic("", queues);
    }

    String topic(String suffix, int queues) throws Exception {
        return makeTopic(prefix + "-" + name + suffix, queues);
    }

    String makeTopic(String topic, int queues) throws Exception {
        Generation.api(producer()).createTopic(master, "TBW102", new TopicConfig(topic, queues, queues, 6), 5000);
        await("the topic is in the routes", () -> {
            try {
                return producer().fetchPublishMessageQueues(topic).size() == queues;
            } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                return false;
            }
        });
        return topic;
    }

    String group() {
        return group("");
    }

    String group(String suffix) {
        return prefix + "-" + name + suffix;
    }

    /** The producer of this check. */
    DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            DefaultMQProducer made = new DefaultMQProducer(group("-producer"));
            made.setSendMsgTimeout(10_000);
            configure(made);
            made.start();
            endings.push(made::shutdown);
            producer = made;
        }
        return producer;
    }

    /** A push consumer that begins with the first message; not started. */
    DefaultMQPushConsumer push(String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        configure(made);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (tags != null) {
            made.subscribe(topic, tags);
        }
        endings.push(made::shutdown);
        return made;
    }

    /** A started push consumer that keeps what it gets. */
    Received receive(String group, String topic, String tags) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = push(group, topic, tags);
        consumer.registerMessageListener(received);
        consumer.start();
        return received;
    }

    DefaultMQPullConsumer pull(String group) throws Exception {
        DefaultMQPullConsumer made = new DefaultMQPullConsumer(group);
        configure(made);
        made.start();
        endings.push(made::shutdown);
        return made;
    }

    /** A lite pull consumer; not started. */
    DefaultLitePullConsumer lite(String group) {
        DefaultLitePullConsumer made = new DefaultLitePullConsumer(group);
        configure(made);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.setPollTimeoutMillis(1000);
        endings.push(made::shutdown);
        return made;
    }

    void configure(ClientConfig client) {
        client.setNamesrvAddr(nameServers);
        client.setInstanceName(prefix + INSTANCES.incrementAndGet());
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        client.setPersistConsumerOffsetInterval(1000);
    }

    void atEnd(Ending ending) {
        endings.push(ending);
    }

    /** Send bodies "0" to "count - 1", one after the other. */
    List<SendResult> send(String topic, int count) throws Exception {
        return send(topic, 0, count);
    }

    List<SendResult> send(String topic, int first, int count) throws Exception {
        List<SendResult> results = new ArrayList<>();
        for (int number = first; number < first + count; number++) {
            results.add(sent(producer().send(new Message(topic, bytes("" + number)))));
        }
        return results;
    }

    static SendResult sent(SendResult result) {
        Checks.equal(SendStatus.SEND_OK, result.getSendStatus(), "send status");
        return result;
    }

    static List<String> numbers(int from, int to) {
        List<String> found = new ArrayList<>();
        for (int number = from; number < to; number++) {
            found.add("" + number);
        }
        return found;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    static void await(String what, Condition condition) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.holds()) {
            if (System.nanoTime() > deadline) {
                throw new AssertionError("not within " + PATIENCE_S + " s: " + what);
            }
            Thread.sleep(20);
        }
    }

    @Override
    public void close() throws Exception {
        while (!endings.isEmpty()) {
            endings.pop().end();
        }
    }
}
