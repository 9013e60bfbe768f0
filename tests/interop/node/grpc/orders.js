'use strict';
// Orders of many customers, each a message group: sent in rounds, and received by some at once, which fail now and then.
// Arguments: the access point, a topic, a group, a word that stands for this program, the number of customers, and which delivery
// out of how many fails. For each line that it reads it sends an order of each customer; what happened it says in lines of JSON
// (tests/support/ordered_deliveries.py), with the times of the machine's monotonic clock.

const { createInterface } = require('readline');
const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const SENDERS = 4;
const RECEIVERS = 2;
const INVISIBLE_MS = 10000;
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const [endpoints, topic, group, word, customers, failing] = process.argv.slice(2);
const place = { endpoints, namespace: '', logger: silent };
const producer = new Producer({ ...place, topics: [ topic ] });
const consumer = new SimpleConsumer({
  ...place, consumerGroup: group, subscriptions: new Map([[ topic, FilterExpression.SUB_ALL ]]), awaitDuration: 1000,
});
let deliveries = 0;

const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const now = () => process.hrtime.bigint();
const text = message => message.body.toString();
const happened = (what, start, ...names) => console.log(`["${what}", ${start}, ${now()}, ${JSON.stringify(names)}]`);

// Whether it went well.
async function told(what, otherwise, name, attempt) {
  const start = now();
  try {
    await attempt();
  } catch {
    happened(otherwise, start, name);
    return false;
  }
  happened(what, start, name);
  return true;
}

// The next order of a customer comes after this one was stored.
async function order(customer, round) {
  const messageGroup = `customer ${customer}`;
  const name = `${messageGroup}/${word}/${round}`;
  while (!(await told('sent', 'unsent', name, () => producer.send({ topic, messageGroup, body: Buffer.from(name) })))) await pause(50);
}

async function send(part, round) {
  for (let customer = part; customer < Number(customers); customer += SENDERS) await order(customer, round);
}

async function receive() {
  for (;;) {
    const start = now();
    let received;
    try {
      received = await consumer.receive(16, INVISIBLE_MS);
    } catch {
      await pause(50); // a broker is away
      continue;
    }
    if (!received.length) continue;
    happened('got', start, ...received.map(text));
    await handle(received);
  }
}

// What failed is left to come again, and so is what is behind it.
async function handle(received) {
  const waiting = new Set();
  for (const each of received) {
    if (waiting.has(each.messageGroup)) continue;
    deliveries += 1;
    if (deliveries % Number(failing) === 0) {
      waiting.add(each.messageGroup);
      happened('failed', now(), text(each));
    } else if (!(await told('acked', 'unacked', text(each), () => consumer.ack(each)))) {
      waiting.add(each.messageGroup);
    }
  }
}

async function main() {
  await producer.startup();
  await consumer.startup();
  for (let number = 0; number < RECEIVERS; number++) receive();
  console.log('"ready"');
  let round = 0;
  for await (const _ of createInterface({ input: process.stdin })) {
    await Promise.all(Array.from({ length: SENDERS }, (_, part) => send(part, round)));
    round += 1;
  }
  process.exit(0);
}

process.on('unhandledRejection', error => console.log(`unhandled: ${error.stack}`));
main();
