"""Brokers of the original in a group of ours: what a master makes of them, and what a replica makes of such a master."""

from __future__ import annotations

import pytest

from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.roles.effects import (
    AppendReplicated,
    Ask,
    CloseConnection,
    Role,
    SendAck,
    SendHandshake,
    SendHeartbeat,
    SendReply,
    SendTwinConnected,
)
from brokerd.replication.roles.followership import CopyStage, Followership
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.dialled_end import UNLIMITED
from brokerd.replication.wire.frames import Handshake, Layout, Piece, Reply, TransferHeader
from brokerd.replication.wire.rocketmq_layouts import MAX_BODY_BYTES_SENT
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.settings import StoreSettings
from remoting.errors import ProtocolError
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.replication.epochs.test_epochs import epochs, text
from tests.unit.brokerd.replication.group import FusedDisk, Group, MemoryReplicatedLog
from tests.unit.brokerd.replication.roles.test_followership import Replica
from tests.unit.brokerd.replication.roles.test_mastership import Master
from tests.unit.brokerd.replication.roles.test_role_machine import machine, promoted, view

PLAIN = ReplicationSettings(plain_peers="127.0.0.1")
ADDRESS = "127.0.0.1:10912"


def greet(master: Master, connection: int, handshake: Handshake, ack: int | None = None) -> None:
    master.mastership.accepted(connection, master.now_ms)
    master.mastership.handshake(connection, handshake, master.now_ms)
    if ack is not None:
        master.mastership.acked(connection, ack, master.now_ms)


def peer_of(master: Master, connection: int):
    return next(peer for peer in master.mastership.followers if peer.connection == connection)


def slave(broker_id: int = 2, **more: object) -> Handshake:
    return Handshake(broker_id, layout=Layout.CURRENT, acks_flushed=False, **more)


def seed(address: str = "10.0.0.7:10911") -> Handshake:
    return Handshake(-1, learner=True, layout=Layout.SEED, acks_flushed=False, address=address)


CLASSIC = Handshake(-1, learner=True, layout=Layout.CLASSIC, acks_flushed=False)


# The master


def test_a_slave_of_the_original_joins_the_set() -> None:
    master = Master()
    greet(master, 20, slave(), 100)
    assert master.sync.joining == {2}


def test_a_replica_of_ours_whose_acks_mean_less_is_not_counted() -> None:
    master = Master()
    greet(master, 20, Handshake(2, acks_flushed=False), 100)
    assert not master.sync.joining
    weak = Master(ack_after="append")
    greet(weak, 20, Handshake(2, acks_flushed=False), 100)
    assert weak.sync.joining == {2}


def test_a_slave_that_is_silent_as_the_original_is_keeps_its_place() -> None:
    """It acks what is new, and otherwise every five seconds."""
    master = Master(2)
    greet(master, 20, slave(), 100)
    for now_ms in range(0, 20_000, 50):
        if now_ms % 5000 == 0:
            master.mastership.acked(20, 100, now_ms)
        master.tick(now_ms)
    assert master.sync.local == {1, 2}
    assert master.sync.in_flight is None
    assert not [effect for effect in master.effects if isinstance(effect, CloseConnection)]


def test_a_slave_that_does_not_ack_what_it_was_sent_leaves_the_set() -> None:
    master = Master(2)
    greet(master, 20, slave(), 100)
    master.append(50)
    master.send_all(20)
    for now_ms in range(0, 2000, 50):
        master.tick(now_ms)
    assert master.sync.in_flight is not None
    assert master.sync.in_flight.members == {1}


def test_a_dead_slave_is_dropped_in_the_end() -> None:
    master = Master(plain_silence_limit_ms=3000)
    greet(master, 20, slave(), 100)
    for now_ms in range(0, 3100, 50):
        master.tick(now_ms)
    assert any(isinstance(effect, CloseConnection) and effect.connection == 20 for effect in master.effects)


def test_heartbeats_to_the_original_carry_the_epoch_of_the_last_byte() -> None:
    """It notes the epoch of a heartbeat, and would refuse to note a later one that begins at the same offset."""
    master = Master()
    greet(master, 20, slave(), 100)
    greet(master, 30, Handshake(3), 100)
    master.tick(1000)
    beats = {effect.connection: effect.header for effect in master.effects if isinstance(effect, SendHeartbeat)}
    assert (beats[20].epoch, beats[20].epoch_start) == (1, 0)
    assert (beats[30].epoch, beats[30].epoch_start) == (3, 100)
    master.append(10)
    master.ack(20, 110)
    master.effects.clear()
    master.tick(2000)
    (beat,) = [each for each in master.effects if isinstance(each, SendHeartbeat) and each.connection == 20]
    assert (beat.header.offset, beat.header.epoch, beat.header.epoch_start) == (110, 3, 100)


