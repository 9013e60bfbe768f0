"""Effects carried out in order; waiters, failures of the disk, late frames: over a whole group in one process."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.roles.effects import Role
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus
from remoting.disk import Bytes
from remoting.errors import CorruptedFile, DamagedRange, DamagedRecord, ProtocolError, StorageError
from tests.unit.brokerd.replication.group import Group
from tests.unit.brokerd.replication.invariants import check_safety


def healthy(size: int = 3, **settings: object) -> Group:
    group = Group(size, ReplicationSettings(**settings))
    group.elect(1)
    group.append(group[1])
    group.settle(5)
    assert group.controller.members == frozenset(range(1, size + 1))
    return group


def test_a_send_is_answered_when_all_have_flushed_it_and_consumers_can_see_it() -> None:
    group = healthy()
    seen: list[tuple[str, int]] = []
    group[1].driver.confirm_listeners.append(lambda offset: seen.append(("confirmed", offset)))
    end = group[1].log.append_record(b"x")
    group[1].driver.on_appended(end, group.now_ms)
    group[1].driver.wait(end, lambda status: seen.append((status.name, end)), group.now_ms)
    group.flush(group[1])
    assert seen == []
    group.settle_now()
    assert seen == [("confirmed", end), ("PUT_OK", end)]


def test_a_change_of_role_answers_every_waiter_once_and_never_ok() -> None:
    group = healthy()
    for _ in range(3):
        group.append(group[1])
    group.controller.elect(2)
    group.push(group[1])
    group.settle(20)
    assert group.outcomes[-3:] == [PutStatus.SERVICE_NOT_AVAILABLE] * 3
    assert group.waiting == 0
    statuses: list[PutStatus] = []
    group[1].driver.wait(1, statuses.append, group.now_ms)
    assert statuses == [PutStatus.SERVICE_NOT_AVAILABLE], "not even for what is long safe: this broker no longer knows"


def test_time_outs_say_whose_disk_is_late() -> None:
    group = healthy(2, not_caught_up_ms=100_000)
    group[2].log.request_flush = lambda: None  # the replica's disk hangs, its network does not
    group.append(group[1])
    group.settle(61)
    assert group.outcomes[-1] is PutStatus.FLUSH_SLAVE_TIMEOUT
    alone = Group(1)
    alone.elect(1)
    alone[1].log.request_flush = lambda: None
    alone.append(alone[1])
    alone[1].log.flush_requested = False
    alone.settle(95)
    assert alone.outcomes == [], "the own disk has more time than replicas have"
    alone.settle(6)
    assert alone.outcomes == [PutStatus.FLUSH_DISK_TIMEOUT]


def test_without_enough_replicas_nothing_is_accepted() -> None:
    group = Group(2, ReplicationSettings(min_in_sync_replicas=2))
    group.controller.elect(1)
    group.push(group[1])
    assert group[1].driver.is_master
    assert not group[1].driver.accepts_messages
    assert group[1].driver.refusal is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    group.push_all()
    group.settle(5)
    assert group[1].driver.accepts_messages
    assert not group[2].driver.accepts_messages
    assert group[2].driver.refusal is PutStatus.SERVICE_NOT_AVAILABLE


def test_too_many_waiters_are_refused() -> None:
    group = healthy(max_waiting_acks=2)
    group.append(group[1])
    assert group[1].driver.accepts_messages
    group.append(group[1])
    assert not group[1].driver.accepts_messages


def test_too_many_bytes_that_wait_are_refused_until_they_are_acknowledged() -> None:
    group = healthy(max_waiting_bytes=4096)
    taken = 0
    while group[1].driver.accepts_messages:
        group.append(group[1], bytes(250))
        taken += 1
    assert taken == 4096 // 251 + 1
    group.push_all()
    group.settle(5)
    assert group[1].driver.accepts_messages


@pytest.mark.parametrize("method", ["save_master_epoch", "save_entries"])
def test_an_epoch_that_cannot_be_saved_is_not_served(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = healthy()
    group.controller.elect(2)

    def fail(*_: object) -> None:
        raise StorageError("no")

    monkeypatch.setattr(group[2].driver._disk._epoch_file, method, fail)
    group.push(group[2])
    assert group[2].failures == ["no"]
    assert group[2].machine.role is Role.FENCED
    assert Role.MASTER not in [role for role, _ in group[2].roles]
    group.push(group[2])
    group.settle(2)
    assert group[2].machine.role is Role.FENCED


def test_a_read_error_ends_the_mastership() -> None:
    group = healthy()

    def fail(offset: int, length: int) -> bytes:
        raise StorageError("cannot read")

    group[1].log.read = fail
    group.append(group[1])
    assert group[1].failures == ["cannot read"]
    assert group.outcomes[-1] is PutStatus.SERVICE_NOT_AVAILABLE


def test_a_sector_that_only_a_replica_asks_for_ends_no_mastership() -> None:
    group = healthy()
    group.crash(group[3])
    group.settle(30)
    assert group.controller.members == {1, 2}
    for _ in range(2):  # the last one is still in memory
        group.append(group[1])
        group.settle(3)
    read = group[1].log.read
    end = group[1].log.end_offset

    def fail(offset: int, length: int) -> bytes:
        if offset < end:
            raise StorageError("cannot read")
        return read(offset, length)

    group[1].log.read = fail
    group[3].start()
    group.push(group[3])
    group.settle(20)
    assert group[1].is_master
    assert group[1].failures == []
    group.append(group[1])
    group.settle(3)
    assert group.outcomes[-1] is PutStatus.PUT_OK
    assert group.controller.members == {1, 2}
    group[1].log.read = read  # somebody repaired it
    group.settle(60)
    assert group.controller.members == {1, 2, 3}
    assert group[3].log.data == group[1].log.data


def full_disk(*_: object) -> None:
    raise StorageError("full") from OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_of_a_replica_is_waited_out() -> None:
    group = healthy()
    append = group[2].log.append_replicated
    group[2].log.append_replicated = full_disk
    group.append(group[1])
    group.settle(40)
    assert group.controller.members == {1, 3}
    assert group.outcomes[-1] is PutStatus.PUT_OK
    assert group[2].state().following.stuck == "full"
    assert group[2].failures == []
    group[2].log.append_replicated = append
    group.settle(200)
    assert group.controller.members == {1, 2, 3}
    assert group[2].log.data == group[1].log.data
    assert group[2].machine.followership.copies == 0


def test_a_damaged_record_is_refused_and_the_replica_keeps_its_log() -> None:
    """Its master's copy is damaged, or the way was; the replica is out of the set until it gets the record as it was stored."""
    group = healthy()
    append = group[2].log.append_replicated
    before = bytes(group[2].log.data)

    def refuse(offset: int, buffers: object) -> None:
        raise DamagedRecord(DamagedRange(offset, 9))

    group[2].log.append_replicated = refuse
    group.append(group[1])
    group.settle(400)
    assert group.controller.members == {1, 3}
    assert group.outcomes[-1] is PutStatus.PUT_OK
    following = group[2].state().following
    assert "the master's copy is damaged" in following.stuck
    assert (group[2].failures, group[2].log.data) == ([], before)
    group[2].log.append_replicated = append
    group.settle(200)
    assert group.controller.members == {1, 2, 3}
    assert group[2].log.data == group[1].log.data
    assert group[2].machine.followership.copies == 0


