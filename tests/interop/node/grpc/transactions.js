'use strict';
// Transactions of a producer that is given nothing but an access point: ended by itself, by the answer to a check, and through the
// loss of the master. Arguments: the access point, a topic, a group, and the word "transactions".
// It prints "passed ended" and "passed checked", then "begun 1", and waits for a line; then "passed survived" and "passed unseen".

const { FilterExpression, Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const UNKNOWN = 0;
const COMMIT = 1;
const ROLLBACK = 2;
const PATIENCE_MS = 90000;
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const [endpoints, topic, group] = process.argv.slice(2);
const place = { endpoints, namespace: '', logger: silent };
const asked = [];
const seen = new Set();

const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}; seen ${[...seen]}, asked ${asked}`);
    await pause(20);
  }
}

async function patiently(attempt) {
  const deadline = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await attempt();
    } catch (error) {
      if (Date.now() > deadline) throw error;
      await pause(50);
    }
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

const checker = {
  async check(message) {
    const body = message.body.toString();
    asked.push(body);
    if (body.endsWith('unknown') && asked.filter(each => each === body).length === 1) return UNKNOWN;
    return body.endsWith('rollback') ? ROLLBACK : COMMIT;
  },
};
const producer = new Producer({ ...place, topics: [ topic ], checker });
const consumer = new SimpleConsumer({
  ...place, consumerGroup: group, subscriptions: new Map([[ topic, FilterExpression.SUB_ALL ]]), awaitDuration: 5000,
});

async function begin(body) {
  const transaction = producer.beginTransaction();
  await producer.send({ topic, body: Buffer.from(body) }, transaction);
  return transaction;
}

async function receive() {
  for (;;) {
    await patiently(async () => {
      for (const message of await consumer.receive(32, 20000)) {
        seen.add(message.body.toString());
        await consumer.ack(message);
      }
    });
  }
}

async function main() {
  await producer.startup();
  await consumer.startup();
  receive();
  await report('ended', async () => {
    await (await begin('own-commit')).commit();
    await (await begin('own-rollback')).rollback();
    await until('the committed message', () => seen.has('own-commit'));
  });
  await report('checked', async () => {
    for (const body of [ 'orphan-commit', 'orphan-rollback', 'orphan-unknown' ]) await begin(body);
    await until('the orphans', () => seen.has('orphan-commit') && seen.has('orphan-unknown') && asked.includes('orphan-rollback'));
  });
  const late = [ await begin('late-commit'), await begin('late-rollback') ];
  await begin('lost-commit');
  console.log('begun 1');
  await new Promise(done => process.stdin.once('data', done));
  await report('survived', async () => {
    await patiently(() => late[0].commit());
    await patiently(() => late[1].rollback());
    await until('what was begun before', () => seen.has('late-commit') && seen.has('lost-commit'));
  });
  await report('unseen', async () => {
    for (const body of seen) if (body.endsWith('rollback')) throw new Error(`${body} came`);
  });
  process.exit(0);
}

process.on('unhandledRejection', error => console.log(`unhandled: ${error.stack}`));
main();
