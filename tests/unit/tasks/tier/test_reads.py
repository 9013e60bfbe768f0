"""A tier read without a broker: its manifest, its segments, and which part of a range it has."""

from __future__ import annotations

import itertools

import pytest

from remoting.checksum import crc32
from remoting.record.walk import records_in
from remoting.tier.blocks import BLOCK_BYTES
from remoting.tier.contents import Queue, committed, expired, merged
from remoting.tier.names import manifest_name
from tasks.tier import messages
from tasks.tier.exports import ExportFile, by_queue, disjoint, parse
from tasks.tier.manifest import Manifest
from tasks.tier.messages import offsets_between, portions, runs
from tasks.tier.objects import Objects, TierError
from tasks.tier.reads import GroupTier, Piece
from tests.support.tier_files import TierFiles
from tests.unit.tasks.tier.messages import BEGIN_MS, untidy

QUEUE = Queue("%RETRY%" + "g" * 140, 3)


def records(first: int, end: int, step_ms: int = 1000) -> list[bytes]:
    return [untidy(*QUEUE, offset, BEGIN_MS + offset * step_ms) for offset in range(first, end)]


@pytest.fixture
def tier() -> TierFiles:
    files = TierFiles()
    files.commit(QUEUE, 0, records(0, 10))
    files.commit(QUEUE, 10, records(10, 30))
    files.commit(QUEUE, 35, records(35, 40))
    return files


def objects_of(tier: TierFiles) -> Objects:
    return Objects(tier.store, tier.directory)


def read(tier: TierFiles, start: int, end: int) -> list[bytes]:
    segment = tier.contents.queues[QUEUE].at(start)
    assert segment is not None
    found = []
    for body in portions(objects_of(tier), QUEUE, segment, start, end):
        starts = [*records_in(body), len(body)]
        found += [body[one:other] for one, other in itertools.pairwise(starts)]
    return found


@pytest.mark.parametrize("portion_bytes", [1, 150, 400, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(10, 30), (10, 11), (29, 30), (13, 27)])
def test_messages_come_as_they_were_stored(
    tier: TierFiles, monkeypatch: pytest.MonkeyPatch, portion_bytes: int, start: int, end: int
) -> None:
    monkeypatch.setattr(messages, "PORTION_BYTES", portion_bytes)
    assert read(tier, start, end) == records(start, end)


@pytest.mark.parametrize("portion_bytes", [150, 1 << 20])
@pytest.mark.parametrize(("start", "end"), [(0, 2000), (700, 1600), (1999, 2000)])
def test_packed_messages_too(monkeypatch: pytest.MonkeyPatch, portion_bytes: int, start: int, end: int) -> None:
    monkeypatch.setattr(messages, "PORTION_BYTES", portion_bytes * (end - start))
    tier, whole = TierFiles(), records(0, 2000)
    tier.write(committed(QUEUE, tier.segment(QUEUE, 0, whole, is_packed=True)))
    assert sum(map(len, whole)) > 2 * BLOCK_BYTES
    assert read(tier, start, end) == whole[start:end]
    segment = tier.contents.queues[QUEUE].last
    tier.put(segment.messages_name(*QUEUE), bytes(segment.stored_bytes))
    with pytest.raises(TierError, match="is not what was stored"):
        read(tier, start, end)


def test_of_a_segment_that_grew_everybody_reads_what_he_was_told_of(tier: TierFiles) -> None:
    before = tier.contents.queues[QUEUE].last
    after = tier.grow(QUEUE, records(40, 47))
    for name in after.names(*QUEUE):
        tier.put(name, tier.read(name) + b"left by an append that failed")
    assert read(tier, 35, 47) == records(35, 47)
    assert read(tier, 39, 41) == records(39, 41)
    bodies = portions(objects_of(tier), QUEUE, before, 35, 40)
    assert b"".join(bodies) == b"".join(records(35, 40)), "its checksum is that of its own bytes"
    manifest = Manifest(objects_of(tier))
    manifest.refresh()
    assert list(manifest.contents.queues[QUEUE]) == list(tier.contents.queues[QUEUE])


def test_damage_is_told(tier: TierFiles) -> None:
    segment = tier.contents.queues[QUEUE].at(10)
    assert segment is not None
    content = b"".join(records(10, 30))
    tier.put(segment.messages_name(*QUEUE), content[:-1] + b"?")
    with pytest.raises(TierError, match="checksum"):
        read(tier, 10, 30)
    tier.put(segment.entries_name(*QUEUE), b"\xff" * 400)
    with pytest.raises(TierError, match="would be at"):
        read(tier, 11, 12)
    nothing = bytes(len(content))
    tier.put(segment.messages_name(*QUEUE), nothing)
    with pytest.raises(TierError, match="no whole record"):
        list(portions(objects_of(tier), QUEUE, segment._replace(crc=crc32(nothing)), 10, 30))