def test_one_flip_on_the_way_costs_no_time() -> None:
    group = healthy()
    append = group[2].log.append_replicated

    def refuse_once(offset: int, buffers: object) -> None:
        group[2].log.append_replicated = append
        raise DamagedRecord(DamagedRange(offset, 9))

    group[2].log.append_replicated = refuse_once
    group.append(group[1])
    group.settle(20)
    assert group.controller.members == {1, 2, 3}
    assert group.outcomes[-1] is PutStatus.PUT_OK
    assert group[2].log.data == group[1].log.data


def test_a_master_whose_log_is_damaged_holds_what_is_damaged_and_goes_on() -> None:
    group = healthy()
    master, damage = group[1], DamagedRange(group[1].log.end_offset, 9)
    read, found = master.log.read, []

    def read_up_to_damage(offset: int, length: int) -> bytes:
        if offset >= damage.offset:
            raise CorruptedFile("it is damaged", damage)
        return read(offset, min(length, damage.offset - offset))

    master.driver.damage_listeners.append(found.append)
    group.cut(next(wire for wire in group.wires.values() if wire.replica is group[2]))
    master.log.read = read_up_to_damage
    group.append(master)
    group.settle(60)
    assert master.failures == []
    assert group.controller.members == {1}, "whoever lacks the record is out before long"
    assert set(found) == {damage}
    assert len(found) < 20, "it is not read again with every message"
    assert group[2].machine.followership.connection is not None, "and stays connected"
    master.log.read = read
    group.settle(100)
    assert group.controller.members == {1, 2, 3}
    assert group[2].log.data == group[3].log.data == master.log.data


