"""Exports: each offset in one file, whatever happened before; what the tier has not any more goes."""

from __future__ import annotations

import contextlib
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from remoting.tier.contents import Queue, cut, dropped, expired, merged
from tasks.export.counts import Counts
from tasks.export.exporter import TAIL_AFTER_MS, Exporter
from tasks.spark import records
from tasks.tier.exports import by_queue
from tasks.tier.objects import Objects, TierError
from tests.support.tier_files import GROUP, TierFiles
from tests.unit.tasks.tier.messages import BEGIN_MS, DAY_MS, untidy

QUEUE = Queue("orders", 0)
HOUR_MS = 3_600_000
GOLDEN = Path(__file__).parent / "schema.json"


class Died(Exception):
    """The process was killed there."""


class DyingObjects(Objects):
    """Dies at the put that the test says, before or after it was done."""

    puts_left = 1_000_000
    dies_after = False

    def put(self, name: str, content: bytes) -> bool:
        self.puts_left -= 1
        if self.puts_left < 0 and not self.dies_after:
            raise Died
        done = super().put(name, content)
        if self.puts_left < 0:
            raise Died
        return done


class World:
    """A tier, and exports of it."""

    def __init__(self) -> None:
        self.tier = TierFiles()
        self.now_ms = BEGIN_MS + 300 * DAY_MS

    def stored(self, first: int, end: int, step_ms: int = HOUR_MS, queue: Queue = QUEUE, shift: int = 0) -> None:
        found = [untidy(*queue, each, BEGIN_MS + each * step_ms + shift, 50) for each in range(first, end)]
        self.tier.commit(queue, first, found)

    def exporter(self, file_bytes: int = 1 << 20, objects: Objects | None = None) -> Exporter:
        of_group = objects or Objects(self.tier.store, self.tier.directory)
        return Exporter(of_group, GROUP, self.tier.contents, lambda: self.now_ms, file_bytes)

    def export(self, file_bytes: int = 1 << 20, objects: Objects | None = None, topic: str = "orders") -> Counts:
        counts = Counts()
        exporter = self.exporter(file_bytes, objects)
        counts.removed = exporter.remove_old(topic)
        assert exporter.export(topic, counts, lambda _: True)
        return counts

    def ranges(self, queue: Queue = QUEUE) -> list[tuple[int, int, str]]:
        return [(each.first, each.end, each.date) for each in by_queue(self.tier.names()).get(queue, [])]

    def table(self, name: str) -> pa.Table:
        objects = Objects(self.tier.store, self.tier.directory)
        return pq.read_table(io.BytesIO(objects.get_all(name)))

    def offsets(self) -> list[int]:
        names = self.tier.names("export/orders")
        return sorted(offset for name in names for offset in self.table(name)["queue_offset"].to_pylist())


@pytest.fixture
def world() -> World:
    return World()


def test_a_file_has_the_messages_of_one_day(world: World) -> None:
    world.stored(0, 30)
    world.stored(30, 50)
    assert world.export().files == 3
    assert world.ranges() == [(0, 24, "2024-10-04"), (24, 48, "2024-10-05"), (48, 50, "2024-10-06")]
    for name in world.tier.names("export/orders"):
        assert name.split("date=")[1][:10] in {each.isoformat() for each in _days(world.table(name))}
        assert len(_days(world.table(name))) == 1
    assert world.export() == Counts()
    assert not world.exporter().has_work("orders", is_wanted=True)


def test_segments_that_grow_make_the_files_that_others_make(world: World) -> None:
    other = World()
    other.stored(0, 50)
    world.stored(0, 7)
    for first in range(7, 50, 5):
        world.export()
        end = min(first + 5, 50)
        world.tier.grow(QUEUE, [untidy(*QUEUE, each, BEGIN_MS + each * HOUR_MS, 50) for each in range(first, end)])
    world.export()
    other.export()
    assert world.offsets() == other.offsets() == list(range(50))


def _days(table: pa.Table) -> set[Any]:
    return {each.date() for each in table["store_ts"].to_pylist()}


def test_the_schema_is_that_of_the_source(world: World) -> None:
    world.stored(0, 24)
    world.export()
    (name,) = world.tier.names("export/orders")
    file = pq.ParquetFile(io.BytesIO(Objects(world.tier.store, world.tier.directory).get_all(name)))
    assert file.schema_arrow == records.schema(tuple(records.COLUMN_TYPES))
    assert {each.name: str(each.type) for each in file.schema_arrow} == json.loads(GOLDEN.read_text())
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    batch = records.decode(
        body := b"".join(untidy(*QUEUE, each, BEGIN_MS + each * HOUR_MS, 50) for each in range(24)),
        records.scan(body),
        GROUP,
        tuple(records.COLUMN_TYPES),
    )
    assert file.read().combine_chunks().to_batches()[0] == batch
    assert None in file.read()["body"].to_pylist()  # the one that cannot be unpacked


