"""How long a broker that is killed, frozen or cut off stops the sends, with default settings.

    python -m tests.bench.failover [--kills N] [--freezes N] [--slave-freezes N] [--partitions N]

Three controllers, three brokers. One sender per broker knows its address, nothing else, and tries all the time. Before each
fault the group is whole: three members in sync. Of a master's fault the time is taken from the fault to the acknowledgement of a
message that was sent after it; of a frozen replica it is the longest time without an acknowledgement, and the master must stay.
At the end every acknowledged message must be there, and nothing else. The load of the machine is printed beside the figures.
What the daemons logged meanwhile is printed for every fault that took longer than its goal.

Partitions need root, network namespaces and a TUN device; without them they are left out, and the reason is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.bench.harness import Row
from tests.chaos.addresses import CLIENTS, NODES, Link, both_ways
from tests.chaos.daemons import ChaosCluster
from tests.chaos.impair import Impairment
from tests.chaos.namespaces import RunDirectory, enter, why_not
from tests.chaos.network import Network
from tests.chaos.plan import CUT
from tests.support.cluster import Cluster, eventually
from tests.support.senders import Senders
from tests.support.workload import call_until, check_queue, read_queue

TOPIC: Final = "Failover"
DECISION_GOAL_MS: Final = 50
_BETWEEN_SENDS_S: Final = 0.002
_BLOCKED_LOOK_S: Final = 4.0  # how long after a replica's freeze gaps are looked for
_HOLD_S: Final = 4.0  # how long a fault lasts, at least: a freeze that ends as soon as it is noticed is a hiccup
_REJOIN_S: Final = 60
_DECIDED: Final = re.compile(r"the election was decided ([0-9.]+) ms after it was found due")


@dataclass(frozen=True)
class Goal:
    """In seconds; `median` None = there is none."""

    longest: float
    median: float | None = None


GOALS: Final[Mapping[str, Goal]] = {
    "kill of the master": Goal(1.0, 0.3),
    "freeze of the master": Goal(2.0),
    "freeze of a replica": Goal(2.0),
    "partition of the master": Goal(2.0),
}


@dataclass
class Outages:
    """What one kind of fault did, in order."""

    kind: str
    took_s: list[float] = field(default_factory=list)
    decisions_ms: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)  # of the machine, one minute's average, at each fault
    acknowledged: int = 0
    unknown: int = 0

    @property
    def goal(self) -> Goal:
        return GOALS[self.kind]

    @property
    def load(self) -> str:
        return f"load {min(self.loads):.1f}-{max(self.loads):.1f} on {os.cpu_count()} processors"

    def rows(self) -> list[Row]:
        """What the final table says."""
        name = f"{self.kind} to the next send, {len(self.took_s)} times"
        median, longest, goal = statistics.median(self.took_s), max(self.took_s), self.goal
        median_goal, median_met = "", None
        if goal.median is not None:
            median_goal, median_met = f"<= {goal.median * 1000:.0f} ms", median <= goal.median
        rows = [
            Row(f"{name}: median", f"{median * 1000:.0f} ms, {self.load}", median_goal, median_met),
            Row(
                f"{name}: longest",
                f"{longest * 1000:.0f} ms",
                f"<= {goal.longest * 1000:.0f} ms",
                longest <= goal.longest,
            ),
        ]
        if self.decisions_ms:
            middle, last = statistics.median(self.decisions_ms), max(self.decisions_ms)
            figure = f"median {middle:.1f} ms, longest {last:.1f} ms"
            rows.append(
                Row(
                    f"{self.kind}: election, found due to decided",
                    figure,
                    f"< {DECISION_GOAL_MS} ms",
                    last < DECISION_GOAL_MS,
                )
            )
        return rows


class Trial:
    """A cluster with its senders, and faults one after the other."""

    def __init__(self, cluster: Cluster, senders: Senders, outages: Outages) -> None:
        self.cluster = cluster
        self.senders = senders
        self.outages = outages

    def master_fault(self, inject: Callable[[int], None], heal: Callable[[int], None]) -> None:
        """A fault of the master: the seconds until another broker acknowledged a message that was sent after it."""
        cluster = self.cluster
        master = cluster.master()
        logged = {process.name: len(process.log_text()) for process in cluster.controllers}
        began, start_s = datetime.now(UTC), time.monotonic()
        inject(master)
        took_s = self.senders.first_success_elsewhere(master, start_s) - start_s
        decisions = [
            float(found[1])
            for process in cluster.controllers
            for found in _DECIDED.finditer(process.log_text()[logged[process.name] :])
        ]
        self.outages.decisions_ms += decisions
        self._note(cluster.brokers[master].name, took_s, began, f", decided in {decisions} ms")
        time.sleep(max(0.0, start_s + _HOLD_S - time.monotonic()))
        heal(master)
        cluster.wait_in_sync(len(cluster.brokers), timeout_s=_REJOIN_S)

    def replica_freeze(self) -> None:
        """A frozen replica: the longest time without an acknowledgement. The master must stay."""
        cluster = self.cluster
        group = cluster.wait_in_sync(len(cluster.brokers))
        replica = (cluster.master() + 1 + len(self.outages.took_s) % 2) % len(cluster.brokers)
        began, start_s = datetime.now(UTC), time.monotonic()
        cluster.brokers[replica].freeze()
        try:
            resumed_s = self.senders.first_success(start_s + 0.05)
            while time.monotonic() < max(start_s + _BLOCKED_LOOK_S, resumed_s + 1):
                time.sleep(0.02)
            blocked_s = self.senders.longest_gap(start_s, time.monotonic())
            after = cluster.wait_in_sync(len(cluster.brokers) - 1)
        finally:
            cluster.brokers[replica].thaw()
        assert after["masterEpoch"] == group["masterEpoch"], "the freeze of a replica cost the master its place"
        assert len(after["syncStateSet"]) == len(cluster.brokers) - 1, "the frozen replica was not taken out of the set"
        self._note(cluster.brokers[replica].name, blocked_s, began, "")
        cluster.wait_in_sync(len(cluster.brokers), timeout_s=_REJOIN_S)

    def _note(self, who: str, took_s: float, began: datetime, more: str) -> None:
        outages = self.outages
        outages.took_s.append(took_s)
        outages.loads.append(os.getloadavg()[0])
        print(
            f"{outages.kind} {len(outages.took_s):2}: {who}, {took_s * 1000:.0f} ms{more}, load {outages.loads[-1]:.1f}",
            flush=True,
        )
        if took_s > (outages.goal.median or outages.goal.longest):
            print_logs(self.cluster, began)


@contextmanager
def trial(kind: str, cluster: Cluster) -> Iterator[Trial]:
    """The cluster under load; what was acknowledged is read back at the end."""
    outages = Outages(kind)
    cluster.start()
    call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
    eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
    senders = Senders(cluster.broker_addresses, TOPIC, _BETWEEN_SENDS_S)
    senders.start()
    eventually("the first sends", lambda: senders.acknowledged > 20)
    eventually("the controllers know how regularly brokers speak", lambda: _are_known(cluster), 30)
    yield Trial(cluster, senders, outages)
    histories = senders.stop()
    check_queue(read_queue(cluster.admin, TOPIC, 0), histories)
    outages.acknowledged = sum(len(history.acknowledged) for history in histories)
    outages.unknown = sum(len(history.unknown) for history in histories)
    print_summary(outages)


def _are_known(cluster: Cluster) -> bool:
    """Every broker was heard often enough for its silence limit to have been learned, as it is a few seconds after a start."""
    group = cluster.group()
    return group is not None and all(replica.get("longestSilenceMs") for replica in group["replicas"])


@contextmanager
def local_cluster() -> Iterator[Cluster]:
    """On this machine's loopback."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory)


