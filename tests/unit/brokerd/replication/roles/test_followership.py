"""The replica's side: whom it follows, what it cuts, what it takes, what it acks."""

from __future__ import annotations

import itertools

from brokerd.replication.log import LogPosition
from brokerd.replication.roles.effects import (
    AppendReplicated,
    Ask,
    CloseConnection,
    Connect,
    Effect,
    PersistEpochs,
    RequestFlush,
    ResetLog,
    RoleView,
    SendAck,
    SendHandshake,
    TruncateLog,
)
from brokerd.replication.roles.followership import CopyStage, Followership
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Piece, Reply, TransferHeader
from tests.unit.brokerd.replication.epochs.test_epochs import epochs, text


class Replica:
    """Broker 2 with a log, following broker 1 in epoch 3; answers its own flush requests when told."""

    def __init__(
        self,
        entries: str = "",
        *,
        end: int = 0,
        minimum: int = 0,
        epoch: int = 3,
        in_set: bool = False,
        flushed: int | None = None,
        settings: ReplicationSettings | None = None,
        address: str = "m",
        is_ours: bool = True,
        is_classic: bool = False,
        epoch_is_new: bool = True,
    ) -> None:
        self.now_ms = 0
        self.effects: list[Effect] = []
        self.epochs = epochs(entries)
        self.log = LogPosition(minimum, end, end if flushed is None else flushed)
        context = RoleContext(settings or ReplicationSettings(), 2, self.epochs, self.log, self.effects, epoch_is_new)
        members = frozenset({1, 2} if in_set else {1})
        view = RoleView(1, epoch, members, master_ha_address=address, master_is_ours=is_ours)
        self.followership = Followership(context, view, minimum, 0, is_classic=is_classic)
        self.wire = 0

    def dial(self) -> None:
        connect = self.last(Connect)
        self.wire += 1
        self.followership.connected(connect.attempt, self.wire, self.now_ms)

    def greet(
        self, entries: str, *, end: int, epoch: int | None = None, is_released: bool = False, incarnation: int = 0
    ) -> None:
        """Connect, and let the master say what it has; before that perhaps that nothing counts on this replica."""
        self.dial()
        if is_released:
            self.followership.released(self.wire, self.now_ms)
        master = epochs(entries)
        last_epoch = master.last_epoch if epoch is None else epoch
        reply = Reply(end, last_epoch, master.entries, incarnation=incarnation)
        self.followership.replied(self.wire, reply, self.now_ms)

    def take(self, offset: int, body: bytes, epoch: int, start: int, confirm: int = 0) -> None:
        header = TransferHeader(offset, epoch, start, confirm)
        self.followership.received(self.wire, [Piece(header, body)], self.now_ms)

    def flush(self) -> None:
        self.log.flushed_offset = self.log.end_offset
        self.followership.flushed(self.now_ms)

    def last(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)][-1]

    def all(self, *kinds):
        return [effect for effect in self.effects if isinstance(effect, kinds)]


def test_it_says_who_it_is_and_acks_at_once_when_all_is_flushed() -> None:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@100", end=200)
    assert replica.last(SendHandshake).handshake == Handshake(2, highest_epoch=3)
    assert replica.last(SendAck).offset == 80
    assert replica.followership.stage is CopyStage.TRANSFER
    assert not replica.all(TruncateLog, PersistEpochs)


def test_the_first_ack_waits_for_the_flush_of_what_is_kept() -> None:
    replica = Replica("1@0", end=80, flushed=60)
    replica.greet("1@0 3@100", end=200)
    assert replica.all(RequestFlush)
    assert not replica.all(SendAck)
    replica.flush()
    assert replica.last(SendAck).offset == 80


def test_a_stale_master_gets_no_ack() -> None:
    replica = Replica("1@0 2@50", end=80, epoch=3)
    replica.greet("1@0 2@50", end=200)
    assert "stale" in replica.last(CloseConnection).reason
    assert not replica.all(SendAck, TruncateLog)
    assert Ask.SYNC in replica.all(Ask)


