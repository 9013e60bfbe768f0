import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PeekMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PollingInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PollingInfoResponseHeader;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/** Push consumers whose queues the broker gives out: by popping, and by pulling. */
final class PopChecks {
    private PopChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("pop-retry", PopChecks::retry);
        checks.put("pop-push", PopChecks::pop);
        checks.put("pop-orderly", PopChecks::orderly);
        checks.put("pop-shared", PopChecks::shared);
        checks.put("assigned-by-broker", PopChecks::assigned);
        checks.put("pop-looked-at", PopChecks::lookedAt);
    }

    /** A topic of four queues that the check's group gets in this mode. */
    private static String topic(Place place, MessageRequestMode mode) throws Exception {
        String topic = place.topic(4);
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(place.group());
        Generation.api(place.producer()).createSubscriptionGroup(place.master, group, 5000);
        Generation.api(place.producer()).setMessageRequestMode(place.master, topic, place.group(), mode, 0, 5000);
        return topic;
    }

    private static DefaultMQPushConsumer start(Place place, String topic, Received received) throws Exception {
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setClientRebalance(false);
        consumer.registerMessageListener(received);
        consumer.start();
        return consumer;
    }

    private static RebalanceImpl queues(DefaultMQPushConsumer consumer) {
        return consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
    }

    private static long pulled(DefaultMQPushConsumer consumer, String topic) {
        return queues(consumer).getProcessQueueTable().keySet().stream().filter(each -> each.getTopic().equals(topic)).count();
    }

    private static void pop(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.POP);
        place.send(topic, 0, 8);
        Received received = new Received();
        DefaultMQPushConsumer consumer = start(place, topic, received);
        received.sorted(8);
        place.send(topic, 8, 32);
        List<String> bodies = received.sorted(40);
        Checks.equal(Place.numbers(0, 40).stream().sorted().collect(Collectors.toList()), bodies, "bodies");
        Checks.equal(0L, pulled(consumer, topic), "queues that are pulled");
        for (MessageExt each : received.all()) {
            Checks.check(each.getProperty("POP_CK") != null, "a message without its handle");
            Checks.equal(topic, each.getTopic(), "topic");
        }
    }

    private static void shared(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.POP);
        Received first = new Received();
        Received second = new Received();
        start(place, topic, first);
        start(place, topic, second);
        int sent = 0;
        while (first.all().isEmpty() || second.all().isEmpty()) {
            Checks.check(sent < 2000, first.all().size() + " and " + second.all().size() + " of " + sent);
            place.send(topic, sent, 20);
            sent += 20;
        }
        int all = sent;
        Place.await("all are received", () -> first.all().size() + second.all().size() >= all);
        List<String> bodies = new ArrayList<>(first.bodies());
        bodies.addAll(second.bodies());
        Checks.equal(
            Place.numbers(0, all).stream().sorted().collect(Collectors.toList()),
            bodies.stream().sorted().collect(Collectors.toList()), "each one once");
    }

    private static void orderly(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.POP);
        PushChecks.Orderly seen = new PushChecks.Orderly();
        DefaultMQPushConsumer consumer = place.push(place.group(), topic, "*");
        consumer.setClientRebalance(false);
        consumer.registerMessageListener(seen.listener("only"));
        consumer.start();
        for (int number = 0; number < 40; number++) {
            Place.sent(place.producer().send(
                new Message(topic, Place.bytes("" + number)), (queues, each, key) -> queues.get((int) key % 4), number));
        }
        Place.await("all forty", () -> seen.count() == 40);
        seen.checkOrder();
    }

    private static void retry(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.POP);
        Received received = new Received() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> some, ConsumeConcurrentlyContext context) {
                super.consumeMessage(some, context);
                MessageExt message = some.get(0);
                boolean refused = message.getReconsumeTimes() == 0 && Place.text(message.getBody()).equals("1");
                return refused ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        };
        start(place, topic, received);
        place.send(topic, 0, 4);
        Checks.equal(List.of("0", "1", "1", "2", "3"), received.sorted(5), "bodies");
        MessageExt again = received.all().get(4);
        Checks.equal("1", Place.text(again.getBody()), "the last");
        Checks.equal(1, again.getReconsumeTimes(), "attempts before");
        Checks.equal(topic, again.getTopic(), "topic");
    }

    private static void assigned(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.PULL);
        Received received = new Received();
        DefaultMQPushConsumer first = start(place, topic, received);
        Place.await("the first has all", () -> pulled(first, topic) == 4);
        DefaultMQPushConsumer second = start(place, topic, received);
        Place.await("each has two", () -> pulled(first, topic) == 2 && pulled(second, topic) == 2);
        List<MessageQueue> both = new ArrayList<>(queues(first).getProcessQueueTable().keySet());
        both.addAll(queues(second).getProcessQueueTable().keySet());
        Checks.equal(4L, both.stream().filter(each -> each.getTopic().equals(topic)).distinct().count(), "different queues");
        place.send(topic, 0, 16);
        Checks.equal(Place.numbers(0, 16).stream().sorted().collect(Collectors.toList()), received.sorted(16), "bodies");
    }

    private static RemotingCommand ask(Place place, int code, CommandCustomHeader header) throws Exception {
        RemotingCommand request = RemotingCommand.createRequestCommand(code, header);
        return Generation.api(place.producer()).getRemotingClient().invokeSync(place.master, request, 15_000);
    }

    /** Requests that take nothing: what is there, a notice of what comes, how many wait. */
    private static void lookedAt(Place place) throws Exception {
        String topic = topic(place, MessageRequestMode.POP);
        PeekMessageRequestHeader peek = new PeekMessageRequestHeader();
        peek.setTopic(topic);
        peek.setConsumerGroup(place.group());
        peek.setQueueId(-1);
        peek.setMaxMsgNums(32);
        Checks.equal(ResponseCode.PULL_NOT_FOUND, ask(place, RequestCode.PEEK_MESSAGE, peek).getCode(), "peek into nothing");

        NotificationRequestHeader notice = new NotificationRequestHeader();
        notice.setTopic(topic);
        notice.setConsumerGroup(place.group());
        notice.setQueueId(-1);
        notice.setPollTime(10_000);
        notice.setBornTime(System.currentTimeMillis());
        MQClientAPIExt api = new MQClientAPIExt(place.producer(), new NettyClientConfig(), null, null);
        api.start();
        place.atEnd(api::shutdown);
        CompletableFuture<Boolean> told = api.notification(place.master, notice, 15_000);
        PollingInfoRequestHeader waiting = new PollingInfoRequestHeader();
        waiting.setTopic(topic);
        waiting.setConsumerGroup(place.group());
        waiting.setQueueId(-1);
        RemotingCommand count = ask(place, RequestCode.POLLING_INFO, waiting);
        Checks.equal(0, count.decodeCommandCustomHeader(PollingInfoResponseHeader.class).getPollingNum(), "pops that wait");
        Checks.check(!told.isDone(), "told before there was anything");
        place.send(topic, 0, 3);
        Checks.check(told.get(15, TimeUnit.SECONDS), "there are messages");
        Place.await("all can be seen", () -> {
            RemotingCommand seen = ask(place, RequestCode.PEEK_MESSAGE, peek);
            return seen.getCode() == ResponseCode.SUCCESS && MessageDecoder.decodes(ByteBuffer.wrap(seen.getBody())).size() == 3;
        });
        Received received = new Received();
        start(place, topic, received);
        Checks.equal(Place.numbers(0, 3), received.sorted(3), "bodies");
    }
}
