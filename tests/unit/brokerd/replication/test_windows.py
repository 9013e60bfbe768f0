"""The windows in which designs like this one lose, duplicate or stall, opened one at a time on a whole group.

`docs/RELIABILITY.md` has the table; the windows without a test here have theirs where the code that closes them lives. Where a
setting opens a window on purpose, the test shows the loss: the documentation says so, and it must stay true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.roles.effects import Role, SendRelease
from brokerd.replication.roles.followership import CopyStage
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError
from tests.unit.brokerd.replication.group import Group, Node, Request
from tests.unit.brokerd.replication.invariants import check_acks_are_from_one_broker_per_epoch, check_safety

WEAK = {"all_ack_in_sync_state_set": False}


def healthy(size: int = 3, **settings: object) -> Group:
    group = Group(size, ReplicationSettings(**settings))
    group.elect(1)
    group.append(group[1])
    group.settle(5)
    assert group.controller.members == frozenset(range(1, size + 1))
    assert group.outcomes == [PutStatus.PUT_OK]
    return group


def append_and_flush(group: Group, node: Node) -> None:
    group.append(node)
    group.flush(node)


def carry(group: Group, replica: int) -> None:
    """Let one replica get what its master sent, flush it and ack it; nobody else hears anything."""
    for wire in list(group.wires.values()):
        if wire.replica is group[replica]:
            group.deliver_to_replica(wire)
            group.flush(group[replica])
            group.deliver_to_master(wire)


def isolated(group: Group, broker_id: int, ticks: int) -> None:
    """Let time pass while one broker reaches no controller."""
    for _ in range(ticks):
        group.settle_without_controllers()
        group.requests = [each for each in group.requests if each.node is not group[broker_id]]
        group.settle_now()
        group.tick()


def test_w01_by_default_nobody_is_told_before_all_members_have_it() -> None:
    group = healthy()
    append_and_flush(group, group[1])
    carry(group, 2)
    assert len(group.outcomes) == 1, "one of three is missing"
    carry(group, 3)
    assert group.outcomes == [PutStatus.PUT_OK] * 2


def test_w01_the_weak_mode_loses_what_the_master_alone_had() -> None:
    group = healthy(**WEAK)
    append_and_flush(group, group[1])
    assert group.outcomes == [PutStatus.PUT_OK] * 2
    group.controller.elect(2)
    with pytest.raises(AssertionError, match="b2 is electable and lacks"):
        check_safety(group)


def test_w02_the_weak_mode_loses_when_the_member_without_it_is_elected() -> None:
    group = healthy(**WEAK, in_sync_replicas=2)
    append_and_flush(group, group[1])
    assert len(group.outcomes) == 1
    carry(group, 2)
    assert group.outcomes == [PutStatus.PUT_OK] * 2
    group.controller.elect(3)
    with pytest.raises(AssertionError, match="b3 is electable and lacks"):
        check_safety(group)


@pytest.mark.parametrize("size", [2, 3])
def test_w03_an_isolated_master_acknowledges_nothing_after_another_one_was_elected(size: int) -> None:
    group = healthy(size)
    group.controller.elect(2)
    for broker_id in range(2, size + 1):
        group.push(group[broker_id])
    isolated(group, 1, 3)
    append_and_flush(group, group[1])
    group.append(group[2])
    isolated(group, 1, 80)
    assert group[1].machine.role is Role.MASTER
    assert group[1].machine.master_epoch == 1
    assert group.outcomes.count(PutStatus.PUT_OK) == 2
    assert PutStatus.FLUSH_SLAVE_TIMEOUT in group.outcomes
    check_safety(group)
    check_acks_are_from_one_broker_per_epoch(group)


def test_w03_a_master_that_is_the_whole_set_goes_on_alone_because_nobody_else_can_be_elected() -> None:
    group = healthy(2)
    group.crash(group[2])
    group.settle(10)
    assert group.controller.members == {1}
    group[2].start()
    for wire in list(group.wires.values()):
        group.cut(wire)
    assert group.controller.candidates() == [1]
    append_and_flush(group, group[1])
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_w07_consumers_see_nothing_that_a_joining_replica_lacks() -> None:
    """The set is the master alone here, and wider at the controller: what is confirmed waits for both."""
    group = healthy(2)
    group.crash(group[2])
    group.settle(10)
    assert group.controller.members == {1}
    group[2].start()
    group.push(group[2])
    while not [request for request in group.requests if request.kind == "alter"]:
        if not group.one_round_without_controllers():
            group.tick()
    group.process(next(request for request in group.requests if request.kind == "alter"))
    assert group.controller.members == {1, 2}
    assert group[1].machine.mastership is not None
    assert group[1].machine.mastership.sync.local == {1}, "the answer is still under way"
    before = group[1].machine.confirm_offset
    append_and_flush(group, group[1])
    assert group[1].machine.confirm_offset == before
    assert group.outcomes[-1:] == [PutStatus.PUT_OK]
    assert len(group.acknowledged) == 1


def test_w12_a_new_epoch_of_the_same_master_begins_on_new_connections() -> None:
    group = healthy()
    old = set(group.wires)
    group.controller.elect(1)
    group.push(group[1])
    assert not any(group.wires[number].open_at_master for number in old if number in group.wires)
    group.settle(20)
    append_and_flush(group, group[1])
    group.settle(3)
    assert group.outcomes[-1] is PutStatus.PUT_OK
    for node in group.nodes.values():
        assert [entry.epoch for entry in node.machine.epochs.entries] == [1, 2]


def test_w14_a_power_loss_of_all_machines_takes_nothing_that_was_acknowledged() -> None:
    group = healthy()
    for _ in range(5):
        group.append(group[1])
        group.settle_now()
    acknowledged = len(group.acknowledged)
    assert acknowledged == 6
    for node in group.nodes.values():
        group.crash(node)
    for node in group.nodes.values():
        node.start()
    group.elect(3)
    check_safety(group)
    for acked in group.acknowledged:
        assert group[3].log.content(acked.position + 1, acked.position + 1 + len(acked.payload)) == acked.payload


def test_w14_acknowledging_from_memory_loses_it() -> None:
    group = healthy(ack_after="append")
    group.append(group[1])
    for wire in list(group.wires.values()):
        group.deliver_to_replica(wire)
        group.deliver_to_master(wire)
    assert group.outcomes == [PutStatus.PUT_OK] * 2
    for node in group.nodes.values():
        group.crash(node)
    with pytest.raises(AssertionError, match="is electable and lacks"):
        check_safety(group)


def test_w21_with_two_required_copies_a_new_master_takes_nothing_until_a_replica_is_back() -> None:
    group = healthy(2, min_in_sync_replicas=2)
    group.crash(group[1])
    group.controller.elect(2)
    group.push(group[2])
    group.settle(5)
    assert group[2].driver.is_master
    assert not group[2].driver.accepts_messages
    assert group[2].driver.refusal is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    group[1].start()
    group.push(group[1])
    group.settle(10)
    assert group[2].driver.accepts_messages
    append_and_flush(group, group[2])
    group.settle(3)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_w22_without_controllers_a_dead_replica_stalls_sends_loses_nothing_and_ends_by_itself() -> None:
    group = healthy()
    group.crash(group[3])
    append_and_flush(group, group[1])
    for _ in range(80):
        group.settle_without_controllers()
        group.tick(50)
    assert group.outcomes == [PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT]
    assert group.controller.members == {1, 2, 3}
    check_safety(group)
    group.settle(20)  # the controllers answer again
    assert group.controller.members == {1, 2}
    group.append(group[1])
    group.settle(3)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_w23_a_rejected_expansion_does_not_leave_a_dead_replica_required() -> None:
    group = healthy(2)
    group.crash(group[2])
    group.settle(10)
    group[2].start()
    group.push(group[2])
    while not [request for request in group.requests if request.kind == "alter"]:
        if not group.one_round_without_controllers():
            group.tick()
    group.crash(group[2])  # the controller refuses: not alive
    group.settle(30)
    assert group.controller.members == {1}
    assert group[1].machine.mastership is not None
    assert group[1].machine.mastership.sync.required == {1}
    append_and_flush(group, group[1])
    assert group.outcomes[-1] is PutStatus.PUT_OK


def settle_with_held_proposals(group: Group, held: list[Request], rounds: int) -> None:
    """Let everything happen but the masters' proposals, whose link to the controllers is slow."""
    for _ in range(rounds):
        while _one_event(group, held):
            pass
        group.tick()


