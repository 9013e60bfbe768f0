"""The same log read through the broker, from segments and from exported files: the same rows, whatever is missing where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from remoting.tier.contents import Queue, merged
from remoting.tier.object_stores import StorePlace
from tasks.export.counts import Counts
from tasks.export.exporter import Exporter
from tasks.spark import records
from tasks.spark.cluster import Cluster
from tasks.spark.cold import ColdRanges
from tasks.spark.meter import Meter, ReadFrom
from tasks.spark.planning import QueueRange
from tasks.spark.reader import read_ranges
from tasks.tier.objects import Objects
from tasks.tier.reads import GroupTier
from tests.support.tier_files import CLUSTER, GROUP, TierFiles
from tests.unit.tasks.fake_cluster import FakeBroker
from tests.unit.tasks.tier.messages import BEGIN_MS, DAY_MS, untidy

ALL = tuple(records.COLUMN_TYPES)
TOPIC = "%RETRY%" + "g" * 150
COUNT = 300
HOUR_MS = 3_600_000
LATER = BEGIN_MS + 400 * DAY_MS
WHOLE = QueueRange(TOPIC, GROUP, 0, 0, COUNT)


@pytest.fixture(scope="module")
def log() -> list[bytes]:
    return [untidy(TOPIC, 0, offset, BEGIN_MS + offset * HOUR_MS) for offset in range(COUNT)]


@pytest.fixture(scope="module")
def broker(log: list[bytes]) -> Iterator[FakeBroker]:
    with FakeBroker(GROUP) as found:
        found.add_topic(TOPIC, 1)
        found.queues[TOPIC, 0] = [(BEGIN_MS + offset * HOUR_MS, record) for offset, record in enumerate(log)]
        yield found


@pytest.fixture
def tier(log: list[bytes]) -> TierFiles:
    """Everything but offsets 120 to 150, and from 260 on."""
    files = TierFiles()
    for first, end in ((0, 40), (40, 120), (150, 200), (200, 260)):
        files.commit(Queue(TOPIC, 0), first, log[first:end])
    return files


def read(broker: FakeBroker, tier: TierFiles | None, wanted: QueueRange = WHOLE, columns: Any = ALL) -> pa.Table:
    broker.reads.clear()
    with Cluster([broker.address], timeout_ms=5000) as cluster:
        cold = None if tier is None else cold_ranges(tier, cluster)
        batches = list(read_ranges(cluster, [wanted], columns, cold=cold))
    return pa.Table.from_batches(batches, records.schema(columns)).combine_chunks()


def cold_ranges(tier: TierFiles, cluster: Cluster, after_ms: int = DAY_MS) -> ColdRanges:
    groups: dict[str, GroupTier] = {}

    def open_group(place: StorePlace, cluster_name: str, broker_name: str) -> GroupTier:
        assert (cluster_name, broker_name) == (CLUSTER, GROUP)
        return groups.setdefault(broker_name, GroupTier(Objects(tier.store, tier.directory), lambda: 0.0))

    return ColdRanges(StorePlace("memory:///", "", 1000), cluster.cluster_of, after_ms, lambda: LATER, open_group)


def export(tier: TierFiles, file_bytes: int = 1 << 20) -> Counts:
    counts = Counts()
    exporter = Exporter(Objects(tier.store, tier.directory), GROUP, tier.contents, lambda: LATER, file_bytes)
    assert exporter.export(TOPIC, counts, lambda _: True)
    return counts


def test_segments_and_files_have_the_rows_that_the_broker_has(broker: FakeBroker, tier: TierFiles) -> None:
    through_broker = read(broker, None)
    assert through_broker.num_rows == COUNT
    assert read(broker, tier) == through_broker
    assert all(120 <= offset < 150 or offset >= 260 for offset in broker.reads)
    assert export(tier).messages == 230
    for segment in tier.contents.queues[Queue(TOPIC, 0)]:
        tier.remove(segment.messages_name(TOPIC, 0))  # so that only the files have them
    assert read(broker, tier) == through_broker
    assert all(120 <= offset < 150 or offset >= 260 for offset in broker.reads)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (7, 31), (110, 160), (199, 201), (255, 300)])
@pytest.mark.parametrize("columns", [("body",), ("queue_offset", "tags"), ("properties", "store_ts")])
@pytest.mark.parametrize("exported", [False, True])
def test_parts_and_projections_too(
    broker: FakeBroker, tier: TierFiles, start: int, end: int, columns: tuple[str, ...], exported: bool
) -> None:
    if exported:
        export(tier, 5000)
    wanted = WHOLE._replace(start=start, end=end)
    assert read(broker, tier, wanted, columns) == read(broker, None, wanted, columns)


class Counting(Meter):
    """How many rows came from where."""

    def __init__(self) -> None:
        super().__init__(None, "", "")
        self.found: Counter[ReadFrom] = Counter()

    def add(self, rows: int, size_bytes: int, read_from: ReadFrom = ReadFrom.BROKERS) -> None:
        self.found[read_from] += rows


@pytest.mark.parametrize("exported", [False, True])
def test_it_is_told_who_gave_the_rows(broker: FakeBroker, tier: TierFiles, exported: bool) -> None:
    if exported:
        export(tier, 5000)
    meter = Counting()
    with Cluster([broker.address], timeout_ms=5000) as cluster:
        list(read_ranges(cluster, [WHOLE], ("queue_offset",), meter=meter, cold=cold_ranges(tier, cluster)))
    assert meter.found == {ReadFrom.FILES if exported else ReadFrom.SEGMENTS: 230, ReadFrom.BROKERS: 70}


def test_what_is_merged_while_it_is_read_is_read_once(broker: FakeBroker, tier: TierFiles, log: list[bytes]) -> None:
    through_broker = read(broker, None, WHOLE._replace(end=120))
    queue = Queue(TOPIC, 0)
    with Cluster([broker.address], timeout_ms=5000) as cluster:
        broker.reads.clear()
        batches = read_ranges(cluster, [WHOLE._replace(end=120)], ALL, cold=cold_ranges(tier, cluster))
        found = [next(batches)]
        old = list(tier.contents.queues[queue])[:2]
        tier.write(merged(queue, tier.segment(queue, 0, log[:120], base=0)))
        for each in old:
            for name in each.names(*queue):
                tier.remove(name)
        found += batches
    assert pa.Table.from_batches(found).combine_chunks() == through_broker
    assert broker.reads == []


@pytest.mark.parametrize("damage", ["no file", "no manifest", "no messages"])
def test_what_the_store_does_not_give_the_brokers_do(broker: FakeBroker, tier: TierFiles, damage: str) -> None:
    export(tier)
    for name in tier.names():
        if name.startswith("manifest") and damage == "no manifest":
            tier.put(name, b"nothing of the kind")
        elif name.startswith("export") and damage == "no file":
            tier.put(name, b"PAR1 is not all of it")
        elif "COMMIT_LOG" in name and damage == "no messages":
            tier.remove(name)
    assert read(broker, tier) == read(broker, None)


def test_young_messages_are_asked_of_brokers(broker: FakeBroker, tier: TierFiles) -> None:
    with Cluster([broker.address], timeout_ms=5000) as cluster:
        cold = cold_ranges(tier, cluster, after_ms=LATER - BEGIN_MS)
        broker.reads.clear()
        list(read_ranges(cluster, [WHOLE._replace(end=40)], ("queue_offset",), cold=cold))
    assert broker.reads[0] == 0
