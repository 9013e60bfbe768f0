"""The master's side: who may ack, what is acknowledged, who joins and who leaves."""

from __future__ import annotations

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.log import LogPosition
from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.required_set.sync_state import SyncState
from brokerd.replication.roles.effects import (
    Ask,
    CloseConnection,
    Effect,
    ProposeSyncStateSet,
    SendHeartbeat,
    SendReply,
)
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, TransferHeader
from remoting import codes
from tests.unit.brokerd.replication.epochs.test_epochs import epochs


class Master:
    """Broker 1, master of epoch 3 since offset 100."""

    def __init__(self, *members: int, end: int = 100, minimum: int = 0, **settings: object) -> None:
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.log = LogPosition(minimum, end, end)
        self.sync = SyncState(1, {1, *members}, 7, retry_ms=250, rejoin_delay_ms=1000)
        context = RoleContext(ReplicationSettings(**settings), 1, epochs("1@0 3@100"), self.log, self.effects)
        self.mastership = Mastership(context, EpochEntry(3, 100), self.sync, {1, 2, 3, 4}, 0, 0)

    def join(self, broker_id: int, ack: int | None, *, learner: bool = False, connection: int | None = None) -> int:
        """Connect a replica; `ack` is its first one, None = it has not acked yet."""
        connection = connection or broker_id * 10
        self.mastership.accepted(connection, self.now_ms)
        self.mastership.handshake(connection, Handshake(broker_id, learner=learner), self.now_ms)
        if ack is not None:
            self.mastership.acked(connection, ack, self.now_ms)
        return connection

    def append(self, size: int, *, flushed: bool = True) -> None:
        self.log.end_offset += size
        if flushed:
            self.log.flushed_offset = self.log.end_offset
        self.mastership.advance()

    def send_all(self, connection: int) -> list[tuple[TransferHeader, int]]:
        sent = []
        while (transfer := self.mastership.next_transfer(connection)) is not None:
            sent.append((transfer.header, transfer.length))
            self.mastership.transferred(connection, transfer.length, self.now_ms)
        return sent

    def ack(self, connection: int, offset: int) -> None:
        self.send_all(connection)
        self.mastership.acked(connection, offset, self.now_ms)

    def accept(self, *members: int) -> None:
        proposal = self.sync.in_flight
        assert proposal is not None
        self.sync.accepted(proposal.token, members or proposal.members, proposal.base_epoch + 1)
        self.mastership.propose(self.now_ms)
        self.mastership.advance()

    def tick(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.mastership.tick(now_ms)

    @property
    def acknowledged(self) -> int:
        return self.mastership.acknowledged_offset

    @property
    def proposed(self) -> list[set[int]]:
        return [set(effect.proposal.members) for effect in self.effects if isinstance(effect, ProposeSyncStateSet)]

    @property
    def closed(self) -> dict[int, str]:
        return {effect.connection: effect.reason for effect in self.effects if isinstance(effect, CloseConnection)}


def test_alone_it_acknowledges_what_it_flushed() -> None:
    master = Master()
    master.append(50, flushed=False)
    assert master.acknowledged == 100
    master.append(0)
    assert master.acknowledged == 150
    master = Master(ack_after="append")
    master.append(50, flushed=False)
    assert master.acknowledged == 150


def test_records_get_checksums_when_all_of_the_group_know_them() -> None:
    """A broker of an earlier version that became master would copy one with its message, into a record that it does not fit."""
    alone = Mastership(
        RoleContext(ReplicationSettings(), 1, epochs("1@0 3@100"), LogPosition(0, 100, 100), []),
        EpochEntry(3, 100), SyncState(1, {1}, 7, retry_ms=250, rejoin_delay_ms=1000), {1}, 0, 0,
    )  # fmt: skip
    assert alone.seals
    master = Master(2, 3)
    for broker_id in (2, 3):
        master.join(broker_id, 100)
        assert master.mastership.seals is None
    master.join(4, 100)
    assert master.mastership.seals
    master.mastership.lost(40, 0)
    assert master.mastership.seals, "it is known what it knows"
    master.mastership.accepted(41, 0)
    master.mastership.handshake(41, Handshake(4, knows_checksums=False), 0)
    assert master.mastership.seals is False
    master.mastership.accepted(42, 0)
    master.mastership.handshake(42, Handshake(4), 0)
    assert master.mastership.seals


def test_who_does_not_come_is_not_waited_for_before_records_get_checksums() -> None:
    master = Master(2, 3, not_caught_up_ms=5000)
    master.join(2, 100)
    master.tick(4999)
    assert master.mastership.seals is None
    master.tick(5000)
    assert master.mastership.seals


def test_every_member_must_have_it() -> None:
    master = Master(2, 3)
    two, three = master.join(2, 100), master.join(3, 100)
    master.append(50)
    master.ack(two, 150)
    assert master.acknowledged == 100
    master.ack(three, 130)
    assert master.acknowledged == 130


def test_a_member_without_a_connection_confirms_nothing_new() -> None:
    master = Master(2, 3)
    two, three = master.join(2, 100), master.join(3, 100)
    master.append(50)
    master.ack(two, 150)
    master.ack(three, 120)
    master.mastership.lost(three, 0)
    master.append(50)
    master.ack(two, 200)
    assert (master.acknowledged, master.mastership.confirm_offset) == (120, 120)
    master.join(3, 110, connection=31)  # back, with less than it had
    assert (master.acknowledged, master.mastership.confirm_offset) == (120, 120), "never back"


def test_a_connection_that_has_not_proven_itself_acks_nothing() -> None:
    master = Master(2)
    master.mastership.accepted(50, 0)
    master.mastership.acked(50, 100, 0)
    assert "before the handshake" in master.closed[50]
    master.mastership.accepted(51, 0)
    master.mastership.handshake(51, Handshake(1), 0)
    assert "itself" in master.closed[51]
    master.mastership.accepted(52, 0)
    master.mastership.handshake(52, Handshake(77), 0)
    assert Ask.MEMBERS in master.effects
    assert 52 not in master.closed
    master.mastership.members_known(frozenset({1, 2, 3, 4}), frozenset(), 0)
    assert "registered" in master.closed[52]
    master.append(50)
    master.mastership.acked(52, 150, 0)
    assert master.acknowledged == 0


@pytest.mark.parametrize("offset", [99, 151, -1, 2**62])
def test_impossible_acks_close_the_connection(offset: int) -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.append(50)
    master.ack(two, offset)
    assert two in master.closed
    assert master.acknowledged == 100


def test_an_ack_beyond_what_was_sent_is_impossible_too() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.append(50)
    master.mastership.acked(two, 150, 0)  # nothing was sent yet
    assert two in master.closed


def test_a_log_longer_than_the_masters_is_refused() -> None:
    master = Master(2)
    two = master.join(2, 101)
    assert "ends at 101" in master.closed[two]


def test_the_newest_connection_of_a_replica_counts() -> None:
    master = Master(2)
    old = master.join(2, 100)
    new = master.join(2, None, connection=21)
    assert "newer connection" in master.closed[old]
    master.append(50)
    master.mastership.acked(old, 100, 0)
    assert master.acknowledged == 100
    master.mastership.acked(new, 100, 0)
    master.ack(new, 150)
    assert master.acknowledged == 150


def test_a_second_handshake_closes() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.mastership.handshake(two, Handshake(2), 0)
    assert two in master.closed
    again = master.join(2, None, connection=22)
    master.mastership.handshake(again, Handshake(2), 0)  # sent again because the answer was late
    assert again not in master.closed
    master.mastership.handshake(again, Handshake(3), 0)
    assert again in master.closed


def test_the_reply_names_this_epoch_last() -> None:
    master = Master()
    master.join(2, None)
    (reply,) = [effect.reply for effect in master.effects if isinstance(effect, SendReply)]
    assert (reply.end_offset, reply.last_epoch) == (100, 3)
    assert reply.entries == ((1, 0), (3, 100))


def test_batches_lie_within_one_epoch_and_have_its_label() -> None:
    master = Master(end=160)
    two = master.join(2, 40)
    assert master.send_all(two) == [
        (TransferHeader(40, 1, 0, 160), 60),
        (TransferHeader(100, 3, 100, 160), 60),
    ]


def test_batches_are_bounded() -> None:
    master = Master(end=10_000, transfer_batch_bytes=4096)
    two = master.join(2, 100)
    assert [length for _, length in master.send_all(two)] == [4096, 4096, 10_000 - 100 - 2 * 4096]


def test_a_replica_behind_the_oldest_file_gets_the_oldest_file() -> None:
    master = Master(minimum=64, end=200)
    assert master.send_all(master.join(2, 0))[0][0].offset == 64
    assert master.send_all(master.join(3, 10))[0][0].offset == 64


def test_files_that_go_while_they_are_copied_close_the_connection() -> None:
    master = Master(end=200)
    two = master.join(2, 0)
    master.log.min_offset = 64
    assert master.mastership.next_transfer(two) is None
    assert "gone" in master.closed[two]


def test_a_replica_joins_in_the_call_that_finds_it_caught_up() -> None:
    master = Master()
    two = master.join(2, 90)
    assert master.proposed == []
    master.append(50)  # acknowledged by the master alone
    master.ack(two, 149)
    assert master.proposed == []
    master.append(10)  # 160 is acknowledged before the replica's ack of 160 arrives
    assert master.acknowledged == 160
    master.ack(two, 160)
    assert master.proposed == [{1, 2}]
    master.append(10)
    assert master.acknowledged == 160, "required from that moment on, whatever the controller says"
    master.ack(two, 170)
    assert master.acknowledged == 170


def test_a_replica_of_an_earlier_epoch_joins_only_behind_the_epochs_start() -> None:
    master = Master()
    master.log.flushed_offset = 50
    master.mastership.confirm_offset = master.mastership.acknowledged_offset = 50
    two = master.join(2, 60)
    assert master.proposed == []
    master.ack(two, 100)
    assert master.proposed == [{1, 2}]


def test_learners_never_join() -> None:
    master = Master()
    four = master.join(4, 100, learner=True)
    master.append(10)
    master.ack(four, 110)
    assert master.proposed == []
    assert master.acknowledged == 110


def test_two_replicas_that_catch_up_together_are_proposed_one_after_the_other() -> None:
    master = Master()
    master.join(2, 100)
    master.join(3, 100)
    assert master.proposed == [{1, 2}]
    assert master.sync.required == {1, 2, 3}
    master.accept()
    assert master.proposed == [{1, 2}, {1, 2, 3}]


def test_a_lost_member_leaves_after_the_grace_and_only_when_the_controller_agreed() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.append(10)
    master.mastership.lost(two, 0)
    master.tick(99)
    assert master.proposed == []
    master.tick(100)
    assert master.proposed == [{1}]
    assert master.acknowledged == 100
    master.accept()
    assert master.acknowledged == 110


def test_a_member_that_is_back_in_time_stays() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.mastership.lost(two, 0)
    master.now_ms = 90
    master.join(2, 100, connection=21)
    master.tick(100)
    assert master.proposed == []


def test_a_member_that_does_not_keep_up_leaves() -> None:
    master = Master(2)
    two = master.join(2, 100)
    for now in range(0, 1500, 100):
        master.tick(now)
        master.append(10)
        master.ack(two, 100)  # it lives, but has not got anything for 1.5 s
    assert master.proposed == []
    master.tick(1500)
    assert master.proposed == [{1}]


def test_a_busy_member_that_is_always_a_little_behind_stays() -> None:
    master = Master(2)
    two = master.join(2, 100)
    for now in range(0, 10_000, 100):
        master.tick(now)
        master.append(10)
        master.ack(two, master.log.end_offset - 5)
    assert master.proposed == []


def test_an_idle_member_that_is_dead_leaves_before_the_first_write_needs_it() -> None:
    master = Master(2)
    master.join(2, 100)
    for now in range(0, 1550, 50):
        master.tick(now)
    assert master.proposed == [{1}], "no ack came, and nothing was written"


def test_an_idle_member_that_acks_its_heartbeats_stays() -> None:
    master = Master(2)
    two = master.join(2, 100)
    for now in range(0, 10_000, 50):
        master.tick(now)
        if now % 250 == 0:
            master.ack(two, 100)
    assert master.proposed == []
    beats = [effect for effect in master.effects if isinstance(effect, SendHeartbeat)]
    assert 38 <= len(beats) <= 41


def test_a_frozen_member_is_found_out_by_its_silence_before_it_is_missed_in_the_log() -> None:
    master = Master(2)
    two = master.join(2, 100)
    for now in range(0, 20_000, 50):
        master.tick(now)
        if now % 250 == 0:
            master.ack(two, 100)
    last_ms = 19_750
    for now in range(20_000, last_ms + 1200, 50):
        master.tick(now)
        assert (two in master.closed) == (now > last_ms + 1000)
        assert master.proposed == ([{1}] if now >= last_ms + 1000 + 50 + 100 else [])
    assert master.closed[two] == "silent for 1050 ms"


def test_on_a_harried_machine_silence_is_borne_longer() -> None:
    master = Master(2)
    two = master.join(2, 100)
    now_ms = 0
    for turn in range(100):
        now_ms += 600 if turn % 5 == 0 else 250
        master.tick(now_ms)
        master.ack(two, 100)
    master.tick(now_ms + 1200)
    assert two not in master.closed
    master.tick(now_ms + 1501)
    assert two in master.closed


def test_the_confirm_offset_reaches_replicas_without_new_bytes() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.append(10)
    master.ack(two, 110)
    master.tick(50)
    beat = master.effects[-1]
    assert isinstance(beat, SendHeartbeat)
    assert (beat.header.offset, beat.header.confirm_offset) == (110, 110)


def test_a_pause_of_the_master_is_not_held_against_the_replicas() -> None:
    master = Master(2)
    two = master.join(2, 100)
    master.tick(50)
    master.mastership.discount_pause(14_000, 14_100)
    master.tick(14_100)
    assert master.proposed == []
    assert two not in master.closed


def test_a_silent_connection_is_closed() -> None:
    master = Master()
    two = master.join(2, None)
    master.tick(1500)
    master.mastership.accepted(50, 0)
    master.tick(7500)
    assert two not in master.closed, "it may be cutting and flushing"
    assert "silent" in master.closed[50]
    master.tick(7501)
    assert "silent" in master.closed[two]
    assert Ask.SYNC in master.effects, "it left after our handshake: perhaps it knows a newer master"


def test_connections_are_bounded_and_silent_ones_go_first() -> None:
    master = Master(max_connections=2)
    two = master.join(2, 100)
    master.mastership.accepted(50, 0)
    three = master.join(3, 100)
    assert list(master.closed) == [50]
    master.mastership.accepted(51, 0)
    assert list(master.closed) == [50, 51]
    assert {peer.connection for peer in master.mastership.followers} == {two, three}


def test_a_new_replica_waits_for_the_controllers_word() -> None:
    master = Master()
    master.mastership._registered.discard(4)
    four = master.join(4, None)
    master.mastership._registered.add(4)
    master.mastership.members_known(frozenset({1, 2, 3, 4}), frozenset(), 0)
    assert [effect.connection for effect in master.effects if isinstance(effect, SendReply)] == [four]
    assert four not in master.closed


def test_too_few_replicas_stop_acknowledging_but_not_confirming() -> None:
    master = Master(min_in_sync_replicas=2)
    assert not master.mastership.enough_replicas
    master.append(10)
    assert master.acknowledged == 0
    assert master.mastership.confirm_offset == 110
    two = master.join(2, 110)
    assert master.mastership.enough_replicas
    master.append(10)
    master.ack(two, 120)
    assert master.acknowledged == 120


def test_the_weak_mode_counts_members_and_never_learners() -> None:
    master = Master(2, 3, all_ack_in_sync_state_set=False, in_sync_replicas=2)
    two, three = master.join(2, 100), master.join(3, 100)
    four = master.join(4, 100, learner=True)
    master.append(50)
    master.ack(four, 150)
    assert master.acknowledged == 100
    master.ack(two, 150)
    assert (master.acknowledged, master.mastership.confirm_offset) == (150, 100)
    master.ack(three, 120)
    assert (master.acknowledged, master.mastership.confirm_offset) == (150, 120)


def test_the_weak_mode_asks_for_as_many_copies_when_members_are_missing() -> None:
    """Not even when all the others are gone: with controllers the number is never lowered."""
    master = Master(2, all_ack_in_sync_state_set=False, in_sync_replicas=3)
    two, four = master.join(2, 100), master.join(4, 100, learner=True)
    assert not master.mastership.quorum.refused
    master.append(50)
    master.ack(two, 150)
    master.ack(four, 150)
    assert (master.acknowledged, master.mastership.replicas_position()) == (0, -1)
    three = master.join(3, 150)
    assert master.acknowledged == 150
    master.append(10)
    master.ack(three, 160)
    assert master.acknowledged == 150


def missing(master: Master) -> dict[int, tuple[str, bool, int]]:
    return {each.broker_id: (each.reason, each.stalls, -each.for_ms) for each in master.mastership.missing(now_ms=0)}


def test_who_is_missing_is_said_with_reason_and_time_until_it_is_back() -> None:
    master = Master(2, 3)
    two, three = master.join(2, 100), master.join(3, 100)
    master.mastership.members_known(frozenset({1, 2, 3, 4}), frozenset({4}), 0)
    master.tick(10)
    assert missing(master) == {}, "a learner is not missed"
    assert master.mastership.copies == (3, 3)
    master.mastership.lost(three, 20)
    master.tick(100)
    assert missing(master) == {}, "it may be back in a moment"
    master.tick(130)
    assert missing(master) == {3: ("it is not connected", True, 130)}
    assert master.mastership.copies == (3, 3), "still required: sends wait for it"
    master.accept()
    master.tick(200)
    assert missing(master) == {3: ("it is not connected", False, 130)}
    assert master.mastership.copies == (2, 3)
    three = master.join(3, 50, connection=31)
    master.tick(250)
    assert missing(master) == {3: ("it is copying what it lacks", False, 130)}
    master.ack(three, 100)
    master.ack(two, 100)
    master.accept()
    master.tick(300)
    assert missing(master) == {}
    assert master.mastership.copies == (3, 3)


def test_a_member_that_only_holds_up_is_named_too() -> None:
    master = Master(2, not_caught_up_ms=1500)
    two = master.join(2, 100)
    master.append(50)
    master.tick(1000)
    master.ack(two, 100)
    master.tick(1600)
    assert missing(master) == {2: ("it does not keep up", True, 1600)}
    master.ack(two, 150)
    master.tick(1650)
    assert missing(master) == {}


def test_a_learners_own_word_counts_before_the_controllers() -> None:
    master = Master(2)
    master.mastership.members_known(frozenset({1, 2, 4}), frozenset({4}), 0)
    assert master.mastership.learners == {4}
    master.join(4, 50)
    assert master.mastership.learners == set()
    master.tick(10)
    assert 4 in missing(master)


def test_the_weak_modes_downgrade_is_the_missing_number() -> None:
    master = Master(2, all_ack_in_sync_state_set=False, in_sync_replicas=3)
    assert master.mastership.copies == (3, 3)
    assert Master(2, min_in_sync_replicas=3).mastership.quorum.refused


def test_a_refused_replica_waits_before_it_joins_again() -> None:
    master = Master()
    two = master.join(2, 100)
    assert master.sync.in_flight is not None
    master.sync.refused(master.sync.in_flight.token, codes.CONTROLLER_BROKER_NOT_ALIVE, 0)
    master.append(10)
    assert master.acknowledged == 110, "a definite refusal leaves nobody behind in the required set"
    master.ack(two, 110)
    assert master.proposed == [{1, 2}]
    master.now_ms = 1000
    master.ack(two, 110)
    assert master.proposed == [{1, 2}, {1, 2}]


def test_stages() -> None:
    """Every input in every stage: what is not named here closes the connection."""
    inputs = {
        "handshake": lambda master: master.mastership.handshake(9, Handshake(2), 0),
        "ack": lambda master: master.mastership.acked(9, 100, 0),
    }
    allowed = {
        (ConnectionStage.ACCEPTED, "handshake"): ConnectionStage.GREETED,
        (ConnectionStage.GREETED, "handshake"): ConnectionStage.GREETED,
        (ConnectionStage.GREETED, "ack"): ConnectionStage.STREAMING,
        (ConnectionStage.STREAMING, "ack"): ConnectionStage.STREAMING,
    }
    for stage, steps in (
        (ConnectionStage.ACCEPTED, []),
        (ConnectionStage.GREETED, ["handshake"]),
        (ConnectionStage.STREAMING, ["handshake", "ack"]),
    ):
        for name, send in inputs.items():
            master = Master()
            master.mastership.accepted(9, 0)
            for step in steps:
                inputs[step](master)
            assert master.mastership.followers[0].stage is stage
            send(master)
            expected = allowed.get((stage, name))
            assert (master.mastership.followers[0].stage if master.mastership.followers else None) is expected
            assert (9 in master.closed) is (expected is None)


def test_the_log_is_held_for_replicas_that_copy_it() -> None:
    master = Master(2, end=1000)
    assert master.mastership.held_offset() is None
    master.join(2, None)
    assert master.mastership.held_offset() is None, "nobody knows yet what it has"
    master.mastership.acked(20, 400, 0)
    master.join(3, 700)
    assert master.mastership.held_offset() == 400
    master.ack(20, 900)
    assert master.mastership.held_offset() == 700
    master.mastership.lost(30, 0)
    assert master.mastership.held_offset() == 900, "who is not there holds nothing"


def test_the_log_is_kept_for_a_while_for_replicas_that_are_away() -> None:
    master = Master(2, end=1000, hold_log_ms=60_000, hold_log_bytes=700)
    master.mastership.members_known(frozenset({1, 2}), frozenset(), 0)
    master.join(2, 400)
    master.tick(50)
    assert master.mastership.expected_offset is None, "who is there holds the log itself"
    master.mastership.lost(20, 100)
    master.tick(150)
    assert master.mastership.expected_offset == 400
    master.join(2, 400, connection=21)
    master.ack(21, 900)
    master.tick(200)
    assert master.mastership.expected_offset is None
    master.mastership.lost(21, 250)
    master.tick(60_249)
    assert master.mastership.expected_offset == 900
    master.tick(60_250)
    assert master.mastership.expected_offset is None, "it has had its time"


def test_the_log_is_kept_for_who_belongs_to_the_group_and_has_yet_to_come() -> None:
    master = Master(end=5000, minimum=4096, hold_log_ms=60_000, hold_log_bytes=700)
    master.tick(50)
    assert master.mastership.expected_offset == 4300, "nobody has said yet who is left of those that were known before"
    master.mastership.members_known(frozenset({1, 5}), frozenset(), 100)
    master.tick(150)
    assert master.mastership.expected_offset == 4300, "but not more than is allowed"
    master.mastership.members_known(frozenset({1, 5}), frozenset(), 5100)
    master.tick(60_099)
    assert master.mastership.expected_offset == 4300
    master.tick(60_100)
    assert master.mastership.expected_offset is None
    master.join(3, 4500)
    master.mastership.lost(30, 60_200)
    master.tick(60_250)
    assert master.mastership.expected_offset == 4500
    master.mastership.members_known(frozenset({1, 5}), frozenset(), 60_300)
    master.tick(60_350)
    assert master.mastership.expected_offset is None, "it was removed from the group"
