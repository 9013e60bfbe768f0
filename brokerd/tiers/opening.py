"""What a new master has to change so that its own log and the tier agree, in steps (pure); nothing is uploaded before it did."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Final, NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.manifests import Fenced
from brokerd.tiers.reconcile import NOTHING_MISSING, LocalFrom, Missing, adopt, difference, in_slices, without
from remoting.tier.contents import Change, Queue, TierContents, begun, cut
from remoting.tier.manifest import ManifestPart
from remoting.tier.segments import QueueSegments

_CHANGES: Final = 500  # that a step applies

_OTHER_LOG: Final = (
    "the tier has the messages of another log under the name of this broker group: give tiers.url another prefix, or mount "
    "what is there under the name of another broker group"
)


class Opening(NamedTuple):
    """What the own contents become, and what changes them so."""

    wanted: TierContents
    changes: list[Change]


def opening_of(
    own: TierContents,
    parts: Sequence[ManifestPart],
    lineage: tuple[Sequence[EpochEntry], int],
    is_stale: Callable[[Queue, QueueSegments], bool],
    new_id: Callable[[], str],
    *,
    may_claim: bool = False,
    missing: Missing = NOTHING_MISSING,
    local_from: LocalFrom = lambda _: None,
) -> Generator[None, None, Opening]:
    """`parts` are what the manifest has beyond the own contents, `lineage` the own log's epochs and its end. What `is_stale`
    belongs to no topic that there is. A log that is empty may claim what another one uploaded with `may_claim`: a mount. What is
    `missing` there leaves the contents.

    Raises Fenced when the tier is another log's, ValueError when the manifest contradicts itself.
    """
    wanted = yield from adopt(own, parts, *lineage)
    if parts and own.log_id != wanted.log_id and (own.log_id or (wanted.queues and not may_claim)):
        raise Fenced(_OTHER_LOG)
    if missing.is_any:
        wanted = yield from without(wanted, missing, local_from)
    changes = yield from difference(own, wanted)
    if not own.log_id:
        changes.append(begun(wanted.log_id or new_id()))
    for queues in in_slices(wanted.queues):
        changes += [cut(queue, 0) for queue in queues if is_stale(queue, wanted.queues[queue])]
        yield
    result = own.copy()
    for number, change in enumerate(changes):
        result.apply(change)
        if number % _CHANGES == _CHANGES - 1:
            yield
    return Opening(result, changes)
