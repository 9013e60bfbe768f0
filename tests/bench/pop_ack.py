"""What pop and ack of one message cost the broker's own code: CPU time in process, without sockets and disk.

    python -m tests.bench.pop_ack [--messages N]

A core on a disk in memory, whose loop is moved by hand: so many pops in a turn, then their acks in the next, each by a client of
its own. The median of several runs, each in a process of its own.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Final

from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import AckStatus, PopOutcome, PopRequest, PopStatus
from brokerd.replication.roles.effects import Role
from brokerd.store.draft import Draft
from brokerd.store.settings import StoreSettings
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.bench.harness import ROOT, Row
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns

_GOAL_US: Final = 120
_TURNS: Final = (64, 1)
_RUNS: Final = 5
_QUEUES: Final = 8
_HOST: Final = pack_host("127.0.0.1", 10911)


def measure(messages: int, in_a_turn: int) -> float:
    """Microseconds of CPU a message."""
    turns = Turns()
    broker = AloneBroker(MemoryDisk(), turns, StoreSettings(segment_size_bytes=1 << 28, index_enabled=False), _HOST)
    broker.replica.become(Role.MASTER)
    core = broker.core
    core.metadata.put_topic(TopicConfig("t", _QUEUES, _QUEUES), lambda _: None)
    core.metadata.put_group(GroupConfig("g"), lambda _: None)
    properties = encode_properties({"UNIQ_KEY": "key"})
    for start in range(0, messages, 100):
        numbers = range(start, min(start + 100, messages))
        drafts = [Draft("t", number % _QUEUES, bytes(1024), properties, 0, _HOST) for number in numbers]
        core.sender.send(drafts, lambda _: None)
        turns.run()
    began_s = time.process_time()
    acked = 0
    while acked < messages:
        outcomes: list[PopOutcome] = []
        for client in range(in_a_turn):
            core.pop.pop(PopRequest("g", "t", -1, 1, 60_000, 0, InitMode.MIN, client_id=f"c{client}"), outcomes.append)
        turns.run()
        answers: list[Sequence[AckStatus]] = []
        for outcome in outcomes:
            if outcome.status is PopStatus.FOUND:
                core.pop.ack("g", "t", [outcome.messages[0].receipt_handle], answers.append)
        turns.run()
        if not answers or any(answer[0] is not AckStatus.OK for answer in answers):
            raise RuntimeError(f"{acked} of {messages} messages were popped and acked")
        acked += len(answers)
    return (time.process_time() - began_s) / messages * 1e6


def run(messages: int) -> list[Row]:
    rows = []
    for in_a_turn in _TURNS:
        words = [sys.executable, "-m", "tests.bench.pop_ack", "--measure", str(messages), str(in_a_turn)]
        used = [float(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout) for _ in range(_RUNS)]
        name = f"pop + ack of one message in process, {in_a_turn} in a turn"
        median = statistics.median(used)
        figure = f"{median:.0f} us of CPU ({min(used):.0f}-{max(used):.0f})"
        goal = f"<= {_GOAL_US} us" if in_a_turn > 1 else ""
        rows.append(Row(name, figure, goal, median <= _GOAL_US if goal else None))
        print(f"{name}: {figure}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument(
        "--measure", type=int, nargs=2, metavar=("MESSAGES", "PER_TURN"), help="one run, in this process"
    )
    options = parser.parse_args()
    logging.disable(logging.INFO)
    if options.measure:
        print(measure(*options.measure))
    else:
        run(options.messages)


if __name__ == "__main__":
    main()