def test_a_heartbeat_before_any_byte_names_no_epoch() -> None:
    master = Master(end=0)
    greet(master, 20, slave(), 0)
    master.tick(1000)
    (beat,) = [each for each in master.effects if isinstance(each, SendHeartbeat)]
    assert (beat.header.offset, beat.header.epoch, beat.header.epoch_start) == (0, -1, -1)


def test_batches_fit_into_the_buffer_of_the_original() -> None:
    master = Master(transfer_batch_bytes=8 << 20)
    greet(master, 20, slave(), 100)
    greet(master, 30, Handshake(3), 100)
    master.append(16 << 20)
    assert {length for _, length in master.send_all(20)} == {MAX_BODY_BYTES_SENT}
    assert {length for _, length in master.send_all(30)} == {8 << 20}


@pytest.mark.parametrize("learner", [False, True])
def test_from_the_last_file_on(learner: bool) -> None:
    master = Master(end=100)
    master.log.segment_size_bytes = 64
    greet(master, 20, slave(from_last_file=True, learner=learner), 0)
    assert [header.offset for header, _ in master.send_all(20)] == [64]
    master.mastership.acked(20, 0, 0)  # its heartbeat before it took anything
    master.mastership.acked(20, 100, 0)
    assert peer_of(master, 20).ack_offset == 100


def test_from_the_last_file_on_holds_for_empty_logs_only() -> None:
    master = Master(end=200)
    master.log.segment_size_bytes = 64
    greet(master, 20, slave(from_last_file=True), 70)
    assert master.send_all(20)[0][0].offset == 70


@pytest.mark.parametrize(("end", "start"), [(0, 0), (1, 0), (64, 0), (65, 64), (128, 64)])
def test_the_last_file_is_the_one_that_holds_the_last_byte(end: int, start: int) -> None:
    master = Master(end=end)
    assert master.log.last_file_start == 0
    master.log.segment_size_bytes = 64
    assert master.log.last_file_start == start


def test_a_connected_process_keeps_its_broker_id() -> None:
    """Another one may be its next life, or run on a copy of its data directory: nobody can tell before the first is gone."""
    master = Master()
    greet(master, 20, Handshake(2, incarnation=5), 100)
    for connection, incarnation in ((21, 4), (22, 6)):
        greet(master, connection, Handshake(2, incarnation=incarnation))
        assert [peer.connection for peer in master.mastership.followers] == [20]
        assert SendTwinConnected(connection) in master.effects
        assert "two processes have broker id 2" in master.effects[-1].reason
    master.mastership.lost(20, master.now_ms)
    greet(master, 22, Handshake(2, incarnation=6))
    assert [peer.connection for peer in master.mastership.followers] == [22]
    greet(master, 23, Handshake(2, incarnation=6))
    assert [peer.connection for peer in master.mastership.followers] == [23], "the same life may dial again"


# Guests


@pytest.mark.parametrize("handshake", [seed(), CLASSIC])
def test_a_guest_is_sent_the_log_and_counted_nowhere(handshake: Handshake) -> None:
    master = Master(min_in_sync_replicas=1)
    greet(master, 20, handshake, 0)
    assert sum(length for _, length in master.send_all(20)) == 100
    master.mastership.acked(20, 100, 0)
    master.append(50)
    master.ack(20, 150)
    assert not master.sync.joining
    assert master.sync.required == {1}
    for now_ms in range(0, 4000, 50):
        master.tick(now_ms)
    assert master.sync.in_flight is None
    assert peer_of(master, 20).stage is ConnectionStage.STREAMING
    replies = [effect for effect in master.effects if isinstance(effect, SendReply)]
    assert len(replies) == (handshake.layout is Layout.SEED)


def test_a_guests_ack_acknowledges_nothing() -> None:
    master = Master(2)
    greet(master, 20, CLASSIC, 100)
    greet(master, 30, Handshake(2), 100)
    master.append(50)
    master.ack(20, 150)
    assert master.mastership.acknowledged_offset == 100
    master.ack(30, 150)
    assert master.mastership.acknowledged_offset == 150


def test_a_guest_ahead_of_the_master_is_closed() -> None:
    """The original would count the ack and never send a byte."""
    master = Master()
    greet(master, 20, CLASSIC, 101)
    assert not master.mastership.followers


@pytest.mark.parametrize("offset", [-1, 99, 151])
def test_a_guest_that_acks_nonsense_is_closed(offset: int) -> None:
    master = Master()
    greet(master, 20, CLASSIC, 100)
    master.append(50)
    master.send_all(20)
    master.mastership.acked(20, offset, 0)
    assert not master.mastership.followers


