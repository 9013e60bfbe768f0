import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages found again by their ids and keys. */
final class QueryChecks {
    private QueryChecks() {
    }

    static void add(Map<String, Checks.Body> checks) {
        checks.put("view-message", QueryChecks::view);
        checks.put("query-by-key", QueryChecks::byKey);
        checks.put("query-by-unique-key", QueryChecks::byUniqueKey);
    }

    private static void view(Place place) throws Exception {
        String topic = place.topic(1);
        SendResult sent = place.send(topic, 3).get(1);
        MessageExt found = place.producer().viewMessage(topic, sent.getOffsetMsgId());
        Checks.equal("1", Place.text(found.getBody()), "body");
        Checks.equal(sent.getOffsetMsgId(), Generation.offsetId(found), "offset id");
        Checks.equal(1L, found.getQueueOffset(), "queue offset");
    }

    private static void byKey(Place place) throws Exception {
        String topic = place.topic(2);
        String[] keys = {"apple", "pear", "apple plum", "plum"};
        for (int number = 0; number < keys.length; number++) {
            Place.sent(place.producer().send(new Message(topic, "", keys[number], Place.bytes("" + number))));
        }
        for (Map.Entry<String, List<String>> each : Map.of(
            "apple", List.of("0", "2"), "plum", List.of("2", "3"), "pear", List.of("1")).entrySet()) {
            Place.await("messages with the key " + each.getKey(), () -> each.getValue().equals(found(place, topic, each.getKey())));
        }
        Checks.equal(List.of(), found(place, topic, "cherry"), "messages with the key cherry");
    }

    private static List<String> found(Place place, String topic, String key) throws Exception {
        try {
            long now = System.currentTimeMillis();
            QueryResult result = place.producer().queryMessage(topic, key, 32, now - 3_600_000, now + 3_600_000);
            return result.getMessageList().stream().map(each -> Place.text(each.getBody())).sorted().collect(Collectors.toList());
        } catch (MQClientException nothing) {
            if (nothing.getResponseCode() != 208 && !String.valueOf(nothing.getMessage()).contains("no message")) {
                throw nothing;
            }
            return List.of();
        }
    }

    private static void byUniqueKey(Place place) throws Exception {
        String topic = place.topic(2);
        SendResult sent = place.send(topic, 3).get(2);
        Place.await("the message by its unique key", () -> {
            try {
                MessageExt found = place.producer().viewMessage(topic, sent.getMsgId());
                return found != null && Place.text(found.getBody()).equals("2");
            } catch (MQClientException notYet) {
                if (!String.valueOf(notYet.getMessage()).contains("no message")) {
                    throw notYet;
                }
                return false;
            }
        });
    }
}
