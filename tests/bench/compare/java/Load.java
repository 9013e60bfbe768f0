import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Load through the unmodified Java client. Prints one line of JSON.
 *
 *   Load produce NAME_SERVER TOPIC GROUP THREADS WARM_UP_S SECONDS BODY_BYTES
 *   Load consume NAME_SERVER TOPIC GROUP MESSAGES           (as many are stored; three groups read them, the last one counts)
 *   Load both    NAME_SERVER TOPIC GROUP THREADS WARM_UP_S SECONDS BODY_BYTES
 *   Load gather  NAME_SERVER TOPIC GROUP THREADS WARM_UP_S SECONDS BODY_BYTES
 *
 * The producer is one instance with THREADS threads that send synchronously, one message after the other. "both" adds a push
 * consumer in the same process and counts what it received in the measured time; then it waits until everything arrived.
 * "gather" does the same with a producer that gathers messages into batches by itself (autoBatch).
 */
public final class Load {
    private static final int PATIENCE_S = 60;
    private static final int PASSES = 3; // the JVM compiles what consumes in the first ones
    private static final int MOST_SENDS = 4_000_000;

    private static final AtomicLong acknowledged = new AtomicLong();
    private static final AtomicLong failures = new AtomicLong();
    private static final AtomicLong consumed = new AtomicLong();
    private static final AtomicBoolean measuring = new AtomicBoolean();
    private static final AtomicBoolean stopping = new AtomicBoolean();

    public static void main(String[] words) throws Exception {
        String mode = words[0];
        if (mode.equals("consume")) {
            consume(words[1], words[2], words[3], Long.parseLong(words[4]));
        } else {
            produce(!mode.equals("produce"), mode.equals("gather"), words);
        }
        System.exit(0);
    }

    private static void produce(boolean withConsumer, boolean gathers, String[] words) throws Exception {
        String topic = words[2];
        int threads = Integer.parseInt(words[4]);
        double warmUp = Double.parseDouble(words[5]), seconds = Double.parseDouble(words[6]);
        byte[] body = new byte[Integer.parseInt(words[7])];
        Arrays.fill(body, (byte) 'x');
        DefaultMQPushConsumer consumer = withConsumer ? startConsumer(words[1], topic, words[3]) : null;
        DefaultMQProducer producer = new DefaultMQProducer(words[3] + "-producers");
        producer.setNamesrvAddr(words[1]);
        producer.setRetryTimesWhenSendFailed(0);
        producer.setAutoBatch(gathers);
        producer.start();
        List<Worker> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            workers.add(new Worker(producer, topic, body));
        }
        workers.forEach(Thread::start);
        Thread.sleep((long) (warmUp * 1000));
        long sentBefore = acknowledged.get(), receivedBefore = consumed.get(), failedBefore = failures.get();
        long began = System.nanoTime();
        measuring.set(true);
        Thread.sleep((long) (seconds * 1000));
        measuring.set(false);
        double elapsed = (System.nanoTime() - began) / 1e9;
        long sent = acknowledged.get() - sentBefore, received = consumed.get() - receivedBefore;
        stopping.set(true);
        for (Worker worker : workers) {
            worker.join();
        }
        if (consumer != null) {
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            while (consumed.get() < acknowledged.get() && System.nanoTime() < deadline) {
                Thread.sleep(50);
            }
            if (consumed.get() < acknowledged.get()) {
                throw new IllegalStateException(acknowledged + " were sent, and only " + consumed + " arrived");
            }
            consumer.shutdown();
        }
        producer.shutdown();
        int[] latencies = merged(workers);
        System.out.printf(
            "{\"messages\":%d,\"acknowledged\":%d,\"failures\":%d,\"failures_in_all\":%d,\"seconds\":%.3f,\"messages_per_s\":%.0f,"
                + "\"consumed_per_s\":%.0f,\"p50_us\":%d,\"p99_us\":%d}%n",
            sent, acknowledged.get(), failures.get() - failedBefore, failures.get(), elapsed, sent / elapsed, received / elapsed,
            latencies[latencies.length / 2], latencies[(int) (latencies.length * 0.99)]);
    }

    private static int[] merged(List<Worker> workers) {
        int[] all = workers.stream().flatMapToInt(worker -> Arrays.stream(worker.latencies, 0, worker.count)).toArray();
        if (all.length == 0) {
            throw new IllegalStateException("no send was acknowledged in the measured time");
        }
        Arrays.sort(all);
        return all;
    }

    private static void consume(String nameServer, String topic, String group, long messages) throws Exception {
        double elapsed = 0;
        for (int pass = 1; pass <= PASSES; pass++) {
            elapsed = readAll(nameServer, topic, group + "-" + pass, messages);
        }
        System.out.printf("{\"messages\":%d,\"seconds\":%.3f,\"messages_per_s\":%.0f}%n",
            PASSES * messages, elapsed, (messages - messages / 5) / elapsed);
    }

    /** A new group reads the topic to its end; how long the last four fifths took. */
    private static double readAll(String nameServer, String topic, String group, long messages) throws Exception {
        CountDownLatch done = new CountDownLatch(1);
        AtomicLong received = new AtomicLong(), warmAt = new AtomicLong(), endAt = new AtomicLong();
        long warm = messages / 5;
        DefaultMQPushConsumer consumer = consumer(nameServer, topic, group, () -> {
            long count = received.incrementAndGet();
            if (count == warm) {
                warmAt.set(System.nanoTime());
            } else if (count == messages) {
                endAt.set(System.nanoTime());
                done.countDown();
            }
        });
        consumer.start();
        if (!done.await(5L * PATIENCE_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("only " + received + " of " + messages + " arrived");
        }
        consumer.shutdown();
        return (endAt.get() - warmAt.get()) / 1e9;
    }

    private static DefaultMQPushConsumer startConsumer(String nameServer, String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(nameServer, topic, group, consumed::incrementAndGet);
        consumer.start();
        return consumer;
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic, String group, Runnable onMessage) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> onMessage.run());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static final class Worker extends Thread {
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final int[] latencies = new int[MOST_SENDS / 64];
        private int count;

        private Worker(DefaultMQProducer producer, String topic, byte[] body) {
            this.producer = producer;
            this.topic = topic;
            this.body = body;
        }

        @Override
        public void run() {
            while (!stopping.get()) {
                boolean counts = measuring.get();
                long began = System.nanoTime();
                try {
                    if (producer.send(new Message(topic, "bench", body)).getSendStatus() != SendStatus.SEND_OK) {
                        failures.incrementAndGet();
                        continue;
                    }
                } catch (Exception refused) {
                    if (failures.incrementAndGet() == 1) {
                        System.err.println(refused);
                    }
                    continue;
                }
                acknowledged.incrementAndGet();
                if (counts && count < latencies.length) {
                    latencies[count++] = (int) Math.min(Integer.MAX_VALUE, (System.nanoTime() - began) / 1000);
                }
            }
        }
    }
}
