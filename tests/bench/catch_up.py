"""How fast a fresh replica copies a long log, beside a bare copy of the same bytes over a socket.

    python -m tests.bench.catch_up [--pairs N] [--megabytes N] [--body-bytes N]

A master is loaded alone; then a second broker with an empty directory starts, and the time counts from the first look that finds
bytes in its log until it has as many, flushed, as the master had when it began. Both logs are compared byte for byte afterwards.
The bare copy reads files in big pieces, sends them to another process, which writes and syncs them: what this machine can do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import socket
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from remoting.errors import LogboomError
from tests.bench.harness import Row, load_program, run_load
from tests.bench.processes import cpu_seconds
from tests.bench.sends import TOPIC
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.workload import call_until

GOAL_MB_PER_S: Final = 200
SEGMENT_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20
_LIMIT_S: Final = 300.0


@dataclass(frozen=True)
class Copy:
    """One copy of a log. CPU time is of the process that received it."""

    megabytes: float
    seconds: float
    cpu_s: float

    @property
    def mb_per_s(self) -> float:
        return self.megabytes / self.seconds

    @property
    def mb_per_cpu_s(self) -> float:
        return self.megabytes / max(self.cpu_s, 0.01)


@dataclass(frozen=True)
class CatchUp:
    """The copies of one run, in the order they were taken: by a replica, and bare."""

    body_bytes: int
    replica: list[Copy]
    bare: list[Copy]

    @property
    def row(self) -> Row:
        rates = sorted(copy.mb_per_s for copy in self.replica)
        median = statistics.median(rates)
        by_cpu = statistics.median(copy.mb_per_cpu_s for copy in self.replica)
        ratio = statistics.median(a.mb_per_s / b.mb_per_s for a, b in zip(self.replica, self.bare, strict=True))
        figure = (
            f"{median:.0f} MB/s ({rates[0]:.0f}-{rates[-1]:.0f}), {by_cpu:.0f} MB per CPU second of the replica; "
            f"{ratio:.2f} of a bare copy"
        )
        name = f"catch-up of a fresh replica, messages of {self.body_bytes} B"
        return Row(name, figure, f">= {GOAL_MB_PER_S} MB/s", median >= GOAL_MB_PER_S)


def run(pairs: int, megabytes: int, body_bytes: int = 1024) -> CatchUp:
    """Load a master with so many megabytes, and copy its log `pairs` times by a new replica and bare, in turn."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    settings = (f"store.segment_size_bytes={SEGMENT_BYTES}",)
    try:
        with Cluster(directory, controllers=1, replicas=2, broker_settings=settings) as cluster:
            _load(cluster, megabytes << 20, body_bytes)
            by_replica, bare = [], []
            for turn in range(pairs):
                by_replica.append(_copy_by_replica(cluster, settle=turn == 0))
                bare.append(_copy_bare(directory / "b0" / "commitlog", directory / "bare"))
        result = CatchUp(body_bytes, by_replica, bare)
        print(f"{result.row.name:58} {result.row.figure}  {result.row.goal}", flush=True)
        return result
    finally:
        shutil.rmtree(directory)


def _load(cluster: Cluster, size: int, body_bytes: int) -> None:
    cluster.controllers[0].start()
    cluster.brokers[0].start()
    cluster.wait_in_sync(1)
    call_until(lambda: cluster.admin.create_topic(TOPIC, queues=8))
    eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
    with load_program() as program:
        while _state(cluster, 0)["endOffset"] < size:
            run_load(program, cluster.broker_addresses[0], TOPIC, seconds=2, body_bytes=body_bytes, batch=32)


def _copy_by_replica(cluster: Cluster, *, settle: bool) -> Copy:
    """Start the second broker with an empty directory and let it copy everything."""
    replica, data = cluster.brokers[1], cluster.data / "b1"
    if not settle:
        replica.kill()
        shutil.rmtree(data)
        cluster.wait_in_sync(1)
    end = _state(cluster, 0)["endOffset"]
    replica.start()
    deadline = time.monotonic() + _LIMIT_S
    first: tuple[float, int, float] | None = None
    while True:
        state = _reachable_state(cluster, 1)
        now_s = time.monotonic()
        if now_s > deadline:
            raise RuntimeError(f"the replica has not caught up in {_LIMIT_S:.0f} s: {state}")
        if state and state["endOffset"]:
            first = first or (now_s, state["endOffset"], cpu_seconds(replica.pid))
            if state["flushedOffset"] >= end:
                break
        time.sleep(0.02)
    used_s = cpu_seconds(replica.pid) - first[2]
    _check_equal(cluster.data / "b0" / "commitlog", data / "commitlog", end)
    return Copy((end - first[1]) / 1e6, now_s - first[0], used_s)


def _reachable_state(cluster: Cluster, index: int) -> dict[str, int]:
    try:
        return _state(cluster, index)
    except LogboomError:
        return {}  # it is still starting


def _state(cluster: Cluster, index: int) -> dict[str, int]:
    return document(cluster.admin.broker_state(cluster.broker_addresses[index]))


def _check_equal(left: Path, right: Path, end: int) -> None:
    for file in sorted(left.iterdir()):
        length = min(SEGMENT_BYTES, end - int(file.name))
        if length <= 0:
            return
        with open(file, "rb") as a, open(right / file.name, "rb") as b:
            while length > 0:
                piece = a.read(min(length, 8 << 20))
                if piece != b.read(len(piece)):
                    raise RuntimeError(f"the replica's {file.name} differs from the master's")
                length -= len(piece)


def _copy_bare(source: Path, target: Path) -> Copy:
    """Send the files to another process, which writes and syncs them."""
    target.mkdir()
    files = sorted(source.iterdir())
    near, far = socket.socketpair()
    context = multiprocessing.get_context("fork")
    receiver = context.Process(target=_receive, args=(far, near, target / "copy"), daemon=True)
    receiver.start()
    far.close()
    started_s = time.monotonic()
    sent = 0
    with near:
        for file in files:
            with open(file, "rb") as content:
                sent += near.sendfile(content)
    receiver.join()
    seconds = time.monotonic() - started_s
    used_s = float((target / "cpu").read_text())
    shutil.rmtree(target)
    if receiver.exitcode:
        raise RuntimeError(f"the bare copy ended with exit code {receiver.exitcode}")
    return Copy(sent / 1e6, seconds, used_s)


def _receive(connection: socket.socket, other_end: socket.socket, path: Path) -> None:
    other_end.close()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    position = 0
    before_s = time.process_time()
    while length := connection.recv_into(buffer):
        os.pwrite(descriptor, buffer[:length], position)
        position += length
    os.fdatasync(descriptor)
    (path.parent / "cpu").write_text(str(time.process_time() - before_s))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    options = parser.parse_args()
    run(options.pairs, options.megabytes, options.body_bytes)


if __name__ == "__main__":
    main()
