package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

// checks is what a producer was asked, and which bodies were seen.
type checks struct {
	lock  sync.Mutex
	asked map[string]int
	seen  names
}

func (c *checks) check(message *rocketmq.MessageView) rocketmq.TransactionResolution {
	c.lock.Lock()
	defer c.lock.Unlock()
	body := string(message.GetBody())
	c.asked[body]++
	if strings.HasSuffix(body, "unknown") && c.asked[body] == 1 {
		return rocketmq.UNKNOWN
	}
	if strings.HasSuffix(body, "rollback") {
		return rocketmq.ROLLBACK
	}
	return rocketmq.COMMIT
}

func (c *checks) has(bodies ...string) bool {
	var wanted names
	for _, body := range bodies {
		wanted.add(body)
	}
	return c.seen.has(&wanted)
}

func (c *checks) wasAsked(body string) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.asked[body] > 0
}

func (c *checks) receive(consumer rocketmq.SimpleConsumer) {
	for {
		messages, err := consumer.Receive(context.Background(), 32, 20*time.Second)
		if err != nil {
			time.Sleep(retry)
		}
		for _, each := range messages {
			c.seen.add(string(each.GetBody()))
			_ = consumer.Ack(context.Background(), each)
		}
	}
}

// settled is how long a check may take that goes to a client which lost its broker. It picks one of the addresses by chance; when that
// was the one that is gone, it opens another stream for commands only when it sends its settings again, every five minutes.
const settled = 5*time.Minute + patience

// transactions of a producer: ended by itself, by the answer to a check, and through the loss of the master.
// It prints "passed ended" and "passed checked", then "begun 1", and waits for a line; then "passed survived" and "passed unseen".
func transactions(topic, group string) {
	found := &checks{asked: map[string]int{}}
	producer := must(rocketmq.NewProducer(place(""), rocketmq.WithTopics(topic),
		rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: found.check})))
	check(producer.Start())
	consumer := must(rocketmq.NewSimpleConsumer(place(group), rocketmq.WithSimpleAwaitDuration(5*time.Second),
		rocketmq.WithSimpleSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL})))
	check(consumer.Start())
	go found.receive(consumer)
	begin := func(body string) rocketmq.Transaction {
		transaction := producer.BeginTransaction()
		must(producer.SendWithTransaction(context.Background(), &rocketmq.Message{Topic: topic, Body: []byte(body)}, transaction))
		return transaction
	}
	report("ended", func() {
		check(begin("own-commit").Commit())
		check(begin("own-rollback").RollBack())
		await("the committed message", func() bool { return found.has("own-commit") })
	})
	report("checked", func() {
		for _, body := range []string{"orphan-commit", "orphan-rollback", "orphan-unknown"} {
			begin(body)
		}
		await("the orphans", func() bool {
			return found.has("orphan-commit", "orphan-unknown") && found.wasAsked("orphan-rollback")
		})
	})
	commit, rollback := begin("late-commit"), begin("late-rollback")
	begin("lost-commit")
	fmt.Println("begun 1")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	report("survived", func() {
		await("the late commit", func() bool { return commit.Commit() == nil })
		await("the late rollback", func() bool { return rollback.RollBack() == nil })
		awaitFor(settled, "what was begun before", func() bool { return found.has("late-commit", "lost-commit") })
	})
	report("unseen", func() {
		for _, body := range []string{"own-rollback", "orphan-rollback", "late-rollback"} {
			if found.has(body) {
				panic(body + " came")
			}
		}
	})
}