def test_a_new_copy_that_ends_where_the_last_one_did_is_the_last() -> None:
    """Then it is the master's log that is damaged; a replica that copied without end would never hold anything."""
    group = healthy()
    append = group[2].log.append_replicated
    damaged_from = group[1].log.end_offset

    def refuse(offset: int, buffers: Sequence[Bytes]) -> None:
        if offset + sum(map(len, buffers)) > damaged_from:
            raise ProtocolError("not a record")
        append(offset, buffers)

    group[2].log.append_replicated = refuse
    group.append(group[1])
    group.settle(1200)
    assert group[2].machine.followership.copies <= 1
    assert "not a record" in group[2].state().following.stuck


def test_bytes_that_cannot_be_a_log_there_lead_to_a_new_copy() -> None:
    group = healthy()
    append = group[2].log.append_replicated

    def refuse(offset: int, buffers: object) -> None:
        raise ProtocolError("not a record")

    group[2].log.append_replicated = refuse
    group.append(group[1])
    group.settle(40)
    assert group.controller.members == {1, 3}
    group[2].log.append_replicated = append
    group.settle(250)
    assert group[2].machine.followership.copies == 1
    assert group.controller.members == {1, 2, 3}
    assert group[2].log.data == group[1].log.data


def test_a_listener_that_appends_at_promotion_is_not_overtaken() -> None:
    group = Group(1)
    node = group[1]

    def on_role(role: Role, epoch: int) -> None:
        if role is Role.MASTER:
            group.append(node, b"first record of epoch %d" % epoch)

    node.driver.role_listeners.append(on_role)
    group.elect(1)
    assert node.log.records() == [b"first record of epoch 1"]
    assert group.outcomes == [PutStatus.PUT_OK]
    assert [entry.start_offset for entry in EpochFile(node.disk).load()[0].entries] == [0]


def test_a_callback_that_sends_again_is_served() -> None:
    group = healthy()
    node, done = group[1], []

    def again(status: PutStatus) -> None:
        done.append(status)
        if len(done) < 5:
            end = node.log.append_record(b"again")
            node.driver.on_appended(end, group.now_ms)
            node.driver.wait(end, again, group.now_ms)

    end = node.log.append_record(b"again")
    node.driver.on_appended(end, group.now_ms)
    node.driver.wait(end, again, group.now_ms)
    group.settle(5)
    assert done == [PutStatus.PUT_OK] * 5


def test_replicas_that_follow_closely_cost_one_read() -> None:
    group = healthy()
    reads, read = [], group[1].log.read

    def counted(offset: int, length: int) -> bytes:
        reads.append(offset)
        return read(offset, length)

    group[1].log.read = counted
    group.append(group[1])
    assert len(reads) == 1


