"""The manifest: what one master writes the next one reads, whatever became of single requests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Iterable
from typing import Any, TypeVar

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.manifests import Fenced, Manifests, ManifestWriter
from brokerd.tiers.objects.backend import open_backend
from brokerd.tiers.objects.interface import ObjectStoreError, Unknown
from brokerd.tiers.reconcile import adopt, difference
from brokerd.tiers.settings import TierSettings
from remoting.tier.contents import Change, Queue, TierContents, committed, dropped, expired, grown, merged
from remoting.tier.manifest import Followed, ManifestPart, Position, decode_part, encode_part, in_pieces
from remoting.tier.segments import Segment

QUEUE = Queue("Orders", 3)
EPOCHS = [(1, 0), (4, 5000)]


def segment(first: int, end: int, log_end: int = 0) -> Segment:
    return Segment(first, end, first * 100, (end - first) * 100, (end - first) * 100, 1, 2, log_end, 4, first, 7, 8)


_T = TypeVar("_T")


def contents_of(changes: Iterable[Change]) -> TierContents:
    contents = TierContents()
    for change in changes:
        contents.apply(change)
    return contents


def made_by(parts: Iterable[ManifestPart], contents: TierContents | None = None) -> TierContents:
    followed = Followed(TierContents() if contents is None else contents)
    for part in parts:
        followed.take(part)
    return followed.contents


def in_full(steps: Generator[None, None, _T]) -> _T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: _T = end.value
            return result


class Tier:
    """An object store whose puts fail as the test says: before they are done, or after."""

    def __init__(self) -> None:
        self.inner = open_backend(TierSettings(url="memory:///"), "c/broker-a")
        self.fail_before = self.fail_after = 0
        self.get, self.get_all, self.list, self.remove = (
            self.inner.get,
            self.inner.get_all,
            self.inner.list,
            self.inner.remove,
        )

    async def put(self, name: str, content: bytes) -> None:
        if self.fail_before:
            self.fail_before -= 1
            raise Unknown("not done")
        await self.inner.put(name, content)
        if self.fail_after:
            self.fail_after -= 1
            raise Unknown("done, and nobody heard of it")


async def written(writer: ManifestWriter, *changes: list[object], is_checkpoint: bool = False) -> None:
    if is_checkpoint:
        writer.begin_piece(changes, EPOCHS, 0, is_last=True)
    else:
        writer.begin(changes, EPOCHS)
    await until_there(writer)


async def until_there(writer: ManifestWriter) -> None:
    for _ in range(3):
        try:
            await writer.finish()
        except Unknown:
            continue
        return
    pytest.fail("the put never succeeded")


async def test_what_one_wrote_the_next_reads_behind_where_it_was_and_from_the_last_checkpoint() -> None:
    tier = Tier()
    writer = ManifestWriter(tier, 4)
    await written(writer, committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    tier.fail_before = 1
    await written(writer, committed(QUEUE, segment(10, 20)))
    tier.fail_after = 2
    await written(writer, committed(QUEUE, segment(20, 30)))
    read = Manifests(tier)
    assert [part.position.number for part in await read.behind(Position(4, 0))] == [1, 2]
    assert await read.newest(4) == []
    parts = await read.newest(3)
    assert made_by(parts).queues[QUEUE].end == 30
    await written(writer, committed(QUEUE, segment(0, 30)), is_checkpoint=True)
    await writer.remove_old()
    assert [part.position.number for part in await read.newest(-1)] == [3]


async def write_pieces(writer: ManifestWriter, contents: TierContents, most: int, count: int = 99) -> None:
    """The first ones of a checkpoint."""
    for piece, (rows, is_last) in enumerate(in_pieces(contents.rows(), most)):
        if piece < count:
            writer.begin_piece(rows, EPOCHS, piece, is_last=is_last)
            await until_there(writer)


async def test_a_checkpoint_in_pieces_counts_when_its_last_piece_is_there() -> None:
    tier = Tier()
    writer = ManifestWriter(tier, 4)
    contents = contents_of(committed(QUEUE, segment(at, at + 10)) for at in range(0, 50, 10))
    read = Manifests(tier)
    await write_pieces(writer, contents, 2, 2)
    assert await read.newest(-1) == [], "there is no whole one yet"
    await written(ManifestWriter(tier, 3), committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    assert [part.position.epoch for part in await read.newest(-1)] == [3]

    writer = ManifestWriter(tier, 5)
    await write_pieces(writer, contents, 2)
    await written(writer, committed(QUEUE, segment(50, 60)))
    parts = await read.newest(-1)
    assert [(part.position.number, part.piece, part.is_last) for part in parts] == [
        (0, 0, False),
        (1, 1, False),
        (2, 2, True),
        (3, 0, True),
    ]
    assert list(made_by(parts).rows()) == [*contents.rows(), committed(QUEUE, segment(50, 60))]

    await write_pieces(writer, contents, 1, 3)
    parts = await read.newest(-1)
    assert [part.position.number for part in parts] == list(range(7)), "the one before, while the last piece is missing"
    assert made_by(parts).queues[QUEUE].end == 60
    assert made_by(await read.behind(Position(5, 3)), made_by(parts)).queues[QUEUE].end == 60
    await writer.remove_old()
    assert [part.position.number for part in await read.newest(-1)] == list(range(7))


async def test_what_is_before_the_first_piece_of_the_last_checkpoint_is_removed() -> None:
    tier = Tier()
    writer = ManifestWriter(tier, 4)
    await written(writer, committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    await write_pieces(writer, contents_of(committed(QUEUE, segment(at, at + 10)) for at in range(0, 50, 10)), 2)
    await writer.remove_old()
    assert [each.name[-1] for each in await tier.inner.list("manifest/")] == ["1", "2", "3"]


async def test_who_knows_nothing_of_the_last_checkpoint_begins_with_it() -> None:
    tier = Tier()
    writer = ManifestWriter(tier, 4)
    await written(writer, committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    for at in range(10, 40, 10):
        await written(writer, committed(QUEUE, segment(at, at + 10)))
    await written(writer, committed(QUEUE, segment(0, 40)), is_checkpoint=True)
    await written(writer, committed(QUEUE, segment(40, 50)))
    read = Manifests(tier)
    await tier.remove(["manifest/00000000000000000004-00000000000000000002"])  # who removes may die on the way
    assert [part.position.number for part in await read.beyond(Position(4, 0))] == [4, 5]
    await writer.remove_old()
    for number, first in ((0, 4), (2, 4), (3, 4), (4, 5)):
        assert [part.position.number for part in await read.beyond(Position(4, number))] == list(range(first, 6))
    assert await read.beyond(Position(4, 5)) == []
    assert [part.position.number for part in await read.beyond(Position(-1, -1))] == [4, 5]


async def test_a_large_checkpoint_is_not_written_before_as_much_else_is() -> None:
    writer = ManifestWriter(Tier(), 4)
    rows = contents_of(committed(QUEUE, segment(at, at + 1)) for at in range(200))
    await write_pieces(writer, rows, 1, 200)
    for _ in range(399):
        await written(writer)
        assert not writer.wants_checkpoint
    await written(writer)
    assert writer.wants_checkpoint


def test_a_piece_without_the_one_before_it_is_an_error() -> None:
    with pytest.raises(ValueError, match="piece 1 of a checkpoint"):
        made_by([ManifestPart(Position(4, 1), True, EPOCHS, [], 1, True)])


def test_contents_may_be_copied_and_go_on() -> None:
    contents = contents_of(committed(QUEUE, segment(at, at + 10)) for at in range(0, 50, 10))
    rows = list(contents.rows())
    copy = contents.copy()
    for change in (
        committed(QUEUE, segment(50, 60)),
        merged(QUEUE, segment(0, 20)),
        expired(QUEUE, 20),
        ["cut", *QUEUE, 30],
        ["dropped", QUEUE.topic],
    ):
        contents.apply(change)
        assert list(copy.rows()) == rows
        assert copy.copy().holdings == copy.holdings


async def test_a_second_writer_of_an_epoch_is_told() -> None:
    tier = Tier()
    await written(ManifestWriter(tier, 4), committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    other = ManifestWriter(tier, 4)
    other.begin_piece([], EPOCHS, 0, is_last=True)
    with pytest.raises(Fenced, match="prefix"):
        await other.finish()


async def test_a_later_epoch_without_a_checkpoint_is_passed_over() -> None:
    tier = Tier()
    await written(ManifestWriter(tier, 4), committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    await written(ManifestWriter(tier, 9), committed(QUEUE, segment(10, 20)))
    assert [part.position for part in await Manifests(tier).newest(-1)] == [Position(4, 0)]
    assert await Manifests(tier).highest_epoch(4) == 9


def test_a_damaged_part_is_named() -> None:
    writer = ManifestWriter(Tier(), 4)
    writer.begin_piece([committed(QUEUE, segment(0, 10))], EPOCHS, 0, is_last=True)
    assert writer._pending is not None
    content = writer._pending[1]
    assert encode_part(decode_part(content, "it")) == content
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 4
        with pytest.raises(ValueError, match=r"^it "):
            decode_part(bytes(flipped), "it")
    for length in range(len(content)):
        with pytest.raises(ValueError, match=r"^it "):
            decode_part(content[:length], "it")


async def test_a_part_that_is_not_a_manifest_is_an_error_with_its_name() -> None:
    tier = Tier()
    await tier.inner.put("manifest/00000000000000000004-00000000000000000000", b"nothing of the kind")
    with pytest.raises(ObjectStoreError, match="00000000000000000004-00000000000000000000"):
        await Manifests(tier).newest(-1)


def test_a_new_master_adopts_what_its_own_log_agrees_with() -> None:
    own = contents_of([committed(QUEUE, segment(0, 10, 1000))])
    tier = Tier()

    async def parts() -> list[object]:
        writer = ManifestWriter(tier, 4)
        await written(writer, *own.rows(), is_checkpoint=True)
        await written(writer, committed(QUEUE, segment(10, 20, 6000)), committed(Queue("B", 0), segment(0, 5, 7000)))
        await written(writer, committed(QUEUE, segment(20, 30, 8000)))
        return list(await Manifests(tier).behind(Position(4, 0)))

    found = asyncio.run(parts())
    epochs = [EpochEntry(1, 0), EpochEntry(4, 5000), EpochEntry(5, 7500)]
    adopted = in_full(adopt(own, found, epochs, 9000))  # type: ignore[arg-type]
    assert [each.end for each in adopted.queues[QUEUE]] == [10, 20]
    assert adopted.queues[Queue("B", 0)].end == 5
    other_log = [EpochEntry(1, 0), EpochEntry(3, 900)]
    assert [each.end for each in in_full(adopt(own, found, other_log, 9000)).queues[QUEUE]] == [10]  # type: ignore[arg-type]


def adopted(own: TierContents, changes: list[Change], end: int) -> list[Segment]:
    """What a new master has, whose log goes apart there from that of the manifest."""
    part = ManifestPart(Position(4, 1), False, EPOCHS, changes)
    epochs = [EpochEntry(1, 0), EpochEntry(4, 5000), EpochEntry(5, end)]
    contents = in_full(adopt(own, [part], epochs, end + 1000))
    return list(contents.queues.get(QUEUE, ()))


@pytest.mark.parametrize("size", [100, 1000], ids=["alike", "larger"])
def test_what_a_topic_had_before_it_was_deleted_is_not_put_back_behind_what_it_has_since(size: int) -> None:
    """The log knows of neither, and then loses the last message of the topic that was made anew."""
    own = contents_of(committed(QUEUE, segment(first, first + 1, 1000 + first)) for first in range(5))
    again, lost = (
        segment(first, first + 1, 6000 + 3000 * first)._replace(base=first * size, message_bytes=size)
        for first in range(2)
    )
    changes = [dropped(QUEUE.topic), committed(QUEUE, again), committed(QUEUE, lost)]
    assert adopted(own, changes, 9000) == [again, lost]
    assert adopted(own, changes, 8500) == [again]


def longer(last: Segment, end: int, log_end: int) -> Segment:
    size = (end - last.first) * 100
    return last._replace(end=end, message_bytes=size, stored_bytes=size, log_end=log_end, crc=end, entries_crc=end)


def test_a_segment_that_grew_with_messages_that_were_lost_is_what_it_was_before_them() -> None:
    first, begun = segment(0, 10, 1000), segment(10, 20, 6000)
    forms = [longer(begun, 20 + 5 * number, 6000 + 500 * number) for number in range(1, 6)]
    changes = [committed(QUEUE, begun), *(grown(QUEUE, each) for each in forms)]
    own = contents_of([committed(QUEUE, first)])
    assert adopted(own, changes, 8500) == [first, forms[4]]
    assert adopted(own, changes, 7999) == [first, forms[2]]
    assert adopted(own, changes, 6499) == [first, begun]
    assert adopted(own, changes, 5999) == [first]
    behind = segment(45, 50, 9000)
    assert adopted(own, [*changes, committed(QUEUE, behind)], 7999) == [first, forms[2]]
    known = contents_of([committed(QUEUE, first), committed(QUEUE, begun), grown(QUEUE, forms[1])])
    assert adopted(known, changes[3:], 5500) == [first, forms[1]], "what the own log names is right"


def test_a_segment_that_grew_and_was_merged_is_put_back_as_it_was_last() -> None:
    begun, behind = segment(10, 20, 6000), segment(30, 40, 7500)
    grew = [longer(begun, 25, 6500), longer(begun, 30, 7000)]
    whole = segment(10, 40, 7500)._replace(number=99)
    changes = [
        committed(QUEUE, begun),
        *(grown(QUEUE, each) for each in grew),
        committed(QUEUE, behind),
        merged(QUEUE, whole),
    ]
    own = contents_of([committed(QUEUE, segment(0, 10, 1000))])
    assert adopted(own, changes, 7500)[1:] == [whole]
    assert adopted(own, changes, 7499)[1:] == [grew[1]]
    assert adopted(own, changes, 6999)[1:] == [grew[0]]
    assert adopted(own, changes, 5999)[1:] == []


def test_of_what_was_merged_twice_the_last_that_is_right_is_put_back() -> None:
    """What that was made of may be removed by now."""
    parts = [segment(at, at + 10, 6000 + at) for at in range(10, 40, 10)]
    pair, archived = segment(10, 30, 6020)._replace(number=98), segment(10, 30, 6020)._replace(number=99)
    whole = segment(10, 40, 6030)._replace(number=100)
    changes = [committed(QUEUE, each) for each in parts] + [merged(QUEUE, each) for each in (pair, archived, whole)]
    own = contents_of([committed(QUEUE, segment(0, 10, 1000))])
    assert adopted(own, changes, 6029)[1:] == [archived]
    assert adopted(own, changes, 6019)[1:] == parts[:1]


def test_the_difference_makes_the_one_of_the_other() -> None:
    before = contents_of(
        [committed(QUEUE, segment(0, 10)), committed(QUEUE, segment(10, 20)), committed(Queue("B", 0), segment(0, 5))]
    )
    after = before.copy()
    for change in (merged(QUEUE, segment(0, 20)), committed(QUEUE, segment(20, 30)), ["dropped", "B"]):
        after.apply(change)
    later, grew = after.copy(), after.copy()
    later.apply(expired(QUEUE, 25))
    grew.apply(grown(QUEUE, longer(after.queues[QUEUE].last, 35, 100)))
    empty = TierContents()
    for one in (before, after, later, grew, empty):
        for other in (before, after, later, grew, empty):
            made = one.copy()
            for change in in_full(difference(one, other)):
                made.apply(change)
            assert sorted(made.rows(), key=str) == sorted(other.rows(), key=str)


class SometimesRead:
    """An object store of which a share of the reads fails."""

    def __init__(self, tier: Tier, share: float) -> None:
        self.list, self._get_all = tier.list, tier.get_all
        self.failed = 0
        self._share = share
        self._rng = random.Random(5)

    async def get_all(self, name: str, most: int) -> bytes:
        if self._rng.random() < self._share:
            self.failed += 1
            raise Unknown("half of it came")
        return await self._get_all(name, most)


async def test_a_long_manifest_is_read_from_a_store_that_fails_now_and_then() -> None:
    tier = Tier()
    writer = ManifestWriter(tier, 4)
    await written(writer, committed(QUEUE, segment(0, 10)), is_checkpoint=True)
    for first in range(10, 2010, 10):
        await written(writer, committed(QUEUE, segment(first, first + 10)))
    objects: Any = SometimesRead(tier, 0.05)
    assert made_by(await Manifests(objects).newest(-1)).queues[QUEUE].end == 2010
    assert objects.failed > 5
    down: Any = SometimesRead(tier, 1.0)
    with pytest.raises(Unknown):
        await Manifests(down).newest(-1)
    assert down.failed == 4