def kills(count: int) -> Outages:
    with local_cluster() as cluster, trial("kill of the master", cluster) as faults:
        for _ in range(count):
            faults.master_fault(lambda n: cluster.brokers[n].kill(), lambda n: cluster.brokers[n].start())
        return faults.outages


def freezes(count: int) -> Outages:
    with local_cluster() as cluster, trial("freeze of the master", cluster) as faults:
        for _ in range(count):
            faults.master_fault(lambda n: cluster.brokers[n].freeze(), lambda n: cluster.brokers[n].thaw())
        return faults.outages


def replica_freezes(count: int) -> Outages:
    with local_cluster() as cluster, trial("freeze of a replica", cluster) as faults:
        for _ in range(count):
            faults.replica_freeze()
        return faults.outages


def partitions(count: int) -> Outages:
    """The master is cut off from everybody, in a network of its own. Runs in a thread, which enters the clients' namespace."""
    directory = RunDirectory()
    try:
        network = Network(directory.prefix, seed=1)
        try:
            enter(network.namespace(CLIENTS))
            with ChaosCluster(directory.path, network) as cluster, trial("partition of the master", cluster) as faults:
                for _ in range(count):
                    faults.master_fault(
                        lambda n: network.impair(_cut_off(cluster.brokers[n].name)), lambda _: network.heal()
                    )
                return faults.outages
        finally:
            network.close()
    finally:
        directory.remove()


