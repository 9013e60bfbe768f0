"""What it costs to take timers from clients, and to deliver those that are all due at once, beside plain sends of the same
messages.

    python -m tests.bench.timers [--messages N] [--pairs N]

In this process, on a store on disk, without sockets and without waiting for the disk: what a broker computes, from the entries of
the due timers, or from frames and gRPC calls that were received, to the consume queues. Timers are delivered as they are, and
with each message decoded, as those are that are not ordinary. Messages are sent for one second, and for any of an hour, without a
limit of each second and with one that they do not reach.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from brokerd.composition.log_access import StoreRecordLog
from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.loop import tuning
from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import load
from brokerd.proxy import protobuf
from brokerd.proxy.methods.quick_sends import Quick
from brokerd.proxy.methods.send_message import send_message
from brokerd.proxy.native_sends import SendReader
from brokerd.sending.acknowledging import Appends
from brokerd.sending.counters import Counters
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.sender import MessageSender, SendRules
from brokerd.sending.stored_form import KernelRules
from brokerd.sending.turns import SendTurns
from brokerd.sending.unique_ids import UniqueIds
from brokerd.statistics.figures import Statistics
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.seams import StoreSeams
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from brokerd.timers import batch
from brokerd.timers.clients import TimedMessages
from brokerd.timers.codes import CODE_RULES, DUE_MS, OUT_MS, slot_of
from brokerd.timers.in_log import TimersInLog
from brokerd.timers.queue_far import QueueFar
from brokerd.timers.rules import DELIVER_MS
from brokerd.timers.service import Surroundings, TimerService
from brokerd.timers.settings import TimerSettings
from remoting import codes, frame
from remoting.disk import LocalDisk
from remoting.names import TIMER_TOPIC
from remoting.record.properties import encode_properties
from tests.bench.harness import Row
from tests.bench.held_turns import Client
from tests.support.kernels import take_one
from tests.support.turns import Turns
from tests.unit.brokerd.sending.test_send import Halves

MESSAGES: Final = 50_000

_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_TOPIC: Final = "Orders"
_BROKER: Final = "broker-a"
_QUEUES: Final = 8
_BODY_BYTES: Final = 1000
_AHEAD_MS: Final = 30_000
_LATER_MS: Final = 3_600_000  # of what is sent for later
_READ_AT_ONCE: Final = 32  # frames that one read event has
_CALLS_AT_ONCE: Final = 16
_STORED_AT_ONCE: Final = 1000
_RATIOS: Final = (
    ("as they are", "sent"),
    ("sent for later", "sent"),
    ("sent for later with a limit", "sent for later"),
    ("sent for any second with a limit", "sent for any second"),
    ("sent over gRPC for later", "sent over gRPC"),
)


class _Metadata:
    def __init__(self, config: TopicConfig | None = None) -> None:
        self._config = config

    def topic(self, name: str) -> TopicConfig:
        return self._config or TopicConfig(name, _QUEUES, _QUEUES, 6)

    def deleted_at(self, _name: str) -> int:
        return -1


class _AtOnce:
    """Acknowledges what is appended."""

    def refusal(self) -> None:
        return None

    def own_refusal(self) -> None:
        return None

    def appended(self, end_offset: int) -> None:
        pass

    def wait(self, _end_offset: int, done: Callable[[PutStatus], None]) -> None:
        done(PutStatus.PUT_OK)


def run(messages: int = MESSAGES, pairs: int = 3) -> list[Row]:
    tuning.settle()
    measured: dict[str, Callable[[], float]] = {
        "decoded": partial(_delivered_us, messages, decodes=True),
        "as they are": partial(_delivered_us, messages, decodes=False),
        "sent": partial(_sent_us, messages),
        "sent for later": partial(_sent_us, messages, spread_ms=1),
        "sent for later with a limit": partial(_sent_us, messages, spread_ms=1, most=messages),
        "sent for any second": partial(_sent_us, messages, spread_ms=_LATER_MS),
        "sent for any second with a limit": partial(_sent_us, messages, spread_ms=_LATER_MS, most=messages),
        "sent over gRPC": partial(_sent_grpc_us, messages, is_timed=False),
        "sent over gRPC for later": partial(_sent_grpc_us, messages, is_timed=True),
        "sent over gRPC by the general path": partial(_sent_grpc_us, messages, is_timed=False, is_general=True),
        "sent over gRPC for later by the general path": partial(
            _sent_grpc_us, messages, is_timed=True, is_general=True
        ),
    }
    found: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(pairs):
        for name, measure in measured.items():
            found[name].append(measure())
    medians = {name: statistics.median(each) for name, each in found.items()}
    rows = [Row(f"{messages:,} messages {name}: CPU time of each", f"{us:.1f} us") for name, us in medians.items()]
    for name, other in _RATIOS:
        ratio = statistics.median(ours / theirs for ours, theirs in zip(found[name], found[other], strict=True))
        rows.append(Row(f"{name} / {other}, neither with sockets", f"{ratio:.2f}"))
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


@contextmanager
def _store(turns: Turns) -> Iterator[MessageStore]:
    with tempfile.TemporaryDirectory(prefix="timers-") as directory:
        store = MessageStore(
            LocalDisk(Path(directory)), StoreSettings(), turns.wall_ms, _HOST, StoreSeams(CODE_RULES, load())
        )  # fmt: skip
        store.load()
        store.set_appendable(True)
        yield store
        store.abandon()


def _service(store: MessageStore, turns: Turns, most: int = 0) -> TimerService:
    log = StoreRecordLog(store, cast(Appends, _AtOnce()), turns.wall_ms, _HOST, Statistics())
    far = QueueFar(partial(log.queue_range, TIMER_TOPIC, 0), partial(log.read_units, TIMER_TOPIC, 0))
    metadata = cast(Any, _Metadata())
    surroundings = Surroundings(
        metadata, turns, turns.wall_ms, _HOST, random.getrandbits, lambda: 1 << 40, TimersInLog(), lambda: most
    )
    return TimerService(log, far, surroundings, TimerSettings())


@contextmanager
def _leading(store: MessageStore, turns: Turns, most: int = 0) -> Iterator[TimedMessages]:
    """What takes messages for later, of a master."""
    service = _service(store, turns, most)
    service.rebuild()
    service.catch_up()
    service.lead()
    turns.run(1000)
    service.recall_key()
    store.dispatcher.listeners.append(service.dispatched)
    limits = TimerSettings()
    yield TimedMessages(service, lambda: limits, _BROKER, partial(store.queue_offsets.next, TIMER_TOPIC, 0))


def _delivered_us(messages: int, *, decodes: bool) -> float:
    turns = Turns()
    with _store(turns) as store:
        service = _service(store, turns)
        due_ms = turns.wall_ms() + _AHEAD_MS
        more = {"REAL_TOPIC": _TOPIC, OUT_MS: str(slot_of(due_ms)), DUE_MS: str(due_ms)}
        for first in range(0, messages, _STORED_AT_ONCE):
            store.append_messages(
                [
                    Draft(
                        TIMER_TOPIC,
                        0,
                        _body(n),
                        encode_properties(_properties(n) | more | {"REAL_QID": str(n % _QUEUES)}),
                        0,
                        _HOST,
                    )
                    for n in range(first, min(messages, first + _STORED_AT_ONCE))
                ]
            )
        _dispatch(store)
        service.rebuild()
        service.catch_up()
        service.lead()
        turns.run(_AHEAD_MS - 1000)
        assert service.counters.delivered == 0
        least = batch.LEAST_TOGETHER
        batch.LEAST_TOGETHER = 1 << 30 if decodes else least  # type: ignore[misc]
        began_s = time.process_time()
        turns.run(2000)
        _dispatch(store)
        took_s = time.process_time() - began_s
        batch.LEAST_TOGETHER = least  # type: ignore[misc]
        assert service.counters.delivered == messages
        return 1e6 * took_s / messages


def _sent_us(messages: int, spread_ms: int = 0, most: int = 0) -> float:
    """From frames, which ask to be delivered at times that are so far apart, or for nothing, to the queues, and to what knows of
    timers there."""
    turns = Turns()
    with _store(turns) as store, _leading(store, turns, most) as timed:
        kernel = NativeKernel(load(), _HOST, KernelRules(UniqueIds(0), timed.terms))
        kernel.topics_changed({_TOPIC: _Metadata().topic(_TOPIC)})
        rng = random.Random(1)

        def asks() -> dict[str, str]:
            due_ms = turns.wall_ms() + _LATER_MS + rng.randrange(spread_ms or 1)
            return {DELIVER_MS: str(due_ms)} if spread_ms else {}

        reads = [
            b"".join(_frame(n, asks()) for n in range(first, min(messages, first + _READ_AT_ONCE)))
            for first in range(0, messages, _READ_AT_ONCE)
        ]
        _dispatch(store)
        began_s = time.process_time()
        for read in reads:
            position = 0
            while position < len(read):
                run = store.begin_run()
                position = take_one(kernel, run, read, position, _HOST, _READ_AT_ONCE).position
                if run.records:
                    store.append_laid_out(run)
                else:
                    store.commitlog.roll()
        _dispatch(store)
        took_s = time.process_time() - began_s
        plain = sum(store.max_offset(_TOPIC, queue) for queue in range(_QUEUES))
        assert (store.max_offset(TIMER_TOPIC, 0), plain) == ((messages, 0) if spread_ms else (0, messages))
        return 1e6 * took_s / messages


def _sent_grpc_us(messages: int, *, is_timed: bool, is_general: bool = False) -> float:
    """The same of calls, whose messages protobuf decodes where they take the general path."""
    turns = Turns()
    with _store(turns) as store, _leading(store, turns) as timed:
        config = TopicConfig(_TOPIC, _QUEUES, _QUEUES, 6, attributes={"message.type": "MIXED"})
        rules = SendRules({_TOPIC: config}.get, "c", DEFAULT_DELAYS)
        sender = MessageSender(store, cast(Any, _AtOnce()), rules, Counters(), Halves(), timed)
        metadata = cast(Any, _Metadata(config))
        kernel = NativeKernel(load(), _HOST, KernelRules(UniqueIds(0), timed.terms))
        kernel.topics_changed({_TOPIC: config})
        quick = Quick(SendReader(load()), SendTurns(store, cast(Any, _AtOnce()), kernel, Counters()))
        handler = send_message(
            sender,
            metadata,
            _BROKER,
            lambda: timed.max_ahead_ms,
            turns.wall_ms,
            quick=None if is_general else quick,
        )
        due_ms = turns.wall_ms() + _LATER_MS if is_timed else 0
        answers: list[bytes] = []
        calls = [Client(_request(n, due_ms), answers) for n in range(messages)]
        _dispatch(store)
        began_s = time.process_time()
        for first in range(0, messages, _CALLS_AT_ONCE):
            handler(calls[first : first + _CALLS_AT_ONCE])
        _dispatch(store)
        took_s = time.process_time() - began_s
        plain = sum(store.max_offset(_TOPIC, queue) for queue in range(_QUEUES))
        assert (store.max_offset(TIMER_TOPIC, 0), plain) == ((messages, 0) if is_timed else (0, messages))
        return 1e6 * took_s / messages


def _dispatch(store: MessageStore) -> None:
    while store.dispatch_offset < store.commitlog.end_offset:
        store.dispatch(store.commitlog.end_offset)


def _body(n: int) -> bytes:
    return b"%08d" % n + bytes(_BODY_BYTES - 8)


def _properties(n: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"{n:032X}", "WAIT": "true", "TAGS": "paid", "KEYS": f"order-{n}"}


def _request(n: int, due_ms: int) -> bytes:
    request = protobuf.service.SendMessageRequest()
    message = request.messages.add(body=_body(n))
    message.topic.name = _TOPIC
    system = message.system_properties
    system.message_id = f"{n:032X}"
    system.tag = "paid"
    system.keys.append(f"order-{n}")
    system.born_timestamp.seconds = 1_700_000_000
    system.born_host = "127.0.0.1"
    if due_ms:
        system.delivery_timestamp.FromMilliseconds(due_ms)
    encoded: bytes = request.SerializeToString()
    return encoded


def _frame(n: int, more: Mapping[str, str] = MappingProxyType({})) -> bytes:
    fields = {
        **{
            "a": "producer",
            "b": _TOPIC,
            "c": "TBW102",
            "d": "4",
            "e": str(n % _QUEUES),
            "f": "0",
            "g": "1700000000000",
        },
        **{"h": "0", "i": encode_properties(_properties(n) | more).decode(), "j": "0", "k": "false", "m": "false"},
    }
    return frame.encode_request(codes.SEND_MESSAGE_V2, n, fields, _body(n))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="that are due at once (%(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each (%(default)s)")
    options = parser.parse_args()
    run(options.messages, options.pairs)


if __name__ == "__main__":
    main()