def test_a_master_that_no_controller_named_gets_no_ack_either() -> None:
    replica = Replica("1@0", end=80, epoch=3)
    replica.greet("1@0 4@80", end=200)
    assert "newer" in replica.last(CloseConnection).reason
    assert not replica.all(SendAck)


def test_a_diverged_tail_is_cut_and_the_epochs_with_it() -> None:
    replica = Replica("1@0 2@50", end=400)
    replica.followership.confirm_offset = 60
    replica.greet("1@0 3@50", end=80)
    assert replica.last(TruncateLog).offset == 50
    assert replica.last(PersistEpochs).entries == ((1, 0),)
    assert replica.last(SendAck).offset == 50
    assert replica.followership.confirm_offset == 50
    assert replica.followership.cuts == 1


def test_no_common_epoch_means_a_new_copy_outside_the_set() -> None:
    replica = Replica("1@100 2@300", end=700)
    replica.greet("1@200 3@500", end=900)
    assert replica.last(ResetLog).offset == 0
    assert replica.last(PersistEpochs).entries == ()
    assert replica.last(SendAck).offset == 0
    assert replica.followership.copies == 1


def test_no_common_epoch_stops_a_member_of_the_set_until_it_is_none() -> None:
    replica = Replica("1@100 2@300", end=700, in_set=True)
    replica.greet("1@200 3@500", end=900)
    assert not replica.all(ResetLog, TruncateLog, SendAck)
    assert "elect it master" in replica.followership.stuck
    replica.followership.tick(4000)
    assert len(replica.all(Connect)) == 1, "no hurry"
    replica.followership.update("m", in_set=False, now_ms=4000)
    replica.followership.tick(4001)
    replica.greet("1@200 3@500", end=900, is_released=True)
    assert replica.last(SendHandshake).handshake.starts_anew
    assert replica.all(ResetLog)
    assert replica.followership.stuck == ""


def test_the_controllers_word_alone_drops_no_log() -> None:
    """The master's proposal that makes this replica a member may be on its way to them; a master that knows no releases tells
    nothing of that."""
    replica = Replica("1@100 2@300", end=700, epoch_is_new=False)
    for again in range(3):
        replica.greet("1@200 3@500", end=900)
        assert not replica.last(SendHandshake).handshake.starts_anew, "first the controllers are asked"
        replica.followership.update("m", in_set=False, now_ms=again * 10_000)
        replica.followership.tick(again * 10_000)
        replica.greet("1@200 3@500", end=900)
        assert replica.last(SendHandshake).handshake.starts_anew
        assert "its master is of an earlier version" in replica.followership.stuck
        replica.followership.tick(again * 10_000 + 5_000)
        replica.followership.update("m", in_set=True, now_ms=again * 10_000 + 5_000)
        replica.followership.tick(again * 10_000 + 5_001)
    assert not replica.all(ResetLog, TruncateLog, SendAck)


def test_a_release_that_nobody_asked_for_drops_nothing() -> None:
    replica = Replica("1@0", end=80)
    replica.dial()
    replica.followership.released(replica.wire, 0)
    assert not replica.all(ResetLog)
    assert "did not ask for it" in replica.last(CloseConnection).reason


def test_logs_that_fit_after_all_are_kept_although_the_controllers_cleared_it() -> None:
    replica = Replica("1@0", end=80, epoch_is_new=False)
    replica.greet("2@0 3@500", end=900)
    replica.followership.update("m", in_set=False, now_ms=10)
    replica.followership.tick(20)
    replica.greet("1@0 3@500", end=900)
    assert replica.last(SendAck).offset == 80
    replica.followership.lost(replica.wire, 30)
    replica.greet("1@0 3@500", end=900)
    assert not replica.last(SendHandshake).handshake.starts_anew
    assert not replica.all(ResetLog)