def _cut_off(node: str) -> dict[Link, Impairment]:
    links = both_ways((node,), tuple(other for other in NODES if other != node))
    return dict.fromkeys(links, CUT)


def in_thread(work: Callable[[], Outages]) -> Outages:
    """Run where a change of the network namespace stays with one thread (and those that it starts)."""
    results: list[Outages] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits
            errors.append(error)

    thread = threading.Thread(target=run, name="partitions")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def run(kill_count: int, freeze_count: int, replica_freeze_count: int, partition_count: int) -> list[Row]:
    """All that are asked for, and their rows."""
    rows: list[Row] = []
    for work, count in ((kills, kill_count), (freezes, freeze_count), (replica_freezes, replica_freeze_count)):
        if count:
            rows += work(count).rows()
    if partition_count:
        reason = why_not()
        if reason is None:
            rows += in_thread(lambda: partitions(partition_count)).rows()
        else:
            rows.append(Row("partition of the master", f"not measured: {reason}"))
    return rows


def print_logs(cluster: Cluster, since: datetime) -> None:
    """What the daemons logged since a moment, in one order."""
    # log lines begin with a local time that sorts as text
    first = since.astimezone().strftime("%Y-%m-%d %H:%M:%S,") + f"{since.microsecond // 1000:03}"
    lines = [
        f"    {line[:23]} {process.name} {line[24:]}"
        for process in cluster.processes
        for line in process.log_text().splitlines()
        if line[:23] >= first
    ]
    print("\n".join(sorted(lines)), flush=True)


def print_summary(outages: Outages) -> None:
    for row in outages.rows():
        print(f"{row.name}: {row.figure} (goal {row.goal or 'none'})")
    print(
        f"    {outages.acknowledged} sends acknowledged and all there, {outages.unknown} of unknown outcome", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0, help="of the master")
    parser.add_argument("--freezes", type=int, default=0, help="of the master")
    parser.add_argument("--slave-freezes", type=int, default=0, help="of a replica")
    parser.add_argument("--partitions", type=int, default=0, help="of the master from everybody")
    chosen = parser.parse_args()
    if not any(vars(chosen).values()):
        chosen.kills = 20
    for row in run(chosen.kills, chosen.freezes, chosen.slave_freezes, chosen.partitions):
        if row.figure.startswith("not measured"):
            print(f"{row.name}: {row.figure}")


if __name__ == "__main__":
    main()
