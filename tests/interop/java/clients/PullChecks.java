import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask for themselves: pull and lite pull. */
final class PullChecks {
    private PullChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("pull", PullChecks::pull);
        checks.put("pull-waits", PullChecks::pullWaits);
        checks.put("pull-offsets", PullChecks::offsets);
        checks.put("lite-pull-subscribe", PullChecks::subscribe);
        checks.put("lite-pull-assign", PullChecks::assign);
        checks.put("lite-pull-seek", PullChecks::seek);
    }

    private static List<String> bodies(Collection<MessageExt> messages) {
        return messages.stream().map(each -> Place.text(each.getBody())).collect(Collectors.toList());
    }

    private static void pull(Place place) throws Exception {
        String topic = place.topic(1);
        place.send(topic, 10);
        DefaultMQPullConsumer consumer = place.pull(place.group());
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        PullResult first = consumer.pull(queue, "*", 0, 4);
        Checks.equal(PullStatus.FOUND, first.getPullStatus(), "status");
        Checks.equal(Place.numbers(0, 4), bodies(first.getMsgFoundList()), "bodies");
        Checks.equal(4L, first.getNextBeginOffset(), "next offset");
        Checks.equal(0L, first.getMinOffset(), "min offset");
        Checks.equal(10L, first.getMaxOffset(), "max offset");
        PullResult rest = consumer.pull(queue, "*", 4, 32);
        Checks.equal(Place.numbers(4, 10), bodies(rest.getMsgFoundList()), "bodies");
        Checks.equal(PullStatus.NO_NEW_MSG, consumer.pull(queue, "*", 10, 32).getPullStatus(), "status at the end");
        Checks.equal(PullStatus.NO_MATCHED_MSG, consumer.pull(queue, "none", 0, 32).getPullStatus(), "status of no match");
        PullResult beyond = consumer.pull(queue, "*", 1000, 32);
        Checks.equal(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus(), "status beyond the end");
        Checks.equal(10L, beyond.getNextBeginOffset(), "next offset beyond the end");
    }

    private static void pullWaits(Place place) throws Exception {
        String topic = place.topic(1);
        DefaultMQPullConsumer consumer = place.pull(place.group());
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        java.util.concurrent.CompletableFuture<PullResult> waiting = new java.util.concurrent.CompletableFuture<>();
        consumer.pullBlockIfNotFound(queue, "*", 0, 32, new org.apache.rocketmq.client.consumer.PullCallback() {
            @Override
            public void onSuccess(PullResult result) {
                waiting.complete(result);
            }

            @Override
            public void onException(Throwable thrown) {
                waiting.completeExceptionally(thrown);
            }
        });
        place.send(topic, 1);
        PullResult result = waiting.get(Place.PATIENCE_S, java.util.concurrent.TimeUnit.SECONDS);
        Checks.equal(PullStatus.FOUND, result.getPullStatus(), "status");
        Checks.equal(List.of("0"), bodies(result.getMsgFoundList()), "bodies");
    }

    /** Committed, minimal, maximal offsets, and those by time. */
    private static void offsets(Place place) throws Exception {
        String topic = place.topic(1);
        List<SendResult> sent = place.send(topic, 3);
        DefaultMQPullConsumer consumer = place.pull(place.group());
        MessageQueue queue = sent.get(0).getMessageQueue();
        Checks.equal(0L, consumer.minOffset(queue), "min offset");
        Checks.equal(3L, consumer.maxOffset(queue), "max offset");
        List<MessageExt> messages = consumer.pull(queue, "*", 0, 32).getMsgFoundList();
        long last = messages.get(2).getStoreTimestamp();
        Checks.equal(0L, consumer.searchOffset(queue, messages.get(0).getStoreTimestamp() - 1000), "offset by an early time");
        Checks.equal(3L, consumer.searchOffset(queue, last + 60_000), "offset by a late time");
        long atLast = messages.stream().filter(each -> each.getStoreTimestamp() == last).findFirst().get().getQueueOffset();
        Checks.equal(atLast, consumer.searchOffset(queue, last), "offset by a message's time");
        Checks.equal(messages.get(0).getStoreTimestamp(), consumer.earliestMsgStoreTime(queue), "earliest store time");
        consumer.updateConsumeOffset(queue, 2);
        consumer.getOffsetStore().updateConsumeOffsetToBroker(queue, 2, false);
        Place.await("the offset is committed", () -> consumer.fetchConsumeOffset(queue, true) == 2);
    }

    private static void subscribe(Place place) throws Exception {
        String topic = place.topic(4);
        place.send(topic, 20);
        DefaultLitePullConsumer consumer = place.lite(place.group());
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        List<MessageExt> got = new ArrayList<>();
        Place.await("twenty", () -> {
            got.addAll(consumer.poll());
            return got.size() >= 20;
        });
        Checks.equal(
            Place.numbers(0, 20).stream().sorted().collect(Collectors.toList()),
            bodies(got).stream().sorted().collect(Collectors.toList()), "bodies");
        consumer.commitSync();
        Place.await("all is committed", () -> {
            long sum = 0;
            for (MessageQueue each : consumer.fetchMessageQueues(topic)) {
                Long committed = consumer.committed(each);
                sum += committed == null ? 0 : Math.max(0, committed);
            }
            return sum == 20;
        });
    }

    private static void assign(Place place) throws Exception {
        String topic = place.topic(4);
        for (int number = 0; number < 12; number++) {
            Place.sent(place.producer().send(
                new org.apache.rocketmq.common.message.Message(topic, Place.bytes("" + number)),
                (queues, message, key) -> queues.get((int) key % 4), number));
        }
        DefaultLitePullConsumer consumer = place.lite(place.group());
        consumer.start();
        List<MessageQueue> chosen = consumer.fetchMessageQueues(topic).stream()
            .filter(each -> each.getQueueId() == 1).collect(Collectors.toList());
        consumer.assign(chosen);
        consumer.seekToBegin(chosen.get(0));
        List<MessageExt> got = new ArrayList<>();
        Place.await("three", () -> {
            got.addAll(consumer.poll());
            return got.size() >= 3;
        });
        Checks.equal(List.of("1", "5", "9"), bodies(got), "bodies");
    }

    private static void seek(Place place) throws Exception {
        String topic = place.topic(1);
        place.send(topic, 10);
        DefaultLitePullConsumer consumer = place.lite(place.group());
        consumer.start();
        List<MessageQueue> queues = new ArrayList<>(consumer.fetchMessageQueues(topic));
        MessageQueue queue = queues.get(0);
        consumer.assign(queues);
        // the client keeps what a pull brings that was under way when it sought: nothing is, once it has all
        Checks.equal(Place.numbers(0, 10), bodies(upTo(consumer, 10)), "before a seek");
        consumer.seek(queue, 7);
        Checks.equal(List.of("7", "8", "9"), bodies(upTo(consumer, 3)), "after a seek");
        consumer.seekToBegin(queue);
        Checks.equal(Place.numbers(0, 10), bodies(upTo(consumer, 10)), "from the beginning");
        Checks.equal(0L, consumer.offsetForTimestamp(queue, 0L), "offset by time");
        consumer.seekToEnd(queue);
        place.send(topic, 10, 1);
        Checks.equal(List.of("10"), bodies(upTo(consumer, 1)), "from the end");
    }

    private static List<MessageExt> upTo(DefaultLitePullConsumer consumer, int count) throws Exception {
        List<MessageExt> got = new ArrayList<>();
        Place.await(count + " messages", () -> {
            got.addAll(consumer.poll());
            return got.size() >= count;
        });
        return got;
    }
}
