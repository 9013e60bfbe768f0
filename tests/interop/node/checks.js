'use strict';
// Runs every feature check with the Node client ali-ons and prints one line for each: "passed NAME" or "failed NAME: why".
// Arguments: the name servers, and a word that all topics and groups begin with. Each check's topic, which is named after it,
// has to be there.

const { Producer, Consumer, Message } = require('ali-ons');

const PATIENCE_MS = 60000;
const silent = { debug() {}, info() {}, warn() {}, error() {} };
const [nameServers, prefix] = process.argv.slice(2);
let instances = 0;

class Place {
  constructor(name) {
    this.name = name;
    this.topic = `${prefix}-${name}`;
    this.clients = [];
  }

  options(more) {
    instances += 1;
    const common = { nameSrv: nameServers.split(';'), instanceName: `${prefix}${instances}`, logger: silent };
    const unused = { httpclient: {}, onsChannel: '',
      // the client insists on them; empty ones sign nothing
      accessKeyId: process.env.ACCESS_KEY || '', accessKeySecret: process.env.SECRET_KEY || '' };
    return Object.assign(common, unused, { rebalanceInterval: 1000, pollNameServerInteval: 1000 }, more);
  }

  async keep(client) {
    this.clients.push(client);
    await client.ready();
    return client;
  }

  async send(bodies, change = () => {}) {
    if (!this.producer) this.producer = await this.keep(new Producer(this.options({ producerGroup: `${this.topic}-producer` })));
    const results = [];
    for (const body of bodies) {
      const message = new Message(this.topic, `tag${body}`, `${body}`);
      change(message, body);
      const result = await this.producer.send(message);
      equal('SEND_OK', result.sendStatus, 'send status');
      results.push(result);
    }
    return results;
  }

  // What a consumer gets, as a list that grows; `answer` may ask for a retry.
  async receive(expression = '*', more = {}, answer = () => undefined) {
    const got = [];
    const options = this.options(Object.assign({ consumerGroup: this.topic, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' }, more));
    const consumer = new Consumer(options);
    consumer.on('error', () => {});
    consumer.subscribe(this.topic, expression, async message => {
      got.push(message);
      return answer(message, got);
    });
    await this.keep(consumer);
    got.close = () => consumer.close();
    return got;
  }

  async close() {
    for (const each of this.clients.reverse()) await each.close();
  }
}

const bodies = got => got.map(each => each.body.toString()).sort();
const numbers = (from, to) => Array.from({ length: to - from }, (_, index) => from + index);
const sorted = (from, to) => numbers(from, to).map(String).sort();

function equal(expected, actual, what) {
  const [left, right] = [JSON.stringify(expected), JSON.stringify(actual)];
  if (left !== right) throw new Error(`${what}: expected ${left}, got ${right}`);
}

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error(`not within ${PATIENCE_MS} ms: ${what}`);
    await new Promise(done => setTimeout(done, 20));
  }
}

async function all(got, count) {
  await until(`${count} messages`, () => got.length >= count);
  return bodies(got);
}

const checks = {
  async send(place) {
    const results = await place.send(numbers(0, 8), message => { message.keys = [ 'k1', 'k2' ]; });
    const got = await place.receive();
    equal(sorted(0, 8), await all(got, 8), 'bodies');
    equal(results.map(each => each.msgId).sort(), got.map(each => each.msgId).sort(), 'ids');
    equal('k1 k2', got[0].keys, 'keys');
  },

  async 'send-compressed'(place) {
    const body = 'compress me '.repeat(2000);
    await place.send([ 'x' ], message => { message.body = Buffer.from(body); });
    const got = await place.receive();
    equal([ body ], await all(got, 1), 'body');
  },

  async push(place) {
    const got = await place.receive();
    await place.send(numbers(0, 40));
    equal(sorted(0, 40), await all(got, 40), 'bodies');
  },

  async 'filter-tags'(place) {
    await place.send(numbers(0, 6));
    equal([ '1', '4' ], await all(await place.receive('tag1 || tag4'), 2), 'bodies');
  },

  async 'filter-sql92'(place) {
    await place.send(numbers(0, 6), (message, number) => { message.properties.n = `${number}`; });
    const expression = { expressionType: 'SQL92', subString: 'n BETWEEN 2 AND 3' };
    equal([ '2', '3' ], await all(await place.receive(expression), 2), 'bodies');
  },

  async broadcast(place) {
    const first = await place.receive('*', { isBroadcast: true, persistent: false });
    const second = await place.receive('*', { isBroadcast: true, persistent: false });
    await until('both have their queues', () => first && second);
    await place.send(numbers(0, 6));
    equal(sorted(0, 6), await all(first, 6), 'bodies');
    equal(sorted(0, 6), await all(second, 6), 'bodies');
  },

  async 'offsets-resumed'(place) {
    await place.send(numbers(0, 6));
    const first = await place.receive();
    await all(first, 6);
    await first.close();
    place.clients.pop();
    await place.send(numbers(6, 12));
    equal(sorted(6, 12), await all(await place.receive(), 6), 'after the restart');
  },

  async retry(place) {
    const got = await place.receive('*', {}, message => (message.reconsumeTimes ? undefined : Consumer.ACTION_RETRY));
    await place.send([ 1 ]);
    equal([ '1', '1' ], await all(got, 2), 'bodies');
    equal([ 0, 1 ], got.map(each => each.reconsumeTimes), 'attempts before');
    equal(place.topic, got[1].topic, 'topic');
  },

  async 'delay-level'(place) {
    const got = await place.receive();
    await place.send([ 1 ], message => { message.delayTimeLevel = 2; });
    await all(got, 1);
    const waited = got[0].storeTimestamp - got[0].bornTimestamp;
    if (waited < 5000) throw new Error(`it came after ${waited} ms`);
  },
};

async function run(name) {
  const place = new Place(name);
  const began = Date.now();
  let failure = '';
  try {
    await checks[name](place);
  } catch (error) {
    failure = `${error.message}`.replace(/\s+/g, ' ');
  }
  const took = `(${Date.now() - began} ms)`;
  console.log(failure ? `failed ${name}: ${failure} ${took}` : `passed ${name} ${took}`);
  await place.close().catch(() => {});
}

process.on('unhandledRejection', error => console.log(`unhandled: ${error.stack}`));
Promise.all(Object.keys(checks).map(run)).then(() => process.exit(0));
