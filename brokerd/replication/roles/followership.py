"""The replica's side of replication: find the master, cut what it does not have, copy what it has (pure).

One object per (master, master epoch). Its connection moves IDLE -> DIALLING -> HANDSHAKE -> SETTLING -> TRANSFER and from
anywhere back to IDLE; what does not fit the stage closes the connection. Invariants:

- nothing is acked to a master whose newest epoch is not the one that a controller named: neither a late master nor an early one,
  nor to another process than the one that was elected, as far as it is told which that is;
- the log is dropped only when nothing counts on it: no life of this broker acked in this epoch, or the master, which alone knows
  what it has proposed, has let this replica go (for a RocketMQ master: the controllers say that it is not in the set);
- the log is cut before the epoch list (the other way round a crash would leave bytes under a wrong epoch), and both before the
  first ack; the first ack follows at once, when all that is kept is flushed: a replica acks durable bytes only;
- bytes are taken only at the own end, within one epoch, whose entry is durable before its first byte;
- `confirm_offset` is at most what the master confirmed and what is safe here.

A master of ours is spoken to in our own layout alone. One that the settings allow to be RocketMQ's, and whose kind the
controllers did not tell, is tried in both in turn. A classic master has no epochs, and offers nothing to compare: its log is
copied as epoch 0.

Owned by `role_machine`, whose outbox receives the effects.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from brokerd.replication.calm import EARLY_MS
from brokerd.replication.rocketmq_peers import RocketmqPeers, host_of
from brokerd.replication.roles.effects import (
    AppendReplicated,
    Ask,
    CloseConnection,
    Connect,
    PersistEpochs,
    Refusal,
    RequestFlush,
    ResetLog,
    RoleView,
    SendAck,
    SendHandshake,
    TruncateLog,
)
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Layout, Piece, Reply, TransferHeader
from remoting.disk import Bytes

_FIRST_RETRY_MS = 20
_LONGEST_RETRY_MS = 1000
_STUCK_RETRY_MS = 5000
_PATIENCE = 2  # the replica is the more patient side: leaving a master that lives costs it its place in the set


class CopyStage(Enum):
    IDLE = "idle"  # waits for an address or for the next try
    DIALLING = "dialling"
    HANDSHAKE = "handshake"  # ours was sent; the master's epochs are awaited
    SETTLING = "settling"  # the log was cut; it must be flushed before the first ack
    TRANSFER = "transfer"


class Followership:
    """One replica's relation to one master epoch."""

    def __init__(
        self, context: RoleContext, view: RoleView, confirm_offset: int, now_ms: int, *, is_classic: bool = False
    ) -> None:
        """`view` names the master; `is_classic`: it knows no controllers."""
        settings = context.settings
        self.master_id = -1 if view.master_id is None else view.master_id
        self.master_epoch = view.master_epoch
        self.address = view.master_ha_address
        self.in_set = context.self_id in view.members  # as the controllers say; grows only by our acks
        self.confirm_offset = confirm_offset
        self.stage = CopyStage.IDLE
        self.last_error = ""
        self.stuck = ""  # why this replica cannot follow without a person; "" = it can
        self.copies = 0  # how often the whole log was dropped and copied again
        self.cuts = 0
        self.master_incarnation = view.master_incarnation  # 0 = not told yet
        self.layout = Layout.CLASSIC if is_classic else Layout.OWN
        self._is_ours = view.master_is_ours
        self._rocketmq_peers = RocketmqPeers(settings.plain_peers)
        self._settings = settings
        self._self_id = context.self_id
        self._epochs = context.epochs
        self._log = context.log
        self._outbox = context.outbox
        self.connection: int | None = None
        self._attempt = 0
        self._retry_ms = _FIRST_RETRY_MS
        self._dial_at_ms = now_ms
        self.received_ms = now_ms  # when the master last said something
        self.sent_ms = now_ms  # when this replica last did
        self._acked = -1
        # Acks of this epoch, in this life or an earlier one, may have brought this replica into the set, or it never left it
        self._may_count = not is_classic and (self.in_set or not context.epoch_is_new)
        self._wants_clearance = False  # we would drop the log, but must know first that the set does not count on it
        self._cleared = False  # a controller said so; the master's word is still to come
        self._asked_release = False  # on the present connection
        self._fresh = True  # no data yet on this connection
        self._is_damaged = False  # the log cannot be continued, whatever the epochs say
        self._refused_at = -1  # the end of the log when the master's bytes for it were last found damaged
        self._misfit_at = -1  # likewise, when they could not be a log there: a new copy that ends there too is the last
        self.master_confirm_offset = -1  # what the master last said is confirmed; -1 = nothing yet
        self._dial(now_ms)

    # The connection

    def update(self, address: str, *, in_set: bool, now_ms: int) -> None:
        """A controller told again where the master is and whether we are in the set."""
        self.in_set = in_set
        if self._wants_clearance:
            self._wants_clearance = False
            self._cleared = not in_set
            self._dial_at_ms = now_ms
        if address and address != self.address:
            self.address = address
            self._leave("the master's replication address changed", now_ms)
            self._dial_at_ms = now_ms
            self._dial(now_ms)

    def connected(self, attempt: int, connection: int, now_ms: int) -> None:
        if self.stage is not CopyStage.DIALLING or attempt != self._attempt:
            self._outbox.append(CloseConnection(connection, "no longer wanted"))
            return
        self.connection = connection
        self._acked = -1
        self._fresh = True
        self.received_ms = self.sent_ms = now_ms
        self.stage = CopyStage.HANDSHAKE
        settings = self._settings
        self._asked_release = self._cleared and not self.in_set and self.layout is Layout.OWN
        handshake = Handshake(
            self._self_id,
            settings.sync_from_last_file,
            settings.learner,
            self.layout,
            highest_epoch=self.master_epoch,
            acks_flushed=settings.ack_after_flush,
            starts_anew=self._asked_release,
        )
        self._outbox.append(SendHandshake(connection, handshake))
        if self.layout is Layout.CLASSIC:
            self._begin_classic(now_ms)

    def connect_failed(self, attempt: int, reason: str, now_ms: int) -> None:
        if self.stage is CopyStage.DIALLING and attempt == self._attempt:
            self.last_error = reason
            self._wait(now_ms)

    def lost(self, connection: int, now_ms: int, reason: str = "") -> None:
        if connection != self.connection:
            return
        self.last_error = reason or "the connection to the master closed"
        self.connection = None
        if self.stage is CopyStage.HANDSHAKE:
            self._unanswered()
        # The master may be gone: ask who is it now. If only the connection is, be back before it proposes us out.
        self._outbox.append(Ask.SYNC)
        if self.stage is CopyStage.TRANSFER:
            self._dial(now_ms)
        else:
            self._wait(now_ms)

    def stop(self, reason: str) -> None:
        """This relation ends (another role or master)."""
        if self.connection is not None:
            self._outbox.append(CloseConnection(self.connection, reason))
            self.connection = None
        self._attempt += 1
        self.stage = CopyStage.IDLE

    def tick(self, now_ms: int) -> None:
        if self.connection is None:
            if self.stage is CopyStage.IDLE and now_ms >= self._dial_at_ms:
                self._dial(now_ms)
            return
        silent_ms = now_ms - self.received_ms
        if self.stage is not CopyStage.SETTLING and silent_ms >= self._silence_limit_ms:
            if self.stage is CopyStage.HANDSHAKE:
                self._unanswered()
            self._leave("the master is silent", now_ms)
            self._outbox.append(Ask.SYNC)
        elif self.stage is CopyStage.TRANSFER and now_ms + EARLY_MS - self.sent_ms >= self._settings.heartbeat_ms:
            self._send_ack(self._acked, now_ms)

    def is_calm(self, now_ms: int, for_ms: int) -> bool:
        """Whether the master has heard of everything here, and cannot have been silent too long within `for_ms`."""
        return (
            self.stage is CopyStage.TRANSFER
            and self._acked == self._log.end_offset
            and now_ms - self.received_ms + for_ms <= self._silence_limit_ms
        )

    def reconfigure(self, settings: ReplicationSettings) -> None:
        self._settings = settings

    def discount_pause(self, pause_ms: int) -> None:
        """This process stood still: the master was not silent in that time."""
        self.received_ms += pause_ms

    # What the master sends

    def replied(self, connection: int, reply: Reply, now_ms: int) -> None:
        """The master's epochs: cut what is not in its log, then ack (or drop everything and copy it again)."""
        if connection != self.connection:
            return
        self.received_ms = now_ms
        if self.stage is not CopyStage.HANDSHAKE:
            self._leave("the master greeted twice", now_ms)
            return
        if reply.last_epoch != self.master_epoch:
            self._outbox.append(Ask.SYNC)
            kind = (
                "a stale master" if reply.last_epoch < self.master_epoch else "a newer master than a controller named"
            )
            self._leave(f"{kind}: its epoch is {reply.last_epoch}, expected {self.master_epoch}", now_ms)
            return
        if self._is_twin(reply):
            self._outbox.append(Ask.SYNC)
            self._be_refused(
                f"two processes have the identity of broker {self.master_id}: the one at {self.address} is not the one that "
                f"is master of epoch {self.master_epoch}; stop the one that runs on a copy of the data directory",
                now_ms,
            )
            return
        log = self._log
        if log.end_offset == log.min_offset:
            self._forget_epochs()
        else:
            common = self._epochs.common_end(log.end_offset, reply.entries, reply.end_offset)
            if common is None or common < max(log.min_offset, reply.min_offset) or self._is_damaged:
                if self._is_damaged:
                    reason = "this log is damaged: it differs from the master's"
                elif common is not None and common >= log.min_offset:
                    reason = "the master no longer has the bytes behind this log's end"
                else:
                    reason = "this log is without an epoch in common with the master's"
                if not self._start_anew(reason, now_ms):
                    return
            else:
                self._cleared = False  # the logs fit after all
                self._cut(common)
        self.stage = CopyStage.SETTLING
        self._settled(now_ms)

    def _is_twin(self, reply: Reply) -> bool:
        """Whether another process of the master answers than the one that was elected; without a controller's word, than the one
        that answered first in this epoch."""
        if not self.master_incarnation:
            self.master_incarnation = reply.incarnation
        return reply.incarnation not in (0, self.master_incarnation)

    def released(self, connection: int, now_ms: int) -> None:
        """The master counts on this replica no more, and will not before it acks again: drop the log, its epochs come next."""
        if connection != self.connection:
            return
        self.received_ms = now_ms
        if self.stage is not CopyStage.HANDSHAKE or not self._asked_release:
            self._leave("the master released a replica that did not ask for it", now_ms)
            return
        self._may_count = False
        self._drop_log()

    def twin_connected(self, connection: int, now_ms: int) -> None:
        """The master is connected to another process with this broker's id."""
        if connection == self.connection:
            self._be_refused(
                f"two processes have broker id {self._self_id}: the master at {self.address} is connected to the other one and "
                "refuses this one until that is gone; stop the one that runs on a copy of the data directory",
                now_ms,
            )

    def received(self, connection: int, pieces: Sequence[Piece], now_ms: int) -> None:
        """Log bytes and heartbeats, in order."""
        if connection != self.connection:
            return
        self.received_ms = now_ms
        if self.stage is not CopyStage.TRANSFER:
            self._leave("bytes before the first ack", now_ms)
            return
        log = self._log
        buffers: list[Bytes] = []
        first_offset = log.end_offset
        problem = None
        for header, body in pieces:
            if self.layout is Layout.CLASSIC:
                last = self._epochs.last
                header = header._replace(epoch_start=last.start_offset if last is not None else header.offset)
            if header.confirm_offset > self.master_confirm_offset:
                self.master_confirm_offset = header.confirm_offset
            if self._is_gap(header):
                self._append(first_offset, buffers)
                if self._start_anew("the master no longer has the bytes behind this log's end", now_ms):
                    self._leave("starting anew", now_ms)
                    self._dial_at_ms = now_ms
                return
            if not body:
                continue
            if header.offset != log.end_offset and not self._begin_empty_log(header.offset):
                problem = f"bytes for {header.offset} where this log ends at {log.end_offset}"
                break
            entry = self._epochs.last
            if entry is None or header.epoch != entry.epoch or header.epoch_start != entry.start_offset:
                problem = self._epoch_problem(header)
                if problem:
                    break
                self._append(first_offset, buffers)
                self._epochs.begin(header.epoch, header.epoch_start)
                self._outbox.append(PersistEpochs(tuple(self._epochs.entries)))
                buffers = []
            if not buffers:
                first_offset = header.offset
            buffers.append(body)
            log.end_offset += len(body)
            self._fresh = False
        self._append(first_offset, buffers)
        self._advance_confirm()
        if problem:
            self._leave(problem, now_ms)
            return
        if self._settings.ack_after_flush:
            if log.end_offset > log.flushed_offset:
                self._outbox.append(RequestFlush())
        elif log.end_offset > self._acked:
            self._send_ack(log.end_offset, now_ms)

    def flushed(self, now_ms: int) -> None:
        """The log's flushed position rose."""
        if self.stage is CopyStage.SETTLING:
            self._settled(now_ms)
        elif self.stage is CopyStage.TRANSFER:
            self._advance_confirm()
            if self._settings.ack_after_flush and self._log.flushed_offset > self._acked:
                self._send_ack(self._log.flushed_offset, now_ms)

    def refused(self, reason: str, why: Refusal, now_ms: int) -> None:
        """The log did not take the master's bytes. A full disk is waited out, and so is a damaged record, until the master has it
        intact again. Bytes that cannot be a log there mean that the logs differ: a new copy helps, unless it ends there too."""
        end_offset = self._log.end_offset
        self.confirm_offset = min(self.confirm_offset, end_offset)
        if why is Refusal.DAMAGED and end_offset != self._refused_at:
            self._refused_at = end_offset
            self._leave(reason, now_ms)  # the first time it may have been the way here
            return
        if why is Refusal.MISFIT and end_offset != self._misfit_at:
            self._misfit_at = end_offset
            self._is_damaged = True
        self._be_stuck(reason, now_ms)

    # Steps

    @property
    def _silence_limit_ms(self) -> int:
        is_patient = self.layout.is_rocketmq and self.stage is CopyStage.TRANSFER
        return self._settings.plain_silence_limit_ms if is_patient else _PATIENCE * self._settings.silence_limit_ms

    def _unanswered(self) -> None:
        """The master did not greet: perhaps it does not understand us."""
        if self._is_ours:
            return
        if not self._rocketmq_peers.allows(host_of(self.address)):
            self.last_error += (
                "; if it is Apache RocketMQ, which cannot prove itself, list its address in replication.plain_peers"
            )
            return
        self.layout = Layout.CURRENT if self.layout is Layout.OWN else Layout.OWN

    def _begin_classic(self, now_ms: int) -> None:
        """Nothing is greeted: the first ack says from where to send."""
        if self._epochs.last_epoch > 0:
            reason = "this log was written under controllers: follow a classic master with an empty data directory"
            self._be_stuck(reason, now_ms)
            return
        if self._log.end_offset == self._log.min_offset:
            self._forget_epochs()
        elif self._is_damaged:
            self._start_anew("this log is damaged: it differs from the master's", now_ms)
        self.stage = CopyStage.SETTLING
        self._settled(now_ms)

    def _cut(self, common: int) -> None:
        log = self._log
        if common < log.end_offset:
            self.cuts += 1
            self._outbox.append(TruncateLog(common))
            log.end_offset = common
            log.flushed_offset = min(log.flushed_offset, common)
            self.confirm_offset = min(self.confirm_offset, common)
        if self._epochs.cut(common):
            self._outbox.append(PersistEpochs(tuple(self._epochs.entries)))

    def _start_anew(self, reason: str, now_ms: int) -> bool:
        """Drop the whole log, to copy it again; refused while the group may count on what is in it."""
        is_cleared = self._cleared and self.layout.is_rocketmq  # such a master cannot be asked
        if not self.in_set and (is_cleared or not self._may_count):
            self._drop_log()
            return True
        # A controller must say again that we are not in the set, and then the master that it proposes nothing else.
        self._cleared = False
        self._wants_clearance = True
        self._outbox.append(Ask.SYNC)
        if self._asked_release:
            reason += (
                ", and its master is of an earlier version, which cannot say whether it counts on this replica; "
                "upgrade the master, or elect another one"
            )
        else:
            reason += (
                ", and this replica may be in the sync-state set; "
                "elect it master if its log is the right one, or remove its data directory if the master's is"
            )
        self._be_stuck(reason, now_ms)
        return False

    def _drop_log(self) -> None:
        self._cleared = self._asked_release = self._is_damaged = False
        self.copies += 1
        self._reset(0)
        self._forget_epochs()

    def _reset(self, offset: int) -> None:
        self._outbox.append(ResetLog(offset))
        self._log.min_offset = self._log.end_offset = self._log.flushed_offset = offset
        self.confirm_offset = min(self.confirm_offset, offset)

    def _forget_epochs(self) -> None:
        if self._epochs.last is not None:
            self._epochs.replace(())
            self._outbox.append(PersistEpochs(()))

    def _settled(self, now_ms: int) -> None:
        log = self._log
        if log.flushed_offset < log.end_offset:
            self._outbox.append(RequestFlush())
            return
        self.stage = CopyStage.TRANSFER
        self._retry_ms = _FIRST_RETRY_MS
        self.received_ms = now_ms
        self.stuck = self.last_error = ""
        self._send_ack(log.end_offset, now_ms)

    def _is_gap(self, header: TransferHeader) -> bool:
        """The master begins beyond our end: its older files are gone."""
        log = self._log
        return self._fresh and header.offset > log.end_offset > log.min_offset

    def _begin_empty_log(self, offset: int) -> bool:
        """An empty log begins where the master's oldest file does."""
        if self._log.end_offset != self._log.min_offset or not self._fresh or offset < 0:
            return False
        self._reset(offset)
        return True

    def _epoch_problem(self, header: TransferHeader) -> str:
        """Why these bytes may not begin a new epoch here; "" = they may."""
        last = self._epochs.last
        if not 0 <= header.epoch <= self.master_epoch:
            return f"bytes of epoch {header.epoch} from the master of epoch {self.master_epoch}"
        if last is None:
            return "" if 0 <= header.epoch_start <= header.offset else "an epoch that begins after its first byte"
        if header.epoch <= last.epoch or header.epoch_start != header.offset:
            return f"epoch {header.epoch} from {header.epoch_start} at {header.offset}, after epoch {last.epoch}"
        return ""

    def _append(self, offset: int, buffers: list[Bytes]) -> None:
        if buffers:
            self._outbox.append(AppendReplicated(offset, buffers))

    def _advance_confirm(self) -> None:
        own = self._log.flushed_offset if self._settings.ack_after_flush else self._log.end_offset
        assert own <= self._log.end_offset
        self.confirm_offset = max(self.confirm_offset, min(self.master_confirm_offset, own))

    def _send_ack(self, offset: int, now_ms: int) -> None:
        assert self.connection is not None
        self._acked = offset
        self._may_count = self._may_count or offset > self._log.min_offset
        self.sent_ms = now_ms
        self._outbox.append(SendAck(self.connection, offset))

    def _dial(self, now_ms: int) -> None:
        if not self.address:
            self._dial_at_ms = now_ms + self._retry_ms
            return
        self._attempt += 1
        self.stage = CopyStage.DIALLING
        self._outbox.append(Connect(self.address, self._attempt))

    def _leave(self, reason: str, now_ms: int) -> None:
        """Close the connection, if there is one, and try again later."""
        self.last_error = reason
        if self.connection is not None:
            self._outbox.append(CloseConnection(self.connection, reason))
            self.connection = None
        self._wait(now_ms)

    def _be_refused(self, reason: str, now_ms: int) -> None:
        """Another process has to go first; that may be any moment."""
        self.stuck = reason
        self._leave(reason, now_ms)

    def _be_stuck(self, reason: str, now_ms: int) -> None:
        """Only a person can help, or time."""
        self.stuck = reason
        self._leave(reason, now_ms)
        self._dial_at_ms = now_ms + _STUCK_RETRY_MS

    def _wait(self, now_ms: int) -> None:
        self.stage = CopyStage.IDLE
        self._attempt += 1
        self._dial_at_ms = now_ms + self._retry_ms
        self._retry_ms = min(2 * self._retry_ms, _LONGEST_RETRY_MS)