def _one_event(group: Group, held: list[Request]) -> bool:
    busy = group.one_round_without_controllers()
    held.extend(each for each in group.requests if each.kind == "alter")
    group.requests[:] = [each for each in group.requests if each.kind != "alter"]
    while group.requests:
        group.process(group.requests[0])
        busy = True
    while group.answers:
        group.deliver(group.answers[0])
        busy = True
    return busy


def race_with_a_proposal() -> tuple[Group, list[Request]]:
    """A replica has caught up, and the master's proposal that makes it a member is held up on its way to the controllers; then
    the replica's log refuses a byte, so that it wants to copy everything anew."""
    group = healthy(2)
    group.crash(group[2])
    group.settle(100)
    assert group.controller.members == {1}
    group[2].start()
    group.push(group[2])
    held: list[Request] = []
    settle_with_held_proposals(group, held, 3)
    assert [sorted(each.proposal.members) for each in held if each.proposal is not None] == [[1, 2]]
    log = group[2].log
    take = log.append_replicated

    def refuse(offset: int, buffers: Sequence[Bytes]) -> None:
        log.append_replicated = take
        raise ProtocolError("no record starts there")

    log.append_replicated = refuse
    group.append(group[1])
    settle_with_held_proposals(group, held, 2)
    followership = group[2].machine.followership
    assert followership is not None
    assert followership.stuck == "no record starts there"
    return group, held


