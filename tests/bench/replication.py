"""Three replicas that all acknowledge: against one replica, and against Apache RocketMQ 5.3.3 with the same guarantee.

    python -m tests.bench.replication [--pairs N] [--seconds S] [--only TEXT] [--apache-pairs N] [--warm-up S]

The original runs in controller mode with `allAckInSyncStateSet=true`, flushes in the background, and gets a JVM with its full
compiler, warmed up; ours is measured with the same durability (`replication.ack_after=append`). Never both at once. Stored counts
are checked on both sides. Sends that a system refuses ("busy") or gives up are no sends. Where the original cannot be had, those
rows say so.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.bench.harness import Pairs, Row, Sample, in_pairs, load_program, print_row, run_load
from tests.bench.sends import BACKGROUND, TOPIC, broker, check_stored, measured, timed
from tests.interop.apache import FAST_JVM, Apache, Broker, Session, Unavailable
from tests.support.cluster import eventually

_QUEUES = 8
_REPLICAS = 3
_HEAP = ("-Xms2g", "-Xmx2g")
_IN_FLIGHT = (64, 1)
# What must hold of (A / B) in the rows against the original, by requests in flight.
_GOALS = {64: 3.0, 1: 2.0}


class Load(Protocol):
    """Runs the load against an address; gives the sample and how many messages were acknowledged."""

    def __call__(self, address: str, *, in_flight: int, seconds: float) -> tuple[Sample, int]: ...


def run(pairs: int, seconds: float, apache_pairs: int, warm_up_s: float, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    with load_program() as program:

        def load(address: str, *, in_flight: int, seconds: float) -> tuple[Sample, int]:
            return run_load(program, address, TOPIC, seconds=seconds, in_flight=in_flight, may_fail=True)

        rows = against_one_replica(load, pairs, seconds, only)
        if only in _name_against_original(0):
            rows += against_the_original(load, apache_pairs, seconds, warm_up_s)
        return rows


def against_one_replica(load: Load, pairs: int, seconds: float, only: str) -> list[Row]:
    rows = []
    for durability, settings in (("fdatasync", ()), ("background", BACKGROUND)):
        name = f"1 x 64, {durability}: three replicas / one"
        if only not in name:
            continue
        three, one = (
            measured(count, settings, lambda address: load(address, in_flight=64, seconds=seconds))
            for count in (_REPLICAS, 1)
        )
        found = in_pairs(name, pairs, three, one, 0.5)
        rows.append(found.row)
        slower = [a.p99_us / b.p99_us for a, b in zip(found.a, found.b, strict=True)]
        ratio = statistics.median(slower)
        figure = f"A/B {ratio:.2f} ({min(slower):.2f}-{max(slower):.2f})"
        rows.append(Row(f"{name}, p99", figure, "A/B <= 3", ratio <= 3))
    return rows


# ---- the original


def _name_against_original(in_flight: int) -> str:
    return f"three replicas, 1 x {in_flight}, background: ours / Apache RocketMQ 5.3.3"


def against_the_original(load: Load, pairs: int, seconds: float, warm_up_s: float) -> list[Row]:
    """Both systems in turn, each started afresh for every pair and measured with every number of requests in flight."""
    try:
        apache = Apache.find()
    except Unavailable as reason:
        return [Row(_name_against_original(64), f"not measured: {reason}")]
    ours: dict[int, list[Sample]] = {in_flight: [] for in_flight in _IN_FLIGHT}
    theirs: dict[int, list[Sample]] = {in_flight: [] for in_flight in _IN_FLIGHT}
    for _ in range(pairs):
        for in_flight, sample in _measure_ours(load, seconds, warm_up_s).items():
            ours[in_flight].append(sample)
        for in_flight, sample in _measure_theirs(apache, load, seconds, warm_up_s).items():
            theirs[in_flight].append(sample)
    found = [
        Pairs(_name_against_original(in_flight), ours[in_flight], theirs[in_flight], _GOALS[in_flight])
        for in_flight in _IN_FLIGHT
    ]
    for each in found:
        print_row(each)
    return [each.row for each in found]


def _measure_ours(load: Load, seconds: float, warm_up_s: float) -> dict[int, Sample]:
    with broker(_REPLICAS, BACKGROUND) as (cluster, address):
        pids = [each.pid for each in cluster.brokers]
        return _measure(load, address, pids, seconds, warm_up_s)


def _measure_theirs(apache: Apache, load: Load, seconds: float, warm_up_s: float) -> dict[int, Sample]:
    with the_original(apache) as (brokers, master):
        pids = [each.process.pid for each in brokers]
        return _measure(load, master.address, pids, seconds, warm_up_s)


def _measure(load: Load, address: str, pids: Sequence[int], seconds: float, warm_up_s: float) -> dict[int, Sample]:
    """A sample for each number of requests in flight; what is stored must be what was acknowledged."""
    warm_up, acknowledged = load(address, in_flight=64, seconds=warm_up_s)
    failures = warm_up.failures
    samples = {}
    for in_flight in _IN_FLIGHT:
        samples[in_flight], count = timed(partial(load, in_flight=in_flight, seconds=seconds), address, pids)
        acknowledged += count
        failures += samples[in_flight].failures
    check_stored(acknowledged, lambda: _stored_by(address), failures)
    return samples


@contextmanager
def the_original(apache: Apache) -> Iterator[tuple[list[Broker], Broker]]:
    """Three brokers of the original in one group, all in the sync-state set and all acknowledging; and their master."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with apache.session(directory, FAST_JVM) as session:
            name_server = session.name_server(with_controller=True)
            brokers = [_start_broker(session, name_server.address, name_server.controller) for _ in range(_REPLICAS)]

            def master() -> Broker | None:
                state = session.mqadmin("getSyncStateSet", "-a", name_server.controller, "-b", "broker-a")
                if state.count("InSyncReplica:") - state.count("NotInSyncReplica:") < _REPLICAS:
                    return None
                return next((each for each in brokers if f"#MasterAddr\t{each.address}" in state), None)

            leading = eventually("three replicas of the original in sync", master, 120)
            session.mqadmin(
                *("updateTopic", "-n", name_server.address, "-b", leading.address, "-t", TOPIC),
                *("-r", str(_QUEUES), "-w", str(_QUEUES)),
            )
            yield brokers, leading
    finally:
        shutil.rmtree(directory)


def _start_broker(session: Session, name_server: str, controller: str) -> Broker:
    return session.broker(
        "broker-a",
        name_server,
        controllers=controller,
        heap=_HEAP,
        properties={
            "allAckInSyncStateSet": "true",
            "flushDiskType": "ASYNC_FLUSH",
            "mappedFileSizeConsumeQueue": 300_000 * 20,
            "maxHashSlotNum": 5_000_000,
            "maxIndexNum": 20_000_000,
        },
    )


def _stored_by(address: str) -> int:
    """Messages in the topic's queues, as a broker of either kind says."""
    connection = SocketConnection(address)
    try:
        return sum(
            int(connection.call(codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)}).ext["offset"])
            for queue_id in range(_QUEUES)
        )
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--apache-pairs", type=int, default=5)
    parser.add_argument("--warm-up", type=float, default=20, help="seconds of load before each side is measured")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    for row in run(options.pairs, options.seconds, options.apache_pairs, options.warm_up, options.only):
        verdict = "" if row.met is None else "  met" if row.met else "  MISSED"
        print(f"{row.name}  {row.figure}  {row.goal}{verdict}")


if __name__ == "__main__":
    main()
