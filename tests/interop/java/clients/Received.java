import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** What a consumer got, in the order of its getting. */
class Received implements MessageListenerConcurrently {
    private final List<MessageExt> messages = new ArrayList<>();

    @Override
    public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> some, ConsumeConcurrentlyContext context) {
        some.forEach(this::add);
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
    }

    synchronized void add(MessageExt message) {
        messages.add(message);
    }

    synchronized List<MessageExt> all() {
        return new ArrayList<>(messages);
    }

    List<String> bodies() {
        return all().stream().map(each -> Place.text(each.getBody())).collect(Collectors.toList());
    }

    /** Wait for so many messages; their bodies, sorted. */
    List<String> sorted(int count) throws Exception {
        try {
            Place.await(count + " messages", () -> all().size() >= count);
        } catch (AssertionError late) {
            throw new AssertionError(late.getMessage() + ", only " + bodies());
        }
        return bodies().stream().sorted().collect(Collectors.toList());
    }

    MessageExt only() throws Exception {
        sorted(1);
        Checks.equal(1, all().size(), "messages");
        return all().get(0);
    }
}