def test_the_manifest_is_followed_over_checkpoints_and_masters(tier: TierFiles) -> None:
    manifest = Manifest(objects_of(tier))
    assert manifest.refresh()
    assert list(manifest.contents.rows()) == list(tier.contents.rows())
    assert not manifest.refresh()
    tier.write(expired(QUEUE, 10))
    assert manifest.refresh()
    assert manifest.contents.queues[QUEUE].first == 10
    for number in range(tier.part + 1):  # an old master's remains are tidied up behind a checkpoint
        tier.remove(manifest_name(tier.epoch, number))
    tier.part += 1
    tier.write(is_checkpoint=True)
    tier.commit(QUEUE, 40, records(40, 41))
    assert manifest.refresh()
    assert manifest.contents.queues[QUEUE].end == 41
    tier.epoch, tier.part = 9, -1
    tier.put(manifest_name(11, 0), b"begun, and not a checkpoint")
    with pytest.raises(TierError, match="00000000000000000011"):
        manifest.refresh()
    tier.remove(manifest_name(11, 0))
    tier.write(is_checkpoint=True)
    tier.commit(QUEUE, 41, records(41, 42))
    assert manifest.refresh()
    assert (manifest.position, manifest.contents.queues[QUEUE].end) == ((9, 1), 42)


def test_ranges_are_cut_where_something_is_missing(tier: TierFiles) -> None:
    segments = tier.contents.queues[QUEUE]
    assert [run[:2] for run in runs(segments, 5, 37)] == [(5, 30), (35, 37)]
    assert [run[:2] for run in runs(segments, 30, 35)] == []
    assert [run[:2] for run in runs(segments, 39, 99)] == [(39, 40)]
    assert offsets_between(segments, BEGIN_MS + 12_000, BEGIN_MS + 36_000) == (10, 40)
    assert offsets_between(segments, BEGIN_MS + 99_000, BEGIN_MS + 100_000) == (40, 40)


def test_young_messages_are_left_to_the_brokers_and_pieces_are_whole(tier: TierFiles) -> None:
    tier.put(ExportFile(QUEUE, 2, 8, "2024-10-04").name, b"")
    tier.put(ExportFile(QUEUE, 2, 6, "2024-10-04").name, b"")
    tier.put(ExportFile(QUEUE, 36, 60, "2024-10-04").name, b"")
    group = GroupTier(objects_of(tier), lambda: 0.0)
    later = BEGIN_MS + 10**9
    found = group.pieces(QUEUE, 1, 50, later)
    kinds = [(each.start, each.end, "file" if each.file else "segment" if each.segment else "") for each in found]
    assert kinds == [
        *((1, 2, "segment"), (2, 8, "file"), (8, 10, "segment"), (10, 30, "segment")),
        *((30, 35, ""), (35, 40, "segment"), (40, 50, "")),
    ]
    young = group.pieces(QUEUE, 1, 50, BEGIN_MS + 10_000)
    assert [(each.start, each.end) for each in young] == [(1, 2), (2, 8), (8, 10), (10, 50)]
    assert group.pieces(Queue("unknown", 0), 3, 5, later) == [Piece(3, 5)]


def test_merged_segments_are_found_after_a_look(tier: TierFiles) -> None:
    group = GroupTier(objects_of(tier), lambda: 0.0)
    group.refresh()
    small = list(tier.contents.queues[QUEUE])[:2]
    tier.write(merged(QUEUE, tier.segment(QUEUE, 0, records(0, 30), base=0)))
    for each in small:
        for name in each.names(*QUEUE):
            tier.remove(name)
    (piece, *_) = group.pieces(QUEUE, 3, 9, BEGIN_MS + 10**9)
    with pytest.raises(TierError):
        list(group.portions(QUEUE, piece))
    assert group.refresh()
    (piece,) = group.pieces(QUEUE, 3, 9, BEGIN_MS + 10**9)
    assert b"".join(group.portions(QUEUE, piece)) == b"".join(records(3, 9))


def test_names_of_files_say_what_they_have() -> None:
    file = ExportFile(QUEUE, 5, 17, "2026-01-31")
    assert parse(file.name) == file
    for other in (
        file.name + "#1",
        file.name.replace("-17", "-4"),
        "export/a/date=2026-01-31/x.parquet",
        "3/COMMIT_LOG",
    ):
        assert parse(other) is None
    longer = file._replace(end=20)
    found = by_queue([file.name, longer.name, file._replace(first=20, end=21).name])[QUEUE]
    assert [each.end for each in disjoint(found)] == [20, 21]


def test_a_segment_committed_twice_is_no_manifest(tier: TierFiles) -> None:
    tier.contents.queues.clear()
    tier.write(committed(QUEUE, tier.segment(QUEUE, 0, records(0, 3))))
    with pytest.raises(TierError, match="cannot be followed"):
        Manifest(objects_of(tier)).refresh()
