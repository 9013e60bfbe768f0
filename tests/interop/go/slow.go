package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func slowChecks() []check {
	return []check{
		{"transaction-check-back", transactionCheckBack}, {"delay-level", delayLevel}, {"retry", retry}, {"dead-letter", deadLetter},
		{"transaction", transaction},
	}
}

func delayLevel(p *place) {
	topic := p.topic(2)
	got := p.receive(p.group(""), topic, everything)
	for level := 0; level < 3; level++ {
		sent(p.producer().SendSync(context.Background(), message(topic, level).WithDelayTimeLevel(level)))
	}
	equal(numbers(0, 3), got.sorted(3), "bodies")
	least := map[string]int64{"0": 0, "1": 1000, "2": 5000}
	for _, each := range got.all() {
		if waited := each.StoreTimestamp - each.BornTimestamp; waited < least[string(each.Body)] {
			panic(fmt.Sprintf("level %s came after %d ms", each.Body, waited))
		}
	}
}

func retry(p *place) {
	topic := p.topic(1)
	var lock sync.Mutex
	var times []int32
	p.push(p.group(""), topic, everything, func(ctx context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		concurrently, _ := primitive.GetConcurrentlyCtx(ctx)
		concurrently.DelayLevelWhenNextConsume = 1
		times = append(times, some[0].ReconsumeTimes)
		if some[0].ReconsumeTimes < 2 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	p.send(topic, 0, 1)
	await("three attempts", func() bool {
		lock.Lock()
		defer lock.Unlock()
		return len(times) >= 3
	})
	equal("[0 1 2]", times, "attempts before")
}

func deadLetter(p *place) {
	topic := p.topic(1)
	p.push(p.group(""), topic, everything, func(ctx context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		concurrently, _ := primitive.GetConcurrentlyCtx(ctx)
		concurrently.DelayLevelWhenNextConsume = 1
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(1))
	p.send(topic, 0, 1)
	letters := &received{}
	await("the topic of dead letters", func() bool {
		reader := must(rocketmq.NewPushConsumer(p.options(p.group("-reader"))...))
		check0(reader.Subscribe("%DLQ%"+p.group(""), everything, letters.on))
		p.endings = append(p.endings, reader.Shutdown)
		return reader.Start() == nil
	})
	equal("[0]", letters.sorted(1), "bodies")
	equal(topic, letters.all()[0].GetProperty(primitive.PropertyRetryTopic), "original topic")
}

// decisions: by the tag, the first word at once and the next ones when the broker asks.
type decisions struct {
	lock  sync.Mutex
	asked map[string]int
}

func (d *decisions) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return state(strings.Split(one.GetTags(), "-")[0])
}

func (d *decisions) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.asked[string(one.Body)]++
	words := strings.Split(one.GetTags(), "-")
	return state(words[min(d.asked[string(one.Body)], len(words)-1)])
}

func (d *decisions) times(body string) int {
	d.lock.Lock()
	defer d.lock.Unlock()
	return d.asked[body]
}

func state(word string) primitive.LocalTransactionState {
	switch word {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	}
	return primitive.UnknowState
}

func (p *place) sendInTransaction(topic string, decide *decisions, words ...string) {
	sender := must(rocketmq.NewTransactionProducer(decide, producer.WithNsResolver(p.resolver()), producer.WithCredentials(credentials()),
		producer.WithGroupName(p.group("-transactions")), producer.WithInstanceName(p.instance())))
	check0(sender.Start())
	p.endings = append(p.endings, sender.Shutdown)
	for _, each := range words {
		result, err := sender.SendMessageInTransaction(context.Background(), primitive.NewMessage(topic, []byte(each)).WithTag(each))
		check0(err)
		equal(primitive.SendOK, result.Status, "send status")
	}
}

func transaction(p *place) {
	topic := p.topic(1)
	got := p.receive(p.group(""), topic, everything)
	p.sendInTransaction(topic, &decisions{asked: map[string]int{}}, "rollback", "commit")
	equal("[commit]", got.sorted(1), "bodies")
}

func transactionCheckBack(p *place) {
	topic := p.topic(1)
	got := p.receive(p.group(""), topic, everything)
	decide := &decisions{asked: map[string]int{}}
	p.sendInTransaction(topic, decide, "unknown-rollback", "unknown-commit")
	got.sorted(1)
	await("it is asked for the one to roll back", func() bool { return decide.times("unknown-rollback") > 0 })
	bodies := got.bodies()
	slices.Sort(bodies)
	equal("[unknown-commit]", slices.Compact(bodies), "bodies")
}
