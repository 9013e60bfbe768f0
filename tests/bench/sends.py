"""Sends over remoting: the broker against the bare prototype, and three replicas against one.

    python -m tests.bench.sends [--pairs N] [--seconds S]

The stored count is checked after every run against what the load counted as acknowledged.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError
from tests.bench.harness import Pairs, Sample, in_pairs, load_program, python_server, run_load
from tests.bench.processes import cpu_seconds
from tests.support.cluster import Cluster, eventually, free_ports
from tests.support.workload import call_until

TOPIC = "Bench"
NO_INDEX = "store.index_enabled=false"
NO_CHECKSUMS = "store.record_checksums=false"
NATIVE, PYTHON = "kernel.mode=native", "kernel.mode=python"
BACKGROUND = ("replication.ack_after=append",)


@contextmanager
def prototype(mode: str) -> Iterator[tuple[str, int]]:
    """The address and process of the bare prototype, listening."""
    [port] = free_ports(1)
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with python_server("tests.bench.prototype", str(port), str(directory / "log"), mode) as process:
            eventually("the prototype listens", lambda: _listens(f"127.0.0.1:{port}"))
            yield f"127.0.0.1:{port}", process.pid
    finally:
        shutil.rmtree(directory)


def _listens(address: str) -> bool:
    try:
        SocketConnection(address).close()
    except LogboomError:
        return False
    return True


@contextmanager
def broker(replicas: int, settings: tuple[str, ...] = ()) -> Iterator[tuple[Cluster, str]]:
    """A cluster with the topic made, and its master's address."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory, controllers=1, replicas=replicas, broker_settings=settings) as cluster:
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(TOPIC, queues=8))
            eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
            yield cluster, cluster.broker_addresses[cluster.master()]
    finally:
        shutil.rmtree(directory)


def timed(load: Callable[[str], tuple[Sample, int]], address: str, pids: Sequence[int]) -> tuple[Sample, int]:
    """The load's sample with the CPU time per message of the processes that served it."""
    before_s = sum(map(cpu_seconds, pids))
    sample, acknowledged = load(address)
    used_s = sum(map(cpu_seconds, pids)) - before_s
    return replace(sample, cpu_us=used_s * 1e6 / acknowledged), acknowledged


def wait_stored(acknowledged: int, count: Callable[[], int]) -> int:
    """The number of stored messages as soon as it is that of the acknowledged ones, or what it stays at."""
    deadline = time.monotonic() + 10
    while (stored := count()) < acknowledged and time.monotonic() < deadline:
        time.sleep(0.1)
    return stored


def check_stored(acknowledged: int, count: Callable[[], int], failures: int = 0) -> None:
    """Wait until as many messages are counted as were acknowledged; raises RuntimeError for any other number, except that those
    which failed may be there."""
    stored = wait_stored(acknowledged, count)
    if not acknowledged <= stored <= acknowledged + failures:
        raise RuntimeError(f"{acknowledged} sends were acknowledged and {stored} messages are stored")


def measured(
    replicas: int, settings: tuple[str, ...], load: Callable[[str], tuple[Sample, int]]
) -> Callable[[], Sample]:
    """A measurement of a fresh cluster; the stored count must be the acknowledged one."""

    def measure() -> Sample:
        with broker(replicas, settings) as (cluster, address):
            sample, acknowledged = timed(load, address, [each.pid for each in cluster.brokers])
            check_stored(acknowledged, lambda: sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC)))
            return sample

    return measure


def run(pairs: int, seconds: float, only: str = "") -> list[Pairs]:
    """All rows whose name contains `only`."""
    with load_program() as program:

        def load(batch: int = 0, connections: int = 1, in_flight: int = 64) -> Callable[[str], tuple[Sample, int]]:
            return lambda address: run_load(
                program, address, TOPIC, seconds=seconds, batch=batch, connections=connections, in_flight=in_flight
            )

        def bare(mode: str, the_load: Callable[[str], tuple[Sample, int]]) -> Callable[[], Sample]:
            def measure() -> Sample:
                with prototype(mode) as (address, pid):
                    return timed(the_load, address, [pid])[0]

            return measure

        rows = [
            (
                "1 x 64, background flush: broker / prototype",
                measured(1, BACKGROUND, load()),
                bare("background", load()),
                0.5,
            ),
            ("1 x 64, fdatasync: broker / prototype", measured(1, (), load()), bare("sync", load()), 0.5),
            (
                "batches of 32, background: broker / prototype (as one unit)",
                measured(1, BACKGROUND, load(32)),
                bare("background", load(32)),
                0.5,
            ),
            (
                "batches of 32, mixed sizes, background: broker / prototype",
                measured(1, BACKGROUND, load(-32)),
                bare("background", load(-32)),
                None,
            ),
            (
                "1 x 64, background flush: with the index of keys / without",
                measured(1, BACKGROUND, load()),
                measured(1, (*BACKGROUND, NO_INDEX), load()),
                0.9,
            ),
            (
                "batches of 32, background: with the index of keys / without",
                measured(1, BACKGROUND, load(32)),
                measured(1, (*BACKGROUND, NO_INDEX), load(32)),
                None,
            ),
            (
                "1 x 64, background flush: with checksums over records / without",
                measured(1, BACKGROUND, load()),
                measured(1, (*BACKGROUND, NO_CHECKSUMS), load()),
                0.95,
            ),
            (
                "batches of 32, background: with checksums over records / without",
                measured(1, BACKGROUND, load(32)),
                measured(1, (*BACKGROUND, NO_CHECKSUMS), load(32)),
                None,
            ),
            *(
                (
                    f"{name}, background: loops in C / in Python",
                    measured(1, (*BACKGROUND, NATIVE), the_load),
                    measured(1, (*BACKGROUND, PYTHON), the_load),
                    None,
                )
                for name, the_load in (
                    ("1 x 64", load()),
                    ("1 x 1", load(0, 1, 1)),
                    ("64 x 1", load(0, 64, 1)),
                    ("batches of 32", load(32)),
                    ("batches of 32, mixed sizes", load(-32)),
                )
            ),
            ("1 x 64, fdatasync: three replicas / one", measured(3, (), load()), measured(1, (), load()), 0.4),
            (
                "64 x 1, fdatasync: broker / prototype",
                measured(1, (), load(0, 64, 1)),
                bare("sync", load(0, 64, 1)),
                None,
            ),
            ("1 x 1, fdatasync: broker / prototype", measured(1, (), load(0, 1, 1)), bare("sync", load(0, 1, 1)), None),
        ]
        return [in_pairs(name, pairs, a, b, goal) for name, a, b, goal in rows if only in name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    run(options.pairs, options.seconds, options.only)


if __name__ == "__main__":
    main()
