import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages that come at a time of their own. */
final class TimerChecks {
    private TimerChecks() {
    }

    /** The broker counts in whole seconds and rounds down. */
    static void timer(Place place) throws Exception {
        String topic = place.topic(1);
        Received received = place.receive(place.group(), topic, "*");
        Message later = new Message(topic, Place.bytes("later"));
        later.setDelayTimeMs(6000);
        Message sooner = new Message(topic, Place.bytes("sooner"));
        sooner.setDelayTimeSec(3);
        Message past = new Message(topic, Place.bytes("past"));
        past.setDeliverTimeMs(System.currentTimeMillis() - 1000);
        for (Message each : List.of(later, sooner, past)) {
            Place.sent(place.producer().send(each));
        }
        received.sorted(3);
        List<MessageExt> stored = received.all();
        stored.sort(Comparator.comparingLong(MessageExt::getStoreTimestamp));
        List<String> order = stored.stream().map(each -> Place.text(each.getBody())).collect(Collectors.toList());
        Checks.equal(List.of("past", "sooner", "later"), order, "order of coming");
        for (MessageExt each : stored) {
            long waited = each.getStoreTimestamp() - each.getBornTimestamp();
            long least = Place.text(each.getBody()).equals("later") ? 5000 : Place.text(each.getBody()).equals("sooner") ? 2000 : 0;
            Checks.check(waited >= least, Place.text(each.getBody()) + " came after " + waited + " ms");
        }
    }

    /** The client finds the broker in the handle, and shows the id that the send had. */
    static void recall(Place place) throws Exception {
        String topic = place.topic(1);
        Received received = place.receive(place.group(), topic, "*");
        long due = System.currentTimeMillis() + 5000;
        SendResult kept = ahead(place, topic, "kept", due);
        SendResult taken = ahead(place, topic, "taken", due);
        Checks.equal(taken.getMsgId(), place.producer().recallMessage(topic, taken.getRecallHandle()), "the id of what was recalled");
        Checks.equal("kept", Place.text(received.only().getBody()), "what came");
        Checks.check(received.only().getStoreTimestamp() >= due - 1000, "not early");
        refused(place, topic, kept);
    }

    private static SendResult ahead(Place place, String topic, String body, long due) throws Exception {
        Message message = new Message(topic, Place.bytes(body));
        message.setDeliverTimeMs(due);
        SendResult result = place.producer().send(message);
        Place.sent(result);
        return result;
    }

    private static void refused(Place place, String topic, SendResult sent) throws Exception {
        try {
            place.producer().recallMessage(topic, sent.getRecallHandle());
        } catch (MQBrokerException expected) {
            Checks.equal(604, expected.getResponseCode(), "how a recall in vain is answered");
            return;
        }
        throw new AssertionError("a recall in vain was answered as if it had not been");
    }
}