def test_a_day_that_is_not_over_waits(world: World) -> None:
    world.stored(0, 5)
    world.now_ms = BEGIN_MS + DAY_MS + TAIL_AFTER_MS - 1
    assert not world.exporter().has_work("orders", is_wanted=True)
    assert world.export() == Counts()
    world.now_ms += 1
    assert world.exporter().has_work("orders", is_wanted=True)
    assert not world.exporter().has_work("orders", is_wanted=False)
    assert world.export().messages == 5
    world.stored(5, 9)  # late
    world.export()
    assert world.ranges() == [(0, 5, "2024-10-04"), (5, 9, "2024-10-04")]


def test_a_full_file_does_not_wait(world: World) -> None:
    world.stored(0, 100, step_ms=1000)
    world.now_ms = BEGIN_MS + HOUR_MS
    assert world.exporter(1500).has_work("orders", is_wanted=True)
    world.export(1500)
    whole = world.ranges()
    assert whole[0][0] == 0
    assert 5 < len(whole) < 30
    assert whole[-1][1] < 100, "the rest is no whole file, and its day is not over"
    other = World()
    for first in range(0, 100, 7):  # in other segments, and in several exports
        other.stored(first, min(first + 7, 100), step_ms=1000)
        other.now_ms = world.now_ms
        other.export(1500)
    assert other.ranges() == whole, "where files end follows from the messages alone"


def test_gaps_and_queues_of_several_segments(world: World) -> None:
    world.stored(0, 10, step_ms=1000)
    world.stored(15, 20, step_ms=1000)
    world.stored(3, 6, queue=Queue("orders", 12))
    world.stored(0, 6, queue=Queue("others", 0))
    world.export()
    assert [each[:2] for each in world.ranges()] == [(0, 10), (15, 20)]
    assert [each[:2] for each in world.ranges(Queue("orders", 12))] == [(3, 6)]
    assert world.ranges(Queue("others", 0)) == []


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_export_is_gone_on_with(world: World, seed: int) -> None:
    rng, end = random.Random(seed), 0
    while end < 150:
        if rng.random() < 0.5:
            count = rng.randint(1, 20)
            world.stored(end, end + count)
            end += count
        else:
            dying = DyingObjects(world.tier.store, world.tier.directory)
            dying.puts_left, dying.dies_after = rng.randint(0, 2), rng.random() < 0.5
            with contextlib.suppress(Died):
                world.export(3000, dying)
            assert all(each.endswith(".parquet") for each in world.tier.names("export"))
    world.export(3000)
    assert world.offsets() == list(range(end))


def test_it_stops_when_it_is_told_to_and_says_so(world: World) -> None:
    world.stored(0, 100)
    counts = Counts()
    assert not world.exporter().export("orders", counts, lambda so_far: so_far.files < 2)
    assert (counts.files, counts.messages) == (2, 48)
    assert world.exporter().export("orders", counts, lambda _: True)
    assert world.offsets() == list(range(100))


def test_files_go_with_what_expired_and_with_the_topic(world: World) -> None:
    world.stored(0, 24)
    world.stored(24, 60)
    world.export()
    world.tier.write(expired(QUEUE, 24))
    assert world.exporter().has_work("orders", is_wanted=False)
    assert world.export().removed == 1
    assert [each[:2] for each in world.ranges()] == [(24, 48), (48, 60)]
    world.tier.write(dropped("orders"))
    assert world.exporter().topics() == {"orders"}
    assert world.export().removed == 2
    assert world.tier.names("export") == []


def test_files_of_a_log_that_was_cut_are_written_again(world: World) -> None:
    world.stored(0, 20, step_ms=1000)
    world.stored(20, 50, step_ms=1000)
    world.export()
    world.tier.write(cut(QUEUE, 20))
    assert world.export().removed == 1
    assert [each[:2] for each in world.ranges()] == [(0, 20)]
    world.tier.write(cut(QUEUE, 10))
    world.stored(0, 20, step_ms=1000, shift=7)  # others at the same offsets
    world.stored(20, 30, step_ms=1000, shift=7)
    world.export()
    assert [each[:2] for each in world.ranges()] == [(0, 30)]
    (name,) = world.tier.names("export")
    assert all(each.microsecond == 7000 for each in world.table(name)["store_ts"].to_pylist())


def test_merged_segments_change_nothing(world: World) -> None:
    world.stored(0, 20)
    world.stored(20, 40)
    world.export()
    before = world.ranges()
    whole = [untidy(*QUEUE, each, BEGIN_MS + each * HOUR_MS, 50) for each in range(40)]
    world.tier.write(merged(QUEUE, world.tier.segment(QUEUE, 0, whole, base=0)))
    assert world.export() == Counts()
    world.stored(40, 80)
    world.export()
    assert world.ranges()[: len(before)] == before
    assert world.offsets() == list(range(80))


def test_nothing_is_removed_while_the_tier_is_not_known(world: World) -> None:
    world.stored(0, 24)
    world.export()
    world.tier.contents.queues.clear()
    world.tier.contents.log_id = ""
    assert world.export().removed == 0


def test_a_store_that_fails_says_so(world: World) -> None:
    world.stored(0, 24)
    (segment,) = world.tier.contents.queues[QUEUE]
    world.tier.remove(segment.messages_name(*QUEUE))
    with pytest.raises(TierError, match="orders/0/COMMIT_LOG"):
        world.export()
    assert world.tier.names("export") == []
