"""Looks for requests that keep a broker's loop to themselves: random ones, at a broker that has much of everything.

    python -m tests.fuzz.turns [--minutes N] [--seed N] [--queues N]

The broker is one in memory, so what is found is loops that are too long, not slow disks. A turn may take 50 ms of the processor.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import orjson
import pytest

from remoting import codes
from remoting.errors import LogboomError
from remoting.registry import BROKERS, ROWS
from tests.support.memory_log import MemoryRecordLog
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master
from tests.support.turns import Turn

MAX_TURN_MS: Final = 50.0
_READS: Final = ("min_offset", "max_offset", "store_timestamp", "offset_by_time", "read_messages", "read_joined")
_EXPRESSIONS: Final = (
    "*",
    "a || b",
    "a < 1",
    " OR ".join(["a < 1"] * 128),
    " AND ".join([f"a <> {n}" for n in range(128)]),
)
# deletes what the others stand on, or is sent to senders, which this broker has none of
_LEFT_OUT: Final = frozenset({codes.DELETE_TOPIC_IN_BROKER, codes.DELETE_SUBSCRIPTIONGROUP})


class Much(NamedTuple):
    """How much of everything."""

    topics: int = 4
    queues: int = 1024
    groups: int = 300
    members: int = 2000
    messages: int = 2000  # of one queue


class Turns:
    """What each turn cost: of the processor, and reads of queues."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.most_reads = 0
        self._reads = 0
        self._is_reading = False

    def take(self, run: Callable[[], Any]) -> Any:
        self._reads, began_s = 0, time.thread_time()
        try:
            return run()
        finally:
            self.longest_s = max(self.longest_s, time.thread_time() - began_s)
            self.most_reads = max(self.most_reads, self._reads)

    def counting(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """The same read; what it asks itself is not counted."""

        def counted(*args: Any, **more: Any) -> Any:
            if self._is_reading:
                return read(*args, **more)
            self._reads += 1
            self._is_reading = True
            try:
                return read(*args, **more)
            finally:
                self._is_reading = False

        return counted


def broker_with(much: Much) -> RemotingBroker:
    """A master; group g0 has offsets everywhere, and all members are of g1."""
    broker = remoting_master()
    for topic in range(much.topics):
        broker.topic(f"t{topic}", queues=much.queues)
    for group in range(much.groups):
        broker.group(f"g{group}")
    for topic in range(much.topics):
        for queue_id in range(much.queues):
            broker.send("x", topic=f"t{topic}", queue_id=queue_id)
            broker.metadata.commits.commit("g0", f"t{topic}", queue_id, 1, None)
    broker.send(*["x"] * much.messages, a="7", filling="f" * 500)
    for member in range(much.members):
        document = {
            "clientID": f"c{member}",
            "producerDataSet": [{"groupName": "p"}],
            "consumerDataSet": [{"groupName": "g1", "subscriptionDataSet": [{"topic": "t0", "subString": "*"}]}],
        }
        broker.send_request(codes.HEART_BEAT, body=orjson.dumps(document), peer=Peer())
    broker.turns.run()
    gc.collect()
    gc.freeze()  # what was made here is no request's cost
    return broker


@contextmanager
def measured() -> Iterator[Turns]:
    """Measures every turn."""
    turns = Turns()
    run = Turn.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Turn, "run", lambda self: turns.take(lambda: run(self)))
        for name in _READS:
            patch.setattr(MemoryRecordLog, name, turns.counting(getattr(MemoryRecordLog, name)))
        yield turns


class Asked(NamedTuple):
    """A request."""

    code: int
    ext: dict[str, str]
    body: bytes

    def __str__(self) -> str:
        return f"{ROWS[self.code].name} {self.ext}"[:400]


class Asker:
    """Random requests: right ones, as what is refused costs little."""

    def __init__(self, much: Much, seed: int, handled: Sequence[int]) -> None:
        self._much = much
        self._random = random.Random(seed)
        self._codes = sorted(
            code for code in handled if code in ROWS and ROWS[code].by & BROKERS and code not in _LEFT_OUT
        )

    def next(self) -> Asked:
        rng = self._random
        code = rng.choice(self._codes)
        topic = rng.choice(("t", *(f"t{n}" for n in range(self._much.topics))))
        group = rng.choice(("g0", "g1", "g2"))
        expression = rng.choice(_EXPRESSIONS)
        ext = {
            **dict.fromkeys(("group", "consumerGroup", "groupName", "srcGroup", "compareGroup"), group),
            **dict.fromkeys(("maxMsgNums", "maxNum", "count"), rng.choice(("1", "32", "100000"))),
            **dict.fromkeys(("offset", "queueOffset", "index", "commitOffset"), rng.choice(("0", "1", "-1"))),
            **dict.fromkeys(("subscription", "exp"), expression),
            **dict.fromkeys(("expressionType", "expType"), "TAG" if expression in _EXPRESSIONS[:2] else "SQL92"),
            "topic": topic,
            "destGroup": f"g{rng.randrange(2, self._much.groups)}",
            "queueId": rng.choice(("0", "-1")),
            "timestamp": rng.choice(("1", "-1", str(1 << 60))),
            "sysFlag": "4",
            "subVersion": "0",
            "suspendTimeoutMillis": "0",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "invisibleTime": "60000",
            "key": "k",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 60),
            "isForce": "true",
        }
        for name in rng.sample(sorted(ext), rng.choice((0, 0, 1, 2))):
            del ext[name]
        queues = [{"topic": topic, "brokerName": "broker-a", "queueId": n} for n in range(self._much.queues)]
        body = {
            **dict.fromkeys(("group", "consumerGroup"), group),
            **dict.fromkeys(("clientID", "clientId"), "c1"),
            "topic": topic,
            "messageModel": "CLUSTERING",
            "strategyName": "AVG",
            "mqSet": queues if rng.random() < 0.5 else [],
            "subscriptionData": {"topic": topic, "subString": expression},
        }
        return Asked(code, ext, orjson.dumps(body))


def ask(broker: RemotingBroker, turns: Turns, asked: Asked) -> None:
    """Until nothing more is to be done for it."""
    try:
        turns.take(lambda: broker.send_request(asked.code, asked.ext, asked.body))
    except LogboomError:
        return
    broker.turns.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="how long (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the first one (%(default)s)")
    parser.add_argument("--queues", type=int, default=Much().queues, help="of each topic (%(default)s)")
    options = parser.parse_args()
    much, seed, until_s = Much(queues=options.queues), options.seed, time.monotonic() + options.minutes * 60
    slow: Counter[str] = Counter()
    worst: dict[str, tuple[float, str]] = {}
    while time.monotonic() < until_s:
        broker = broker_with(much)
        asker = Asker(much, seed, tuple(broker.handlers))
        for _ in range(1000):
            if time.monotonic() >= until_s:
                break
            asked = asker.next()
            with measured() as turns:
                ask(broker, turns, asked)
            name = ROWS[asked.code].name
            worst[name] = max(worst.get(name, (0.0, "")), (turns.longest_s * 1000, str(asked)))
            slow[name] += turns.longest_s * 1000 > MAX_TURN_MS
        seed += 1
    for name, (longest_ms, text) in sorted(worst.items(), key=lambda each: -each[1][0])[:20]:
        print(f"{longest_ms:8.1f} ms at most, {slow[name]} above {MAX_TURN_MS:g} ms: {text}")
    sys.exit(1 if slow.total() else 0)


if __name__ == "__main__":
    main()
