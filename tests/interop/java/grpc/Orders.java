import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Scanner;
import java.util.Set;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * Orders of many customers, each a message group: sent in rounds, and received by some threads at once, which fail now and then.
 * Arguments: the access point, a topic, a group, a word that stands for this program, the number of customers, and which delivery
 * out of how many fails. For each line that it reads it sends an order of each customer; what happened it says in lines of JSON
 * (tests/support/ordered_deliveries.py), with the times of the machine's monotonic clock.
 */
final class Orders {
    private static final int SENDERS = 4;
    private static final int RECEIVERS = 2;
    private static final Duration INVISIBLE = Duration.ofSeconds(10);
    private static final PrintStream OUT = System.out;

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final AtomicInteger deliveries = new AtomicInteger();
    private final String topic;
    private final String word;
    private final int customers;
    private final int failing;
    private final Producer producer;
    private final SimpleConsumer consumer;

    private interface Attempt {
        void make() throws Exception;
    }

    private Orders(String[] words) throws Exception {
        topic = words[1];
        word = words[3];
        customers = Integer.parseInt(words[4]);
        failing = Integer.parseInt(words[5]);
        ClientConfiguration place = ClientConfiguration.newBuilder().setEndpoints(words[0]).build();
        producer = provider.newProducerBuilder().setClientConfiguration(place).setTopics(topic).build();
        consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(place).setConsumerGroup(words[2])
            .setAwaitDuration(Duration.ofSeconds(1))
            .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL)).build();
    }

    public static void main(String[] words) throws Exception {
        Orders orders = new Orders(words);
        for (int number = 0; number < RECEIVERS; number++) {
            daemon(orders::receive);
        }
        say("\"ready\"");
        Scanner lines = new Scanner(System.in);
        for (int round = 0; lines.hasNextLine(); round++) {
            lines.nextLine();
            orders.send(round);
        }
        System.exit(0);
    }

    private void send(int round) throws InterruptedException {
        List<Thread> senders = new ArrayList<>();
        for (int number = 0; number < SENDERS; number++) {
            int part = number;
            senders.add(daemon(() -> {
                for (int customer = part; customer < customers; customer += SENDERS) {
                    order(customer, round);
                }
            }));
        }
        for (Thread each : senders) {
            each.join();
        }
    }

    /** The next order of a customer comes after this one was stored. */
    private void order(int customer, int round) {
        String group = "customer " + customer;
        String name = group + "/" + word + "/" + round;
        Message message = provider.newMessageBuilder().setTopic(topic).setMessageGroup(group)
            .setBody(name.getBytes(StandardCharsets.UTF_8)).build();
        while (!told("sent", "unsent", name, () -> producer.send(message))) {
            pause(50);
        }
    }

    private void receive() {
        while (true) {
            long start = System.nanoTime();
            List<MessageView> received;
            try {
                received = consumer.receive(16, INVISIBLE);
            } catch (Exception away) { // of gRPC, too
                pause(50);
                continue;
            }
            if (!received.isEmpty()) {
                String names = received.stream().map(Orders::text).collect(Collectors.joining("\", \""));
                happened("got", start, names);
                handle(received);
            }
        }
    }

    /** What failed is left to come again, and so is what is behind it. */
    private void handle(List<MessageView> received) {
        Set<String> waiting = new HashSet<>();
        for (MessageView each : received) {
            String group = each.getMessageGroup().orElseThrow();
            if (waiting.contains(group)) {
                continue;
            }
            if (deliveries.incrementAndGet() % failing == 0) {
                waiting.add(group);
                happened("failed", System.nanoTime(), text(each));
            } else if (!told("acked", "unacked", text(each), () -> consumer.ack(each))) {
                waiting.add(group);
            }
        }
    }

    private static boolean told(String word, String otherwise, String name, Attempt attempt) {
        long start = System.nanoTime();
        try {
            attempt.make();
        } catch (Exception failed) {
            happened(otherwise, start, name);
            return false;
        }
        happened(word, start, name);
        return true;
    }

    private static void happened(String what, long start, String names) {
        say("[\"" + what + "\", " + start + ", " + System.nanoTime() + ", [\"" + names + "\"]]");
    }

    private static String text(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException ended) {
            throw new IllegalStateException(ended);
        }
    }

    private static synchronized void say(String line) {
        OUT.println(line);
        OUT.flush();
    }
}
