"""What a new master makes of a manifest that others wrote on after the last record that its log has (pure).

The manifest is ahead of the log by what was uploaded just before a master died. Its segments are right as far as the log they
were made of is the own one, and their objects are there. What is behind the place where the two logs go apart (messages that
were lost, in an election that was allowed to lose some) is not the queue's any more.

All of a tier is looked at, so it is done in steps, of which each takes some milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from remoting.tier.contents import (
    CUT,
    Change,
    Queue,
    TierContents,
    committed,
    cut,
    expired,
    indexed,
    unindexed,
)
from remoting.tier.index import IndexObject
from remoting.tier.manifest import Followed, ManifestPart
from remoting.tier.segments import QueueSegments, Segment

_NO_END: Final = 2**63 - 1
_SLICE: Final = 200  # queues looked at in one step


LocalFrom = Callable[[Queue], int | None]
"""From which queue offset on what a queue has could be uploaded: files have it, and its topic is kept; None: there is nothing."""


class Missing(NamedTuple):
    """What the contents name and the object store has not."""

    segments: dict[Queue, set[Segment]]
    of_index: list[IndexObject]

    @property
    def is_any(self) -> bool:
        return bool(self.segments or self.of_index)

    @property
    def messages(self) -> int:
        """How many there are in the segments."""
        return sum(segment.messages for segments in self.segments.values() for segment in segments)


NOTHING_MISSING: Final = Missing({}, [])


def common_end(own: Sequence[EpochEntry], own_end: int, theirs: Sequence[tuple[int, int]]) -> int:
    """Up to where the log that a manifest was made of is the own one; 0 when nothing shows that they have anything in common."""
    peer = [EpochEntry(*entry) for entry in theirs]
    return EpochList(own).common_end(own_end, peer, _NO_END) or 0


def adopt(
    own: TierContents, parts: Sequence[ManifestPart], epochs: Sequence[EpochEntry], own_end: int
) -> Generator[None, None, TierContents]:
    """The own contents with what the parts add, which begin behind what the own ones reflect or with a checkpoint.

    Raises ValueError when a part does not fit what precedes it.
    """
    followed, merged = Followed(own.copy()), list[tuple[Queue, Segment]]()
    for part in parts:
        merged += followed.take(part)
        yield
    if parts:
        yield from _cut_beyond(followed.contents, common_end(epochs, own_end, parts[-1].epochs), own, merged)
    return followed.contents


def difference(own: TierContents, wanted: TierContents) -> Generator[None, None, list[Change]]:
    """Changes that make the wanted contents of the own ones, queue by queue."""
    changes: list[Change] = []
    for queues in in_slices(dict.fromkeys((*own.queues, *wanted.queues))):
        for queue in queues:
            before, after = own.queues.get(queue), wanted.queues.get(queue)
            if before is None or after is None or not _same(before, after):
                changes += _replaced(queue, before, after)
        yield
    changes += [indexed(entry) for key, entry in wanted.index.items() if own.index.get(key) != entry]
    going = [entry for key, entry in own.index.items() if key not in wanted.index]
    return changes + ([unindexed(going)] if going else [])


def without(contents: TierContents, missing: Missing, local_from: LocalFrom) -> Generator[None, None, TierContents]:
    """The contents without what is missing, in steps, so that uploads go on with what is in files."""
    left = contents.copy()
    for queues in in_slices(missing.segments):
        for queue in queues:
            segments = contents.queues.get(queue)
            if segments is not None:
                left.queues[queue] = _left(segments, missing.segments[queue], local_from(queue))
        yield
    for entry in missing.of_index:
        left.index.pop(entry.key, None)
    return left


def _left(segments: QueueSegments, gone: set[Segment], local: int | None) -> QueueSegments:
    """Segments follow each other, so those behind the first one that can be uploaded again go up again, too: all of them are in
    files. Those before it stay, if they are there."""
    again = next((each.first for each in segments if each in gone and local is not None and each.end > local), None)
    left = [each for each in segments if each not in gone and (again is None or each.first < again)]
    passed = segments.passed
    if not left:
        passed = max(passed, segments.end if local is None else min(local, segments.end))
    return QueueSegments(left, passed)


def in_slices(queues: Iterable[Queue]) -> Iterator[Sequence[Queue]]:
    """As many as a step looks at, each time."""
    rest = list(queues)
    for first in range(0, len(rest), _SLICE):
        yield rest[first : first + _SLICE]


def _cut_beyond(
    found: TierContents, end: int, own: TierContents, merged: Iterable[tuple[Queue, Segment]]
) -> Generator[None, None, None]:
    """Take out what was uploaded from another log. What the own log names is right, wherever it ends.

    A segment may be wrong because of the last ones alone that it was made of: then the others are put back. One that grew is
    what it was before: its objects are longer than that says, which nobody sees. What the own log names may be of a topic that
    was deleted since then, and made anew: that was in the log before what the queue has now, and stays away from it.
    """
    parts: dict[Queue, list[Segment]] = defaultdict(list)
    for queue, segment in merged:
        parts[queue].append(segment)
    for queues in in_slices(found.queues):
        for queue in queues:
            _cut_queue_beyond(found, queue, end, own, parts[queue])
        yield


def _cut_queue_beyond(found: TierContents, queue: Queue, end: int, own: TierContents, parts: Sequence[Segment]) -> None:
    segments = found.queues[queue]
    if any(each.log_end > end for each in segments):
        known = dict.fromkeys(own.queues.get(queue, ()))
        wrong = next((each.first for each in segments if each.log_end > end and each not in known), None)
        if wrong is not None:
            found.apply([CUT, *queue, wrong])
            left = found.queues.get(queue)
            before = left.last.log_end if left is not None and len(left) else -1
            latest = dict.fromkeys(reversed([*known, *parts]))  # in the order in which they were taken out
            right = [each for each in latest if before < each.log_end and (each.log_end <= end or each in known)]
            _put_back(found, queue, [each for each in right if each.first >= wrong])


def _put_back(found: TierContents, queue: Queue, segments: Iterable[Segment]) -> None:
    """Those that follow each other without a gap. Of several that begin at one place it is the one that ends last, the first of
    these: what it was made of was taken out earlier, and may be removed by now."""
    last: Segment | None = None
    for segment in sorted(segments, key=lambda each: (each.first, -each.end)):
        if last is None or (last.end, last.message_end) == (segment.first, segment.base):
            found.apply(committed(queue, segment))
            last = segment


def _same(one: QueueSegments, other: QueueSegments) -> bool:
    return one is other or (list(one) == list(other) and one.passed == other.passed)


def _replaced(queue: Queue, before: QueueSegments | None, after: QueueSegments | None) -> list[Change]:
    kept = 0
    old, new = list(before or ()), list(after or ())
    if before is not None and after is not None and before.passed == after.passed:
        while kept < min(len(old), len(new)) and old[kept] == new[kept]:
            kept += 1
    changes: list[Change] = []
    if kept < len(old) or (before is not None and not kept):
        changes.append(cut(queue, old[kept].first if kept else 0))
    if after is not None and after.passed and not kept:
        changes.append(expired(queue, after.passed))
    return changes + [committed(queue, segment) for segment in new[kept:]]
