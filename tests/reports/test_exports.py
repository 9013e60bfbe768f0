"""Exported files in a real Spark, which reads them by itself: the rows and the columns are those of the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from obstore.store import LocalStore

from remoting.tier.contents import Queue
from tasks.export.counts import Counts
from tasks.export.exporter import Exporter
from tasks.spark import records
from tasks.spark.source import schema_of
from tasks.tier.objects import Objects
from tests.support.tier_files import GROUP, TierFiles
from tests.unit.tasks.tier.messages import BEGIN_MS, DAY_MS, untidy

pytestmark = pytest.mark.slow

COLUMNS = tuple(records.COLUMN_TYPES)
HOUR_MS = 3_600_000
MESSAGES = 60  # of a queue, an hour apart: over three days


def test_spark_reads_exported_files_by_itself(spark: Any, tmp_path: Path) -> None:
    tier = TierFiles()
    tier.store = LocalStore(prefix=tmp_path)
    expected = []
    for queue_id in range(2):
        stored = [untidy("orders", queue_id, at, BEGIN_MS + at * HOUR_MS, 50) for at in range(MESSAGES)]
        tier.commit(Queue("orders", queue_id), 0, stored)
        body = b"".join(stored)
        expected += records.decode(body, records.scan(body), GROUP, COLUMNS).to_pylist()
    exporter = Exporter(
        Objects(tier.store, tier.directory), GROUP, tier.contents, lambda: BEGIN_MS + 300 * DAY_MS, 1 << 20
    )
    assert exporter.export("orders", Counts(), lambda _: True)

    frame = spark.read.parquet(f"file://{tmp_path}/tier/export/orders")
    types = {field.name: field.dataType for field in frame.schema.fields}
    assert types.pop("date").simpleString() == "date", "the day in the names is a column to choose files by"
    assert types == {field.name: field.dataType for field in schema_of(COLUMNS).fields}
    found = frame.select(*COLUMNS).orderBy("queue_id", "queue_offset").toArrow().cast(records.schema(COLUMNS))
    assert found.to_pylist() == expected
    assert frame.where("date = '2024-10-05'").count() == 48
