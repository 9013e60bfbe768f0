"""One broker's role in its group, and the switch from one role to another (pure).

A role belongs to a master epoch, and every change needs a newer one from a controller than this broker has ever persisted; only a
fenced replica may take up the epoch again that it knew. A broker that starts again and finds itself recorded as master of an
epoch it has persisted was master in an earlier life: the positions of that epoch may not be continued (unflushed bytes that its
replicas have may be gone here), so it asks for an election instead.

`SWITCHES` is all that may happen to a role, with the steps of each switch in their order, which is the order of the effects:
every waiting send fails, replication connections close, the epoch is persisted, and only then is the log touched. The role
itself flips at once, since this object is asked by everyone; a step that fails leaves the broker fenced.

While the disk stands still (`disk_watch`) nothing could be persisted, and whoever waited for it would serve and hear nobody. So a
new view then ends the role alone, without a write, and is carried out when the disk goes on.

`now_ms` comes in, effects go out through `take_effects`, in the order in which they must be carried out. `driver` is the
one caller (and the simulator). Frames of connections that this role does not know are ignored: they were closed and are late.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.log import LogPosition
from brokerd.replication.required_set.sync_state import REFUSALS, SyncState
from brokerd.replication.roles.disk_watch import DiskWatch
from brokerd.replication.roles.effects import (
    Ask,
    CloseConnection,
    Effect,
    FailWaiters,
    PersistEpochs,
    PersistMasterEpoch,
    Refusal,
    RequestFlush,
    Role,
    RoleChanged,
    RoleView,
    SettleLog,
)
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Piece, Reply
from remoting.facts.words import DiskPace
from remoting.invariants import monotonic
from remoting.liveness import Awake

_TOLERATED_DELAY_MS = 200  # a tick that is later than this means that the process stood still


class Event(Enum):
    """What may change a role."""

    MASTER_LOST = "a newer epoch without a master"
    OTHER_ELECTED = "another broker is master, of an epoch not known here yet or known to a fenced broker"
    ELECTED = "this broker is master of a newer epoch"
    TWIN_ELECTED = "another process with this broker's id is, or was, master of a newer epoch or of this one"
    SERVED_BEFORE = "this broker is recorded as master of an epoch that an earlier life of it has served"
    CLASSIC_MASTER = "settings name a master that knows no controllers"
    LOG_SETTLED = "the log is whole and durable up to its end"
    NEWER_EPOCH_SHOWN = "a replica has proven that it persisted a newer epoch"
    DISK_STANDS = "there is a newer epoch, and the disk stands still, so it cannot be persisted yet"
    FAILED = "the disk refused, an invariant broke, or the broker stops"


class Step(Enum):
    """One thing that a switch does."""

    FAIL_WAITERS = "nobody who waits is told that its message is safe"
    CLOSE_CONNECTIONS = "those of the old role"
    TELL_FENCED = "tell the listeners that the old role is over"
    PERSIST_EPOCH = "the one of the newest view, before anything is done in it"
    SETTLE_LOG = "cut an incomplete record and flush the rest"
    BEGIN_EPOCH = "at the log's end, as its master"
    FOLLOW = "copy the log of the master that the newest view names"
    FOLLOW_CLASSIC = "copy the log of the master that the settings name"
    TELL_ROLE = "tell the listeners of the new role"
    ASK_ELECTION = "ask the controllers for a master of a newer epoch"
    ASK_SYNC = "ask the controllers who is master"


class Switch(NamedTuple):
    to: Role
    steps: tuple[Step, ...]


_FENCED, _PROMOTING, _MASTER, _REPLICA = Role.FENCED, Role.PROMOTING, Role.MASTER, Role.REPLICA
_LEAVE: Final = (Step.FAIL_WAITERS, Step.CLOSE_CONNECTIONS, Step.TELL_FENCED)

# What ends any role, and what comes then
_FROM_EACH_ROLE: Final[Mapping[Event, Switch]] = {
    Event.MASTER_LOST: Switch(_FENCED, (*_LEAVE, Step.PERSIST_EPOCH, Step.ASK_ELECTION)),
    Event.TWIN_ELECTED: Switch(_FENCED, (*_LEAVE, Step.PERSIST_EPOCH, Step.ASK_ELECTION)),
    Event.OTHER_ELECTED: Switch(_REPLICA, (*_LEAVE, Step.PERSIST_EPOCH, Step.TELL_ROLE, Step.FOLLOW)),
    Event.ELECTED: Switch(_PROMOTING, (*_LEAVE, Step.PERSIST_EPOCH, Step.SETTLE_LOG)),
    Event.FAILED: Switch(_FENCED, _LEAVE),
    Event.DISK_STANDS: Switch(_FENCED, _LEAVE),
}

SWITCHES: Final[Mapping[tuple[Role, Event], Switch]] = {
    (_FENCED, Event.MASTER_LOST): Switch(_FENCED, (Step.PERSIST_EPOCH, Step.ASK_ELECTION)),
    (_FENCED, Event.TWIN_ELECTED): Switch(_FENCED, (Step.PERSIST_EPOCH, Step.ASK_ELECTION)),
    (_FENCED, Event.OTHER_ELECTED): Switch(
        _REPLICA, (Step.FAIL_WAITERS, Step.PERSIST_EPOCH, Step.TELL_ROLE, Step.FOLLOW)
    ),
    (_FENCED, Event.ELECTED): Switch(_PROMOTING, (Step.FAIL_WAITERS, Step.PERSIST_EPOCH, Step.SETTLE_LOG)),
    (_FENCED, Event.SERVED_BEFORE): Switch(_FENCED, (Step.ASK_ELECTION,)),
    (_FENCED, Event.CLASSIC_MASTER): Switch(_REPLICA, (Step.FAIL_WAITERS, Step.TELL_ROLE, Step.FOLLOW_CLASSIC)),
    (_FENCED, Event.FAILED): Switch(_FENCED, (Step.FAIL_WAITERS,)),
    (_PROMOTING, Event.LOG_SETTLED): Switch(_MASTER, (Step.BEGIN_EPOCH, Step.TELL_ROLE)),
    (_MASTER, Event.NEWER_EPOCH_SHOWN): Switch(_FENCED, (*_LEAVE, Step.ASK_SYNC)),
    **{(role, event): switch for role in (_PROMOTING, _MASTER, _REPLICA) for event, switch in _FROM_EACH_ROLE.items()},
}


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
        self.incarnation = 0  # which start of this broker it is; 0 = not told
        self.role = Role.FENCED
        self.master_epoch = 0  # of the present role
        self.view: RoleView | None = None  # the newest that a controller told
        self.mastership: Mastership | None = None
        self.followership: Followership | None = None
        self.stale_view = ""  # what is wrong with the controllers' view; "" = nothing
        self.failure = ""  # why this broker serves no more; "" = it does
        self._confirm_offset = min(max(confirm_offset, log.min_offset), log.end_offset)
        self._registered: set[int] = set()
        self._epoch_is_new = False  # no life of this broker knew the epoch of the present role before
        self.disk = DiskWatch()
        self._view_waits = False  # the newest view is to be carried out when the disk goes on
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
        role = self.mastership or self.followership
        return role.confirm_offset if role is not None else self._confirm_offset

    @property
    def acknowledged_offset(self) -> int:
        """Up to where producers may be told that their messages are safe; only a master acknowledges."""
        return self.mastership.acknowledged_offset if self.mastership is not None else 0

    # What the controllers say

    def identify(self, broker_id: int, incarnation: int = 0) -> None:
        """This broker's id in the group is known (once, before any view), and which start of it this is."""
        assert self.broker_id in (None, broker_id)
        self.broker_id = broker_id
        self.incarnation = incarnation

    def observe(self, view: RoleView, now_ms: int) -> None:
        """A controller told who is master. Older epochs than the highest known are ignored, whoever tells them."""
        assert self.broker_id is not None
        if self.failure:
            return
        if view.master_epoch < self.highest_epoch:
            self._observe_stale(view)
            return
        self.stale_view = self._describe_twin(view) if self._names_twin(view) else ""
        if self.role is not Role.FENCED and view.master_epoch == self.master_epoch:
            self._observe_again(view, now_ms)
        elif self.disk.stands:
            self._observe_later(view, now_ms)
        else:
            self.view = view
            self._switch(self._event_of(view), now_ms)

    def _observe_later(self, view: RoleView, now_ms: int) -> None:
        """It is known from now on, so that clients are told who leads, and carried out when the disk goes on."""
        if self._view_waits and self.view is not None and view.master_epoch < self.view.master_epoch:
            return
        self.view, self._view_waits = view, True
        if self.role is not Role.FENCED:
            self._switch(Event.DISK_STANDS, now_ms)

    def _look_at_disk(self, now_ms: int, pause_ms: int = 0) -> None:
        settings = self.settings
        limit_ms = settings.disk_stands_ms if settings.ack_after_flush else 0
        before = self.disk.pace
        self.disk.look(self.log, now_ms, limit_ms, pause_ms)
        if before is DiskPace.WORKS and self.disk.pace is not before:
            self._outbox.append(RequestFlush())  # should nobody have asked for one, no disk is to blame
        if self._view_waits and not self.disk.stands and self.view is not None:
            self._view_waits = False
            self.observe(self.view, now_ms)

    def _event_of(self, view: RoleView) -> Event:
        if view.master_id is None:
            return Event.MASTER_LOST
        if view.master_id != self.broker_id:
            return Event.OTHER_ELECTED
        if view.master_epoch <= self.highest_epoch:
            return Event.SERVED_BEFORE
        return Event.TWIN_ELECTED if self._names_twin(view) else Event.ELECTED

    def _names_twin(self, view: RoleView) -> bool:
        """Whether it is another process that the controllers elected under this broker's id: an earlier start of it, or one that
        runs on a copy of its data directory. Two processes must never both serve one epoch."""
        return view.master_id == self.broker_id and view.master_incarnation not in (0, self.incarnation)

    def _describe_twin(self, view: RoleView) -> str:
        return (
            f"the process that was elected master of epoch {view.master_epoch} as broker {view.master_id}, at "
            f"{view.master_address}, is another one than this: an earlier start of it, or one that runs on a copy of its "
            "data directory; this one serves nobody before it is elected itself"
        )

    def follow_classic(self, now_ms: int) -> None:
        """Copy the log of a master that knows no controllers, for the whole life of this process."""
        self._switch(Event.CLASSIC_MASTER, now_ms)

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        """The ids that a controller has registered in this group, and which of them it knows to be learners."""
        self._registered.update(broker_ids)
        if self.mastership is not None:
            self.mastership.members_known(broker_ids, learners, now_ms)

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None:
        if self.mastership is not None:
            self.mastership.sync.accepted(token, members, set_epoch)
            self._after_answer(self.mastership, now_ms)

    def proposal_failed(self, token: int, code: int | None, now_ms: int) -> None:
        """Any other answer than success, or none; only those that prove that nothing happened count as refusals."""
        if self.mastership is not None:
            if code in REFUSALS:
                self.mastership.sync.refused(token, code, now_ms)
            else:
                self.mastership.sync.unknown(token, now_ms)
            self._after_answer(self.mastership, now_ms)

    # The own log

    def appended(self, end_offset: int) -> None:
        """The master appended; once for everything that one read event brought."""
        assert self.mastership is not None, "only a master appends"
        self.log.end_offset = monotonic(self.log.end_offset, end_offset, "the log's end")
        if not self.settings.ack_after_flush:
            self.mastership.advance()

    def flushed(self, flushed_offset: int, now_ms: int) -> None:
        """What the log says is durable, after a flush."""
        assert flushed_offset <= self.log.end_offset
        self.log.flushed_offset = monotonic(self.log.flushed_offset, flushed_offset, "the flushed position")
        if self.mastership is not None:
            if self.settings.ack_after_flush:
                self.mastership.advance()
        elif self.followership is not None:
            self.followership.flushed(now_ms)
        self._look_at_disk(now_ms)

    def prefix_removed(self, min_offset: int) -> None:
        """Retention removed the files below `min_offset`."""
        self.log.min_offset = monotonic(self.log.min_offset, min_offset, "the log's begin")
        if self.epochs.forget_before(min_offset):
            self._outbox.append(PersistEpochs(tuple(self.epochs.entries)))

    def log_settled(self, end_offset: int, now_ms: int) -> None:
        """The log is whole and durable up to its end: the new epoch begins there, and with it the mastership."""
        if self.role is not Role.PROMOTING:
            return
        assert end_offset <= self.log.end_offset
        self.log.end_offset = self.log.flushed_offset = end_offset
        self._switch(Event.LOG_SETTLED, now_ms)

    def log_refused(
        self, log: LogPosition, entries: Sequence[EpochEntry], reason: str, why: Refusal, now_ms: int
    ) -> None:
        """The log took less than it was given, or could not be cut: work on from what it and the epoch file really hold."""
        assert self.followership is not None, "only a master's bytes can be refused"
        self.log.min_offset, self.log.end_offset = log.min_offset, log.end_offset
        self.log.flushed_offset = log.flushed_offset
        self.epochs.replace(entries)
        if self.epochs.drop_beyond(log.end_offset):
            self._outbox.append(PersistEpochs(tuple(self.epochs.entries)))
        self.followership.refused(reason, why, now_ms)

    # Connections of replicas to this broker

    def accepted(self, connection: int, now_ms: int, host: str = "") -> None:
        if self.mastership is None:
            self._outbox.append(CloseConnection(connection, "this broker is not the master"))
        else:
            self.mastership.accepted(connection, now_ms, host)

    def handshake(self, connection: int, handshake: Handshake, now_ms: int) -> None:
        if handshake.highest_epoch > self.master_epoch:
            self.saw_newer_epoch(connection, handshake.highest_epoch, now_ms)
        elif self.mastership is not None:
            self.mastership.handshake(connection, handshake, now_ms)

    def acked(self, connection: int, offset: int, now_ms: int) -> None:
        if self.mastership is not None:
            self.mastership.acked(connection, offset, now_ms)

    def saw_newer_epoch(self, connection: int, epoch: int, now_ms: int) -> None:
        """A replica has proven itself and persisted a newer master epoch: this mastership is over, whoever knows it."""
        if self.role is Role.MASTER:
            reason = f"connection {connection} is of a replica that has seen master epoch {epoch}"
            self._switch(Event.NEWER_EPOCH_SHOWN, now_ms, reason)

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

    def released(self, connection: int, now_ms: int) -> None:
        if self.followership is not None:
            self.followership.released(connection, now_ms)

    def twin_connected(self, connection: int, now_ms: int) -> None:
        if self.followership is not None:
            self.followership.twin_connected(connection, now_ms)

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
        self._look_at_disk(now_ms, pause_ms)
        if self.mastership is not None:
            if pause_ms:
                self.mastership.discount_pause(pause_ms, now_ms)
                self._outbox.append(Ask.SYNC)  # the group may have gone on without us
            self.mastership.tick(now_ms)
        elif self.followership is not None:
            if pause_ms:
                self.followership.discount_pause(pause_ms)
            self.followership.tick(now_ms)

    def is_calm(self, now_ms: int, for_ms: int) -> bool:
        """Whether a role is had, nothing is under way in it, and none of its limits can be reached within `for_ms`."""
        role = self.mastership or self.followership
        return role is not None and not self.failure and not self.stale_view and role.is_calm(now_ms, for_ms)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """An administrator changed settings; those that say how roles are found do not change while a broker runs."""
        self.settings = settings
        role = self.mastership or self.followership
        if role is not None:
            role.reconfigure(settings)

    def fail(self, reason: str, now_ms: int) -> None:
        """The disk refused, an invariant broke, or the broker stops: no role any more in this life.

        What was to be done still is not, but for telling that the old role is over: it may be one half of a switch.
        """
        if self.failure:
            return
        self.failure = reason
        self._outbox[:] = [each for each in self._outbox if _ends_a_role(each)]
        self._switch(Event.FAILED, now_ms, reason)

    # Steps of a switch

    def _observe_stale(self, view: RoleView) -> None:
        """A controller that is behind, or controllers that lost their data: those go on above what we remember, once asked."""
        self.stale_view = (
            f"a controller tells of master epoch {view.master_epoch}, but this broker has seen {self.highest_epoch}: "
            "it waits for an election above that"
        )
        if view.master_id is None and not self.settings.learner:
            self._outbox.append(Ask.ELECTION)

    def _observe_again(self, view: RoleView, now_ms: int) -> None:
        if view.master_id is None:
            return  # not "no master": the recorded one did not look alive to that controller; it decides, not we
        if self.view is not None and view.master_id != self.view.master_id:
            return  # an epoch has one master for ever; whoever tells another one is wrong
        self.view = view if self.view is None or view.set_epoch >= self.view.set_epoch else self.view
        if self.mastership is not None and self._names_twin(view):
            self._switch(Event.TWIN_ELECTED, now_ms)
        elif self.mastership is not None:
            self.mastership.sync.observed(view.members, view.set_epoch)
            self._registered |= view.members
            self._after_answer(self.mastership, now_ms)
        elif self.followership is not None:
            self.followership.update(view.master_ha_address, in_set=self.broker_id in self.view.members, now_ms=now_ms)

    def _after_answer(self, mastership: Mastership, now_ms: int) -> None:
        mastership.propose(now_ms)
        mastership.advance()

    def _switch(self, event: Event, now_ms: int, reason: str = "") -> None:
        """Carry out what the table says. Whoever calls has looked whether the event can happen in this role."""
        switch = SWITCHES.get((self.role, event))
        assert switch is not None, f"{event.name} cannot happen to a broker that is {self.role.value}"
        self.role = Role.FENCED
        for step in switch.steps:
            self._take(step, switch.to, now_ms, reason or self._reason(event))
        self.role = switch.to

    def _reason(self, event: Event) -> str:
        """Why connections of the old role close."""
        view = self.view
        if view is None:
            return event.value
        if event is Event.OTHER_ELECTED:
            return f"broker {view.master_id} is master of epoch {view.master_epoch}"
        if event is Event.DISK_STANDS:
            return f"the disk stands still, and there is master epoch {view.master_epoch}"
        if event is Event.ELECTED:
            return f"this broker becomes master of epoch {view.master_epoch}"
        if event is Event.TWIN_ELECTED:
            return self._describe_twin(view)
        return f"no master in epoch {view.master_epoch}"

    def _take(self, step: Step, to: Role, now_ms: int, reason: str) -> None:
        match step:
            case Step.FAIL_WAITERS:
                self._outbox.append(FailWaiters())
            case Step.CLOSE_CONNECTIONS:
                self._close_connections(reason)
            case Step.TELL_FENCED:
                self._outbox.append(RoleChanged(Role.FENCED, self.master_epoch))
            case Step.PERSIST_EPOCH:
                self._persist_epoch()
            case Step.SETTLE_LOG:
                self._outbox.append(SettleLog())
            case Step.BEGIN_EPOCH:
                self._begin_epoch(now_ms)
            case Step.FOLLOW:
                assert self.view is not None
                self._follow(self.view, now_ms)
            case Step.FOLLOW_CLASSIC:
                self._follow(RoleView(None, 0, master_ha_address=self.settings.classic_master), now_ms, is_classic=True)
            case Step.TELL_ROLE:
                self._outbox.append(RoleChanged(to, self.master_epoch))
            case Step.ASK_ELECTION:
                self._ask_election()
            case Step.ASK_SYNC:
                self._outbox.append(Ask.SYNC)

    def _close_connections(self, reason: str) -> None:
        self._confirm_offset = self.confirm_offset
        mastership, followership = self.mastership, self.followership
        self.mastership = self.followership = None
        if mastership is not None:
            self._outbox.extend(CloseConnection(follower.connection, reason) for follower in mastership.followers)
        if followership is not None:
            followership.stop(reason)

    def _persist_epoch(self) -> None:
        assert self.view is not None
        epoch = self.view.master_epoch
        self._epoch_is_new = epoch > self.highest_epoch
        if monotonic(self.highest_epoch, epoch, "the highest master epoch") > self.highest_epoch:
            self.highest_epoch = epoch
            self._outbox.append(PersistMasterEpoch(epoch))
        self.master_epoch = monotonic(self.master_epoch, epoch, "the master epoch")

    def _ask_election(self) -> None:
        """A learner asks for no master, only to be none any more."""
        assert self.view is not None
        if self.view.master_id is not None or not self.settings.learner:
            self._outbox.append(Ask.ELECTION)

    def _begin_epoch(self, now_ms: int) -> None:
        assert self.broker_id is not None
        assert self.view is not None
        end_offset = self.log.end_offset
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
        began = EpochEntry(self.master_epoch, end_offset)
        self.mastership = Mastership(self._context(), began, sync, self._registered, self._confirm_offset, now_ms)

    def _follow(self, view: RoleView, now_ms: int, *, is_classic: bool = False) -> None:
        self.followership = Followership(self._context(), view, self._confirm_offset, now_ms, is_classic=is_classic)

    def _context(self) -> RoleContext:
        self_id = -1 if self.broker_id is None else self.broker_id
        return RoleContext(self.settings, self_id, self.epochs, self.log, self._outbox, self._epoch_is_new)


def _ends_a_role(effect: Effect) -> bool:
    if isinstance(effect, RoleChanged):
        return effect.role is Role.FENCED
    return isinstance(effect, FailWaiters | CloseConnection)
