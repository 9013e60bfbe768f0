"""Spark over what a tier exported as Parquet, which it reads by itself, against the same rows read through the brokers.

    python -m tests.bench.exported_reads [--pairs N] [--messages N]

Messages of 1 KiB are stored and uploaded, then exported once. A report's question is asked of both: how many messages each queue
has, and how many bytes. A real Spark answers, on this machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from remoting.tier.names import group_directory
from remoting.tier.object_stores import StorePlace
from tasks.export.counts import Counts
from tasks.export.exporter import Exporter
from tasks.spark.session import Sessions
from tasks.tier.exports import DAY_MS
from tasks.tier.manifest import Manifest
from tasks.tier.objects import Objects
from tests.bench.harness import Row, Sample, in_pairs, load_program, run_load
from tests.bench.sends import BACKGROUND, NO_INDEX, TOPIC, broker
from tests.reports.conftest import SparkProcess
from tests.support.cluster import Cluster, eventually

_CLUSTER: Final = "DefaultCluster"
_GROUP: Final = "broker-a"
_PATIENCE_S: Final = 300.0


def _export(url: str) -> Counts:
    """All that is in the tier, as if its days were over."""
    objects = Objects.open(StorePlace(url, "", 30_000), _CLUSTER, _GROUP)
    manifest = Manifest(objects)
    manifest.refresh()
    counts = Counts()
    exporter = Exporter(objects, _GROUP, manifest.contents, lambda: time.time_ns() // 1_000_000 + 2 * DAY_MS)
    exporter.export(TOPIC, counts, lambda _: True)
    return counts


def _fill(cluster: Cluster, address: str, messages: int) -> int:
    """How many were stored; all of them are in the tier."""
    with load_program() as program:
        stored = 0
        while stored < messages:
            stored += run_load(program, address, TOPIC, seconds=0.25, batch=32, in_flight=8)[1]

    def is_uploaded() -> bool:
        tier = cluster.admin.broker_state(address).tier
        return tier is not None and tier.waiting_messages == 0 and tier.messages >= stored

    eventually("all is uploaded", is_uploaded, _PATIENCE_S)
    return stored


def _measured(frame: Callable[[], Any], messages: int) -> Callable[[], Sample]:
    def measure() -> Sample:
        began_s = time.monotonic()
        rows = frame().groupBy("queue_id").agg({"queue_offset": "count", "body_size": "sum"}).toArrow().to_pylist()
        took_s = time.monotonic() - began_s
        counted = sum(row["count(queue_offset)"] for row in rows)
        if counted != messages:
            raise RuntimeError(f"{messages} messages are stored and {counted} were read")
        return Sample(messages / took_s)

    return measure


def run(pairs: int, messages: int) -> list[Row]:
    """The row of rates."""
    root = Path(tempfile.mkdtemp(prefix="bench"))
    url = f"file://{root}/tier"
    settings = (f"tiers.url={url}", "tiers.commit_interval_ms=1000")
    try:
        with broker(1, (*BACKGROUND, NO_INDEX, *settings)) as (cluster, address):
            stored = _fill(cluster, address, messages)
            counts = _export(url)
            if counts.messages != stored:
                raise RuntimeError(f"{stored} messages are stored and {counts.messages} were exported")
            (root / "spark").mkdir()
            with closing(SparkProcess(root / "spark")) as process, closing(Sessions()) as sessions:
                eventually("Spark listens", process.settings.socket_path.exists, _PATIENCE_S)
                with sessions.use(process.settings, lambda _: None, lambda: False) as handle:
                    spark = handle.session
                    place = f"{url}/{group_directory('', _CLUSTER, _GROUP)}/export/{TOPIC}"
                    source = spark.read.format("logboom").option("controllers", ",".join(cluster.controller_addresses))
                    name = "rows in Spark: exported files / through the brokers"
                    exported = _measured(lambda: spark.read.parquet(place), stored)
                    asked = _measured(lambda: source.option("subscribe", TOPIC).load(), stored)
                    return [in_pairs(name, pairs, exported, asked).row]
    finally:
        shutil.rmtree(root)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    options = parser.parse_args()
    for row in run(options.pairs, options.messages):
        print(row)


if __name__ == "__main__":
    main()
