import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactions: decided at once, and asked for by the broker. */
final class TransactionChecks {
    private TransactionChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("transaction-check-back", TransactionChecks::checkBack);
        checks.put("transaction-commit", TransactionChecks::commit);
        checks.put("transaction-rollback", TransactionChecks::rollback);
    }

    /** Decides by the message's tag, the first word at once and the second when the broker asks. */
    private static final class Decisions implements TransactionListener {
        final Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        final List<String> differing = Collections.synchronizedList(new ArrayList<>());

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return state(message.getTags().split("-")[0]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            int times = asked.computeIfAbsent(Place.text(message.getBody()), each -> new AtomicInteger()).incrementAndGet();
            String[] words = message.getTags().split("-");
            return state(words[Math.min(times, words.length - 1)]);
        }

        private LocalTransactionState state(String word) {
            switch (word) {
                case "commit":
                    return LocalTransactionState.COMMIT_MESSAGE;
                case "rollback":
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                default:
                    return LocalTransactionState.UNKNOW;
            }
        }
    }

    private static TransactionMQProducer producer(Place place, Decisions decisions) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(place.group("-transactions"));
        place.configure(producer);
        producer.setSendMsgTimeout(10_000);
        producer.setTransactionListener(decisions);
        producer.start();
        place.atEnd(producer::shutdown);
        return producer;
    }

    private static void send(TransactionMQProducer producer, String topic, String tag) throws Exception {
        TransactionSendResult result = producer.sendMessageInTransaction(new Message(topic, tag, "key-" + tag, Place.bytes(tag)), null);
        Place.sent(result);
    }

    private static void commit(Place place) throws Exception {
        String topic = place.topic(2);
        TransactionMQProducer producer = producer(place, new Decisions());
        send(producer, topic, "commit");
        MessageExt got = place.receive(place.group(), topic, "*").only();
        Checks.equal("commit", Place.text(got.getBody()), "body");
        Checks.equal("commit", got.getTags(), "tag");
        Checks.equal("key-commit", got.getKeys(), "key");
        Checks.equal(topic, got.getTopic(), "topic");
        Checks.check(got.getPreparedTransactionOffset() > 0, "no offset of the half message");
    }

    private static void rollback(Place place) throws Exception {
        String topic = place.topic(1);
        TransactionMQProducer producer = producer(place, new Decisions());
        Received received = place.receive(place.group(), topic, "*");
        send(producer, topic, "rollback");
        send(producer, topic, "commit");
        Checks.equal(List.of("commit"), received.sorted(1), "bodies");
    }

    private static void checkBack(Place place) throws Exception {
        String topic = place.topic(1);
        Decisions decisions = new Decisions();
        TransactionMQProducer producer = producer(place, decisions);
        Received received = place.receive(place.group(), topic, "*");
        send(producer, topic, "unknown-rollback");
        send(producer, topic, "unknown-commit");
        send(producer, topic, "unknown-unknown-commit");
        // Asked a second time before the answer to the first has come, a broker may deliver a message twice.
        Set<String> committed = Set.of("unknown-commit", "unknown-unknown-commit");
        Place.await("both are received", () -> received.bodies().containsAll(committed));
        Place.await("it is asked for the one to roll back", () -> decisions.asked.containsKey("unknown-rollback"));
        Checks.check(decisions.asked.get("unknown-unknown-commit").get() >= 2, "asked once only");
        Checks.equal(committed, Set.copyOf(received.bodies()), "bodies");
    }
}
