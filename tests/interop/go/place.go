package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const patience = 60 * time.Second

var instances atomic.Int64

// place is what one check works with: its own topics and groups, and clients that end with it.
type place struct {
	nameServers []string
	master      string
	prefix      string
	name        string
	endings     []func() error
	sender      rocketmq.Producer
}

func (p *place) close() {
	for index := len(p.endings) - 1; index >= 0; index-- {
		_ = p.endings[index]()
	}
}

func (p *place) group(suffix string) string { return p.prefix + "-" + p.name + suffix }

func (p *place) instance() string { return fmt.Sprintf("%s%d", p.prefix, instances.Add(1)) }

// credentials are what clients sign with; without any in the environment, nothing is signed.
func credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("ACCESS_KEY"), SecretKey: os.Getenv("SECRET_KEY")}
}

func (p *place) resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver(p.nameServers)
}

// topic makes a topic with so many queues and waits for its route. The client's tool does not sign: with credentials, the topic
// has to be there.
func (p *place) topic(queues int) string {
	topic := p.group("")
	if credentials().AccessKey != "" {
		return topic
	}
	tool := must(admin.NewAdmin(admin.WithResolver(p.resolver())))
	defer tool.Close()
	check0(tool.CreateTopic(context.Background(), admin.WithTopicCreate(topic), admin.WithBrokerAddrCreate(p.master),
		admin.WithReadQueueNums(queues), admin.WithWriteQueueNums(queues)))
	await("the topic is in the routes", func() bool {
		found, err := tool.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(found) == queues
	})
	return topic
}

// producer is the check's producer. Messages with the property "queue" go to that queue.
func (p *place) producer() rocketmq.Producer {
	if p.sender == nil {
		p.sender = must(rocketmq.NewProducer(producer.WithNsResolver(p.resolver()), producer.WithCredentials(credentials()), producer.WithGroupName(p.group("-producer")),
			producer.WithInstanceName(p.instance()), producer.WithSendMsgTimeout(10*time.Second)))
		check0(p.sender.Start())
		p.endings = append(p.endings, p.sender.Shutdown)
	}
	return p.sender
}

func (p *place) send(topic string, from, to int) {
	for number := from; number < to; number++ {
		sent(p.producer().SendSync(context.Background(), message(topic, number)))
	}
}

func message(topic string, number int) *primitive.Message {
	return primitive.NewMessage(topic, []byte(fmt.Sprint(number)))
}

func sent(result *primitive.SendResult, err error) *primitive.SendResult {
	check0(err)
	equal(primitive.SendOK, result.Status, "send status")
	return result
}

// options of a consumer that begins with the first message.
func (p *place) options(group string, more ...consumer.Option) []consumer.Option {
	return append([]consumer.Option{consumer.WithNsResolver(p.resolver()), consumer.WithGroupName(group),
		consumer.WithCredentials(credentials()),
		consumer.WithInstance(p.instance()), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset)}, more...)
}

type listener func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (p *place) push(group, topic string, selector consumer.MessageSelector, on listener, more ...consumer.Option) rocketmq.PushConsumer {
	made := must(rocketmq.NewPushConsumer(p.options(group, more...)...))
	check0(made.Subscribe(topic, selector, on))
	check0(made.Start())
	p.endings = append(p.endings, made.Shutdown)
	return made
}

// receive starts a push consumer that keeps what it gets.
func (p *place) receive(group, topic string, selector consumer.MessageSelector, more ...consumer.Option) *received {
	kept := &received{}
	p.push(group, topic, selector, kept.on, more...)
	return kept
}

var everything = consumer.MessageSelector{}

func tags(expression string) consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
}

// received is what a consumer got.
type received struct {
	lock     sync.Mutex
	messages []*primitive.MessageExt
}

func (r *received) on(_ context.Context, some ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	r.add(some...)
	return consumer.ConsumeSuccess, nil
}

func (r *received) add(some ...*primitive.MessageExt) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.messages = append(r.messages, some...)
}

func (r *received) all() []*primitive.MessageExt {
	r.lock.Lock()
	defer r.lock.Unlock()
	return slices.Clone(r.messages)
}

func (r *received) bodies() []string {
	found := []string{}
	for _, each := range r.all() {
		found = append(found, string(each.Body))
	}
	return found
}

// sorted waits for so many messages; their bodies, sorted.
func (r *received) sorted(count int) []string {
	await(fmt.Sprintf("%d messages", count), func() bool { return len(r.all()) >= count })
	bodies := r.bodies()
	slices.Sort(bodies)
	return bodies
}

func numbers(from, to int) []string {
	found := []string{}
	for number := from; number < to; number++ {
		found = append(found, fmt.Sprint(number))
	}
	slices.Sort(found)
	return found
}

func await(what string, holds func() bool) {
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("not within %s: %s", patience, what))
		}
	}
}

func check0(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check0(err)
	return value
}

func equal(expected, actual any, what string) {
	if fmt.Sprint(expected) != fmt.Sprint(actual) {
		panic(fmt.Sprintf("%s: expected %v, got %v", what, expected, actual))
	}
}
