"""A disk that is full, or nearly, on a master: the end of its log, its role, and the files that replicas need."""

from __future__ import annotations

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.mastership import Mastership
from tests.unit.brokerd.replication.group import Group, MemoryReplicatedLog
from tests.unit.brokerd.replication.roles.test_driver import healthy


def test_a_filler_whose_append_failed_reaches_the_replicas_without_another_message() -> None:
    group = healthy()
    group[1].log.append_record(b"a filler that nobody was told of")
    group.settle(3)
    assert group[2].log.data == group[3].log.data == group[1].log.data
    group.settle(60)
    assert group.controller.members == {1, 2, 3}


@pytest.mark.parametrize("elected", [1, 2])
def test_a_role_changes_at_the_real_end_of_the_log(elected: int) -> None:
    group = healthy()
    group.append(group[1])
    group.settle(5)
    group[1].log.append_record(b"a filler that nobody was told of")
    group.controller.elect(elected)
    group.push(group[1])
    group.push_all()
    group.settle(60)
    assert group[1].machine.role is (Role.MASTER if elected == 1 else Role.REPLICA)
    assert group.controller.members == {1, 2, 3}
    assert group[1].log.data == group[2].log.data == group[3].log.data
    if elected == 2:
        assert group[1].machine.followership.copies == 0, "its log was a good one"


def test_what_breaks_while_it_breaks_down_ends_the_process_all_the_same() -> None:
    group = healthy()

    def broken(role: Role, epoch: int) -> None:
        raise AssertionError("a table is not as it was")

    group[1].driver.role_listeners.append(broken)
    with pytest.raises(AssertionError, match="a table is"):
        group[1].driver.break_down("replication broke", group.now_ms)
    assert group[1].failures == ["replication broke"]
    assert group[1].machine.role is Role.FENCED


def test_a_new_replica_whose_connection_breaks_again_and_again_copies_the_log_once_under_disk_pressure() -> None:
    group = Group(2)
    master, replica = group[1], group[2]
    group.controller.elect(1)
    group.push(master)
    master.driver.members_known(frozenset({1, 2}), frozenset(), group.now_ms)
    master.log.segment_bytes = 1000  # no transfer is larger
    for _ in range(40):
        group.append(master, bytes(249))
    group.push(replica)
    for _ in range(60):
        while not replica.dials:
            group.tick()
        group.dial(replica)
        (wire,) = group.wires.values()
        for _ in range(3):  # the handshake and the first ack, then one transfer, and the ack of that
            group.deliver_to_master(wire)
            group.deliver_to_replica(wire)
            group.flush(replica)
        group.deliver_to_master(wire)
        group.cut(wire)
        group.tick()
        relieve(master.machine.mastership, master.log)
        if replica.log.end_offset == master.log.end_offset:
            break
    assert replica.log.end_offset == master.log.end_offset
    assert replica.log.data[-250:] == master.log.data[-250:]
    assert replica.machine.followership.copies == 0
    assert replica.log.min_offset == 0, "what it has copied is there"
    assert master.log.min_offset > 0, "and was given up here"


def relieve(mastership: Mastership, log: MemoryReplicatedLog) -> None:
    """Retention on a disk that is nearly full: all that nobody needs goes, but for the last record."""
    needed = [each for each in (mastership.held_offset(), mastership.expected_offset) if each is not None]
    limit = min([*needed, log.boundaries()[-2]])
    log.remove_before(max(each for each in log.boundaries() if each <= limit))