def test_another_process_than_the_elected_one_is_not_followed() -> None:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@80", end=80, incarnation=7)
    replica.followership.lost(replica.wire, 10)
    replica.followership.tick(100)
    before = len(replica.all(SendAck))
    replica.greet("1@0 3@80", end=80, incarnation=8)
    assert len(replica.all(SendAck)) == before
    assert "two processes have the identity of broker 1: the one at m" in replica.followership.stuck
    replica.followership.tick(1000)
    replica.greet("1@0 3@80", end=80, incarnation=7)
    assert replica.followership.stuck == ""
    assert len(replica.all(SendAck)) == before + 1


def test_a_replica_whose_twin_is_connected_says_so_and_tries_again_soon() -> None:
    replica = Replica("1@0", end=80)
    replica.dial()
    replica.followership.twin_connected(replica.wire, 0)
    assert "the master at m is connected to the other one" in replica.followership.stuck
    replica.followership.tick(100)
    replica.greet("1@0 3@80", end=80)
    assert replica.followership.stuck == ""


def test_bytes_are_taken_at_the_own_end_and_acked_when_flushed() -> None:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@90", end=200)
    replica.take(80, b"x" * 10, 1, 0, confirm=85)
    assert replica.last(AppendReplicated).offset == 80
    assert replica.last(SendAck).offset == 80
    assert replica.followership.confirm_offset == 80, "never past what is safe here"
    replica.flush()
    assert replica.last(SendAck).offset == 90
    assert replica.followership.confirm_offset == 85


def test_acks_from_memory_when_so_set() -> None:
    replica = Replica("1@0", end=80, settings=ReplicationSettings(ack_after="append"))
    replica.greet("1@0 3@90", end=200)
    replica.take(80, b"x" * 10, 1, 0)
    assert replica.last(SendAck).offset == 90


def test_an_epoch_is_durable_before_its_first_byte() -> None:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@90", end=200)
    pieces = [
        Piece(TransferHeader(80, 1, 0, 0), b"a" * 10),
        Piece(TransferHeader(90, 3, 90, 0), b"b" * 5),
        Piece(TransferHeader(95, 3, 90, 0), b"c" * 5),
    ]
    replica.followership.received(replica.wire, pieces, 0)
    tail = [effect for effect in replica.effects if isinstance(effect, AppendReplicated | PersistEpochs)]
    assert [type(effect) for effect in tail] == [AppendReplicated, PersistEpochs, AppendReplicated]
    assert tail[1] == PersistEpochs(((1, 0), (3, 90)))
    assert tail[2] == AppendReplicated(90, [b"b" * 5, b"c" * 5])


def refused(replica: Replica, offset: int, epoch: int, start: int) -> str:
    """What a replica says to bytes that do not fit; it takes none of them."""
    before = replica.log.end_offset
    replica.take(offset, b"x", epoch, start)
    assert replica.log.end_offset == before
    assert replica.followership.stage is CopyStage.IDLE
    return replica.last(CloseConnection).reason


def streaming() -> Replica:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@100", end=200)
    replica.take(80, b"x" * 10, 1, 0)
    return replica


def test_replayed_and_skipped_bytes_are_refused() -> None:
    assert "where this log ends at 90" in refused(streaming(), 80, 1, 0)
    assert "where this log ends at 90" in refused(streaming(), 91, 1, 0)


def test_bytes_of_a_wrong_epoch_are_refused() -> None:
    assert refused(streaming(), 90, 0, 0)  # an older epoch
    assert refused(streaming(), 90, 1, 5)  # the start of an epoch never moves
    assert refused(streaming(), 90, 2, 80)  # a new epoch begins at its first byte
    assert refused(streaming(), 90, 4, 90)  # newer than the master's own


def test_frames_out_of_order_close_the_connection() -> None:
    replica = Replica("1@0", end=80)
    replica.dial()
    assert refused(replica, 80, 1, 0) == "bytes before the first ack"
    replica = streaming()
    replica.followership.replied(replica.wire, Reply(200, 3, epochs("1@0 3@100").entries), 0)
    assert replica.last(CloseConnection).reason == "the master greeted twice"


