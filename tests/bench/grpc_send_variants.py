"""Sends over gRPC written in every way that clients may write them, each against the ordinary one: what a variant costs more.

    python -m tests.bench.grpc_send_variants [--pairs N] [--seconds S] [--only TEXT] [--mode python|native] [--json FILE]

The figure is the brokers' CPU time for a message, with flush in the background and 16 calls in flight on each of four
connections; A is the variant, B an ordinary send in the same minute to the same broker. The stored count is compared with the
acknowledged one after every run. Calls that are forwarded have a group of two brokers: A speaks to the replica and B to the
master, and the time is that of both. Calls that are signed, or go over TLS, have a broker that asks for that, and B is a call
that is not. The last row is the worst.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from brokerd.proxy.protobuf import definition, service
from remoting.access.signature import SigningKey
from remoting.client.access_admin import AccessAdmin
from remoting.names import HALF_TOPIC, TIMER_TOPIC
from tests.bench.h2load import GrpcLoad
from tests.bench.harness import Pairs, Row, Sample, print_row
from tests.bench.processes import cpu_seconds
from tests.bench.sends import BACKGROUND, check_stored
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, comes_true, eventually
from tests.support.workload import call_until

_CONNECTIONS: Final = 4
_STREAMS: Final = 16
_SETTINGS: Final = (
    *BACKGROUND,
    "transactions.check_interval_ms=86400000",  # nobody is asked about the half messages meanwhile
    "transactions.max_open=10000000",
    "store.index_enabled=false",  # follows at its own pace: what it costs would be counted in some other row
)
_TYPES: Final = {
    "Bench": "NORMAL",
    "Fifo": "FIFO",
    "Delay": "DELAY",
    "Transaction": "TRANSACTION",
    "Priority": "PRIORITY",
}
_TOPICS: Final = {**_TYPES, "Mixed": "MIXED", "ns%Bench": "NORMAL"}
_QUEUES: Final = 8
_DATE: Final = "20260101T000000Z"
_USER, _SECRET = "bench", "the secret of the bench"
_GOAL: Final = 0.5  # of the rate by CPU time of an ordinary send
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True)
class Variant:
    """A request, how many messages it has, the topic that they are stored in, and what else is unusual of the calls."""

    name: str
    request: bytes
    stored_in: str = "Bench"
    messages: int = 1
    is_compressed: bool = False


@dataclass(frozen=True)
class _Way:
    """How calls reach the brokers: with more settings, by a replica, signed, over TLS."""

    name: str
    settings: tuple[str, ...] = ()
    replicas: int = 1
    is_signed: bool = False
    is_secure: bool = False


_FORWARDED: Final = _Way("forwarded by a replica", replicas=2)
_SIGNED: Final = _Way("signed", ("access.authentication=true",), is_signed=True)
_ALLOWED: Final = _Way(
    "signed, permissions asked", ("access.authentication=true", "access.authorization=true"), is_signed=True
)
_SECURE: Final = _Way("over TLS", is_secure=True)
_WAYS: Final = (_FORWARDED, _SIGNED, _ALLOWED, _SECURE)


def _request(
    fill: Callable[[Any], None] = lambda _: None, *, topic: str = "Bench", messages: int = 1, body_bytes: int = 1024
) -> bytes:
    request = service.SendMessageRequest()
    for number in range(messages):
        message = request.messages.add()
        message.topic.name = topic
        message.body = b"x" * body_bytes
        system = message.system_properties
        system.tag = "bench"
        system.message_id = f"01AABBCCDDEEFF0123456789ABCDEF{number:04X}"
        system.message_type = definition.MessageType.Value("NORMAL")
        system.body_encoding = definition.Encoding.Value("IDENTITY")
        system.born_timestamp.seconds = 1_700_000_000
        system.born_host = "127.0.0.1"
        fill(message)
    encoded: bytes = request.SerializeToString()
    return encoded


def _with(**system: Any) -> Callable[[Any], None]:
    """Fills in system properties; those that are messages by what their text says."""

    def fill(message: Any) -> None:
        for name, value in system.items():
            setattr(message.system_properties, name, value)

    return fill


def _due(at_ms: int) -> Callable[[Any], None]:
    def fill(message: Any) -> None:
        message.system_properties.message_type = definition.MessageType.Value("DELAY")
        message.system_properties.delivery_timestamp.FromMilliseconds(at_ms)

    return fill


def _half(recovery_s: int = 0) -> Callable[[Any], None]:
    def fill(message: Any) -> None:
        message.system_properties.message_type = definition.MessageType.Value("TRANSACTION")
        if recovery_s:
            message.system_properties.orphaned_transaction_recovery_duration.seconds = recovery_s

    return fill


def _named(count: int) -> Callable[[Any], None]:
    def fill(message: Any) -> None:
        message.user_properties.update({f"name-{each}": f"value of {each}" for each in range(count)})

    return fill


def _keys(count: int) -> Callable[[Any], None]:
    return lambda message: message.system_properties.keys.extend(f"key-{each}" for each in range(count))


def _unborn(message: Any) -> None:
    message.system_properties.ClearField("born_timestamp")


def _in_namespace(message: Any) -> None:
    message.topic.resource_namespace = "ns"


def _received(message: Any) -> None:
    """As a client has it that sends on what it received."""
    system = message.system_properties
    system.store_timestamp.seconds = 1_700_000_001
    system.store_host, system.receipt_handle = "127.0.0.1:10911", "handle"
    system.queue_id, system.queue_offset, system.delivery_attempt = 3, 5, 1
    system.invisible_duration.seconds = 30
    system.body_digest.type, system.body_digest.checksum = definition.DigestType.Value("CRC32"), "A1B2C3D4"


def variants(now_ms: int) -> list[Variant]:
    """All that are one broker's to take; timers are due a day after `now_ms`."""
    fifo, priority = (definition.MessageType.Value(name) for name in ("FIFO", "PRIORITY"))
    of = Variant
    return [
        of("20 user properties", _request(_named(20))),
        of("100 user properties", _request(_named(100))),
        of("3 keys", _request(_keys(3))),
        of("60 keys", _request(_keys(60))),
        of("no tag, no host, no type", _request(lambda each: each.system_properties.Clear() or _least(each))),
        of("no time of birth", _request(_unborn)),
        of("a namespace", _request(_in_namespace), "ns%Bench"),
        of("a tag beyond ASCII", _request(_with(tag="größe"))),
        of("trace context", _request(_with(trace_context="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))),
        of("what was received, sent on", _request(_received)),
        of("compressed body", _request(_with(body_encoding=definition.Encoding.Value("GZIP")))),
        of("compressed by gRPC", _request(), is_compressed=True),
        of("message group", _request(_with(message_type=fifo, message_group="order 17"), topic="Fifo"), "Fifo"),
        of("priority", _request(_with(message_type=priority, priority=5), topic="Priority"), "Priority"),
        of("delivery time", _request(_due(now_ms + _DAY_MS), topic="Delay"), TIMER_TOPIC),
        of("delivery time that has passed", _request(_due(now_ms - _DAY_MS), topic="Delay"), "Delay"),
        of("half message", _request(_half(), topic="Transaction"), HALF_TOPIC),
        of("half message, recovery time", _request(_half(30), topic="Transaction"), HALF_TOPIC),
        of("topic of mixed types", _request(topic="Mixed"), "Mixed"),
        of("2 messages in a request", _request(messages=2), messages=2),
        of("32 messages in a request", _request(messages=32), messages=32),
        of("32 of a message group", _request(_with(message_type=fifo, message_group="g"), topic="Fifo", messages=32), "Fifo", 32),
        of("32 with delivery times", _request(_due(now_ms + _DAY_MS), topic="Delay", messages=32), TIMER_TOPIC, 32),
        of("100 bytes", _request(body_bytes=100)),
    ]  # fmt: skip


def _least(message: Any) -> None:
    message.system_properties.message_id = "01AABBCCDDEEFF0123456789ABCDEF0000"
    message.system_properties.born_timestamp.seconds = 1_700_000_000


@contextmanager
def _brokers(mode: str, way: _Way | None = None) -> Iterator[Cluster]:
    """A group with all topics, whose replicas have everything."""
    way = way or _Way("")
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        ports = of_the_appliance(directory / "appliance")[0] if way.is_secure else ()
        access = tuple(each for each in way.settings if each.startswith("access."))
        with Cluster(
            directory / "cluster",
            controllers=1,
            replicas=way.replicas,
            broker_settings=(*_SETTINGS, f"kernel.mode={mode}", *way.settings, *ports),
            controller_settings=access,
        ) as cluster:
            cluster.start()
            for topic, message_type in _TOPICS.items():
                call_until(
                    lambda name=topic, kind=message_type: cluster.admin.create_topic(
                        name, queues=_QUEUES, message_type=kind
                    )
                )
            eventually("the topics' routes", lambda: all(cluster.admin.queue_offsets(topic) for topic in _TOPICS))
            if way.is_signed:
                admin = AccessAdmin(cluster.admin)
                admin.create_user(_USER, _SECRET, "Normal", "enable")
                admin.put_permission(_USER, {"resource": "Topic:Bench", "actions": ["Pub"], "decision": "Allow"})
            yield cluster
    finally:
        shutil.rmtree(directory)


def _signature() -> str:
    digest = SigningKey(_SECRET.encode()).digest(_DATE.encode()).hex()
    return f"authorization: MQv2-HMAC-SHA1 Credential={_USER}, SignedHeaders=x-mq-date-time, Signature={digest}"


class _Bench:
    """The brokers, and the load."""

    def __init__(self, cluster: Cluster, seconds: float) -> None:
        self._cluster = cluster
        self._pids = [broker.pid for broker in cluster.brokers]
        self._seconds = seconds

    def stored(self, topic: str) -> int:
        return sum(each.max_offset for each in self._cluster.admin.queue_offsets(topic))

    def load(self, variant: Variant, way: _Way, *, seconds: float | None = None) -> GrpcLoad:
        return GrpcLoad(
            *("SendMessage", variant.request, _CONNECTIONS, _STREAMS, self._seconds if seconds is None else seconds),
            headers=(_signature(),) if way.is_signed else (),
            is_compressed=variant.is_compressed,
            is_secure=way.is_secure,
        )

    def sample(self, variant: Variant, way: _Way = _Way(""), *, broker: int | None = None) -> Sample:
        """The brokers' CPU time for a message; `broker` is whom the load asks, the master if nobody is named."""
        asked = self._cluster.master() if broker is None else broker
        before, used_s = self.stored(variant.stored_in), self._used_s()
        sample, calls = self.load(variant, way)(self._cluster.grpc_addresses[asked], self._pids[asked])
        acknowledged = calls * variant.messages
        check_stored(acknowledged, lambda: self.stored(variant.stored_in) - before)
        return replace(
            sample, rate=sample.rate * variant.messages, cpu_us=(self._used_s() - used_s) * 1e6 / acknowledged
        )

    def _used_s(self) -> float:
        return sum(map(cpu_seconds, self._pids))

    def pairs(self, name: str, pairs: int, a: Callable[[], Sample], b: Callable[[], Sample]) -> Pairs:
        """A and B in turn, after one uncounted round of each."""
        a()
        b()
        samples = [(a(), b()) for _ in range(pairs)]
        result = Pairs(name, [each[0] for each in samples], [each[1] for each in samples])
        print_row(result)
        return result


def _variant_rows(pairs: int, seconds: float, only: str, mode: str) -> list[Pairs]:
    chosen = [each for each in variants(time.time_ns() // 1_000_000) if only in each.name]
    if not chosen:
        return []
    ordinary = Variant("", _request())
    with _brokers(mode) as cluster:
        bench = _Bench(cluster, seconds)
        return [
            bench.pairs(each.name, pairs, lambda each=each: bench.sample(each), lambda: bench.sample(ordinary))
            for each in chosen
        ]


def _way_row(way: _Way, pairs: int, seconds: float, mode: str) -> Pairs:
    ordinary = Variant("", _request())
    with _brokers(mode, way) as cluster:
        bench = _Bench(cluster, seconds)
        if way.replicas > 1:
            replica = next(n for n in range(way.replicas) if n != cluster.master())
            return bench.pairs(
                *(way.name, pairs),
                lambda: bench.sample(ordinary, way, broker=replica),
                lambda: bench.sample(ordinary, way),
            )
        if not way.is_signed:
            return bench.pairs(way.name, pairs, lambda: bench.sample(ordinary, way), lambda: bench.sample(ordinary))
        before = bench.stored("Bench")

        def is_let_in() -> bool:  # the broker hears of the user a moment later
            bench.load(ordinary, way).run(cluster.grpc_addresses[0], _CONNECTIONS)
            return bench.stored("Bench") > before

        assert comes_true(is_let_in, 30), "the user's sends are not taken"
        with _brokers(mode) as others:
            unsigned = _Bench(others, seconds)
            return bench.pairs(way.name, pairs, lambda: bench.sample(ordinary, way), lambda: unsigned.sample(ordinary))


def run(pairs: int, seconds: float, only: str = "", mode: str = "auto") -> list[Row]:
    """All rows whose name contains `only`, and the worst."""
    found = _variant_rows(pairs, seconds, only, mode)
    found += [_way_row(way, pairs, seconds, mode) for way in _WAYS if only in way.name]
    worst = max(found, key=_cost)
    rows = [_row(each) for each in found]
    return [*rows, replace(_row(worst), name=f"the worst of these {len(found)}: {worst.name}")]


def _cost(pairs: Pairs) -> float:
    """By how much a message of A costs more CPU time than one of B."""
    a_us, b_us = pairs.cpu_us
    return a_us / b_us


def _row(pairs: Pairs) -> Row:
    goal = f"by CPU time >= {_GOAL}"
    return replace(pairs.row, name=f"gRPC, {pairs.name} / ordinary", goal=goal, met=_cost(pairs) <= 1 / _GOAL)


def print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        print(f"| {row.name} | {row.figure} | {row.goal} | {'met' if row.met else '**missed**'} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--mode", default="auto", choices=("auto", "native", "python"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = run(options.pairs, options.seconds, options.only, options.mode)
    print_rows(rows)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
