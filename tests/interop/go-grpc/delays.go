package main

import (
	"context"
	"fmt"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// delays sends two messages for the same moment and recalls one: the other comes, then and not before.
func delays(topic, group string) {
	consumer := must(rocketmq.NewSimpleConsumer(place(group), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL})))
	check(consumer.Start())
	producer := must(rocketmq.NewProducer(place(""), rocketmq.WithTopics(topic)))
	check(producer.Start())
	due := time.Now().Add(15 * time.Second).Truncate(time.Millisecond)
	kept, taken := ahead(producer, topic, "kept", due), ahead(producer, topic, "taken", due)
	if id := must(producer.Recall(context.Background(), topic, taken.RecallHandle)); id != taken.MessageID {
		panic(fmt.Sprintf("%s was recalled, not %s", id, taken.MessageID))
	}
	refused(producer, topic, taken)
	var seen []string
	await("what was kept", func() bool {
		messages, _ := consumer.Receive(context.Background(), 32, 20*time.Second)
		for _, each := range messages {
			if time.Now().Before(due) {
				panic("it came early")
			}
			seen = append(seen, string(each.GetBody()))
			check(consumer.Ack(context.Background(), each))
		}
		return len(seen) > 0 && time.Now().After(due.Add(time.Second))
	})
	if len(seen) != 1 || seen[0] != "kept" {
		panic(fmt.Sprintf("not only what was kept came: %v", seen))
	}
	refused(producer, topic, kept)
}

func ahead(producer rocketmq.Producer, topic, body string, due time.Time) *rocketmq.SendReceipt {
	message := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	message.SetDelayTimestamp(due)
	return must(producer.Send(context.Background(), message))[0]
}

func refused(producer rocketmq.Producer, topic string, sent *rocketmq.SendReceipt) {
	if _, err := producer.Recall(context.Background(), topic, sent.RecallHandle); err == nil {
		panic("a recall in vain was answered as if it had not been")
	}
}
