"""What a new master has to change so that its own log and the tier agree (pure); nothing is uploaded before it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.manifests import Fenced
from brokerd.tiers.reconcile import adopt, difference
from remoting.tier.contents import Change, Queue, TierContents, begun, cut
from remoting.tier.manifest import ManifestPart

_OTHER_LOG = (
    "the tier has the messages of another log under the name of this broker group: give tiers.url another prefix, or mount "
    "what is there under the name of another broker group"
)


def opening_changes(
    own: TierContents,
    parts: Sequence[ManifestPart],
    lineage: tuple[Sequence[EpochEntry], int],
    next_offset: Callable[[Queue], int | None],
    new_id: Callable[[], str],
) -> list[Change]:
    """`parts` are what the manifest has beyond the own contents, `lineage` the own log's epochs and its end. `next_offset` is the
    number that a queue's next message gets, None when there is no such topic.

    Raises Fenced when the tier is another log's, ValueError when the manifest contradicts itself.
    """
    wanted = adopt(own, parts, *lineage)
    if parts and own.log_id != wanted.log_id and (own.log_id or wanted.queues):
        raise Fenced(_OTHER_LOG)
    changes = difference(own, wanted)
    if not own.log_id:
        changes.append(begun(wanted.log_id or new_id()))
    return changes + stale(wanted, next_offset)


def stale(contents: TierContents, next_offset: Callable[[Queue], int | None]) -> list[Change]:
    """Queues whose topic is gone, or was made again since, have nothing in the tier."""
    ends = {queue: next_offset(queue) for queue in contents.queues}
    return [cut(queue, 0) for queue, end in ends.items() if end is None or end < contents.queues[queue].end]