def test_frames_of_a_closed_connection_are_nothing() -> None:
    replica = streaming()
    old = replica.wire
    replica.followership.lost(old, 0)
    before = len(replica.effects)
    replica.followership.received(old, [Piece(TransferHeader(90, 1, 0, 500), b"x")], 0)
    replica.followership.replied(old, Reply(200, 3, ()), 0)
    assert len(replica.effects) == before
    assert replica.log.end_offset == 90


def test_an_empty_log_begins_where_the_master_does() -> None:
    replica = Replica("7@0")
    replica.greet("2@500 3@1000", end=1200)
    assert replica.last(PersistEpochs).entries == (), "epochs without bytes mean nothing"
    assert replica.last(SendAck).offset == 0
    replica.take(640, b"x" * 10, 2, 500)
    kinds = [type(effect) for effect in replica.effects[-4:]]
    assert kinds == [ResetLog, PersistEpochs, AppendReplicated, RequestFlush]
    assert (replica.log.min_offset, replica.log.end_offset) == (640, 650)
    assert text(replica.epochs) == "2@500"


def test_a_gap_means_a_new_copy() -> None:
    replica = Replica("1@0", end=80)
    replica.greet("1@0 3@1000", end=1200)
    assert replica.last(SendAck).offset == 80
    replica.take(512, b"x" * 10, 1, 0)  # the master's older files are gone
    assert "may be in the sync-state set" in replica.followership.stuck, "80 bytes were acked in this epoch"
    replica.followership.update("m", in_set=False, now_ms=10)
    replica.followership.tick(20)
    replica.greet("1@0 3@1000", end=1200, is_released=True)
    assert replica.all(ResetLog)
    assert replica.last(SendAck).offset == 0
    replica.take(512, b"x" * 10, 1, 0)
    assert (replica.log.min_offset, replica.log.end_offset) == (512, 522)


def test_it_dials_again_soon_then_less_often_and_asks_who_is_master() -> None:
    replica = streaming()
    replica.followership.lost(replica.wire, 0)
    assert Ask.SYNC in replica.all(Ask)
    assert len(replica.all(Connect)) == 2, "at once, before the master's grace is over"
    replica.followership.connect_failed(replica.last(Connect).attempt, "refused", 0)
    times, now = [], 0
    while now < 5000:
        before = len(replica.all(Connect))
        replica.followership.tick(now)
        if len(replica.all(Connect)) > before:
            times.append(now)
            replica.followership.connect_failed(replica.last(Connect).attempt, "refused", now)
        now += 10
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 20
    assert gaps[:3] == [40, 80, 160]
    assert max(gaps) == 1000


def test_a_silent_master_is_left_and_an_idle_replica_says_that_it_lives() -> None:
    replica = streaming()
    replica.flush()
    count = len(replica.all(SendAck))
    replica.followership.tick(224)
    assert len(replica.all(SendAck)) == count
    replica.followership.tick(225)
    assert len(replica.all(SendAck)) == count + 1
    replica.followership.tick(2999)
    assert not replica.all(CloseConnection)
    replica.followership.tick(3000)
    assert replica.last(CloseConnection).reason == "the master is silent"


def test_a_pause_of_this_process_is_not_the_masters_silence() -> None:
    replica = streaming()
    replica.followership.discount_pause(5000)
    replica.followership.tick(5100)
    assert not replica.all(CloseConnection)


def test_a_dial_that_was_overtaken_is_closed() -> None:
    replica = Replica("1@0", end=80)
    old = replica.last(Connect).attempt
    replica.followership.update("elsewhere", in_set=False, now_ms=0)
    replica.followership.connected(old, 77, 0)
    assert replica.last(CloseConnection) == CloseConnection(77, "no longer wanted")
    assert replica.last(Connect).address == "elsewhere"