def test_a_guest_dials_again() -> None:
    master = Master()
    greet(master, 20, seed(), 100)
    greet(master, 21, seed("10.0.0.8:10911"), 100)
    greet(master, 22, seed(), 100)
    assert [peer.connection for peer in master.mastership.followers] == [21, 22]
    greet(master, 23, CLASSIC, 100)
    greet(master, 24, CLASSIC, 100)
    assert len(master.mastership.followers) == 4, "nothing tells one classic slave from another"
    master.mastership.handshake(22, seed(), 0)
    assert [peer.connection for peer in master.mastership.followers] == [21, 23, 24], "one greeting is enough"


# A replica that has seen more than the master


def test_a_master_that_is_shown_a_newer_epoch_leaves_its_role_and_asks() -> None:
    made = promoted("1@0", end=120)
    made.accepted(7, 0)
    made.take_effects()
    made.handshake(7, Handshake(2, highest_epoch=4), 0)
    assert made.role is Role.FENCED
    effects = made.take_effects()
    assert any(isinstance(effect, CloseConnection) and "master epoch 4" in effect.reason for effect in effects)
    assert effects[-1] is Ask.SYNC
    assert made.highest_epoch == 3, "what a replica says is not persisted: a controller has to say it"
    made.observe(view(2, 4), 0)
    assert made.role is Role.REPLICA


def test_the_epoch_that_it_has_itself_changes_nothing() -> None:
    made = promoted("1@0", end=120)
    made.accepted(7, 0)
    made.handshake(7, Handshake(2, highest_epoch=3), 0)
    assert made.role is Role.MASTER


def test_a_newer_epoch_does_not_concern_a_replica() -> None:
    made = machine("1@0", end=120)
    made.observe(view(2, 3), 0)
    made.saw_newer_epoch(7, 9, 0)
    assert made.role is Role.REPLICA


# The replica


def handshakes(replica: Replica) -> list[Layout]:
    return [effect.handshake.layout for effect in replica.all(SendHandshake)]


def retry(replica: Replica) -> None:
    replica.now_ms += 2000
    replica.followership.tick(replica.now_ms)
    replica.dial()


def test_a_master_of_unknown_kind_is_tried_in_both_layouts_in_turn() -> None:
    replica = Replica("1@0", end=80, settings=PLAIN, address=ADDRESS, is_ours=False)
    replica.dial()
    for _ in range(3):
        replica.followership.lost(replica.wire, replica.now_ms)
        retry(replica)
    assert handshakes(replica) == [Layout.OWN, Layout.CURRENT, Layout.OWN, Layout.CURRENT]
    replica.followership.replied(replica.wire, Reply(80, 3, epochs("1@0 3@80").entries), replica.now_ms)
    assert replica.followership.stage is CopyStage.TRANSFER
    replica.followership.lost(replica.wire, replica.now_ms)
    replica.dial()
    assert handshakes(replica)[-1] is Layout.CURRENT, "what worked is kept"


def test_silence_is_no_answer_either() -> None:
    replica = Replica("1@0", end=80, settings=PLAIN, address=ADDRESS, is_ours=False)
    replica.dial()
    replica.now_ms = 10_000
    replica.followership.tick(replica.now_ms)
    assert replica.followership.connection is None
    retry(replica)
    assert handshakes(replica) == [Layout.OWN, Layout.CURRENT]


@pytest.mark.parametrize(
    ("settings", "is_ours"),
    [(PLAIN, True), (ReplicationSettings(), False), (ReplicationSettings(plain_peers="10.0.0.1"), False)],
)
def test_nobody_else_is_spoken_to_plainly(settings: ReplicationSettings, is_ours: bool) -> None:
    replica = Replica("1@0", end=80, settings=settings, address=ADDRESS, is_ours=is_ours)
    replica.dial()
    for _ in range(5):
        replica.followership.lost(replica.wire, replica.now_ms)
        retry(replica)
    assert set(handshakes(replica)) == {Layout.OWN}
    assert ("replication.plain_peers" in replica.followership.last_error) == (not is_ours)


def test_the_original_may_be_silent_for_as_long_as_it_is() -> None:
    replica = Replica("1@0", end=80, settings=PLAIN, address=ADDRESS, is_ours=False)
    replica.dial()
    replica.followership.lost(replica.wire, 0)
    retry(replica)
    replica.followership.replied(replica.wire, Reply(80, 3, epochs("1@0 3@80").entries), replica.now_ms)
    start_ms = replica.now_ms
    for replica.now_ms in range(start_ms, start_ms + 20_000, 50):
        replica.followership.tick(replica.now_ms)
        assert replica.followership.connection is not None
    replica.followership.tick(start_ms + 20_000)
    assert replica.followership.connection is None


