'use strict';
// Every feature of the clients is a check of its own, with a topic and a group of its own: all that it is given begins with one word.
// Arguments: the access point, that word, and checks (all if none is named), which run at once. It prints "passed CHECK" or "failed CHECK: why" for each.

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');

const PATIENCE_MS = 240000;
const MANY = 1000;
const SQL = 2;
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const [endpoints, prefix, ...chosen] = process.argv.slice(2);
const place = { endpoints, namespace: '', logger: silent, requestTimeout: 10000 };
const named = check => `${prefix}-${check}`;
const text = message => message.body.toString();
const numbers = count => [...Array(count).keys()];
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

function require_(holds, what) {
  if (!holds) throw new Error(what);
}

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!(await holds())) {
    require_(Date.now() < deadline, `not within ${PATIENCE_MS} ms: ${what}`);
    await pause(20);
  }
}

let producer;
const send = (check, body, more = {}) => producer.send({ topic: named(check), body: Buffer.from(`${body}`), ...more });

async function simpleConsumer(check, topic = named(check)) {
  const subscriptions = new Map([[ topic, FilterExpression.SUB_ALL ]]);
  const consumer = new SimpleConsumer({ ...place, consumerGroup: named(check), subscriptions, awaitDuration: 5000 });
  await consumer.startup();
  return consumer;
}

// Runs `work` while a push consumer listens; what `consume` gives back decides, and nothing is success.
async function listening(check, filter, consume, work, topics = [ named(check) ]) {
  const messageListener = { consume: async message => (await consume(message)) ?? ConsumeResult.SUCCESS };
  const subscriptions = new Map(topics.map(topic => [ topic, filter ]));
  const consumer = new PushConsumer({ ...place, consumerGroup: named(check), subscriptions, messageListener });
  await consumer.startup();
  try {
    await work();
  } finally {
    await consumer.shutdown();
  }
}

async function collect(check, count, most, took) {
  const consumer = await simpleConsumer(check);
  const seen = [];
  await until('all of them', async () => {
    for (const message of await consumer.receive(most, 20000)) {
      if ((await took?.(consumer, message)) === 'postponed') continue;
      seen.push(message);
      await consumer.ack(message);
    }
    return seen.length >= count;
  });
  await consumer.shutdown();
  return seen;
}

