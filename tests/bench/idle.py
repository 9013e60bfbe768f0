"""What a whole appliance costs that nobody uses: processor time and memory of all its processes, with many topics.

    python -m tests.bench.idle [--topics N] [--seconds S] [--tree DIRECTORY]

`manage.py up` as it comes (three controllers, three brokers, Redis, console, workers, Spark's supervisor) with its own ports and
data directory; the topics are made, and nothing is sent to them. After a while of rest the processor time of each process and of
all that descend from it is taken as the kernel counts it. Memory is proportional (PSS): what processes share counts once.
`--tree` measures another version of the programs, in a working tree of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.bench.harness import ROOT, Row
from tests.bench.many_queues import topic_header
from tests.bench.processes import family_cpu_seconds, family_of, memory_of
from tests.bench.startup import command_line, wait_healthy
from tests.support.workload import call_until

TOPICS: Final = 400
SECONDS: Final = 60.0
GOAL_PERCENT: Final = 5.0
GOAL_MB: Final = 600

_QUEUES: Final = 8  # of each topic
_REST_S: Final = 30.0  # what a start leaves behind is done then
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True)
class Idle:
    """What the processes of one kind used and held: percent of one processor, MB."""

    kind: str
    percent: float
    memory_mb: float
    processes: int


def run(topics: int, seconds: float, tree: Path = ROOT) -> list[Row]:
    """Start, make the topics, rest, measure, stop."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    process = subprocess.Popen(
        command_line(directory / "data"), cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        wait_healthy(process.stdout, time.monotonic())
        state = directory / "data/run/supervisor.json"
        _make_topics(_brokers(json.loads(state.read_text())), topics)
        time.sleep(_REST_S)
        return _rows(topics, _measured(process.pid, json.loads(state.read_text()), seconds))
    finally:
        process.send_signal(signal.SIGTERM)
        process.stdout.read()  # until it has stopped everything
        process.wait(_PATIENCE_S)
        shutil.rmtree(directory)


def _brokers(state: Mapping[str, Any]) -> list[str]:
    return [process["address"] for process in state["processes"] if process["kind"] == "broker"]


def _make_topics(brokers: list[str], topics: int) -> None:
    """A broker that is no master yet says where to ask, so all are asked until one takes the first topic."""

    def taken_by() -> str:
        refused = []
        for address in brokers:
            with SocketConnection(address) as connection:
                try:
                    connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_header("Idle0", _QUEUES))
                except LogboomError as error:
                    refused.append(error)
                else:
                    return address
        raise refused[-1]

    with SocketConnection(str(call_until(taken_by, _PATIENCE_S))) as connection:
        for topic in range(1, topics):
            connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_header(f"Idle{topic}", _QUEUES))


def _measured(supervisor: int, state: Mapping[str, Any], seconds: float) -> list[Idle]:
    roots = {process["pid"]: process["kind"] for process in state["processes"] if process["pid"] is not None}
    before = {pid: family_cpu_seconds(pid) for pid in (*roots, supervisor)}
    began_s = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - began_s
    after = {pid: family_cpu_seconds(pid) for pid in before}
    used = {pid: after[pid] - before[pid] for pid in before}
    used[supervisor] -= sum(used[pid] for pid in roots)  # its family is everybody

    percent: dict[str, float] = defaultdict(float)
    memory: dict[str, float] = defaultdict(float)
    count: dict[str, int] = defaultdict(int)
    for root, kind in {**roots, supervisor: "supervisor"}.items():
        members = family_of(root) if root != supervisor else {supervisor}
        percent[kind] += 100 * used[root] / took_s
        memory[kind] += sum(memory_of(pid).shared_once_mb for pid in members)
        count[kind] += len(members)
    return [Idle(kind, percent[kind], memory[kind], count[kind]) for kind in percent]


def _rows(topics: int, idle: list[Idle]) -> list[Row]:
    for each in sorted(idle, key=lambda each: -each.percent):
        print(
            f"    {each.kind:12} {each.processes:2} processes  {each.percent:5.2f} % of a processor  "
            f"{each.memory_mb:6.1f} MB",
            flush=True,
        )
    percent, memory_mb = sum(each.percent for each in idle), sum(each.memory_mb for each in idle)
    rows = [
        Row(
            f"idle appliance with {topics} topics: processor",
            f"{percent:.1f} % of one",
            f"<= {GOAL_PERCENT:.0f} %",
            percent <= GOAL_PERCENT,
        ),
        Row(
            f"idle appliance with {topics} topics: memory",
            f"{memory_mb:.0f} MB (PSS)",
            f"<= {GOAL_MB} MB",
            memory_mb <= GOAL_MB,
        ),
    ]
    for row in rows:
        print(f"{row.name}: {row.figure} (goal {row.goal})", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=TOPICS, help=f"each with {_QUEUES} queues (%(default)s)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it is watched (%(default)s)")
    parser.add_argument("--tree", type=Path, default=ROOT, help="whose programs are measured (%(default)s)")
    options = parser.parse_args()
    run(options.topics, options.seconds, options.tree.resolve())


if __name__ == "__main__":
    main()
