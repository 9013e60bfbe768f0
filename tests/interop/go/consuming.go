package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func consumeChecks() []check {
	return []check{
		{"rebalance", rebalance}, {"push-concurrent", pushConcurrent}, {"push-orderly", pushOrderly},
		{"push-broadcast", pushBroadcast}, {"filter-tags", filterTags}, {"filter-sql92", filterSQL},
		{"offsets-resumed", offsetsResumed}, {"reset-offset", resetOffset}, {"pull", pull}, {"pull-from", pullFrom}, {"pull-poll", pullPoll},
	}
}

func pushConcurrent(p *place) {
	topic := p.topic(4)
	got := p.receive(p.group(""), topic, everything)
	p.send(topic, 0, 100)
	equal(numbers(0, 100), got.sorted(100), "bodies")
}

// pushOrderly: one number after the other in every queue. With one member: this client may never give a second one its share.
func pushOrderly(p *place) {
	topic := p.topic(4)
	sender := must(rocketmq.NewProducer(producer.WithNsResolver(p.resolver()), producer.WithCredentials(credentials()), producer.WithGroupName(p.group("-manual")),
		producer.WithInstanceName(p.instance()), producer.WithQueueSelector(producer.NewManualQueueSelector())))
	check0(sender.Start())
	p.endings = append(p.endings, sender.Shutdown)
	var lock sync.Mutex
	seen := map[int][]int64{}
	count := 0
	p.push(p.group(""), topic, everything, func(_ context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, each := range some {
			seen[each.Queue.QueueId] = append(seen[each.Queue.QueueId], each.QueueOffset)
			count++
		}
		return consumer.ConsumeSuccess, nil
	}, consumer.WithConsumerOrder(true))
	for number := 0; number < 80; number++ {
		one := message(topic, number)
		one.Queue = &primitive.MessageQueue{Topic: topic, BrokerName: "broker-a", QueueId: number % 4}
		sent(sender.SendSync(context.Background(), one))
	}
	await("all eighty", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return count == 80
	})
	for queue, offsets := range seen {
		if !slices.IsSorted(offsets) {
			panic(fmt.Sprintf("queue %d in the order %v", queue, offsets))
		}
	}
}

func pushBroadcast(p *place) {
	topic := p.topic(2)
	first := p.receive(p.group(""), topic, everything, consumer.WithConsumerModel(consumer.BroadCasting))
	second := p.receive(p.group(""), topic, everything, consumer.WithConsumerModel(consumer.BroadCasting))
	p.send(topic, 0, 10)
	equal(numbers(0, 10), first.sorted(10), "bodies")
	equal(numbers(0, 10), second.sorted(10), "bodies")
}

func filterTags(p *place) {
	topic := p.topic(2)
	for number, tag := range []string{"A", "B", "C", "", "Äö", "B"} {
		one := message(topic, number)
		if tag != "" {
			one.WithTag(tag)
		}
		sent(p.producer().SendSync(context.Background(), one))
	}
	two := p.receive(p.group("-two"), topic, tags("A || B"))
	all := p.receive(p.group("-all"), topic, tags("*"))
	equal(numbers(0, 6), all.sorted(6), "all")
	equal("[0 1 5]", two.sorted(3), "A || B")
}

func filterSQL(p *place) {
	topic := p.topic(2)
	for number := 0; number < 5; number++ {
		one := message(topic, number)
		one.WithProperty("n", fmt.Sprint(number))
		sent(p.producer().SendSync(context.Background(), one))
	}
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n BETWEEN 1 AND 3"}
	equal(numbers(1, 4), p.receive(p.group(""), topic, selector).sorted(3), "bodies")
}

// rebalance: what is sent while there are two members, and after one has left, is received once.
func rebalance(p *place) {
	topic := p.topic(4)
	first := p.receive(p.group(""), topic, everything)
	p.send(topic, 0, 8)
	first.sorted(8)
	second := &received{}
	leaving := p.push(p.group(""), topic, everything, second.on)
	total := 8
	await("the second gets some", func() bool {
		p.send(topic, total, total+4)
		total += 4
		return len(second.all()) > 0
	})
	check0(leaving.Shutdown())
	before := len(first.all())
	p.send(topic, total, total+8)
	total += 8
	await("all are received", func() bool { return distinct(first, second) == total })
	await("the first gets more", func() bool { return len(first.all()) > before })
}

func distinct(some ...*received) int {
	found := map[string]bool{}
	for _, each := range some {
		for _, body := range each.bodies() {
			found[body] = true
		}
	}
	return len(found)
}

func offsetsResumed(p *place) {
	topic := p.topic(2)
	p.send(topic, 0, 8)
	before := &received{}
	first := p.push(p.group(""), topic, everything, before.on)
	before.sorted(8)
	check0(first.Shutdown())
	p.send(topic, 8, 16)
	after := p.receive(p.group(""), topic, everything)
	equal(numbers(8, 16), after.sorted(8), "after the restart")
}

func (p *place) puller(topic string) rocketmq.PullConsumer {
	made := must(rocketmq.NewPullConsumer(p.options(p.group(""))...))
	check0(made.Subscribe(topic, everything))
	check0(made.Start())
	p.endings = append(p.endings, made.Shutdown)
	return made
}

func pull(p *place) {
	topic := p.topic(1)
	p.send(topic, 0, 10)
	puller := p.puller(topic)
	got, next := &received{}, int64(0)
	await("ten", func() bool {
		result, err := puller.Pull(context.Background(), 4)
		if err == nil && result.Status == primitive.PullFound {
			for _, each := range result.GetMessageExts() {
				// what it pulls before it has its queues comes again: until then it persists nothing
				if each.QueueOffset >= next {
					got.add(each)
					next = each.QueueOffset + 1
				}
			}
			last := result.GetMessageExts()[len(result.GetMessageExts())-1]
			check0(puller.UpdateOffset(last.Queue, last.QueueOffset+1))
			check0(puller.PersistOffset(context.Background(), topic))
		}
		return len(got.all()) >= 10
	})
	equal(numbers(0, 10), got.sorted(10), "bodies")
}

func pullFrom(p *place) {
	topic := p.topic(1)
	p.send(topic, 0, 10)
	puller := p.puller(topic)
	queue := &primitive.MessageQueue{Topic: topic, BrokerName: "broker-a", QueueId: 0}
	result := must(puller.PullFrom(context.Background(), queue, 7, 32))
	equal(primitive.PullFound, result.Status, "status")
	equal(3, len(result.GetMessageExts()), "messages")
	equal(10, result.NextBeginOffset, "next offset")
	equal(10, result.MaxOffset, "max offset")
	equal("7", string(result.GetMessageExts()[0].Body), "body")
}

func pullPoll(p *place) {
	topic := p.topic(4)
	p.send(topic, 0, 20)
	puller := p.puller(topic)
	got := &received{}
	await("twenty", func() bool {
		request, err := puller.Poll(context.Background(), time.Second)
		if err == nil {
			got.add(request.GetMsgList()...)
			puller.ACK(context.Background(), request, consumer.ConsumeSuccess)
		}
		return len(got.all()) >= 20
	})
	equal(numbers(0, 20), got.sorted(20), "bodies")
}
