"""What a new master has to change so that its own log and the tier agree (pure); nothing is uploaded before it did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.tiers.manifests import Fenced
from brokerd.tiers.reconcile import adopt, difference
from remoting.tier.contents import Change, Queue, TierContents, begun, cut
from remoting.tier.manifest import ManifestPart
from remoting.tier.segments import QueueSegments

_OTHER_LOG = (
    "the tier has the messages of another log under the name of this broker group: give tiers.url another prefix, or mount "
    "what is there under the name of another broker group"
)


def opening_changes(
    own: TierContents,
    parts: Sequence[ManifestPart],
    lineage: tuple[Sequence[EpochEntry], int],
    is_stale: Callable[[Queue, QueueSegments], bool],
    new_id: Callable[[], str],
    *,
    may_claim: bool = False,
) -> list[Change]:
    """`parts` are what the manifest has beyond the own contents, `lineage` the own log's epochs and its end. What `is_stale`
    belongs to no topic that there is. A log that is empty may claim what another one uploaded with `may_claim`: a mount.

    Raises Fenced when the tier is another log's, ValueError when the manifest contradicts itself.
    """
    wanted = adopt(own, parts, *lineage)
    if parts and own.log_id != wanted.log_id and (own.log_id or (wanted.queues and not may_claim)):
        raise Fenced(_OTHER_LOG)
    changes = difference(own, wanted)
    if not own.log_id:
        changes.append(begun(wanted.log_id or new_id()))
    return changes + [cut(queue, 0) for queue, segments in wanted.queues.items() if is_stale(queue, segments)]