def test_a_full_connection_is_pumped_when_it_has_room() -> None:
    group = healthy()
    wire = next(wire for wire in group.wires.values() if wire.replica is group[2])
    group[1].full_connections.add(wire.number)
    group.append(group[1])
    assert wire.to_replica == []
    group[1].full_connections.clear()
    group[1].driver.pump(wire.number, group.now_ms)
    assert wire.to_replica
    group.settle(2)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_what_retention_took_is_neither_sent_nor_damaged(caplog: pytest.LogCaptureFixture) -> None:
    """A replica may lack it when it goes: it was read for that one all the same, and what was not there seemed to be
    damage of the master's log."""
    group = healthy()
    damage: list[DamagedRange] = []
    group[1].driver.damage_listeners.append(damage.append)
    wire = next(wire for wire in group.wires.values() if wire.replica is group[2])
    group[1].full_connections.add(wire.number)
    for _ in range(3):
        group.append(group[1])
    reads, read = [], group[1].log.read

    def noted(offset: int, length: int) -> bytes:
        reads.append(offset)
        return read(offset, length)

    group[1].log.read = noted
    group[1].log.remove_before(group[1].log.last_boundary())
    group[1].full_connections.clear()
    caplog.set_level("INFO")
    group[1].driver.pump(wire.number, group.now_ms)
    assert "the files that it was copying are gone" in caplog.text
    assert (reads, damage) == ([], [])
    assert group[1].failures == []


def test_replayed_frames_of_an_older_connection_change_nothing() -> None:
    group = healthy()
    wire = next(wire for wire in group.wires.values() if wire.replica is group[2])
    group.append(group[1])
    replay = list(wire.to_replica)
    group.settle(2)
    before = bytes(group[2].log.data)
    wire.to_replica += replay  # the same bytes again on the same connection
    group.settle(10)
    assert group[2].log.data == before
    assert group.controller.members == {1, 2, 3}
    group.append(group[1])
    group.settle(5)
    check_safety(group)
    assert group[2].log.data == group[1].log.data


def test_acks_that_were_under_way_at_a_switch_count_for_nobody() -> None:
    group = healthy()
    group.append(group[1])
    wires = [wire for wire in group.wires.values() if wire.master is group[1]]
    for wire in wires:
        group.deliver_to_replica(wire)
        group.flush(wire.replica)
    assert all(wire.to_master for wire in wires)
    acked = len(group.acknowledged)
    group.controller.elect(2)
    group.push(group[1])  # deposed before the acks arrive
    for wire in wires:
        group.deliver_to_master(wire)
    group.flush(group[1])
    assert len(group.acknowledged) == acked


def test_a_deposed_master_that_does_not_know_it_acknowledges_nothing() -> None:
    group = healthy()
    group.controller.elect(2)
    group.push(group[2])
    group.push(group[3])  # broker 1 hears nothing, and its producers go on
    for _ in range(3):
        group.append(group[1])
        group.flush(group[1])
    acked = len(group.acknowledged)
    for _ in range(50):
        for wire in list(group.wires.values()):
            if wire.open_at_master and wire.open_at_replica:
                group.deliver_to_master(wire)
                group.deliver_to_replica(wire)
            else:
                group.notice_close(wire)
        for node in group.nodes.values():
            while node.dials:
                group.dial(node)
            if node.log.flush_requested:
                group.flush(node)
        group.tick()
    assert group[1].driver.is_master
    assert len(group.acknowledged) == acked
    assert not group.outcomes.count(PutStatus.PUT_OK) > acked
    group.push_all()
    group.settle(60)
    assert group.controller.members == {1, 2, 3}
    assert group[1].log.data == group[2].log.data


def test_two_switches_without_writes_then_divergence() -> None:
    group = healthy()
    start = group[1].log.end_offset
    group.elect(2)  # epoch 2, nothing written
    group.crash(group[3])
    group.settle(10)
    assert group.controller.members == {1, 2}
    group.controller.elect(1)  # epoch 3
    group.push(group[1])
    group.append(group[1], b"of epoch 3, only on broker 1")
    group.flush(group[1])
    group.crash(group[1])
    group.controller.members = frozenset(
        {1, 2, 3}
    )  # an unclean moment, to have two holders of different bytes at one place
    group.controller.elect(2)
    group.push(group[2])
    group.append(group[2], b"of epoch 4")
    group.settle(5)
    group[1].start()
    group[3].start()
    group.push_all()
    group.settle(60)
    assert group.controller.members == {1, 2, 3}
    assert group[1].log.data == group[2].log.data == group[3].log.data
    entries = EpochFile(group[1].disk).load()[0].entries
    assert entries[-1] == (4, start)
    assert group[1].machine.followership.cuts == 1


