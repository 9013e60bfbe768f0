"""Nothing happens when nothing is wrong: a group under load on two busy processors holds no election and changes no set.

    python -m tests.bench.steady [--minutes N] [--busy PERCENT] [--processors N]

Everything runs on the first two processors: three controllers, three brokers, the senders, and one program per processor that
keeps it busy for that part of every tenth of a second. Once a second the controllers are asked for epochs and sets. The figures
are how often those changed (the goal is: never), and how near the detectors came to it: the longest silences that controllers
heard, and how late the daemons' own loops were.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from remoting.errors import LogboomError
from tests.bench.harness import Row
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.senders import Senders
from tests.support.workload import call_until, check_queue, read_queue

TOPIC: Final = "Steady"
_EVERY_S: Final = 1.0
_BETWEEN_SENDS_S: Final = 0.002
_HOG: Final = """
import sys, time
part, period = float(sys.argv[1]), 0.1
while True:
    until = time.perf_counter() + part * period
    while time.perf_counter() < until:
        pass
    time.sleep((1 - part) * period)
"""


@dataclass
class Steadiness:
    """What was seen in the whole time."""

    minutes: float
    busy_percent: int
    processors: int
    looks: int = 0
    unanswered: int = 0
    elections: int = 0
    set_changes: int = 0
    leader_changes: int = 0
    pauses: Counter[str] = field(default_factory=Counter)
    longest_silence_ms: int = 0
    longest_limit_ms: int = 0
    worst_delay_ms: int = 0
    longest_gap_s: float = 0.0
    acknowledged: int = 0
    refused_or_unknown: int = 0
    loads: list[float] = field(default_factory=list)

    def rows(self) -> list[Row]:
        name = f"{self.minutes:.0f} min at {self.busy_percent} % on {self.processors} processors"
        load = f"load {min(self.loads):.1f}-{max(self.loads):.1f}"
        return [
            Row(f"{name}: elections", f"{self.elections}, {load}", "0", self.elections == 0),
            Row(f"{name}: changes of the sync-state set", f"{self.set_changes}", "0", self.set_changes == 0),
            Row(f"{name}: changes of the controllers' leader", f"{self.leader_changes}"),
            Row(
                f"{name}: longest silence of a live broker",
                f"{self.longest_silence_ms} ms (limits up to {self.longest_limit_ms} ms)",
            ),
            Row(f"{name}: longest delay of a daemon's loop", f"{self.worst_delay_ms} ms; pauses {dict(self.pauses)}"),
            Row(
                f"{name}: longest time without an acknowledged send",
                f"{self.longest_gap_s * 1000:.0f} ms; {self.acknowledged} acknowledged, {self.refused_or_unknown} not",
            ),
        ]


@contextmanager
def busy(percent: int, processors: list[int]) -> Iterator[None]:
    """Programs that use this part of each of the processors."""
    hogs = []
    try:
        for processor in processors:
            hog = subprocess.Popen([sys.executable, "-c", _HOG, str(percent / 100)])
            hogs.append(hog)
            os.sched_setaffinity(hog.pid, {processor})
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def run(minutes: float, busy_percent: int = 80, processors: int = 2) -> Steadiness:
    """The daemons inherit this process's processors."""
    allowed = os.sched_getaffinity(0)
    chosen = sorted(allowed)[:processors]
    os.sched_setaffinity(0, chosen)
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    seen = Steadiness(minutes, busy_percent, len(chosen))
    try:
        with Cluster(directory) as cluster, busy(busy_percent, chosen):
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
            eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
            senders = Senders(cluster.broker_addresses, TOPIC, _BETWEEN_SENDS_S)
            senders.start()
            eventually("the first sends", lambda: senders.acknowledged > 20)
            began_s = time.monotonic()
            _watch(cluster, seen, began_s + minutes * 60)
            seen.longest_gap_s = senders.longest_gap(began_s, time.monotonic())
            histories = senders.stop()
            check_queue(read_queue(cluster.admin, TOPIC, 0), histories)
            seen.acknowledged = sum(len(history.acknowledged) for history in histories)
            master = max(histories, key=lambda history: len(history.acknowledged))
            seen.refused_or_unknown = master.refused + sum(len(history.unknown) for history in histories)
            for process in cluster.processes:
                for line in process.log_text().splitlines():
                    if "WARNING" in line or "ERROR" in line or "proposing" in line or "needs a master" in line:
                        print(f"    {line[:23]} {process.name} {line[24:]}", flush=True)
    finally:
        os.sched_setaffinity(0, allowed)
        shutil.rmtree(directory)
    return seen


def _watch(cluster: Cluster, seen: Steadiness, until_s: float) -> None:
    """Ask once a second. An epoch that moved by n counts as n changes."""
    group = cluster.wait_in_sync(len(cluster.brokers))
    epoch, set_epoch, leader = group["masterEpoch"], group["syncStateSetEpoch"], None
    told_s = time.monotonic()
    while time.monotonic() < until_s:
        time.sleep(_EVERY_S)
        seen.looks += 1
        seen.loads.append(os.getloadavg()[0])
        try:
            view = document(cluster.admin.cluster_view())
            states = [document(cluster.admin.broker_state(address)) for address in cluster.broker_addresses]
        except LogboomError as error:
            seen.unanswered += 1
            print(f"    not answered: {error}", flush=True)
            continue
        [group] = view["groups"]
        changed = (group["masterEpoch"] - epoch, group["syncStateSetEpoch"] - set_epoch)
        if any(changed):
            print(
                f"    changed: {group['masterEpoch']=} {group['syncStateSet']=} {group['syncStateSetEpoch']=}",
                flush=True,
            )
        seen.elections += changed[0]
        seen.set_changes += changed[1]
        epoch, set_epoch = group["masterEpoch"], group["syncStateSetEpoch"]
        seen.leader_changes += leader is not None and view["leaderId"] not in (None, leader)
        leader = view["leaderId"] or leader
        _look(seen, view, states)
        if time.monotonic() - told_s >= 60:
            told_s = time.monotonic()
            print(
                f"    {(until_s - told_s) / 60:.0f} min to go: {seen.elections} elections, {seen.set_changes} set changes, "
                f"longest silence {seen.longest_silence_ms} ms, worst loop delay {seen.worst_delay_ms} ms, "
                f"load {seen.loads[-1]:.1f}",
                flush=True,
            )


def _look(seen: Steadiness, view: dict[str, Any], states: list[dict[str, Any]]) -> None:
    for replica in view["groups"][0]["replicas"]:
        seen.longest_silence_ms = max(seen.longest_silence_ms, replica["longestSilenceMs"] or 0)
        seen.longest_limit_ms = max(seen.longest_limit_ms, replica["silenceLimitMs"] or 0)
    for name, loop in (
        ("controller", view["loop"]),
        *((f"broker {each['brokerId']}", each["loop"]) for each in states),
    ):
        seen.worst_delay_ms = max(seen.worst_delay_ms, loop["worstDelayMs"])
        if loop["pauses"]:
            seen.pauses[name] = max(seen.pauses[name], loop["pauses"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long (%(default)s)")
    parser.add_argument("--busy", type=int, default=80, help="percent of each processor that others use (%(default)s)")
    parser.add_argument("--processors", type=int, default=2, help="how many there are for everything (%(default)s)")
    chosen = parser.parse_args()
    seen = run(chosen.minutes, chosen.busy, chosen.processors)
    for row in seen.rows():
        print(f"{row.name}: {row.figure}" + (f" (goal {row.goal})" if row.goal else ""))
    sys.exit(1 if seen.elections or seen.set_changes else 0)


if __name__ == "__main__":
    main()
