"""What ten thousand queues cost: sends spread over all of them beside sends to sixteen, and how long a start takes.

    python -m tests.bench.many_queues [--topics N] [--pairs N] [--seconds S] [--only starts|sends] [--flush background|fdatasync]

Starts are after a stop, and after kill -9. Every queue holds messages. The time counts from the start of the process to the
master that takes a message; then each queue's end is asked for and compared with what was sent. Sends are of 1 KiB, in four loads
at once, each with a topic of its own; every queue of the many gets messages in turn. The latencies are the worst load's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.bench.harness import Pairs, Row, Sample, in_pairs, load_program, run_load
from tests.bench.processes import cpu_seconds, memory_of
from tests.bench.sends import BACKGROUND, broker, check_stored
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

GOAL_S: Final = 10.0
SENDS_GOAL: Final = 0.95
FLUSHES: Final[Mapping[str, tuple[str, ...]]] = {"background": BACKGROUND, "fdatasync": ()}
QUEUES: Final = 8  # of each topic
LOADS: Final = 4
_IN_FLIGHT: Final = 16
_PATIENCE_S: Final = 300.0
_LOOK_S: Final = 1.0
_IDLE: Final = 0.15  # processor time of an idle broker, with its timers
_MESSAGES: Final = 2  # of each queue


def run(topics: int) -> list[Row]:
    """Fill the queues, then start the broker again after each kind of end."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        with Cluster(directory, controllers=1, replicas=1) as cluster:
            cluster.start()
            cluster.wait_in_sync(1, timeout_s=60)
            _fill(cluster.broker_addresses[0], topics)
            broker = cluster.brokers[0]
            rows = []
            for end, stop in (("a stop", broker.terminate), ("kill -9", broker.kill)):
                stop()
                took_s = _start(cluster)
                _check(cluster.broker_addresses[0], topics)
                open_files = len(os.listdir(f"/proc/{broker.pid}/fd"))
                memory = memory_of(broker.pid)
                figure = f"{took_s:.1f} s, {memory.resident_mb:.0f} MB, {open_files} open files"
                name = f"start of a broker with {topics * QUEUES:,} queues after {end}"
                rows.append(Row(name, figure, f"< {GOAL_S:.0f} s", took_s < GOAL_S))
                print(f"{name}: {figure}", flush=True)
        return rows
    finally:
        shutil.rmtree(directory)


def run_sends(pairs: int, seconds: float, flushes: Iterable[str] = tuple(FLUSHES)) -> list[Row]:
    """Sends to ten thousand queues (A) and to sixteen (B), with each way of acknowledging: rates, and what the slowest wait."""
    rows = []
    with load_program() as program:
        for flush in flushes:
            settings = FLUSHES[flush]
            found = in_pairs(
                f"{LOADS} x {_IN_FLIGHT}, {flush}: 10,000 queues / 16",
                pairs,
                lambda settings=settings: _sends(program, 2500, seconds, settings),  # type: ignore[misc]
                lambda settings=settings: _sends(program, 4, seconds, settings),  # type: ignore[misc]
                SENDS_GOAL,
            )
            rows += [found.row, _slowest(found)]
    return rows


def _slowest(found: Pairs) -> Row:
    """P99.99 of the sends, in the median of the rounds, and the worst round: 10,000 queues beside 16."""
    sides = [sorted(sample.p9999_us / 1000 for sample in side) for side in (found.a, found.b)]
    figure = " / ".join(f"{statistics.median(each):.1f} ({each[-1]:.1f})" for each in sides) + " ms"
    row = Row(f"{found.name}: P99.99 (the worst round)", figure)
    print(f"{row.name}: {row.figure}", flush=True)
    return row


