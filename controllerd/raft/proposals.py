"""What a leader may be asked to put into the log, or to give away, and when it refuses (pure)

All functions take the serving leader's state (`RaftCore.serving`). What is refused was not logged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controllerd.raft import membership
from controllerd.raft.codec import encode_configuration
from controllerd.raft.leading import Leading
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange, Transition
from controllerd.raft.messages import EntryKind, Proposed
from controllerd.raft.quorum import Configuration, NodeId
from remoting import codes
from remoting.errors import LogboomError, RequestError


class ProposalRefused(LogboomError):
    """The leader cannot take the proposal now (too much is uncommitted, it hands over) or at all (too large). Nothing was
    logged."""

    code = codes.SYSTEM_BUSY
    retriable = True


class TransferRefused(RequestError):
    """Leadership cannot go to that node, or did not; the text says why."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.CONTROLLER_INVALID_REQUEST, message)


def propose(leading: Leading, data: bytes) -> Proposed:
    """Append what was decided. Raises ProposalRefused."""
    _require_no_transfer(leading)
    if len(data) > leading.settings.max_entry_bytes:
        raise ProposalRefused(f"an entry of {len(data)} bytes exceeds the limit of {leading.settings.max_entry_bytes}")
    if leading.uncommitted_bytes + len(data) > leading.settings.max_uncommitted_bytes:
        raise ProposalRefused("too many entries wait to be committed; try again later")
    return _append(leading, EntryKind.DECISION, data)


def propose_change(
    leading: Leading,
    changes: Sequence[MemberChange],
    transition: Transition = Transition.AUTO,
    addresses: Mapping[NodeId, str] | None = None,
) -> Proposed:
    """Append a change of the membership. `addresses` are those of present members that the membership does not name yet.

    Raises ProposalRefused and ChangeRefused.
    """
    _require_no_change(leading)
    after = membership.change(leading.configuration, changes, transition, addresses)
    for each in changes:
        if each.kind is ChangeKind.PROMOTE:
            _require_caught_up(leading, each.node)
    return _append_change(leading, after)


def propose_leave_joint(leading: Leading) -> Proposed:
    """End a joint configuration. Raises as `propose_change` does."""
    _require_no_change(leading)
    return _append_change(leading, membership.leave_joint(leading.configuration))


def propose_founding(leading: Leading, cluster: str, addresses: Mapping[NodeId, str]) -> Proposed:
    """Append the group's first configuration. Raises as `propose_change` does."""
    _require_no_change(leading)
    return _append_change(leading, membership.found(leading.configuration, cluster, addresses))


def end_joint_change(leading: Leading) -> None:
    """Leave a joint configuration that ends by itself as soon as it is in effect, whoever entered it."""
    if leading.configuration.auto_leave and leading.transferee is None and not _is_changing(leading):
        _append_change(leading, membership.leave_joint(leading.configuration))


def transfer(leading: Leading, target: NodeId) -> None:
    """Begin to hand leadership over. Raises TransferRefused when the target cannot lead."""
    if target == leading.id:
        raise TransferRefused(f"{target} leads already")
    voters = leading.configuration.voters
    if target not in voters:
        raise TransferRefused(f"{target} is no voter of this group, whose voters are {', '.join(voters)}")
    if target not in leading.active():
        raise TransferRefused(f"{target} is not heard at the moment; start it or choose another controller")
    if leading.transferee != target:
        leading.transfer(target)


def _is_changing(leading: Leading) -> bool:
    return leading.log.applied < leading.last_change_index


def _require_no_transfer(leading: Leading) -> None:
    if leading.transferee is not None:
        raise ProposalRefused(f"leadership is being handed to {leading.transferee}; try again in a moment")


def _require_no_change(leading: Leading) -> None:
    _require_no_transfer(leading)
    if _is_changing(leading):
        raise ChangeRefused("another change of the membership is under way; wait until it is finished")


def _require_caught_up(leading: Leading, node: NodeId) -> None:
    progress = leading.progress[node]
    behind = leading.log.committed - progress.match
    if not progress.was_active or behind > leading.settings.promote_lag_entries:
        how = f"it is {behind} entries behind" if progress.was_active else "it is not heard"
        raise ChangeRefused(f"{node} has not caught up ({how}); promote it later")


def _append_change(leading: Leading, after: Configuration) -> Proposed:
    return _append(leading, EntryKind.MEMBERSHIP, encode_configuration(after))


def _append(leading: Leading, kind: EntryKind, data: bytes) -> Proposed:
    leading.append(kind, data)
    leading.broadcast_append()
    return Proposed(leading.log.last_index, leading.term)
