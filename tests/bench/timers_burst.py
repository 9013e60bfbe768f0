"""Many messages that are due together, beside plain sends of as many, in a broker whose clock is the processor time it used.

    python -m tests.bench.timers_burst [--messages N] [--pairs N] [--spread-ms MS] [--near N] [--any-order] [--settled]

In this process: a whole broker without sockets on a store on disk, which does not wait for the disk, and a loop whose time goes
on as this thread computes, and at once when it has nothing to do. So what others do on the machine counts for little, and the
figures are those of a broker that has a processor for itself: how long a burst takes, how late others are that are due behind
it, how long turns of the loop are, with the readers of the log that follow in slices of that time. Sends have no sockets
either, so a ratio to them is larger than the one on real processes (`timers_due`).

The messages are sent just before they are due, so that timer files and counting are still behind; with `--settled` they wait
until these are done.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from brokerd.composition.core import BrokerCore, open_store
from brokerd.composition.environment import BrokerIdentity, CoreSettings, Environment
from brokerd.composition.ground import make_ground
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.loop import tuning
from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import load
from brokerd.replication.roles.effects import Role
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.stored_form import KernelRules
from brokerd.store.settings import StoreSettings
from brokerd.timers.rules import DELIVER_MS
from brokerd.timers.settings import TimerSettings
from remoting import codes, frame
from remoting.disk import LocalDisk
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from remoting.settings import Live
from tests.bench.harness import Row
from tests.support.alone import AloneReplica, Nobody
from tests.support.kernels import take_one
from tests.support.turns import Turn

MESSAGES: Final = 200_000

_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_TOPIC: Final = "Orders"
_OTHERS: Final = "Others"
_QUEUES: Final = 8
_BODY_BYTES: Final = 1024
_IN_A_TURN: Final = 256  # sends: four connections with 64 in flight each
_OTHERS_EVERY_MS: Final = 10
_OTHERS_S: Final = 40
_AHEAD_S: Final = 30  # of this loop's time, between the first send and the second in which they are due

_START_MS: Final = 1_700_000_000_000


class _Loop:
    """`brokerd.loop.scheduler.Scheduler`, whose time is that of this thread, and of waits that it does not wait."""

    def __init__(self) -> None:
        self._waited_s = 0.0
        self._began_s = time.thread_time()
        self._ready: deque[Turn] = deque()
        self._later: list[tuple[float, int, Turn]] = []
        self._count = 0
        self.longest_turns_s: list[float] = []

    def time(self) -> float:
        return time.thread_time() - self._began_s + self._waited_s

    def wall_ms(self) -> int:
        return _START_MS + int(self.time() * 1000)

    def cpu_s(self) -> float:
        return time.thread_time()

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Turn:
        turn = Turn(callback, args)
        self._ready.append(turn)
        return turn

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turn:
        turn = Turn(callback, args)
        self._count += 1
        heappush(self._later, (self.time() + max(0.0, delay), self._count, turn))
        return turn

    def run(self, until: Callable[[], bool], at_most_s: float = 600) -> None:
        """Turn by turn until that is so."""
        end_s = self.time() + at_most_s
        while not until():
            now_s = self.time()
            assert now_s < end_s, "what was waited for does not come"
            while self._later and (self._later[0][0] <= now_s or self._later[0][2].cancelled):
                self._ready.append(heappop(self._later)[2])
            if not self._ready and self._later:
                self._waited_s += self._later[0][0] - now_s
            for _ in range(len(self._ready)):
                self._ready.popleft().run()
            self.longest_turns_s.append(self.time() - now_s)
            if not self._ready and not self._later:
                self._waited_s += 0.001

    def run_for(self, seconds: float) -> None:
        end_s = self.time() + seconds
        self.call_later(seconds, lambda: None)
        self.run(lambda: self.time() >= end_s)


class _Broker:
    """A master that everybody acknowledges at once."""

    def __init__(self, directory: Path, near: int) -> None:
        self.loop = loop = _Loop()
        environment = Environment(
            LocalDisk(directory), loop, loop.wall_ms, random.Random(1), cpu_s=loop.cpu_s, library=load()
        )
        settings = CoreSettings(StoreSettings(), timers=Live(TimerSettings(near_max=near)))
        ground = make_ground(BrokerIdentity("c", "broker-a", _HOST), settings, environment)
        store = open_store(ground)
        log = StoreReplicatedLog(store, lambda: None)
        self.replica = AloneReplica(log, store.confirm_offset)
        self.core = BrokerCore(ground, Nobody(), log, self.replica)
        self.replica.become(Role.MASTER)
        for topic in (_TOPIC, _OTHERS):
            self.core.metadata.put_topic(TopicConfig(topic, _QUEUES, _QUEUES), lambda _: None)
        loop.run_for(5)
        self.core.timers.recall_key()
        self._kernel = NativeKernel(load(), _HOST, KernelRules(self.core.sender.unique_ids, self.core.timed.terms))
        self._kernel.topics_changed({name: TopicConfig(name, _QUEUES, _QUEUES) for name in (_TOPIC, _OTHERS)})
        self._checkpoint()

    def _checkpoint(self) -> None:
        self.core.store.checkpoint()
        self.loop.call_later(5, self._checkpoint)

    def visible(self, topic: str) -> int:
        return sum(self.core.store.max_offset(topic, queue_id) for queue_id in range(_QUEUES))

    def send(self, frames: list[bytes]) -> None:
        """One piece for each turn."""
        pieces = iter(frames)
        is_done = False

        def send() -> None:
            nonlocal is_done
            if (piece := next(pieces, None)) is None:
                is_done = True
                return
            store, position = self.core.store, 0
            while position < len(piece):
                run = store.begin_run()
                position = take_one(self._kernel, run, piece, position, _HOST, _IN_A_TURN).position
                if run.records:
                    store.append_laid_out(run)
                    self.core.appends.appended(run.end_offset)
                else:
                    store.commitlog.roll()
            self.loop.call_soon(send)

        self.loop.call_soon(send)
        self.loop.run(lambda: is_done)

    def settle(self) -> None:
        """Until all that follows the log is done."""
        self.loop.run(lambda: not self.core.background.behind_bytes and not self.core.timers.counting.uncounted)
        self.loop.run_for(2)

    def late_ms(self, topic: str) -> list[int]:
        """How late each message of the topic is."""
        store, found = self.core.store, []
        for queue_id in range(_QUEUES):
            for n in range(store.max_offset(topic, queue_id)):
                [(offset, size, _)] = store.read_units(topic, queue_id, n, 1)
                record = decode_record(self.core.record_log.record_at(offset, size))
                found.append(record.store_timestamp_ms - int(record.property_map()["TIMER_DUE_MS"]))
        return found


@contextmanager
def _broker(near: int) -> Iterator[_Broker]:
    with tempfile.TemporaryDirectory(prefix="burst-") as directory:
        broker = _Broker(Path(directory), near)
        yield broker
        broker.core.close()
        broker.core.store.abandon()


def _sent(messages: int, near: int) -> float:
    """Seconds until all can be read."""
    pieces = list(_pieces(_TOPIC, messages))
    with _broker(near) as broker:
        began_s = broker.loop.time()
        broker.send(pieces)
        broker.loop.run(lambda: broker.visible(_TOPIC) == messages)
        return broker.loop.time() - began_s


@dataclass(frozen=True)
class Burst:
    """Until all could be read, and meanwhile: the latest of others that are due behind them, and long turns."""

    readable_s: float
    others_ms: float
    turn_ms: float


def _due(messages: int, spread_ms: int, near: int, *, any_order: bool = False, is_settled: bool = False) -> Burst:
    rng = random.Random(1)
    due_ms = _START_MS + 1000 * _AHEAD_S
    pieces = list(
        _pieces(
            _TOPIC, messages, lambda n: due_ms + (rng.randrange(spread_ms) if any_order else n * spread_ms // messages)
        )
    )
    others = _OTHERS_S * 1000 // _OTHERS_EVERY_MS
    behind_ms = due_ms + spread_ms
    pieces += _pieces(_OTHERS, others, lambda n: behind_ms + _OTHERS_EVERY_MS * n)
    with _broker(near) as broker:
        loop = broker.loop
        broker.send(pieces)
        if is_settled:
            broker.settle()
        assert loop.wall_ms() < due_ms, "sending took longer than there was"
        loop.run_for((due_ms - loop.wall_ms()) / 1000)
        loop.longest_turns_s.clear()
        loop.run(lambda: broker.visible(_TOPIC) == messages)
        readable_s = (loop.wall_ms() - due_ms) / 1000
        turns_s = sorted(loop.longest_turns_s)
        late_ms = sorted(broker.late_ms(_OTHERS))
        assert not late_ms or late_ms[0] >= 0
        return Burst(readable_s, late_ms[-1] if late_ms else 0.0, 1000 * turns_s[-1 - len(turns_s) // 100])


def run(
    messages: int = MESSAGES,
    pairs: int = 3,
    spread_ms: int = 0,
    near: int = 2_000_000,
    *,
    any_order: bool = False,
    is_settled: bool = False,
) -> list[Row]:
    spread_ms = spread_ms or max(1, messages // 1000)
    tuning.keep_freed_memory()
    tuning.settle()
    ratios, bursts = [], []
    for number in range(pairs):
        sent_s, burst = (
            _sent(messages, near),
            _due(messages, spread_ms, near, any_order=any_order, is_settled=is_settled),
        )
        ratios.append(burst.readable_s / sent_s)
        bursts.append(burst)
        print(
            f"pair {number + 1}: sent {1e6 * sent_s / messages:.2f} us each; due {1e6 * burst.readable_s / messages:.2f} us "
            f"each; others {burst.others_ms:.0f} ms late; p99 of turns {burst.turn_ms:.1f} ms",
            flush=True,
        )
    what = f"{messages:,} due together, without sockets"
    rows = [
        Row(f"{what}: until the last can be read / plain sends of as many", f"{statistics.median(ratios):.2f}"),
        Row(
            f"{what}: the latest of others that are due behind them",
            f"{statistics.median(each.others_ms for each in bursts):.0f} ms",
        ),
        Row(f"{what}: p99 of turns of the loop", f"{statistics.median(each.turn_ms for each in bursts):.1f} ms"),
    ]
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def _pieces(topic: str, messages: int, due_ms: Callable[[int], int] | None = None) -> Iterator[bytes]:
    """Requests as a turn of the loop reads them."""
    for first in range(0, messages, _IN_A_TURN):
        yield b"".join(
            _frame(topic, n, None if due_ms is None else due_ms(n))
            for n in range(first, min(messages, first + _IN_A_TURN))
        )


def _frame(topic: str, n: int, due_ms: int | None) -> bytes:
    properties = {"UNIQ_KEY": f"{n:032X}", "WAIT": "true", "TAGS": "paid"}
    if due_ms is not None:
        properties[DELIVER_MS] = str(due_ms)
    fields = {
        **{"a": "producer", "b": topic, "c": "TBW102", "d": "4", "e": str(n % _QUEUES), "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": encode_properties(properties).decode(), "j": "0", "k": "false", "m": "false"},
    }
    return frame.encode_request(codes.SEND_MESSAGE_V2, n, fields, bytes(_BODY_BYTES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="that are due together (%(default)s)")
    parser.add_argument(
        "--spread-ms", type=int, default=0, help="from the first to the last; else one for 1,000 of them"
    )
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each (%(default)s)")
    parser.add_argument("--near", type=int, default=2_000_000, help="timers.near_max of the broker (%(default)s)")
    parser.add_argument("--any-order", action="store_true", help="each at any moment of them, not one behind the other")
    parser.add_argument("--settled", action="store_true", help="when what follows the log is done")
    options = parser.parse_args()
    run(
        options.messages,
        options.pairs,
        options.spread_ms,
        options.near,
        any_order=options.any_order,
        is_settled=options.settled,
    )


if __name__ == "__main__":
    main()
