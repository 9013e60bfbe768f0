import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
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
}
