"""What a new master makes of a manifest that others wrote on after the last record that its log has (pure).

The manifest is ahead of the log by what was uploaded just before a master died. Its segments are right as far as the log they
were made of is the own one, and their objects are there. What is behind the place where the two logs go apart (messages that
were lost, in an election that was allowed to lose some) is not the queue's any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from remoting.tier.contents import (
    CUT,
    MERGED,
    Change,
    Queue,
    TierContents,
    committed,
    cut,
    expired,
    indexed,
    unindexed,
)
from remoting.tier.manifest import ManifestPart
from remoting.tier.segments import QueueSegments, Segment

_NO_END = 2**63 - 1


def common_end(own: Sequence[EpochEntry], own_end: int, theirs: Sequence[tuple[int, int]]) -> int:
    """Up to where the log that a manifest was made of is the own one; 0 when nothing shows that they have anything in common."""
    peer = [EpochEntry(*entry) for entry in theirs]
    return EpochList(own).common_end(own_end, peer, _NO_END) or 0


def adopt(own: TierContents, parts: Sequence[ManifestPart], epochs: Sequence[EpochEntry], own_end: int) -> TierContents:
    """The own contents with what the parts add, which begin behind what the own ones reflect or with a checkpoint.

    Raises ValueError when a part does not fit what precedes it.
    """
    found, merged = own.copy(), list[tuple[Queue, Segment]]()
    for part in parts:
        if part.is_checkpoint:
            found = TierContents()
        for change in part.changes:
            gone = found.apply(change)
            merged += gone if change[0] == MERGED else ()
    if parts:
        _cut_beyond(found, common_end(epochs, own_end, parts[-1].epochs), own, merged)
    return found


def difference(own: TierContents, wanted: TierContents) -> list[Change]:
    """Changes that make the wanted contents of the own ones, queue by queue."""
    changes: list[Change] = []
    for queue in own.queues.keys() | wanted.queues.keys():
        before, after = own.queues.get(queue), wanted.queues.get(queue)
        if before is not None and after is not None and _same(before, after):
            continue
        changes += _replaced(queue, before, after)
    changes += [indexed(entry) for key, entry in wanted.index.items() if own.index.get(key) != entry]
    going = [entry for key, entry in own.index.items() if key not in wanted.index]
    return changes + ([unindexed(going)] if going else [])


def _cut_beyond(found: TierContents, end: int, own: TierContents, merged: Iterable[tuple[Queue, Segment]]) -> None:
    """Take out what was uploaded from another log. What the own log names is right, wherever it ends.

    A segment may be wrong because of the last ones alone that it was made of: then the others are put back.
    """
    parts: dict[Queue, list[Segment]] = defaultdict(list)
    for queue, segment in merged:
        parts[queue].append(segment)
    for queue, segments in list(found.queues.items()):
        known = set(own.queues.get(queue, ()))
        wrong = next((each.first for each in segments if each.log_end > end and each not in known), None)
        if wrong is not None:
            found.apply([CUT, *queue, wrong])
            right = {each for each in (*parts[queue], *known) if each.log_end <= end or each in known}
            _put_back(found, queue, sorted(each for each in right if each.first >= wrong))


def _put_back(found: TierContents, queue: Queue, segments: Sequence[Segment]) -> None:
    """Those that follow each other without a gap."""
    last: Segment | None = None
    for segment in segments:
        if last is None or (last.end, last.message_end) == (segment.first, segment.base):
            found.apply(committed(queue, segment))
            last = segment


def _same(one: QueueSegments, other: QueueSegments) -> bool:
    return list(one) == list(other) and one.passed == other.passed


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
