"""What must hold in a group after every event, whatever the schedule: the invariants of replication, by subject.

Acknowledgements come from one broker per epoch, and in an epoch older than the newest that acknowledged only for what that one
took over (`Group` looks at each); the required set contains the controllers' set; what is acknowledged or visible is on every
electable broker; an epoch's start never moves; a replica's log is a prefix of its master's; learners are in no set.
`schedules.Story.finish` adds what must hold in the end: the group heals, its logs are equal, nobody waits.
"""

from __future__ import annotations

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import is_increasing
from brokerd.replication.roles.followership import CopyStage
from tests.unit.brokerd.replication.group import Group, Node


def check_safety(group: Group) -> None:
    """What must hold after every single event."""
    check_sets(group)
    check_visibility(group)
    check_epochs(group)
    check_logs(group)


def check_sets(group: Group) -> None:
    """What was acknowledged is on every electable broker, and the required set contains all of those; learners are in neither."""
    controller = group.controller
    assert not controller.members & group.learners, "a learner is a member"
    for acked in group.acknowledged:
        end = acked.position + 1 + len(acked.payload)
        for broker_id in controller.trusted:
            node = group.nodes[broker_id]
            safe = node.log.flushed_offset if group.settings.ack_after_flush else node.log.end_offset
            held = node.log.content(acked.position + 1, end) if safe >= end else b""
            assert held == acked.payload, f"b{broker_id} is electable and lacks {acked}"
    for node in group.nodes.values():
        if not node.alive:
            continue
        machine = node.machine
        assert machine.confirm_offset <= machine.log.end_offset == node.log.end_offset
        mastership = machine.mastership
        if mastership is not None:
            assert node.broker_id not in group.learners, "a learner leads"
            assert not mastership.sync.required & group.learners, "an acknowledgement waits for a learner"
            if mastership.epoch == controller.master_epoch:
                assert controller.members <= mastership.sync.required


def check_epochs(group: Group) -> None:
    """An epoch with bytes begins where it always began, on whichever broker; nobody is in an older role than it has promised."""
    for node in group.nodes.values():
        if not node.alive:
            continue
        machine = node.machine
        entries = machine.epochs.entries
        assert is_increasing(entries)
        if machine.log.end_offset > machine.log.min_offset:
            assert not entries or entries[0].start_offset <= machine.log.min_offset, "bytes without an epoch"
        assert not entries or entries[-1].start_offset <= machine.log.end_offset, "an epoch behind the log's end"
        ends = [*(entry.start_offset for entry in entries[1:]), machine.log.end_offset][: len(entries)]
        for entry, end in zip(entries, ends, strict=True):
            if entry.start_offset < end and entry.start_offset > node.log.min_offset:
                first = group.epoch_starts.setdefault(entry.epoch, entry.start_offset)
                assert first == entry.start_offset, f"epoch {entry.epoch} began at {first}, and at {entry.start_offset}"
        persisted = EpochFile(node.disk).load()[1]
        assert machine.highest_epoch == persisted, "an epoch was taken up before it was durable"
        followership = machine.followership
        if followership is not None:
            assert followership.master_epoch == machine.highest_epoch, "it follows a master older than one it knows of"
            check_prefix(group, node)


def check_prefix(group: Group, node: Node) -> None:
    """A replica that is being sent the log has a prefix of its master's."""
    followership = node.machine.followership
    assert followership is not None
    master = group[followership.master_id]
    mastership = master.machine.mastership if master.alive else None
    if (
        followership.stage is not CopyStage.TRANSFER
        or mastership is None
        or mastership.epoch != followership.master_epoch
    ):
        return
    start = max(node.log.min_offset, master.log.min_offset)
    end = node.log.end_offset
    assert end <= master.log.end_offset
    assert node.log.content(start, end) == master.log.content(start, end)


def check_logs(group: Group) -> None:
    """Where two epoch lists agree, the logs do."""
    nodes = list(group.nodes.values())
    lists = [EpochFile(node.disk).load()[0] for node in nodes]
    for index, node in enumerate(nodes):
        for other_index in range(index):
            other = nodes[other_index]
            other_entries = lists[other_index].entries
            own_end, other_end = node.log.end_offset, other.log.end_offset
            lists[index].drop_beyond(own_end)
            common = lists[index].common_end(
                own_end, [e for e in other_entries if e.start_offset <= other_end], other_end
            )
            if common is not None:
                start = max(node.log.min_offset, other.log.min_offset)
                assert node.log.content(start, common) == other.log.content(start, common), (
                    f"b{node.broker_id} and b{other.broker_id} differ below {common}, where their epochs say they agree"
                )


def check_visibility(group: Group) -> None:
    """What a consumer may have read, on the master or on a replica, is on every broker that could be elected, byte for byte."""
    members = [group.nodes[each] for each in group.controller.trusted]
    for node in group.nodes.values():
        if not node.alive:
            continue
        visible = node.machine.confirm_offset
        if node.machine.mastership is not None:
            before = group.confirmed.get((node.broker_id, node.machine.master_epoch), 0)
            assert visible >= before, "the confirm offset went back within a mastership"
            group.confirmed[node.broker_id, node.machine.master_epoch] = visible
        for member in members:
            safe = member.log.flushed_offset if group.settings.ack_after_flush else member.log.end_offset
            assert safe >= visible, (
                f"b{node.broker_id} shows {visible}, of which electable b{member.broker_id} has {safe}"
            )
            start = max(node.log.min_offset, member.log.min_offset)
            assert member.log.content(start, visible) == node.log.content(start, visible)


def check_acks_are_from_one_broker_per_epoch(group: Group) -> None:
    by_epoch: dict[int, set[int]] = {}
    for acked in group.acknowledged:
        by_epoch.setdefault(acked.epoch, set()).add(acked.broker_id)
    assert all(len(brokers) == 1 for brokers in by_epoch.values()), by_epoch
