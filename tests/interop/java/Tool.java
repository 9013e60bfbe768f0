import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * The original's command-line tool as a service: one command per line on standard input, its words separated by \u001f, and a
 * line with \u0004 on standard output when it has printed everything. So a hundred commands cost one start of a JVM.
 *
 * <p>Words that begin with @ start clients for the tool to look at: `@consumer NAMESERVERS GROUP TOPIC`, and `@producer
 * NAMESERVERS GROUP TOPIC`, which sends a message, so that brokers hear of it; `@stop` stops them all.
 */
public class Tool {
    private static final List<Runnable> STOPS = new ArrayList<>();

    public static void main(String[] ignored) throws Exception {
        System.setErr(System.out);
        Thread main = Thread.currentThread();
        Thread hurry = new Thread(() -> hurry(main), "hurry");
        hurry.setDaemon(true);
        hurry.start();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\u001f", -1);
            try {
                run(words);
            } catch (Throwable thrown) {
                thrown.printStackTrace();
            }
            System.out.print("\n\u0004\n");
            System.out.flush();
        }
        System.exit(0);
    }

    private static void run(String[] words) throws Exception {
        switch (words[0]) {
            case "@consumer":
                startConsumer(words[1], words[2], words[3]);
                break;
            case "@producer":
                startProducer(words[1], words[2], words[3]);
                break;
            case "@stop":
                STOPS.forEach(Runnable::run);
                STOPS.clear();
                break;
            default:
                Commands.run(words);
        }
    }

    /** A client that is shut down waits up to three seconds for its thread of events to look up: wake that one. */
    private static void hurry(Thread main) {
        while (true) {
            try {
                Thread.sleep(20);
            } catch (InterruptedException interrupted) {
                return;
            }
            if (Arrays.stream(main.getStackTrace()).noneMatch(Tool::isShutdown)) {
                continue;
            }
            for (Thread each : Thread.getAllStackTraces().keySet()) {
                if (each.getName().startsWith("NettyEventExecutor")) {
                    each.interrupt();
                }
            }
        }
    }

    private static boolean isShutdown(StackTraceElement frame) {
        return frame.getClassName().endsWith(".ServiceThread") && frame.getMethodName().equals("shutdown");
    }

    /** Reaches the list of commands: each keeps the client of its last run, which is shut down. */
    private static class Commands extends MQAdminStartup {
        static void run(String[] words) {
            SUB_COMMANDS.clear();
            main0(words, null);
        }
    }

    private static void startConsumer(String nameServers, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServers);
        consumer.setInstanceName(group);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(
                (MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        // by itself it tells where it is ten seconds after its start, and every five seconds from then on
        ScheduledExecutorService often = Executors.newSingleThreadScheduledExecutor();
        often.scheduleWithFixedDelay(
                () -> consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset(), 300, 300, TimeUnit.MILLISECONDS);
        STOPS.add(often::shutdownNow);
        STOPS.add(consumer::shutdown);
    }

    private static void startProducer(String nameServers, String group, String topic) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group);
        producer.setNamesrvAddr(nameServers);
        producer.setInstanceName(group);
        producer.start();
        producer.send(new Message(topic, "from a producer".getBytes(StandardCharsets.UTF_8)));
        STOPS.add(producer::shutdown);
    }
}