const checks = {
  async simple() {
    for (const number of numbers(20)) await send('simple', number);
    let postponed = false;
    const seen = await collect('simple', 20, 32, async (consumer, message) => {
      if (text(message) !== '7' || postponed) return 'taken';
      postponed = true;
      await consumer.changeInvisibleDuration(message, 1000);
      return 'postponed';
    });
    require_(new Set(seen.map(text)).size === 20, `each once: ${seen.map(text)}`);
    require_(seen.find(each => text(each) === '7').deliveryAttempt === 2, 'the postponed one came again');
  },

  async push() {
    const seen = new Set();
    await listening('push', FilterExpression.SUB_ALL, message => void seen.add(text(message)), async () => {
      for (const number of numbers(50)) await send('push', number);
      await until('all of them', () => seen.size === 50);
    });
  },

  async 'filter-tags'() {
    const seen = [];
    for (const number of numbers(30)) await send('filter-tags', number, { tag: 'cab'[number % 3] });
    await listening('filter-tags', new FilterExpression('a || b'), message => void seen.push(message.tag), async () => {
      await until('those with the tags', () => seen.length >= 20);
      require_(!seen.includes('c'), `nothing else: ${seen}`);
    });
  },

  async 'filter-sql92'() {
    const seen = [];
    for (const number of numbers(20)) {
      const properties = new Map([[ 'n', `${number}` ], [ 'color', number === 19 ? 'blue' : 'red' ]]);
      await send('filter-sql92', number, { properties });
    }
    const wanted = new FilterExpression("n BETWEEN 5 AND 8 OR color = 'blue'", SQL);
    await listening('filter-sql92', wanted, message => void seen.push(Number(text(message))), async () => {
      await until('those that match', () => seen.length >= 5);
      require_(same(seen.sort((one, other) => one - other), [ 5, 6, 7, 8, 19 ]), `these alone: ${seen}`);
    });
  },

  async fifo() {
    const seen = { one: [], two: [], three: [] };
    let failed = false;
    for (const number of numbers(10)) {
      for (const messageGroup of Object.keys(seen)) await send('fifo', number, { messageGroup });
    }
    const consume = message => {
      if (message.messageGroup === 'two' && text(message) === '3' && !failed) {
        failed = true;
        return ConsumeResult.FAILURE;
      }
      seen[message.messageGroup].push(Number(text(message)));
    };
    await listening('fifo', FilterExpression.SUB_ALL, consume, async () => {
      await until('all of them', () => Object.values(seen).flat().length >= 30);
      for (const [ group, bodies ] of Object.entries(seen)) require_(same(bodies, numbers(10)), `${group} in order: ${bodies}`);
      require_(failed, 'one was refused in between');
    });
  },

  async priority() {
    // a priority of 0 is none to this client
    for (const number of numbers(6)) await send('priority', number, { priority: number < 3 ? 1 : 3 });
    const seen = (await collect('priority', 6, 1)).map(text);
    require_(same(seen, [ '3', '4', '5', '0', '1', '2' ]), `the higher priority first: ${seen}`);
  },

  async delay() {
    const due = Date.now() + 15000; // the first sends take seconds on a busy machine
    const ahead = number => send('delay', number, { deliveryTimestamp: new Date(due) });
    const [ kept, taken ] = [ await ahead(0), await ahead(1) ];
    const refused = async receipt => {
      try {
        await producer.recallMessage(named('delay'), receipt.recallHandle);
      } catch {
        return;
      }
      throw new Error('a recall in vain was answered as if it had not been');
    };
    const receipt = await producer.recallMessage(named('delay'), taken.recallHandle);
    require_(receipt.messageId === taken.messageId, `the id of what was recalled: ${receipt.messageId}`);
    await refused(taken);
    const seen = await collect('delay', 1, 32, () => require_(Date.now() >= due, 'not early'));
    require_(same(seen.map(text), [ '0' ]), `only what was kept: ${seen.map(text)}`);
    await refused(kept);
  },

  async 'dead-letter'() {
    const attempts = [];
    const consume = message => {
      attempts.push(message.deliveryAttempt);
      return ConsumeResult.FAILURE;
    };
    await listening('dead-letter', FilterExpression.SUB_ALL, consume, async () => {
      await send('dead-letter', 0, { properties: new Map([[ 'kept', 'yes' ]]) });
      await until('two deliveries', () => attempts.length >= 2);
      let dead;
      await until('the dead letter', async () => {
        try {
          const consumer = await simpleConsumer('dead-letter-readers', `%DLQ%${named('dead-letter')}`);
          [ dead ] = await consumer.receive(1, 20000);
          await consumer.shutdown();
        } catch {
          return false; // the topic comes with its first message
        }
        return dead;
      });
      require_(text(dead) === '0' && dead.properties.get('kept') === 'yes', `what it was: ${text(dead)}`);
      require_(same(attempts, [ 1, 2 ]), `delivered twice: ${attempts}`);
    });
  },

  async renewal() {
    const attempts = [];
    let done = 0;
    const consume = async message => {
      attempts.push(message.deliveryAttempt);
      await pause(70000); // longer than a message stays hidden without being renewed
      done += 1;
    };
    await listening('renewal', FilterExpression.SUB_ALL, consume, async () => {
      await send('renewal', 0);
      await until('the slow listener', () => done);
      await pause(3000);
      require_(same(attempts, [ 1 ]), `delivered once: ${attempts}`);
    });
  },

  async 'many-topics'() {
    const seen = new Set();
    const topics = numbers(MANY).map(number => named(`many-${number}`));
    await listening('many', FilterExpression.SUB_ALL, message => void seen.add(message.topic), async () => {
      for (const number of numbers(MANY)) await send(`many-${number}`, number);
      await until('one of each topic', () => seen.size === MANY);
    }, topics);
  },
};

async function report([ name, check ]) {
  let result = `passed ${name}`;
  try {
    await check();
  } catch (error) {
    result = `failed ${name}: ${error.message}`.replace(/\s+/g, ' ');
  }
  console.log(result);
}

process.on('unhandledRejection', error => console.log(`unhandled: ${error.stack}`));
(async () => {
  producer = new Producer({ ...place });
  await producer.startup();
  const wanted = Object.entries(checks).filter(([ name ]) => !chosen.length || chosen.includes(name));
  await Promise.all(wanted.map(report));
  process.exit(0);
})();