def _sends(program: Path, queues: int, seconds: float, settings: tuple[str, ...]) -> Sample:
    """Of a fresh broker, each of whose queues has got a message already, and its files: those are made once."""
    topics = [f"Many{number}" for number in range(LOADS)]
    with broker(1, settings) as (cluster, address), ThreadPoolExecutor(LOADS) as loads:
        for topic in topics:
            call_until(lambda topic=topic: cluster.admin.create_topic(topic, queues=queues))  # type: ignore[misc]

        def load(topic: str, seconds: float, requests: int = 0) -> tuple[Sample, int]:
            return run_load(
                program, address, topic, queues=queues, in_flight=_IN_FLIGHT, seconds=seconds, requests=requests
            )

        list(loads.map(lambda topic: load(topic, _PATIENCE_S, queues), topics))
        _wait_written(cluster, LOADS * queues)
        before_s = cpu_seconds(cluster.brokers[0].pid)
        found = list(loads.map(lambda topic: load(topic, seconds), topics))
        used_s = cpu_seconds(cluster.brokers[0].pid) - before_s
        samples, messages = [sample for sample, _ in found], sum(count for _, count in found)
        stored = messages + LOADS * queues
        check_stored(
            stored, lambda: sum(each.max_offset for name in topics for each in cluster.admin.queue_offsets(name))
        )
        return Sample(
            sum(sample.rate for sample in samples),
            max(sample.p50_us for sample in samples),
            max(sample.p99_us for sample in samples),
            used_s * 1e6 / messages,
            p9999_us=max(sample.p9999_us for sample in samples),
        )


def _wait_written(cluster: Cluster, queues: int) -> None:
    """Wait until each queue has its file, and the checkpoint that made them is over."""
    files, broker = cluster.data / "b0" / "consumequeue", cluster.brokers[0]
    eventually("each queue has a file", lambda: sum(1 for _ in files.glob("Many*/*/*")) == queues, _PATIENCE_S)

    def is_idle() -> bool:
        before_s = cpu_seconds(broker.pid)
        time.sleep(_LOOK_S)
        return cpu_seconds(broker.pid) - before_s < _IDLE * _LOOK_S

    eventually("the broker is idle", is_idle, _PATIENCE_S)


def _start(cluster: Cluster) -> float:
    began_s = time.monotonic()
    cluster.brokers[0].start()
    call_until(lambda: _call(cluster.broker_addresses[0], codes.SEND_MESSAGE_V2, *_message("Extra", 0)), _PATIENCE_S)
    return time.monotonic() - began_s


def _call(address: str, code: int, header: dict[str, str], body: bytes = b"") -> None:
    with SocketConnection(address) as connection:
        connection.call(code, header, body)


def _fill(address: str, topics: int) -> None:
    call_until(lambda: _call(address, codes.UPDATE_AND_CREATE_TOPIC, topic_header("Extra", 1)), _PATIENCE_S)
    with SocketConnection(address) as connection:
        for topic in range(topics):
            connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_header(f"Many{topic}", QUEUES))
        for _ in range(_MESSAGES):
            for topic in range(topics):
                for queue_id in range(QUEUES):
                    connection.call(codes.SEND_MESSAGE_V2, *_message(f"Many{topic}", queue_id))


def _check(address: str, topics: int) -> None:
    with SocketConnection(address) as connection:
        for topic in range(topics):
            for queue_id in range(QUEUES):
                asked = {"topic": f"Many{topic}", "queueId": str(queue_id)}
                found = int(connection.call(codes.GET_MAX_OFFSET, asked).ext["offset"])
                assert found == _MESSAGES, f"{asked} ends at {found}, {_MESSAGES} messages were acknowledged"


def topic_header(name: str, queues: int) -> dict[str, str]:
    """The header that makes a topic."""
    return {
        **{"topic": name, "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0"},
        **{"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6", "order": "false"},
    }


def _message(topic: str, queue_id: int) -> tuple[dict[str, str], bytes]:
    header = {
        **{"a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": f"UNIQ_KEY\x01{queue_id:032X}\x02", "j": "0", "k": "false", "m": "false"},
    }
    return header, bytes(100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1250, help=f"each with {QUEUES} queues (%(default)s)")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=30, help="of each load, with a checkpoint or two (%(default)s)"
    )
    parser.add_argument("--only", choices=("starts", "sends"), default="")
    parser.add_argument("--flush", choices=FLUSHES, help="measure sends with this way of acknowledging alone")
    options = parser.parse_args()
    if options.only != "sends":
        run(options.topics)
    if options.only != "starts":
        run_sends(options.pairs, options.seconds, [options.flush] if options.flush else FLUSHES)


if __name__ == "__main__":
    main()