def test_a_replica_keeps_its_log_while_a_proposal_that_names_it_is_on_its_way() -> None:
    group, held = race_with_a_proposal()
    settle_with_held_proposals(group, held, 200)
    assert group[2].log.end_offset > 0, "the controllers say that it is no member, but the master has not let it go"
    group.requests.append(held.pop(0))
    group.settle_now()
    check_safety(group)
    group.settle(100)
    assert group[2].log.records() == group[1].log.records()
    assert group[2].machine.followership is not None
    assert group[2].machine.followership.copies == 1
    assert group.controller.members == {1, 2}
    check_safety(group)


def test_the_group_loses_when_a_master_lets_go_of_whom_it_has_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_all(self: Mastership, now_ms: int) -> None:
        for follower in self.followers:
            if follower.stage is ConnectionStage.LEAVING:
                self._outbox.append(SendRelease(follower.connection))
                self._greet(follower, now_ms)

    monkeypatch.setattr(Mastership, "_release_leaving", release_all)
    group, held = race_with_a_proposal()
    log, decided = group[2].log, []
    reset = log.reset

    def reset_while_the_proposal_arrives(offset: int) -> None:
        reset(offset)
        decided.append(group.controller.process(held[0]).code)
        with pytest.raises(AssertionError, match="b2 is electable and lacks"):
            check_safety(group)

    log.reset = reset_while_the_proposal_arrives
    settle_with_held_proposals(group, held, 200)
    assert decided == [codes.SUCCESS]


def test_a_replica_that_comes_back_with_less_than_it_acknowledged_leaves_at_once() -> None:
    """Whatever it lost it by: a master does not wait until it lags."""
    group = healthy(2)
    group.append(group[1])
    group.settle(3)
    mastership = group[1].machine.mastership
    assert mastership is not None
    group.crash(group[2])
    group[2].log._cut(group[2].log.boundaries()[-2])
    group[2].start()
    group.push(group[2])
    while group[2].machine.followership is None or group[2].machine.followership.stage is not CopyStage.TRANSFER:
        group.one_round_without_controllers() or group.tick()
    for wire in list(group.wires.values()):
        group.deliver_to_master(wire)
    assert [sorted(each.proposal.members) for each in group.requests if each.proposal is not None] == [[1]]
    group.settle(20)
    assert group.controller.members == {1, 2}
    check_safety(group)


def test_a_broker_serves_no_epoch_that_another_process_with_its_identity_was_elected_for() -> None:
    """Two processes on copies of one data directory: the controllers name which of them was elected."""
    group = healthy()
    other = replace(group.controller.view(), master_id=2, master_epoch=2, members=frozenset({2}), set_epoch=9)
    group[2].driver.observed(replace(other, master_incarnation=group[2].life + 1), group.now_ms)
    assert group[2].machine.role is Role.FENCED
    assert "is another one than this" in group[2].state().stale_view
    group[2].driver.observed(replace(other, master_epoch=3, master_incarnation=group[2].life), group.now_ms)
    assert group[2].machine.role is Role.MASTER
    group[2].driver.observed(replace(other, master_epoch=3, master_incarnation=group[2].life + 1), group.now_ms)
    assert group[2].machine.role is Role.FENCED


def test_w29_a_winner_that_cannot_go_on_is_followed_by_a_member_that_stayed() -> None:
    """It ends at a rotten record whenever it starts; the others of the former set have everything, and may lead."""
    group = healthy()
    group.crash(group[1])
    group.elect(2)
    assert group.controller.members == {2, 3}
    group.append(group[2])
    group.settle(5)
    assert group.outcomes == [PutStatus.PUT_OK] * 2
    group.crash(group[2])
    assert group.controller.candidates() == [3]
    group.elect(3)
    check_safety(group)
    group.append(group[3])
    group.settle(60)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_w29_nothing_is_acknowledged_without_a_member_that_has_not_heard_of_the_election() -> None:
    group = healthy()
    group.crash(group[1])
    group.controller.elect(2)
    group.push(group[2])
    append_and_flush(group, group[2])
    assert group.outcomes == [PutStatus.PUT_OK], "b3 stays in the set, and lacks it"
    assert group.controller.candidates() == [2, 3]
    check_safety(group)
    group.push(group[3])
    group.settle(5)
    assert group.outcomes == [PutStatus.PUT_OK] * 2
    check_safety(group)


def test_w29_a_member_that_stays_may_lead_with_what_the_winner_never_had() -> None:
    """Bytes that were not acknowledged, of the old master, are on the one and not on the other: either log may go on."""
    group = healthy()
    append_and_flush(group, group[1])
    for wire in list(group.wires.values()):
        if wire.replica is group[3]:
            group.deliver_to_replica(wire)
            group.flush(group[3])
    group.crash(group[1])
    group.controller.elect(2)
    group.push(group[2])
    append_and_flush(group, group[2])
    group.crash(group[2])
    group.elect(3)
    check_safety(group)
    group.append(group[3])
    group[1].start()
    group[2].start()
    group.push_all()
    group.settle(80)
    check_safety(group)
    assert group.controller.members == {1, 2, 3}
    assert group[1].log.data == group[2].log.data == group[3].log.data
    assert group.outcomes[-1] is PutStatus.PUT_OK
