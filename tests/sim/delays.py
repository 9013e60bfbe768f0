"""Clients of delayed messages: one sends them, one consumes without success and gives back what it got; and what must be true."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from brokerd.delay.levels import SCHEDULE_GROUP
from brokerd.retry.service import RetryRules, RetryService, SentBack
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.derived.dispatcher import Arrival
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError, RequestError
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.sim.clients import SURE_TIMEOUT_MS, Client, Reply, was_refused
from tests.sim.records import look_at
from tests.sim.world import World
from tests.support.open_guard import anybody_may

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

DELAYED_TOPIC: Final = "D"
BACK_GROUP: Final = "backers"
RETRY_TOPIC: Final = f"%RETRY%{BACK_GROUP}"
DEAD_TOPIC: Final = f"%DLQ%{BACK_GROUP}"
DELAYS: Final = (1000, 2000, 3000)
MAX_RETRIES: Final = 2
_DELAYS_MS: Final = (1000, 2000, 3000)
_CLOCKS_DIFFER: Final = 0.99  # monotonic clocks run a little fast or slow
_HOST = pack_host("10.1.0.3", 40000)


class DelayedProducer(Client):
    """Sends a message of some level now and then; one that is not known to be stored is sent once more."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self._count = 0

    def step(self) -> None:
        self._count += 1
        body = f"{self.name}:{self._count}:".encode() + b"." * self.rng.randrange(200)
        level = self.rng.choice((1, 1, 2, 3))
        self.history.delayed[body] = (level, self.world.now_ms)
        self._send(body, level, self.rng.choice((1, 2)))

    def _send(self, body: bytes, level: int, attempts: int) -> None:
        key = body.split(b".", 1)[0].decode()
        properties = encode_properties({"UNIQ_KEY": key, "DELAY": str(level)})
        draft = Draft(DELAYED_TOPIC, 0, body, properties, 1, _HOST)
        broker = self.broker

        def sent(outcomes: Sequence[SendOutcome] | None) -> None:
            if outcomes is not None and outcomes[0].status is PutStatus.PUT_OK:
                self.history.delayed_acknowledged.add(body)
                self.history.count("delay", "ok")
            else:
                is_known = outcomes is not None and was_refused(outcomes[0])
                self.history.count("delay", "failed" if is_known else "unknown")
                self.move()
                if attempts > 1 and self.is_active:
                    self._send(body, level, attempts - 1)
                    return
            self.again(5, 90)

        self.call(broker, lambda reply: broker.take_send([draft], reply), sent, self.rng.choice((600, 2000)))


