"""What it costs the broker's own code to bring back messages that nobody acknowledged: CPU time in process, without sockets.

    python -m tests.bench.revival_turns [--messages N] [--batch N] [--profile]

A core on a disk in memory, whose loop is moved by hand: messages are taken, alone or so many at a time, and all of them are due
at the same moment, when receives of 32 wait for them, which are asked again as soon as they are answered. What counts is from
that moment until the last message is given: CPU time of a message, and that of the longest turn of the loop. The median of
several runs, each in a process of its own. With --profile the functions that take the time are told.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import statistics
import subprocess
import sys
import time
from typing import Final

from brokerd.loop import tuning
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import PopDone, PopOutcome, PopRequest, PopStatus
from brokerd.pop.settings import PopSettings
from brokerd.replication.roles.effects import Role
from brokerd.store.draft import Draft
from brokerd.store.settings import StoreSettings
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.bench.harness import ROOT, Row
from tests.bench.ledger_turns import TimedTurns
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk

_GOAL_US: Final = 15
_RUNS: Final = 5
_QUEUES: Final = 8
_RECEIVES: Final = 64
_AT_ONCE: Final = 500
_HIDDEN_MS: Final = 600_000
_WAIT_MS: Final = 15_000
_AWHILE_MS: Final = 1000  # of the hand-moved clock: before they are due, and until all have come
_HOST: Final = pack_host("127.0.0.1", 10911)


class Bench:
    """Messages in flight; `come_again` gives them to receives that wait for them."""

    def __init__(self, messages: int, batch: int) -> None:
        self._turns = turns = TimedTurns()
        self._messages = messages
        self._left = messages
        store = StoreSettings(segment_size_bytes=1 << 28, index_enabled=False)
        pop = PopSettings(max_in_flight_per_group=2 * messages)
        broker = AloneBroker(MemoryDisk(), turns, store, _HOST, pop=pop)
        broker.replica.become(Role.MASTER)
        self._core = core = broker.core
        core.metadata.put_topic(TopicConfig("t", _QUEUES, _QUEUES), lambda _: None)
        core.metadata.put_group(GroupConfig("g"), lambda _: None)
        properties = encode_properties({"UNIQ_KEY": "key"})
        for start in range(0, messages, _AT_ONCE):
            queue_id = start // _AT_ONCE % _QUEUES
            count = min(_AT_ONCE, messages - start)
            core.sender.send([Draft("t", queue_id, bytes(100), properties, 0, _HOST)] * count, lambda _: None)
            turns.run()
        taken: list[PopOutcome] = []
        self._due_ms = _HIDDEN_MS
        for _ in range(0, messages, batch):
            self._receive(batch, self._due_ms - turns.monotonic_ms(), taken.append)
            turns.run(0.1)
        if sum(len(each.messages) for each in taken) != messages or turns.monotonic_ms() >= self._due_ms:
            raise RuntimeError("not all messages were taken in time")
        tuning.settle()  # as in a broker

    def come_again(self) -> tuple[float, float]:
        """Microseconds of CPU a message, milliseconds of the longest turn."""
        self._turns.run(self._due_ms - self._turns.monotonic_ms() - _AWHILE_MS)
        for _ in range(_RECEIVES):
            self._receive_again()
        self._turns.run(_AWHILE_MS - 1)
        self._turns.longest_ms()
        began_s = time.process_time()
        for _ in range(_AWHILE_MS):
            self._turns.run(1)
        used_s = time.process_time() - began_s
        if self._left:
            raise RuntimeError(f"{self._left} messages did not come again")
        return used_s * 1e6 / self._messages, self._turns.longest_ms()

    def _receive(self, count: int, invisible_ms: int, done: PopDone) -> None:
        request = PopRequest("g", "t", -1, count, invisible_ms, self._turns.monotonic_ms() + _WAIT_MS, InitMode.MIN)
        self._core.pop.pop(request, done)

    def _receive_again(self) -> None:
        self._receive(32, _HIDDEN_MS, self._answered)

    def _answered(self, outcome: PopOutcome) -> None:
        if outcome.status is PopStatus.FOUND:
            self._left -= len(outcome.messages)
            self._turns.call_soon(self._receive_again)


def run(messages: int, batches: tuple[int, ...] = (1, 32)) -> list[Row]:
    rows = []
    for batch in batches:
        words = [sys.executable, "-m", "tests.bench.revival_turns", "--measure", str(messages), str(batch)]
        answers = [subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout for _ in range(_RUNS)]
        used_us, turn_ms = zip(*(map(float, answer.split()) for answer in answers), strict=True)
        name = f"{messages:,} taken in batches of {batch}, all due at once, in process"
        median = statistics.median(used_us)
        figure = (
            f"{median:.1f} us of CPU a message ({min(used_us):.1f}-{max(used_us):.1f}), "
            f"longest turn {statistics.median(turn_ms):.1f} ms"
        )
        rows.append(Row(name, figure, f"<= {_GOAL_US} us", median <= _GOAL_US))
        print(f"{name}: {figure}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32], help="taken at once (%(default)s)")
    parser.add_argument("--measure", type=int, nargs=2, metavar=("MESSAGES", "BATCH"), help="one run, in this process")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    if options.profile:
        bench = Bench(options.messages, options.batch[0])
        profile = cProfile.Profile()
        profile.runcall(bench.come_again)
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    elif options.measure:
        print(*Bench(*options.measure).come_again())
    else:
        run(options.messages, tuple(options.batch))


if __name__ == "__main__":
    main()
