"""Receive and ack in batches of 32: over gRPC, and over remoting POP (codes 200050 and 200151), one replica.

    python -m tests.bench.receive_ack [--pairs N] [--messages N] [--only TEXT]

Messages of 1 KiB are stored first; then raw clients in several processes take and ack all of them. A message counts when its ack
is answered. Every message must be received once, acked once, and behind the group's offset at the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.harness import ROOT, Pairs, Sample, in_pairs, load_program, run_load
from tests.bench.processes import cpu_seconds
from tests.bench.sends import BACKGROUND, TOPIC, broker
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document

_PROCESSES: Final = 2
_CONVERSATIONS: Final = 8  # of each process
_PATIENCE_S: Final = 120


def measured(program: Path, protocol: str, settings: tuple[str, ...], messages: int) -> Callable[[], Sample]:
    """A measurement of a fresh broker that was filled before."""

    def measure() -> Sample:
        with broker(1, settings) as (cluster, address):
            stored = 0
            while stored < messages:
                stored += run_load(program, address, TOPIC, seconds=0.25, batch=32, in_flight=8)[1]
            target = cluster.grpc_addresses[0] if protocol == "grpc" else address
            pid = cluster.brokers[0].pid
            before_s = cpu_seconds(pid)
            results = consume(protocol, target, TOPIC, _group(protocol))
            used_s = cpu_seconds(pid) - before_s
            check(results, stored, cluster, address, protocol)
            return sample_of(results, stored, used_s)

    return measure


def consume(protocol: str, address: str, topic: str, group: str) -> list[dict[str, Any]]:
    """Let the consumers run until a receive brings nothing; what each says."""
    words = [
        sys.executable,
        "-m",
        "tests.bench.consumer",
        protocol,
        address,
        topic,
        group,
        str(_CONVERSATIONS),
    ]
    processes = [subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(_PROCESSES)]
    try:
        return [json.loads(process.communicate(timeout=_PATIENCE_S)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()


def check(results: Sequence[dict[str, Any]], stored: int, cluster: Cluster, address: str, protocol: str) -> None:
    """Nothing was missed, nothing came twice, and the broker knows it."""
    received, acked = (sum(result[what] for result in results) for what in ("received", "acked"))
    if received != stored or acked != stored:
        raise RuntimeError(f"{stored} messages are stored, {received} were received and {acked} acked")

    def consumed() -> bool:
        group = next(
            each for each in document(cluster.admin.broker_state(address))["groups"] if each["name"] == _group(protocol)
        )
        queues = [queue for topic in group["topics"] if topic["topic"] == TOPIC for queue in topic["queues"]]
        return sum(queue["consumerOffset"] for queue in queues) == stored and not any(
            queue["inFlight"] for queue in queues
        )

    eventually("the group's offsets are those of the last messages", consumed)


def sample_of(results: Sequence[dict[str, Any]], stored: int, used_s: float) -> Sample:
    took_s = max(result["last_s"] for result in results) - min(result["began_s"] for result in results)
    receives = sorted(each for result in results for each in result["receive_s"])
    p50, p99 = (int(receives[len(receives) * percent // 100] * 1e6) for percent in (50, 99))
    return Sample(stored / took_s, p50, p99, used_s * 1e6 / stored)


def _group(protocol: str) -> str:
    return f"bench-{protocol}"


def run(pairs: int, messages: int, only: str = "") -> list[Pairs]:
    """All rows whose name contains `only`."""
    with load_program() as program:
        rows = [
            ("receive + ack of 32, fdatasync: gRPC / remoting POP", ()),
            ("receive + ack of 32, background: gRPC / remoting POP", BACKGROUND),
        ]
        return [
            in_pairs(
                name,
                pairs,
                measured(program, "grpc", settings, messages),
                measured(program, "remoting", settings, messages),
            )
            for name, settings in rows
            if only in name
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    run(options.pairs, options.messages, options.only)


if __name__ == "__main__":
    main()