class Backer(Client):
    """Reads what was delivered, from any replica, and gives most of it back."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self._positions = {DELAYED_TOPIC: 0, RETRY_TOPIC: 0}

    def step(self) -> None:
        reader = self.rng.choice(self.cluster.brokers)
        topic = self.rng.choice((DELAYED_TOPIC, RETRY_TOPIC))
        start = self._positions[topic]

        def run(reply: Reply) -> None:
            reply(list(reader.core.store.read_messages(topic, 0, start, 8, 1 << 20).records))

        self.call(reader, run, lambda records: self._read(topic, records), 800)

    def _read(self, topic: str, records: list[bytes] | None) -> None:
        if records:
            self._positions[topic] += len(records)
            for encoded in records:
                if self.rng.random() < 0.7:
                    self._give_back(decode_record(encoded))
        self.again(10, 90)

    def _give_back(self, record: Record) -> None:
        broker = self.broker
        request = SentBack(BACK_GROUP, record.physical_offset, self.rng.choice((1, 1, 2)), None, 479)

        def run(reply: Reply) -> None:
            try:
                broker.retry.send_back(request, lambda error: reply((error,)), anybody_may)
            except LogboomError as error:
                reply((error,))

        def answered(answer: tuple[RequestError | None] | None) -> None:
            if answer is not None and answer[0] is None:
                self.history.given_back.add((record.body, record.reconsume_times))
                self.history.count("give back", "ok")
            else:
                self.history.count("give back", "unknown" if answer is None else "failed")
                self.move()

        self.call(broker, run, answered, SURE_TIMEOUT_MS)


def retry_service(broker: SimBroker) -> RetryService:
    core = broker.core
    return RetryService(
        core.metadata,
        core.store,
        core.record_log,
        core.sender.turn_of,
        RetryRules(core.delays, is_ordered=lambda _: False, auto_create_groups=False),
        core.retry_counters,
    )


def watch(broker: SimBroker) -> None:
    """Look at delayed messages when consumers may first see them: none is early.

    A broker knows when those came that came in its present life; for others it must believe the clocks, which differ by seconds,
    and after somebody set one, by an hour.
    """
    cluster, world, history = broker.cluster, broker.world, broker.cluster.history

    def arrived(arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.topic == DELAYED_TOPIC and not cluster.injector.clocks_were_set:
                first = arrival.max_offset - len(arrival.tags_codes)
                for encoded in broker.core.store.read_messages(DELAYED_TOPIC, 0, first, 1000, 1 << 30).records:
                    hear_of(look_at(encoded).record)

    def hear_of(record: Record) -> None:
        level, began_ms = history.delayed[record.body]
        by = next(each for each in cluster.offered if each.store_host == record.store_host)
        waited_ms = world.now_ms - began_ms
        if by.began_ms < began_ms and record.body not in history.delayed_seen:
            history.count("delay", "watched")
            world.require(
                waited_ms >= _DELAYS_MS[level - 1] * _CLOCKS_DIFFER,
                f"{by.name} delivered {record.body[:20]!r} of level {level} {waited_ms:.1f} ms after it was sent",
            )
        history.delayed_seen.add(record.body)

    broker.core.arrival_listeners.append(arrived)


def delays_left(cluster: SimCluster) -> str:
    """Which delayed messages the master has not delivered; "" = none."""
    master = cluster.master()
    if master is None:
        return "there is no master"
    store = master.core.store
    if store.dispatch_offset != store.commitlog.end_offset:
        return "there may be more of them behind what was dispatched"
    for queue_id in range(len(_DELAYS_MS)):
        end = store.max_offset(SCHEDULE_TOPIC, queue_id)
        done = master.core.metadata.consumer_offset(SCHEDULE_GROUP, SCHEDULE_TOPIC, queue_id) or 0
        if done != end:
            return f"level {queue_id + 1} is delivered up to {done} of {end}"
    return ""


def check_delays(cluster: SimCluster, broker: SimBroker) -> None:
    """What was acknowledged is delivered, in the order of its level, and once unless a master went; what was given back comes
    again, counts, and ends as a dead letter."""
    require, history = cluster.world.require, cluster.history
    delivered = [each for topic in (DELAYED_TOPIC, RETRY_TOPIC) for each in records_of(broker, topic)]
    waited = [each for queue_id in range(len(_DELAYS_MS)) for each in records_of(broker, SCHEDULE_TOPIC, queue_id)]
    arrived = Counter(map(_key, delivered))
    for body in sorted(history.delayed_acknowledged):
        require(bool(arrived[body, 0]), f"{broker.name} lost the delayed message {body[:20]!r}")
    stored = Counter(map(_key, waited))
    for key, count in arrived.items():
        require(key[0] in history.delayed, f"{broker.name} delivers {key[0][:20]!r}, which nobody sent")
        most = stored[key] if not cluster.interruptions else count
        require(count <= most, f"{broker.name} delivers {key[0][:20]!r} {count} times, stored were {stored[key]}")
    for queue_id in range(len(_DELAYS_MS)):
        wanted = _first_ones(each for each in waited if each.queue_id == queue_id)
        level = str(queue_id + 1)
        by_place = sorted(delivered, key=lambda each: each.physical_offset)
        found = _first_ones(each for each in by_place if each.property_map()["DELAY"] == level)
        require(found == wanted, f"{broker.name} delivers level {level} in another order than it was sent")
    dead = {_key(each) for each in records_of(broker, DEAD_TOPIC)}
    for body, times in sorted(history.given_back):
        came = arrived[body, times + 1] if times < MAX_RETRIES else (body, times + 1) in dead
        require(bool(came), f"{broker.name} lost {body[:20]!r}, which was given back for the {times + 1}. time")
    require(all(times == MAX_RETRIES + 1 for _, times in dead), f"{broker.name} has dead letters before their time")


def _first_ones(records: Iterator[Record]) -> list[tuple[bytes, int]]:
    return list(dict.fromkeys(map(_key, records)))


def _key(record: Record) -> tuple[bytes, int]:
    return record.body, record.reconsume_times


def records_of(broker: SimBroker, topic: str, queue_id: int = 0) -> list[Record]:
    """All of a queue."""
    store = broker.core.store
    found: list[Record] = []
    while len(found) < store.max_offset(topic, queue_id):
        records = store.read_messages(topic, queue_id, len(found), 1000, 1 << 30).records
        found += [look_at(each).record for each in records]
    return found
