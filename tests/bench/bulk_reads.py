"""Reading stored messages as a Spark task does: in bulk, against pulls of 32 messages; one task, one replica.

    python -m tests.bench.bulk_reads [--pairs N] [--messages N] [--only TEXT]

Messages of 1 KiB are stored first; then this process reads all of them into Arrow batches. Nothing was read before, so the broker
checks every record. Nothing else keeps it busy then: no index is made. Each message must come once, in the order of its queue.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from tasks.spark import records
from tasks.spark.cluster import Cluster, find_ranges
from tasks.spark.options import Options
from tasks.spark.planning import QueueRange
from tasks.spark.reader import read_ranges
from tests.bench.harness import Pairs, Row, Sample, in_pairs, load_program, run_load
from tests.bench.processes import cpu_seconds
from tests.bench.sends import BACKGROUND, NO_INDEX, TOPIC, broker
from tests.support.pulling import pull_fields

ROWS_PER_S: Final = 250_000
CPU_S_PER_MILLION: Final = 1.5
BATCH_ROWS: Final = 8192  # of the pulls' batches: decoding costs something for each
REPORT: Final = ("topic", "broker_name", "queue_id", "queue_offset", "store_ts", "body_size", "keys")
ALL: Final = records.USUAL_COLUMNS

Read = Callable[[Cluster, Sequence[QueueRange], Sequence[str]], Iterator[pa.RecordBatch]]


def in_bulk(cluster: Cluster, ranges: Sequence[QueueRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The source's own reader."""
    return read_ranges(cluster, ranges, columns)


def in_pulls(cluster: Cluster, ranges: Sequence[QueueRange], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The same with what a consumer gets at once."""
    for each in ranges:
        parts: list[bytes] = []
        first = offset = each.start
        while offset < each.end:
            answer = cluster.ask_master(each.topic, each.broker_name, _pull(each, offset))
            offset = int(answer.ext["nextBeginOffset"])
            parts.append(bytes(answer.body))
            if offset - first >= BATCH_ROWS or offset >= each.end:
                body = b"".join(parts)
                yield records.decode(body, records.scan(body), each.broker_name, columns)
                parts, first = [], offset


def _pull(wanted: QueueRange, offset: int) -> Callable[[SocketConnection], Command]:
    fields = pull_fields(wanted.topic, wanted.queue_id, offset)
    return lambda master: master.call(codes.PULL_MESSAGE, fields, timeout_ms=10_000)


def measured(program: Path, messages: int, read: Read, columns: Sequence[str]) -> Callable[[], Sample]:
    """A measurement of a fresh broker that was filled before: rows a second, and the broker's CPU time for each."""

    def measure() -> Sample:
        with broker(1, (*BACKGROUND, NO_INDEX)) as (cluster, address):
            stored = 0
            while stored < messages:
                stored += run_load(program, address, TOPIC, seconds=0.25, batch=32, in_flight=8)[1]
            options = Options.parse({"controllers": ",".join(cluster.controller_addresses), "subscribe": TOPIC})
            pid = cluster.brokers[0].pid
            with Cluster(options.controllers) as asked:
                ranges = find_ranges(asked, options)
                before_s, began_s = cpu_seconds(pid), time.monotonic()
                rows = count(read(asked, ranges, columns))
                took_s = time.monotonic() - began_s
                used_s = cpu_seconds(pid) - before_s
            if rows != stored:
                raise RuntimeError(f"{stored} messages are stored and {rows} were read")
            return Sample(rows / took_s, cpu_us=used_s * 1e6 / rows)

    return measure


def count(batches: Iterator[pa.RecordBatch]) -> int:
    """How many rows there are; each queue's must be in order and whole."""
    following: dict[int, int] = {}
    rows = 0
    for batch in batches:
        queue_id, offsets = batch.column("queue_id")[0].as_py(), batch.column("queue_offset").to_numpy()
        first = following.get(queue_id, 0)
        if offsets[0] != first or offsets[-1] != first + len(offsets) - 1:
            raise RuntimeError(f"queue {queue_id} goes on at {offsets[0]}, not at {first}")
        following[queue_id] = first + len(offsets)
        rows += len(offsets)
    return rows


def goals(pairs: Pairs) -> list[Row]:
    """The pairs' row, and the two goals that are no ratio."""
    rate, cpu_us = statistics.median(each.rate for each in pairs.a), pairs.cpu_us[0]
    return [
        pairs.row,
        Row(f"{pairs.name}: rows of one task", f"{rate:.0f}/s", f">= {ROWS_PER_S}/s", rate >= ROWS_PER_S),
        Row(
            f"{pairs.name}: broker's CPU time of a million",
            f"{cpu_us:.2f} s",
            f"<= {CPU_S_PER_MILLION} s",
            cpu_us <= CPU_S_PER_MILLION,
        ),
    ]


def run(pairs: int, messages: int, only: str = "") -> list[Row]:
    """All rows whose name contains `only`."""
    with load_program() as program:
        columns = {"a report's columns": REPORT, "all columns": ALL}
        return [
            row
            for what, names in columns.items()
            if only in what
            for row in goals(
                in_pairs(
                    f"stored messages, {what}: in bulk / pulls of 32",
                    pairs,
                    measured(program, messages, in_bulk, names),
                    measured(program, messages, in_pulls, names),
                    2.0,
                )
            )
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    for row in run(options.pairs, options.messages, options.only):
        print(row)


if __name__ == "__main__":
    main()
