// A producer, a simple consumer and a push consumer of version 5 with their defaults, given nothing but an access point.
// Arguments: the access point, a topic, and a word that both groups begin with. It prints "passed connect" when all have met, then
// "acknowledged COUNT" now and then, until it reads a line; then everything acknowledged must arrive at both consumers.
// With the word "transactions" or "delays" behind them: see transactions.go and delays.go.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const (
	first    = 8
	patience = 90 * time.Second
	retry    = 20 * time.Millisecond
)

// names is a set that several may use at a time.
type names struct {
	lock  sync.Mutex
	found map[string]bool
}

func (n *names) add(name string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.found == nil {
		n.found = map[string]bool{}
	}
	n.found[name] = true
}

func (n *names) count() int {
	n.lock.Lock()
	defer n.lock.Unlock()
	return len(n.found)
}

func (n *names) has(others *names) bool {
	others.lock.Lock()
	defer others.lock.Unlock()
	n.lock.Lock()
	defer n.lock.Unlock()
	for name := range others.found {
		if !n.found[name] {
			return false
		}
	}
	return true
}

var (
	acknowledged, pushed, taken names
	acks, failures              atomic.Int64
	stopped                     atomic.Bool
)

func main() {
	topic, group := os.Args[2], os.Args[3]
	if len(os.Args) > 4 && os.Args[4] == "transactions" {
		transactions(topic, group)
		return
	}
	if len(os.Args) > 4 && os.Args[4] == "delays" {
		report("delay", func() { delays(topic, group) })
		return
	}
	report("connect", func() { connect(topic, group) })
	go func() {
		for !stopped.Load() {
			fmt.Println("acknowledged", acknowledged.count())
			time.Sleep(100 * time.Millisecond)
		}
	}()
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	stopped.Store(true)
	time.Sleep(500 * time.Millisecond)
	fmt.Printf("acknowledged %d in the end, failed attempts: %d\n", acknowledged.count(), failures.Load())
	report("survive-simple", func() { await("the simple consumer has all", func() bool { return taken.has(&acknowledged) }) })
	report("survive-push", func() { await("the push consumer has all", func() bool { return pushed.has(&acknowledged) }) })
}

func connect(topic, group string) {
	everything := map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}
	push := must(rocketmq.NewPushConsumer(place(group+"-push"), rocketmq.WithPushAwaitDuration(5*time.Second),
		rocketmq.WithPushSubscriptionExpressions(everything),
		rocketmq.WithPushMessageListener(&rocketmq.FuncMessageListener{
			Consume: func(message *rocketmq.MessageView) rocketmq.ConsumerResult {
				pushed.add(string(message.GetBody()))
				return rocketmq.SUCCESS
			},
		})))
	check(push.Start())
	consumer := must(rocketmq.NewSimpleConsumer(place(group+"-simple"), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(everything)))
	check(consumer.Start())
	producer := must(rocketmq.NewProducer(place(""), rocketmq.WithTopics(topic)))
	check(producer.Start())
	for number := range first {
		check(send(producer, topic, number))
	}
	go receive(consumer)
	await("both consumers have the first messages", func() bool {
		return acks.Load() >= first && taken.has(&acknowledged) && pushed.has(&acknowledged)
	})
	go func() {
		for number := first; !stopped.Load(); number++ {
			for send(producer, topic, number) != nil && !stopped.Load() {
				failures.Add(1)
				time.Sleep(retry)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
}

func place(group string) *rocketmq.Config {
	return &rocketmq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func send(producer rocketmq.Producer, topic string, number int) error {
	body := fmt.Sprint(number)
	_, err := producer.Send(context.Background(), &rocketmq.Message{Topic: topic, Body: []byte(body)})
	if err == nil {
		acknowledged.add(body)
	}
	return err
}

func receive(consumer rocketmq.SimpleConsumer) {
	for {
		messages, err := consumer.Receive(context.Background(), 32, 20*time.Second)
		if err != nil {
			time.Sleep(retry)
		}
		for _, each := range messages {
			taken.add(string(each.GetBody())) // an ack whose answer is lost may count all the same
			if consumer.Ack(context.Background(), each) == nil {
				acks.Add(1)
			}
		}
	}
}

func report(name string, promise func()) {
	defer func() {
		if found := recover(); found != nil {
			fmt.Printf("failed %s: %s\n", name, strings.Join(strings.Fields(fmt.Sprint(found)), " "))
		} else {
			fmt.Println("passed", name)
		}
	}()
	promise()
}

func await(what string, holds func() bool) {
	awaitFor(patience, what, holds)
}

func awaitFor(limit time.Duration, what string, holds func() bool) {
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(retry) {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("not within %s: %s", limit, what))
		}
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}
