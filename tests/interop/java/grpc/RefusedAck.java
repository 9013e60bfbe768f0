import java.util.Collections;
import java.util.Scanner;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;

/**
 * A push consumer that prints "took N" of its Nth message, and is done with it when it reads a line; at the second line it ends.
 * Arguments: the access point, a topic, a group, an access key and its secret.
 */
final class RefusedAck {
    public static void main(String[] words) throws Exception {
        CountDownLatch mayFinish = new CountDownLatch(1);
        AtomicInteger taken = new AtomicInteger();
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration place = ClientConfiguration.newBuilder().setEndpoints(words[0])
            .setCredentialProvider(new StaticSessionCredentialsProvider(words[3], words[4])).build();
        provider.newPushConsumerBuilder().setClientConfiguration(place).setConsumerGroup(words[2])
            .setSubscriptionExpressions(Collections.singletonMap(words[1], FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                System.out.println("took " + taken.incrementAndGet());
                try {
                    mayFinish.await();
                } catch (InterruptedException ended) {
                    throw new IllegalStateException(ended);
                }
                return ConsumeResult.SUCCESS;
            }).build();
        Scanner lines = new Scanner(System.in);
        lines.nextLine();
        mayFinish.countDown();
        lines.nextLine();
        System.exit(0);
    }
}