@pytest.mark.parametrize(("last", "sentence"), [("1@0 2@50", "a stale master"), ("1@0 4@50", "a newer master")])
def test_the_greeting_of_the_original_must_have_the_epoch_that_a_controller_named(last: str, sentence: str) -> None:
    replica = Replica("1@0", end=80, settings=PLAIN, address=ADDRESS, is_ours=False)
    replica.greet(last, end=80)
    assert not replica.all(SendAck)
    assert sentence in replica.followership.last_error
    assert Ask.SYNC in replica.all(Ask)


def test_a_master_whose_log_begins_behind_ours_ends_is_known_by_its_greeting() -> None:
    replica = Replica("1@0", end=80)
    replica.dial()
    replica.followership.replied(replica.wire, Reply(500, 3, epochs("1@0 3@400").entries, 200), 0)
    assert replica.followership.copies == 1
    assert replica.log.end_offset == 0
    assert text(replica.epochs) == ""


# A classic master


def classic(entries: str = "", **more: object) -> Replica:
    return Replica(entries, epoch=0, settings=PLAIN, address=ADDRESS, is_classic=True, **more)


def test_a_classic_master_is_acked_at_once_and_copied_as_epoch_0() -> None:
    replica = classic()
    replica.dial()
    assert handshakes(replica) == [Layout.CLASSIC]
    assert replica.last(SendAck).offset == 0
    replica.followership.received(replica.wire, [Piece(TransferHeader(1024, 0, -1, UNLIMITED), b"x" * 10)], 0)
    assert text(replica.epochs) == "0@1024"
    assert replica.last(AppendReplicated).offset == 1024
    replica.flush()
    assert replica.last(SendAck).offset == 1034
    assert replica.followership.confirm_offset == 1034


def test_a_classic_copy_goes_on_where_it_ended() -> None:
    replica = classic("0@1024", minimum=1024, end=1034)
    replica.dial()
    assert replica.last(SendAck).offset == 1034
    replica.followership.received(replica.wire, [Piece(TransferHeader(1034, 0, -1, UNLIMITED), b"y")], 0)
    assert text(replica.epochs) == "0@1024"
    assert replica.log.end_offset == 1035


def test_a_classic_master_that_sends_from_elsewhere_is_left() -> None:
    replica = classic("0@0", end=80)
    replica.dial()
    replica.followership.received(replica.wire, [Piece(TransferHeader(60, 0, -1, UNLIMITED), b"y")], 0)
    assert replica.followership.connection is None
    assert replica.log.end_offset == 80


def test_a_log_that_controllers_knew_is_not_continued_from_a_classic_master() -> None:
    replica = classic("0@0 2@50", end=80)
    replica.dial()
    assert "empty data directory" in replica.followership.stuck
    assert not replica.all(SendAck)


def test_a_broker_that_copies_a_classic_master_asks_no_controller() -> None:
    made = machine("", end=0, classic_master=ADDRESS, plain_peers="127.0.0.1")
    made.follow_classic(0)
    assert made.role is Role.REPLICA
    assert isinstance(made.followership, Followership)
    assert made.followership.layout is Layout.CLASSIC


def test_a_copy_that_would_begin_inside_a_file_is_refused_by_name() -> None:
    """The original begins an empty log anywhere; here a file begins with its first byte, so that all offsets fit."""
    disk = MemoryDisk()
    log = CommitLog(disk, StoreSettings(segment_size_bytes=1 << 16))
    with pytest.raises(ProtocolError, match="a log cannot begin at 100"):
        log.reset(100)
    log.reset(3 << 16)
    assert (log.min_offset, log.end_offset) == (3 << 16, 3 << 16)


def test_an_empty_replica_may_begin_at_the_masters_last_file() -> None:
    group = Group(3, ReplicationSettings(sync_from_last_file=True))
    for node in group.nodes.values():
        node.log.segment_bytes = 64
        node.start()
    group.elect(1)
    for _ in range(30):
        group.append(group[1])
        group.settle_now()
    group.crash(group[3])
    group[3].disk = FusedDisk(group[3].fuse)
    group[3].log = MemoryReplicatedLog(group[3].fuse)
    group[3].log.segment_bytes = 64
    group.settle(40)
    start = group[1].machine.log.last_file_start
    assert 0 < start < group[1].log.end_offset
    group[3].start()
    group.push(group[3])
    group.settle(60)
    assert group[3].log.min_offset == start
    assert group[3].log.data == group[1].log.data[start:]
    assert group.controller.members == {1, 2, 3}
    assert group[2].log.min_offset == 0, "a log that holds something goes on from there"
