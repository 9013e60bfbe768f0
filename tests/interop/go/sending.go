package main

import (
	"bytes"
	"context"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func sendChecks() []check {
	return []check{
		{"send-sync", sendSync}, {"send-async", sendAsync}, {"send-oneway", sendOneway}, {"send-batch", sendBatch},
		{"send-properties", sendProperties}, {"send-compressed", sendCompressed}, {"send-sharded", sendSharded},
		{"send-to-unknown-topic", sendToUnknownTopic}, {"request-reply", requestReply},
	}
}

func sendSync(p *place) {
	topic := p.topic(4)
	p.send(topic, 0, 8)
	equal(numbers(0, 8), p.receive(p.group(""), topic, everything).sorted(8), "bodies")
}

func sendAsync(p *place) {
	topic := p.topic(4)
	results := make(chan error, 8)
	for number := 0; number < 8; number++ {
		check0(p.producer().SendAsync(context.Background(), func(_ context.Context, _ *primitive.SendResult, err error) {
			results <- err
		}, message(topic, number)))
	}
	for number := 0; number < 8; number++ {
		select {
		case err := <-results:
			check0(err)
		case <-time.After(patience):
			panic("no answer")
		}
	}
	equal(numbers(0, 8), p.receive(p.group(""), topic, everything).sorted(8), "bodies")
}

func sendOneway(p *place) {
	topic := p.topic(4)
	for number := 0; number < 8; number++ {
		check0(p.producer().SendOneWay(context.Background(), message(topic, number)))
	}
	equal(numbers(0, 8), p.receive(p.group(""), topic, everything).sorted(8), "bodies")
}

func sendBatch(p *place) {
	topic := p.topic(1)
	var messages []*primitive.Message
	for _, number := range numbers(0, 5) {
		messages = append(messages, primitive.NewMessage(topic, []byte(number)).WithTag("tag"+number).WithKeys([]string{"key" + number}))
	}
	sent(p.producer().SendSync(context.Background(), messages...))
	got := p.receive(p.group(""), topic, everything)
	equal(numbers(0, 5), got.sorted(5), "bodies")
	for _, each := range got.all() {
		equal("tag"+string(each.Body), each.GetTags(), "tag")
		equal("key"+string(each.Body), each.GetKeys(), "key")
		equal(string(each.Body), each.QueueOffset, "queue offset")
	}
}

func sendProperties(p *place) {
	topic := p.topic(1)
	wanted := primitive.NewMessage(topic, []byte("ünïcödé")).WithTag("TagÄ").WithKeys([]string{"k1", "k2"})
	wanted.WithProperty("colour", "blau-grün")
	wanted.Flag = 17
	result := sent(p.producer().SendSync(context.Background(), wanted))
	received := p.receive(p.group(""), topic, everything)
	received.sorted(1)
	got := received.all()[0]
	equal("ünïcödé", string(got.Body), "body")
	equal("TagÄ", got.GetTags(), "tag")
	equal("k1 k2", got.GetKeys(), "keys")
	equal("blau-grün", got.GetProperty("colour"), "user property")
	equal(17, got.Flag, "flag")
	equal(result.MsgID, got.MsgId, "id")
	equal(result.OffsetMsgID, got.OffsetMsgId, "offset id")
	equal(p.master, got.StoreHost, "store host")
}

func sendCompressed(p *place) {
	topic := p.topic(1)
	body := bytes.Repeat([]byte("compress me "), 10_000)
	sent(p.producer().SendSync(context.Background(), primitive.NewMessage(topic, body)))
	received := p.receive(p.group(""), topic, everything)
	received.sorted(1)
	got := received.all()[0]
	if !bytes.Equal(body, got.Body) {
		panic("another body")
	}
	if got.StoreSize > 50_000 {
		panic("it was not stored compressed")
	}
}

func sendSharded(p *place) {
	topic := p.topic(4)
	sender := must(rocketmq.NewProducer(producer.WithNsResolver(p.resolver()), producer.WithCredentials(credentials()), producer.WithGroupName(p.group("-sharding")),
		producer.WithInstanceName(p.instance()), producer.WithQueueSelector(producer.NewHashQueueSelector())))
	check0(sender.Start())
	p.endings = append(p.endings, sender.Shutdown)
	queues := map[string]int{}
	for number := 0; number < 12; number++ {
		key := string(rune('a' + number%3))
		result := sent(sender.SendSync(context.Background(), message(topic, number).WithShardingKey(key)))
		if known, found := queues[key]; found {
			equal(known, result.MessageQueue.QueueId, "queue of one key")
		}
		queues[key] = result.MessageQueue.QueueId
	}
	equal(numbers(0, 12), p.receive(p.group(""), topic, everything).sorted(12), "bodies")
}

func sendToUnknownTopic(p *place) {
	topic := p.group("-never-made")
	sent(p.producer().SendSync(context.Background(), primitive.NewMessage(topic, []byte("made by sending"))))
	equal("[made by sending]", p.receive(p.group(""), topic, everything).sorted(1), "bodies")
}

func requestReply(p *place) {
	topic := p.topic(2)
	replier := p.producer()
	p.push(p.group(""), topic, everything, func(_ context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, each := range some {
			reply := must(consumer.CreateReplyMessage(each, nil))
			reply.Body = []byte("reply to " + string(each.Body)) // the client forgets the body that it is given
			// The broker takes no reply before it knows the one who asked: this client tells of itself a second after its start.
			await("the reply is taken", func() bool {
				_, err := replier.SendSync(context.Background(), reply)
				return err == nil
			})
		}
		return consumer.ConsumeSuccess, nil
	})
	for number := 0; number < 3; number++ {
		request := message(topic, number)
		reply := must(p.producer().Request(context.Background(), 30*time.Second, request))
		equal("reply to "+string(request.Body), string(reply.Body), "reply")
	}
}
