'use strict';
// A producer, a simple consumer and a push consumer with their defaults, given nothing but an access point.
// Arguments: the access point, a topic, and a word that both groups begin with. It prints "passed connect" when all have met, then
// "acknowledged COUNT" now and then, until it reads a line; then everything acknowledged must arrive at both consumers.

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const FIRST = 8;
const PATIENCE_MS = 90000;
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const [endpoints, topic, group] = process.argv.slice(2);
const place = { endpoints, namespace: '', logger: silent };
const acknowledged = new Set();
const pushed = new Set();
const taken = new Set();
const failures = {};
let acks = 0;
let stopped = false;

const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const has = (set, all) => [...all].every(each => set.has(each));

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`);
    await pause(20);
  }
}

// Whether it went well; a failure is counted by its kind.
async function counted(attempt) {
  try {
    await attempt();
    return true;
  } catch (error) {
    const kind = error.code === undefined ? error.name : `${error.name} ${error.code}`;
    failures[kind] = (failures[kind] || 0) + 1;
    await pause(20);
    return false;
  }
}

async function report(name, promise) {
  let result = `passed ${name}`;
  try {
    await promise();
  } catch (error) {
    result = `failed ${name}: ${error.message}`.replace(/\s+/g, ' ');
  }
  console.log(result);
}

async function receive(consumer) {
  for (;;) {
    await counted(async () => {
      for (const message of await consumer.receive(32, 20000)) {
        taken.add(message.body.toString()); // an ack whose answer is lost may count all the same
        await consumer.ack(message);
        acks += 1;
      }
    });
  }
}

async function send(producer) {
  for (let number = FIRST; !stopped; number++) {
    const sent = () => producer.send({ topic, body: Buffer.from(`${number}`) });
    while (!stopped && !(await counted(sent)));
    if (!stopped) acknowledged.add(`${number}`);
    await pause(5);
  }
}

async function connect() {
  const messageListener = {
    async consume(message) {
      pushed.add(message.body.toString());
      return ConsumeResult.SUCCESS;
    },
  };
  const push = new PushConsumer({
    ...place, consumerGroup: `${group}-push`, subscriptions: new Map([[ topic, FilterExpression.SUB_ALL ]]), messageListener,
  });
  await push.startup();
  const consumer = new SimpleConsumer({
    ...place, consumerGroup: `${group}-simple`, subscriptions: new Map([[ topic, FilterExpression.SUB_ALL ]]), awaitDuration: 5000,
  });
  await consumer.startup();
  const producer = new Producer({ ...place, topics: [ topic ] });
  await producer.startup();
  for (let number = 0; number < FIRST; number++) {
    await producer.send({ topic, body: Buffer.from(`${number}`) });
    acknowledged.add(`${number}`);
  }
  receive(consumer);
  await until('both consumers have the first messages',
    () => acks >= FIRST && has(taken, acknowledged) && has(pushed, acknowledged));
  send(producer);
}

process.on('unhandledRejection', error => console.log(`unhandled: ${error.stack}`));
const told = new Promise(done => process.stdin.once('data', done));
report('connect', connect).then(async () => {
  const telling = setInterval(() => console.log(`acknowledged ${acknowledged.size}`), 100);
  await told;
  stopped = true;
  clearInterval(telling);
  console.log(`acknowledged ${acknowledged.size} in the end, failed attempts: ${JSON.stringify(failures)}`);
  await report('survive-simple', () => until('the simple consumer has all', () => has(taken, acknowledged)));
  await report('survive-push', () => until('the push consumer has all', () => has(pushed, acknowledged)));
  process.exit(0);
});
