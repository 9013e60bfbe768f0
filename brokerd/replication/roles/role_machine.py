"""One broker's role in its group, and the switch from one role to another (pure).

    FENCED ----elected----> PROMOTING --log settled--> MASTER
      |  ^                      ^                        |
      |  '---no master known----|------------------------'   (from every role)
      '-------------told the master of a newer epoch-------> REPLICA   (from every role)

A role belongs to a master epoch, and every change needs a newer one from a controller than this broker has ever persisted; only a
fenced replica may take up the epoch again that it knew. A broker that starts again and finds itself recorded as master of an
epoch it has persisted was master in an earlier life: the positions of that epoch may not be continued (unflushed bytes that its
replicas have may be gone here), so it asks for an election instead.

The order of a switch is always the same, and it is the order of the effects: the role flips (at once, this object is asked by
everyone), every waiting send fails, replication connections close, the epoch is persisted, and only then is the log touched.

`now_ms` comes in, effects go out through `take_effects`, in the order in which they must be carried out. `driver` is the
one caller (and the simulator). Frames of connections that this role does not know are ignored: they were closed and are late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.log import LogPosition
from brokerd.replication.required_set.sync_state import REFUSALS, SyncState
from brokerd.replication.roles.effects import (
    CloseConnection,
    Effect,
    FailWaiters,
    PersistEpochs,
    PersistMasterEpoch,
    RequestElection,
    RequestSync,
    Role,
    RoleChanged,
    RoleView,
    SettleLog,
)
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership, Transfer
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Piece, Reply
from remoting.liveness import Awake

_TOLERATED_DELAY_MS = 200  # a tick that is later than this means that the process stood still


class RoleMachine:
    """The replication state of one broker."""

    def __init__(
        self,
        settings: ReplicationSettings,
        epochs: EpochList,
        highest_epoch: int,
        log: LogPosition,
        confirm_offset: int,
        now_ms: int,
    ) -> None:
        """`highest_epoch` is the highest master epoch ever persisted here; `log` as recovery left it."""
        self.settings = settings
        self.epochs = epochs
        self.highest_epoch = highest_epoch
        self.log = log
        self.broker_id: int | None = None
        self.role = Role.FENCED
        self.master_epoch = 0  # of the present role
        self.view: RoleView | None = None  # the newest that a controller told
        self.mastership: Mastership | None = None
        self.followership: Followership | None = None
        self.stale_view = ""  # what is wrong with the controllers' view; "" = nothing
        self.failure = ""  # why this broker serves no more; "" = it does
        self._confirm_offset = min(max(confirm_offset, log.min_offset), log.end_offset)
        self._registered: set[int] = set()
        self._outbox: list[Effect] = []
        self.awake = Awake(_TOLERATED_DELAY_MS)
        self.awake.tick(now_ms, 0)
        if epochs.drop_beyond(log.end_offset):
            self._outbox.append(PersistEpochs(tuple(epochs.entries)))

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order; each effect is given once."""
        effects = self._outbox[:]
        self._outbox.clear()
        return effects

    @property
    def has_effects(self) -> bool:
        return bool(self._outbox)

    @property
    def confirm_offset(self) -> int:
        """Up to where consumers may read: all of the required set have it."""
        if self.mastership is not None:
            return self.mastership.confirm_offset
        if self.followership is not None:
            return self.followership.confirm_offset
        return self._confirm_offset

    @property
    def acknowledged_offset(self) -> int:
        """Up to where producers may be told that their messages are safe; only a master acknowledges."""
        return self.mastership.acknowledged_offset if self.mastership is not None else 0

    # What the controllers say

    def identify(self, broker_id: int) -> None:
        """This broker's id in the group is known (once, before any view)."""
        assert self.broker_id in (None, broker_id)
        self.broker_id = broker_id

    def observe(self, view: RoleView, now_ms: int) -> None:
        """A controller told who is master. Older epochs than the highest known are ignored, whoever tells them."""
        assert self.broker_id is not None
        if self.failure:
            return
        if view.master_epoch < self.highest_epoch:
            self._observe_stale(view)
            return
        self.stale_view = ""
        if self.role is not Role.FENCED and view.master_epoch == self.master_epoch:
            self._observe_again(view, now_ms)
        elif view.master_id is None:
            self.view = view
            self._fence(view.master_epoch)
            if not self.settings.learner:
                self._outbox.append(RequestElection())
        elif view.master_id != self.broker_id:
            self.view = view
            self._follow(view, now_ms)
        elif view.master_epoch > self.highest_epoch:
            self.view = view
            self._promote(view.master_epoch)
        else:
            self.view = view
            self._outbox.append(RequestElection())

    def follow_classic(self, address: str, now_ms: int) -> None:
        """Copy the log of a master that knows no controllers, for the whole life of this process."""
        self._leave_role(f"this broker copies the master at {address}")
        self.role = Role.REPLICA
        self._outbox.append(RoleChanged(Role.REPLICA, self.master_epoch))
        self.followership = Followership(
            self.settings,
            -1,
            0,
            0,
            address,
            self.epochs,
            self.log,
            in_set=False,
            confirm_offset=self._confirm_offset,
            outbox=self._outbox,
            now_ms=now_ms,
            is_classic=True,
        )

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        """The ids that a controller has registered in this group, and which of them it knows to be learners."""
        self._registered.update(broker_ids)
        if self.mastership is not None:
            self.mastership.members_known(broker_ids, learners, now_ms)

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None:
        if self.mastership is not None:
            self.mastership.sync.accepted(token, members, set_epoch)
            self._after_answer(self.mastership, now_ms)

    def proposal_answered(self, token: int, code: int, now_ms: int) -> None:
        """Any other answer than success; only those that prove that nothing happened count as refusals."""
        if self.mastership is not None:
            if code in REFUSALS:
                self.mastership.sync.refused(token, code, now_ms)
            else:
                self.mastership.sync.unknown(token, now_ms)
            self._after_answer(self.mastership, now_ms)

    def proposal_unanswered(self, token: int, now_ms: int) -> None:
        if self.mastership is not None:
            self.mastership.sync.unknown(token, now_ms)
            self._after_answer(self.mastership, now_ms)

    # The own log

    def appended(self, end_offset: int) -> None:
        """The master appended; once for everything that one read event brought."""
        assert self.mastership is not None, "only a master appends"
        assert end_offset >= self.log.end_offset
        self.log.end_offset = end_offset
        if not self.settings.ack_after_flush:
            self.mastership.advance()

    def flushed(self, flushed_offset: int, now_ms: int) -> None:
        """What the log says is durable, after a flush."""
        assert flushed_offset <= self.log.end_offset
        self.log.flushed_offset = flushed_offset
        if self.mastership is not None:
            if self.settings.ack_after_flush:
                self.mastership.advance()
        elif self.followership is not None:
            self.followership.flushed(now_ms)

    def prefix_removed(self, min_offset: int) -> None:
        """Retention removed the files below `min_offset`."""
        self.log.min_offset = min_offset
        if self.epochs.forget_before(min_offset):
            self._outbox.append(PersistEpochs(tuple(self.epochs.entries)))

    def log_settled(self, end_offset: int, now_ms: int) -> None:
        """The log is whole and durable up to its end: the new epoch begins there, and with it the mastership."""
        if self.role is not Role.PROMOTING:
            return
        assert self.broker_id is not None
        assert self.view is not None
        assert end_offset <= self.log.end_offset
        self.log.end_offset = self.log.flushed_offset = end_offset
        self._confirm_offset = min(self._confirm_offset, end_offset)
        self.epochs.drop_beyond(end_offset)
        if self.log.min_offset < end_offset:
            self.epochs.cover(self.log.min_offset)
        self.epochs.begin(self.master_epoch, end_offset)
        self._outbox.append(PersistEpochs(tuple(self.epochs.entries)))
        sync = SyncState(
            self.broker_id,
            self.view.members,
            self.view.set_epoch,
            retry_ms=self.settings.proposal_retry_ms,
            rejoin_delay_ms=self.settings.rejoin_delay_ms,
            first_token=self.master_epoch << 32,
        )
        self._registered |= sync.required
        self.mastership = Mastership(
            self.settings,
            self.master_epoch,
            end_offset,
            self.epochs,
            self.log,
            sync,
            self._registered,
            self._confirm_offset,
            self._outbox,
            now_ms,
        )
        self.role = Role.MASTER
        self._outbox.append(RoleChanged(Role.MASTER, self.master_epoch))

    def log_refused(
        self, log: LogPosition, entries: Sequence[EpochEntry], reason: str, full: bool, now_ms: int
    ) -> None:
        """The log took less than it was given, or could not be cut: work on from what it and the epoch file really hold."""
        assert self.followership is not None, "only a master's bytes can be refused"
        self.log.min_offset, self.log.end_offset = log.min_offset, log.end_offset
        self.log.flushed_offset = log.flushed_offset
        self.epochs.replace(entries)
        if self.epochs.drop_beyond(log.end_offset):
            self._outbox.append(PersistEpochs(tuple(self.epochs.entries)))
        self.followership.refused(reason, full, now_ms)

    # Connections of replicas to this broker

    def accepted(self, connection: int, now_ms: int) -> None:
        if self.mastership is None:
            self._outbox.append(CloseConnection(connection, "this broker is not the master"))
        else:
            self.mastership.accepted(connection, now_ms)

    def handshake(self, connection: int, handshake: Handshake, now_ms: int) -> None:
        if handshake.highest_epoch > self.master_epoch:
            self.saw_newer_epoch(connection, handshake.highest_epoch)
        elif self.mastership is not None:
            self.mastership.handshake(connection, handshake, now_ms)

    def acked(self, connection: int, offset: int, now_ms: int) -> None:
        if self.mastership is not None:
            self.mastership.acked(connection, offset, now_ms)

    def saw_newer_epoch(self, connection: int, epoch: int) -> None:
        """A replica has proven itself and persisted a newer master epoch: this mastership is over, whoever knows it."""
        if self.mastership is None:
            return
        self._leave_role(f"connection {connection} is of a replica that has seen master epoch {epoch}")
        self._outbox.append(RequestSync())

    def next_transfer(self, connection: int) -> Transfer | None:
        return self.mastership.next_transfer(connection) if self.mastership is not None else None

    def transferred(self, connection: int, length: int, now_ms: int) -> None:
        assert self.mastership is not None
        self.mastership.transferred(connection, length, now_ms)

    # This broker's connection to its master

    def connected(self, attempt: int, connection: int, now_ms: int) -> None:
        if self.followership is None:
            self._outbox.append(CloseConnection(connection, "no longer wanted"))
        else:
            self.followership.connected(attempt, connection, now_ms)

    def connect_failed(self, attempt: int, reason: str, now_ms: int) -> None:
        if self.followership is not None:
            self.followership.connect_failed(attempt, reason, now_ms)

    def replied(self, connection: int, reply: Reply, now_ms: int) -> None:
        if self.followership is not None:
            self.followership.replied(connection, reply, now_ms)

    def received(self, connection: int, pieces: Sequence[Piece], now_ms: int) -> None:
        if self.followership is not None:
            self.followership.received(connection, pieces, now_ms)

    def lost(self, connection: int, now_ms: int, reason: str = "") -> None:
        """A connection, of either kind, is gone."""
        if self.mastership is not None:
            self.mastership.lost(connection, now_ms)
        elif self.followership is not None:
            self.followership.lost(connection, now_ms, reason)

    # Time and end

    def tick(self, now_ms: int, interval_ms: int) -> None:
        """Called every `interval_ms`; a call that comes much later means that this process stood still, not the others."""
        pause_ms = self.awake.tick(now_ms, interval_ms)
        if self.mastership is not None:
            if pause_ms:
                self.mastership.forgive(pause_ms, now_ms)
                self._outbox.append(RequestSync())  # the group may have gone on without us
            self.mastership.tick(now_ms)
        elif self.followership is not None:
            if pause_ms:
                self.followership.forgive(pause_ms)
            self.followership.tick(now_ms)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """An administrator changed settings; those that say how roles are found do not change while a broker runs."""
        self.settings = settings
        if self.mastership is not None:
            self.mastership.reconfigure(settings)
        elif self.followership is not None:
            self.followership.reconfigure(settings)

    def fail(self, reason: str) -> None:
        """The disk refused, or the broker stops: no role any more in this life."""
        if not self.failure:
            self.failure = reason
            self._leave_role(reason)

    # Steps of a switch

    def _observe_stale(self, view: RoleView) -> None:
        """A controller that is behind, or controllers that lost their data: those go on above what we remember, once asked."""
        self.stale_view = (
            f"a controller tells of master epoch {view.master_epoch}, but this broker has seen {self.highest_epoch}: "
            "it waits for an election above that"
        )
        if view.master_id is None and not self.settings.learner:
            self._outbox.append(RequestElection())

    def _observe_again(self, view: RoleView, now_ms: int) -> None:
        if view.master_id is None:
            return  # not "no master": the recorded one did not look alive to that controller; it decides, not we
        if self.view is not None and view.master_id != self.view.master_id:
            return  # an epoch has one master for ever; whoever tells another one is wrong
        self.view = view if self.view is None or view.set_epoch >= self.view.set_epoch else self.view
        if self.mastership is not None:
            self.mastership.sync.observed(view.members, view.set_epoch)
            self._registered |= view.members
            self._after_answer(self.mastership, now_ms)
        elif self.followership is not None:
            self.followership.update(view.master_ha_address, in_set=self.broker_id in self.view.members, now_ms=now_ms)

    def _after_answer(self, mastership: Mastership, now_ms: int) -> None:
        mastership.propose(now_ms)
        mastership.advance()

    def _leave_role(self, reason: str) -> None:
        self._confirm_offset = self.confirm_offset
        was_fenced = self.role is Role.FENCED
        mastership, followership = self.mastership, self.followership
        self.role = Role.FENCED
        self.mastership = self.followership = None
        self._outbox.append(FailWaiters())
        if mastership is not None:
            self._outbox.extend(CloseConnection(follower.connection, reason) for follower in mastership.followers)
        if followership is not None:
            followership.stop(reason)
        if not was_fenced:
            self._outbox.append(RoleChanged(Role.FENCED, self.master_epoch))

    def _persist(self, epoch: int) -> None:
        assert epoch >= self.highest_epoch
        if epoch > self.highest_epoch:
            self.highest_epoch = epoch
            self._outbox.append(PersistMasterEpoch(epoch))
        self.master_epoch = epoch

    def _fence(self, epoch: int) -> None:
        if self.role is not Role.FENCED:
            self._leave_role(f"no master in epoch {epoch}")
        self._persist(epoch)

    def _follow(self, view: RoleView, now_ms: int) -> None:
        assert self.broker_id is not None
        assert view.master_id is not None
        self._leave_role(f"broker {view.master_id} is master of epoch {view.master_epoch}")
        self._persist(view.master_epoch)
        self.role = Role.REPLICA
        self._outbox.append(RoleChanged(Role.REPLICA, view.master_epoch))
        self.followership = Followership(
            self.settings,
            self.broker_id,
            view.master_id,
            view.master_epoch,
            view.master_ha_address,
            self.epochs,
            self.log,
            in_set=self.broker_id in view.members,
            confirm_offset=self._confirm_offset,
            outbox=self._outbox,
            now_ms=now_ms,
            is_ours=view.master_is_ours,
        )

    def _promote(self, epoch: int) -> None:
        self._leave_role(f"this broker becomes master of epoch {epoch}")
        self._persist(epoch)
        self.role = Role.PROMOTING
        self._outbox.append(SettleLog())