def test_a_longer_diverged_tail_is_cut() -> None:
    group = healthy()
    for wire in list(group.wires.values()):
        group.cut(wire)
    for _ in range(5):
        group.append(group[1], b"a tail that no replica ever got")
    group.flush(group[1])
    acked = len(group.acknowledged)
    group.crash(group[1])
    group.settle(1)
    group.elect(2)
    group.append(group[2])
    group.settle(10)
    assert len(group.acknowledged) == acked + 1
    assert group[1].log.end_offset > group[2].log.end_offset
    group[1].start()
    group.push_all()
    group.settle(40)
    assert group[1].log.data == group[2].log.data
    assert group[1].machine.followership.cuts == 1
    assert group.controller.members == {1, 2, 3}


def test_restart_of_all_at_once_keeps_everything_acknowledged() -> None:
    group = healthy()
    for _ in range(10):
        group.append(group[1])
    group.settle(3)
    for node in group.nodes.values():
        group.crash(node)
    for node in group.nodes.values():
        node.start()
    group.push_all()  # the controllers still name broker 1 master of epoch 1
    assert not any(node.is_master for node in group.nodes.values())
    for _ in range(10):
        group.settle(4)
        group.push_all()
    assert group.controller.master_epoch == 2
    assert group.controller.members == {1, 2, 3}
    check_safety(group)
    assert len(group.acknowledged) == 11


def test_the_state_has_what_a_person_asks() -> None:
    group = healthy()
    master = group[1].state()
    assert master.role is Role.MASTER
    assert master.sync_state_set == [1, 2, 3]
    assert {replica.state.broker_id: replica.state.gap_bytes for replica in master.leading.replicas} == {2: 0, 3: 0}
    quorum = master.leading.quorum
    assert (quorum.copies, quorum.wanted_copies, quorum.downgraded, master.leading.missing) == (3, 3, False, [])
    assert (master.weaknesses, master.learner) == ([], False)
    replica = group[2].state()
    assert replica.leading is None
    assert replica.role is Role.REPLICA
    assert replica.master_id == 1
    assert replica.following.state.stage == "transfer"
    assert replica.confirm_offset == master.confirm_offset


def test_a_downgrade_is_told_with_who_why_and_since_when_and_ends_by_itself() -> None:
    group = healthy()
    group.crash(group[3])
    group.settle(20)
    leading = group[1].state().leading
    assert (leading.quorum.copies, leading.quorum.wanted_copies, leading.quorum.downgraded) == (2, 3, True)
    (missing,) = leading.missing
    assert (missing.broker_id, missing.reason, missing.stalls) == (3, "it is not connected", False)
    assert 500 <= missing.for_ms <= 1000
    group[3].start()
    group.push(group[3])
    group.settle(20)
    leading = group[1].state().leading
    assert (leading.quorum.copies, leading.quorum.downgraded, leading.missing) == (3, False, [])


def test_who_finds_out_by_the_logs_end_that_the_disk_failed_leads_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else appended is in the log then, and more of it could not be written."""
    group = healthy()
    driver, kept = group[1].driver, type(group[1].log)
    end_offset = kept.end_offset.fget
    is_known = False

    def settled(log: object) -> int:
        nonlocal is_known
        if log is group[1].log and not is_known:
            is_known = True
            group[1].log.append_record(b"taken")
            driver.break_down("cannot write", group.now_ms)
        end: int = end_offset(log)
        return end

    monkeypatch.setattr(kept, "end_offset", property(settled))
    driver.tick(group.now_ms, 100)
    assert is_known
    assert not group[1].is_master
    assert driver.machine.failure == "cannot write"
