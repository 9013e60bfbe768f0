import java.util.List;
import java.util.Map;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer for each of four queues, a concurrent and an orderly consumer, while somebody else kills the master.
 * It prints "acknowledged COUNT" now and then, and stops sending at the first line that it reads. Then everything acknowledged
 * must arrive at both consumers; each promise is a line, as in Checks. Arguments as there.
 */
final class Survive {
    private static final int QUEUES = 4;

    public static void main(String[] words) throws Exception {
        Place place = new Place(words[0], words[1], words[2], "survive");
        String topic = place.topic(QUEUES);
        Received concurrent = place.receive(place.group("-concurrent"), topic, "*");
        PushChecks.Orderly orderly = new PushChecks.Orderly();
        DefaultMQPushConsumer consumer = place.push(place.group("-orderly"), topic, "*");
        consumer.registerMessageListener(orderly.listener("only"));
        consumer.start();

        AtomicBoolean stop = new AtomicBoolean();
        AtomicInteger count = new AtomicInteger();
        Set<String> acknowledged = ConcurrentHashMap.newKeySet();
        Map<String, AtomicInteger> failures = new ConcurrentHashMap<>();
        List<MessageQueue> queues = place.producer().fetchPublishMessageQueues(topic);
        place.producer().setSendMsgTimeout(3000);
        Thread[] senders = new Thread[QUEUES];
        for (int index = 0; index < QUEUES; index++) {
            MessageQueue queue = queues.get(index);
            senders[index] = new Thread(() -> send(place, queue, stop, count, acknowledged, failures));
            senders[index].start();
        }
        Thread reporter = new Thread(() -> {
            while (true) {
                System.out.println("acknowledged " + count.get());
                System.out.flush();
                try {
                    Thread.sleep(100);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        });
        reporter.start();
        new Scanner(System.in).nextLine();
        stop.set(true);
        for (Thread each : senders) {
            each.join();
        }
        reporter.interrupt();
        reporter.join();
        System.out.println("acknowledged " + count.get() + " in the end, failed attempts: " + failures);

        report("survive-concurrent", () ->
            Place.await("the concurrent consumer has all that was acknowledged", () -> concurrent.bodies().containsAll(acknowledged)));
        report("survive-orderly", () ->
            Place.await("the orderly consumer has all that was acknowledged", () -> orderly.containsAll(acknowledged)));
        report("survive-order", orderly::checkOrder);
        System.exit(0);
    }

    /** One number after the other, each until it is acknowledged. */
    private static void send(
        Place place, MessageQueue queue, AtomicBoolean stop, AtomicInteger count, Set<String> acknowledged,
        Map<String, AtomicInteger> failures) {
        for (int number = queue.getQueueId(); !stop.get(); number += QUEUES) {
            while (true) {
                try {
                    Message message = new Message(queue.getTopic(), Place.bytes("" + number));
                    if (place.producer().send(message, queue).getSendStatus() == SendStatus.SEND_OK) {
                        acknowledged.add("" + number);
                        count.incrementAndGet();
                        break;
                    }
                } catch (Exception failed) {
                    failures.computeIfAbsent(failed.getClass().getSimpleName(), each -> new AtomicInteger()).incrementAndGet();
                }
                try {
                    Thread.sleep(20);
                } catch (InterruptedException ended) {
                    return;
                }
            }
        }
    }

    private static void report(String name, Place.Ending promise) {
        String result = "passed " + name;
        try {
            promise.end();
        } catch (Throwable thrown) {
            result = "failed " + name + ": " + thrown.toString().replaceAll("\\s+", " ");
        }
        System.out.println(result);
        System.out.flush();
    }
}
