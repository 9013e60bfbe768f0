"""What ten million timers that wait cost a group: while it is idle, at a start, and when its master dies.

    python -m tests.bench.timers_pending [--timers N] [--pairs N] [--idle S] [--step]

Two clusters of a controller and two brokers, with a log of so many timers and with none (see pending_log.py for how it is made;
the replica copies it). They are due from an hour ahead on, over two days. Measured with a tenth of the timers and with all:
memory, CPU time of both brokers while nobody does anything, and how long the replica takes from its start until it is in sync;
what the tenth and the whole differ by gives the slope for a hundred million. Then the masters are killed in turn: from the kill
to the first send that another broker acknowledges, and to the first timer that it delivers, of some that are due every ten
milliseconds.

To make all that ready takes many minutes, in which the machine may do something else. With `--step` each part that is measured
waits for a line on standard input.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.facts.broker_state import BrokerState, TimerState
from remoting.facts.codec import decode
from tests.bench.harness import Row, load_program
from tests.bench.pending_log import append_timers
from tests.bench.processes import cpu_seconds, memory_of
from tests.bench.sends import TOPIC
from tests.bench.timed import QUEUES, Load, delivered, wait_visible, wall_ms
from tests.support.cluster import Cluster, Process, eventually
from tests.support.senders import Senders
from tests.support.workload import call_until

TIMERS: Final = 10_000_000
PAIRS: Final = 5
IDLE_S: Final = 30.0
GOAL_MB: Final = 100
GOAL_START_S: Final = 10
GOAL_TAKEOVER_MS: Final = 100

_REPLICAS: Final = 2
_FIRST_MS: Final = 3_600_000
_SPAN_MS: Final = 2 * 86_400_000
_COPIED_S: Final = 1800.0  # for a replica to copy all
_SETTLED: Final = (
    0.06  # of a processor, of both brokers, several times in a row: nothing is read or written in the background
)
_LOOK_S: Final = 2.0
_LOOKS: Final = 3
_PROBES: Final = 1500
_EVERY_MS: Final = 10
_BEFORE_S: Final = 3.0
_HUNDRED_MILLIONS: Final = 100_000_000

Step = Callable[[str], None]  # called before what has the machine to itself, with what that is


@dataclass(frozen=True)
class Standing:
    """A cluster at rest. CPU time of both brokers, as a part of one processor."""

    idle: float
    memory_mb: float  # of the master, its own
    start_s: float  # of the replica
    start_cpu_s: float


class Group:
    """One cluster with so many timers."""

    def __init__(self, stack: ExitStack) -> None:
        directory = Path(tempfile.mkdtemp(prefix="bench"))
        stack.callback(shutil.rmtree, directory)
        self.cluster = stack.enter_context(Cluster(directory, controllers=1, replicas=_REPLICAS))
        self.cluster.start()
        self.timers = 0
        self._kills = 0
        self._make_topic(TOPIC)

    def fill(self, timers: int) -> None:
        """Have so many timers wait in all."""
        master = self.cluster.master()
        self._stop_replica()
        self.cluster.brokers[master].terminate()
        began_s = time.monotonic()
        data = self.cluster.data / f"b{master}"
        append_timers(data, TOPIC, self.timers, timers - self.timers, wall_ms() + _FIRST_MS, _SPAN_MS)
        print(f"{timers - self.timers:,} timers appended in {time.monotonic() - began_s:.0f} s", flush=True)
        self.timers = timers
        self.cluster.brokers[master].start()
        eventually("the broker with the timers leads", lambda: self.cluster.master() == master, 120)
        for broker in self.cluster.brokers:
            if not broker.is_running:
                broker.start()
        self.wait_whole()
        waiting = self._state().waiting
        if waiting != timers:
            raise RuntimeError(f"{timers} timers were appended, and the master says that {waiting} wait")

    def wait_whole(self) -> None:
        """Wait until both brokers are in sync, and idle."""
        self.cluster.wait_in_sync(_REPLICAS, timeout_s=_COPIED_S)
        deadline_s = time.monotonic() + _COPIED_S
        quiet = 0
        while quiet < _LOOKS:
            quiet = quiet + 1 if self._used_in(_LOOK_S) < _SETTLED * _LOOK_S else 0
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the brokers are not idle after {_COPIED_S:.0f} s")

    def standing(self, idle_s: float) -> Standing:
        idle = self._used_in(idle_s) / idle_s
        memory_mb = memory_of(self.cluster.brokers[self.cluster.master()].pid).anonymous_mb
        replica = self._stop_replica()
        began_s = time.monotonic()
        replica.start()
        self.cluster.wait_in_sync(_REPLICAS, timeout_s=_COPIED_S)
        return Standing(idle, memory_mb, time.monotonic() - began_s, cpu_seconds(replica.pid))

    def kill(self, program: Path) -> tuple[float, float]:
        """From the kill of the master to the first send, and to the first timer that is delivered (ms)."""
        self._kills += 1
        topic = f"Next{self._kills}"
        self._make_topic(topic)
        master = self.cluster.master()
        load = Load(program, self.cluster.broker_addresses[master], connections=1)
        load.send(topic, _PROBES, wall_ms() + round(1000 * _BEFORE_S), _PROBES * _EVERY_MS)
        senders = Senders(self.cluster.broker_addresses, TOPIC, pause_s=0.001)
        senders.start()
        try:
            time.sleep(_BEFORE_S + 2)  # some are delivered before the kill, and more are due after it
            killed_s, killed_ms = time.monotonic(), wall_ms()
            self.cluster.brokers[master].kill()
            sent_ms = 1000 * (senders.first_success_elsewhere(master, killed_s) - killed_s)
        finally:
            senders.stop()
        address = self.cluster.broker_addresses[self.cluster.master()]
        wait_visible(address, topic, _PROBES, 120)
        self.cluster.brokers[master].start()
        stored_ms = delivered(self.cluster.controller_addresses, topic, _PROBES).stored_ms
        return sent_ms, float(stored_ms[stored_ms > killed_ms].min() - killed_ms)

    def _stop_replica(self) -> Process:
        """So that the master is alone in the sync-state set."""
        replica = self.cluster.brokers[1 - self.cluster.master()]
        replica.terminate()
        eventually("the replica is gone", lambda: len((self.cluster.group() or {}).get("syncStateSet", ())) == 1)
        return replica

    def _used_in(self, seconds: float) -> float:
        pids = [broker.pid for broker in self.cluster.brokers]
        before_s = sum(map(cpu_seconds, pids))
        time.sleep(seconds)
        return sum(map(cpu_seconds, pids)) - before_s

    def _make_topic(self, topic: str) -> None:
        call_until(lambda: self.cluster.admin.create_topic(topic, queues=QUEUES))
        eventually(f"the route of {topic}", lambda: bool(self.cluster.admin.queue_offsets(topic)))

    def _state(self) -> TimerState:
        with SocketConnection(self.cluster.broker_addresses[self.cluster.master()], timeout_ms=30_000) as connection:
            found = decode(BrokerState, connection.call(codes.BROKER_STATE).body).timers
        assert found is not None
        return found


def run(timers: int = TIMERS, pairs: int = PAIRS, idle_s: float = IDLE_S, step: Step = lambda _: None) -> list[Row]:
    with load_program() as program, ExitStack() as stack:
        empty, full = Group(stack), Group(stack)
        standings = {}
        for group, count in ((empty, 0), (full, timers // 10), (full, timers)):
            if count:
                group.fill(count)
            step(f"{count:,} timers")
            standings[count] = each = group.standing(idle_s)
            print(
                f"{count:,} timers: idle {100 * each.idle:.2f} %, {each.memory_mb:.0f} MB, start {each.start_s:.1f} s, "
                f"{each.start_cpu_s:.1f} s of CPU time; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        times = []
        for number in range(pairs):
            for group in (empty, full):
                group.wait_whole()
            step(f"kill {number + 1}")
            first, second = (empty, full) if number % 2 == 0 else (full, empty)
            found = {id(group): group.kill(program) for group in (first, second)}
            times.append((found[id(empty)], found[id(full)]))
            words = (f"send {sent:.0f} ms, timer {due:.0f} ms" for sent, due in times[-1])
            print(f"kill {number + 1}: {' with none, '.join(words)} with {timers:,}", flush=True)
    rows = [*_standing_rows(standings, timers), *_takeover_rows(times, timers)]
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def _standing_rows(standings: dict[int, Standing], timers: int) -> list[Row]:
    none, tenth, whole = standings[0], standings[timers // 10], standings[timers]
    more_mb = whole.memory_mb - none.memory_mb
    steps = (_HUNDRED_MILLIONS - timers) / (timers - timers // 10)
    memory_mb, start_s = (
        getattr(whole, name) + steps * (getattr(whole, name) - getattr(tenth, name))
        for name in ("memory_mb", "start_s")
    )
    load = f"load {os.getloadavg()[0]:.1f}"
    return [
        Row(
            f"{timers:,} timers wait: idle CPU of both brokers",
            f"{100 * whole.idle:.2f} % of a processor, {100 * none.idle:.2f} % with none; {load}",
            "no measurable more",
        ),
        Row(
            f"{timers:,} timers wait: memory of the master",
            f"{whole.memory_mb:.0f} MB, {more_mb:+.0f} MB against none",
            f"<= {GOAL_MB} MB",
            whole.memory_mb <= GOAL_MB,
        ),
        Row(
            f"{timers:,} timers wait: a broker's start until it is in sync",
            f"{whole.start_s:.1f} s, {whole.start_cpu_s:.1f} s of CPU time; "
            f"{none.start_s:.1f} s and {none.start_cpu_s:.1f} s with none",
            f"<= {GOAL_START_S} s",
            whole.start_s <= GOAL_START_S,
        ),
        Row("100,000,000 timers, by the slope", f"{memory_mb:.0f} MB, start {max(0.0, start_s):.1f} s"),
    ]


def _takeover_rows(times: list[tuple[tuple[float, float], tuple[float, float]]], timers: int) -> list[Row]:
    rows = []
    for at, what in enumerate(("first send", "first delivery")):
        none, full = ([each[side][at] for each in times] for side in (0, 1))
        if none:
            more_ms = statistics.median(b - a for a, b in zip(none, full, strict=True))
            figure = f"{more_ms:+.0f} ms; medians {statistics.median(full):.0f} and {statistics.median(none):.0f} ms"
            rows.append(
                Row(
                    f"kill of the master to the {what}, {timers:,} timers against none, {len(none)} pairs",
                    figure,
                    f"<= {GOAL_TAKEOVER_MS:+d} ms",
                    more_ms <= GOAL_TAKEOVER_MS,
                )
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timers", type=int, default=TIMERS, help="that wait (%(default)s)")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of kills (%(default)s)")
    parser.add_argument("--idle", type=float, default=IDLE_S, help="seconds of doing nothing (%(default)s)")
    parser.add_argument("--step", action="store_true", help="wait for a line before each measurement")
    options = parser.parse_args()
    run(options.timers, options.pairs, options.idle, _ask if options.step else lambda _: None)


def _ask(what: str) -> None:
    print(f"ready to measure {what}", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
