"""Carries out what the replication core decides, over the seams to log, disk, network and controllers, in the order given.

No sockets, no tasks, no clock here: `Outlet` and `ControlRequests` are what asyncio shells and the simulator implement, and every
call takes `now_ms`. Everything runs on the broker's one thread; a call that comes from within a callback (a listener that
appends, a completed sender that sends again) is queued behind what is being carried out, so effects never overtake each other.

The waiting sends live here too: they are completed from the core's acknowledged offset, or failed by its role changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.facts import ReplicaFacts, core_facts
from brokerd.replication.log import LogPosition, ReplicatedLog
from brokerd.replication.required_set.ack_queue import AckQueue, Callback
from brokerd.replication.required_set.quorum import overdue, patience_ms
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles import effects as fx
from brokerd.replication.roles.effects import Effect, Role, RoleView
from brokerd.replication.roles.hand_over import HandOver, Told
from brokerd.replication.roles.log_sender import LogSender
from brokerd.replication.roles.role_machine import ReplicaCore
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.channels import Channels
from brokerd.replication.wire.frames import Ack, FromMaster, FromReplica, Handshake, Piece
from brokerd.replication.wire.proof import Credentials
from brokerd.replication.wire.rocketmq_peers import host_of
from brokerd.store.put_status import PutStatus
from remoting.disk import Bytes
from remoting.errors import ProtocolError, StorageError

log = logging.getLogger(__name__)


class _LogRefusedError(Exception):
    """The log is well but did not take a master's bytes or cut: no room, or they do not belong there."""

    def __init__(self, reason: str, *, full: bool) -> None:
        super().__init__(reason)
        self.full = full


RoleListener = Callable[[Role, int], None]


class Outlet(Protocol):
    """Connections between brokers. Ids are the shell's; whatever it is told about an id it does not know it ignores."""

    def connect(self, address: str, attempt: int) -> None:
        """Dial; answer later with `connected` or `connect_failed`."""

    def send(self, connection: int, buffers: Sequence[Bytes]) -> None:
        """Hand over bytes; they may wait in memory."""

    def can_send(self, connection: int) -> bool:
        """Too much is not waiting already; `pump` is called when that changes."""

    def close(self, connection: int) -> None: ...


class ControlRequests(Protocol):
    """What the core asks of the controllers; answers come as calls of the engine."""

    def request_sync(self) -> None: ...

    def request_election(self) -> None: ...

    def request_members(self) -> None: ...

    def propose(self, proposal: Proposal, master_epoch: int) -> None: ...


class ReplicaEngine:
    """One broker's replication, without its sockets."""

    def __init__(
        self,
        settings: ReplicationSettings,
        replicated_log: ReplicatedLog,
        epoch_file: EpochFile,
        outlet: Outlet,
        control: ControlRequests,
        *,
        credentials: Credentials,
        confirm_offset: int,
        now_ms: int,
    ) -> None:
        """`confirm_offset` is the last one known to be on disk (a lower bound is fine). Raises CorruptedFile."""
        epochs, highest_epoch = epoch_file.load()
        position = LogPosition(
            replicated_log.min_offset,
            replicated_log.end_offset,
            replicated_log.flushed_offset,
            replicated_log.segment_size_bytes,
        )
        self.channels = Channels(settings, credentials)
        self.core = ReplicaCore(settings, epochs, highest_epoch, position, confirm_offset, now_ms)
        self.acks = AckQueue(settings.max_waiting_acks)
        self.draining = False  # the broker is about to stop: nothing new is accepted
        self.last_errors: list[str] = []
        self._hand_over: HandOver | None = None
        self._settings = settings
        self._log = replicated_log
        self._epoch_file = epoch_file
        self._outlet = outlet
        self._control = control
        self._listeners: list[RoleListener] = []
        self._confirm_listeners: list[Callable[[int], None]] = []
        self._confirm_told = -1
        self._failure_listener: Callable[[str], None] | None = None
        self._running = False
        self._sender = LogSender(self.core, replicated_log, self.channels, outlet)
        self._finish(now_ms)

    # For the rest of the broker

    @property
    def is_master(self) -> bool:
        return self.core.role is Role.MASTER

    @property
    def accepts_messages(self) -> bool:
        """A master with enough replicas and room for another waiting append."""
        leading = self.core.leading
        if self.draining or self._hand_over is not None:
            return False
        return leading is not None and leading.enough_replicas and not self._is_crowded

    @property
    def _is_crowded(self) -> bool:
        """So much waits to be acknowledged that another append would only wait longer."""
        acks = self.acks
        if acks.is_full:
            return True
        return bool(acks) and self._log.end_offset - acks.acknowledged > self._settings.max_waiting_bytes

    @property
    def refusal(self) -> PutStatus:
        """Why `accepts_messages` is false."""
        leading = self.core.leading
        if leading is not None and not leading.enough_replicas:
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return PutStatus.SERVICE_NOT_AVAILABLE

    def add_role_listener(self, listener: RoleListener) -> None:
        """Called after every change of role, in the order of the switch: when it reports MASTER the log is settled."""
        self._listeners.append(listener)

    def add_confirm_listener(self, listener: Callable[[int], None]) -> None:
        """Called with the confirm offset whenever it rose, before the sends below it are answered."""
        self._confirm_listeners.append(listener)

    def on_failure(self, listener: Callable[[str], None]) -> None:
        """Called once when the disk refused something: the broker has no role any more and must stop."""
        self._failure_listener = listener

    def wait(self, position: int, callback: Callback, now_ms: int) -> None:
        """Complete `callback` when everything below `position` is acknowledged, or the wait is over; exactly once."""
        if self.core.leading is None:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        self.acks.wait(position, now_ms, callback)

    def on_appended(self, end_offset: int, now_ms: int) -> None:
        """The master's log grew to `end_offset`: send it on. Once per append of a read event's messages."""
        self.core.appended(end_offset)
        for peer in self.core.leading.peers if self.core.leading is not None else ():
            self._pump(peer.connection, now_ms)
        self._finish(now_ms)

    def on_flushed(self, now_ms: int) -> None:
        """A flush of the log ended."""
        if not self.core.failure:
            if self.core.leading is not None and self._log.end_offset > self.core.log.end_offset:
                self.core.appended(self._log.end_offset)  # a filler at a file's end, of an append that then failed
            self.core.flushed(self._log.flushed_offset, now_ms)
            self._finish(now_ms)

    def hand_over(self, successor: int, master_epoch: int, wait_ms: int, hold_ms: int, now_ms: int, told: Told) -> None:
        """A planned switch to `successor` is about to be decided: accept nothing new until it has the whole log, then tell, and
        wait `hold_ms` for the change of role before going on as master."""
        leading = self.core.leading
        if leading is None or leading.epoch != master_epoch:
            told(f"this broker is not the master of epoch {master_epoch}", 0)
            return
        if self._hand_over is not None:
            self._hand_over.end("another switch was asked for", self._log.end_offset, now_ms)
        self._note(f"handing over to broker {successor}")
        self._hand_over = HandOver(successor, wait_ms, hold_ms, now_ms, told)
        self._finish(now_ms)

    def _look_at_hand_over(self, hand_over: HandOver, now_ms: int) -> None:
        if self.core.leading is None:
            hand_over.end("this broker is not the master any more", self._log.end_offset, now_ms)
        else:
            hand_over.look(self.core.leading, self._log.end_offset, len(self.acks), now_ms)
        if hand_over.is_over(now_ms):
            self._hand_over = None
            if self.core.leading is not None:
                self._note("not handed over: this broker goes on as master")

    # From the network shells

    def accepted(self, connection: int, now_ms: int, *, host: str = "") -> None:
        """Somebody at the address `host` connected."""
        self.channels.accept(connection, host, now_ms)
        self.core.accepted(connection, now_ms)
        self._finish(now_ms)

    def received(self, connection: int, data: Bytes, now_ms: int) -> None:
        """Bytes of the other side, cut anywhere; they are used before this returns."""
        channels = self.channels
        try:
            if channels.is_accepted(connection):
                from_replica, said = channels.replica_said(connection, data)
                if said:
                    self._outlet.send(connection, said)
                self._from_replica(connection, from_replica, now_ms)
            elif channels.is_dialled(connection):
                from_master, said = channels.master_said(connection, data)
                if said:
                    self._outlet.send(connection, said)
                self._from_master(connection, from_master, now_ms)
        except ProtocolError as error:
            self._refuse(connection, error, now_ms)

    def _from_replica(self, connection: int, frames: Iterable[FromReplica], now_ms: int) -> None:
        """Frames of a replica, in order."""
        for frame in frames:
            if isinstance(frame, Ack):
                self.core.acked(connection, frame.offset, now_ms)
            elif isinstance(frame, Handshake):
                self.core.handshake(connection, frame, now_ms)
            else:
                self.core.saw_newer_epoch(connection, frame.epoch)
        self._finish(now_ms)
        self._pump(connection, now_ms)

    def connected(self, attempt: int, connection: int, now_ms: int) -> None:
        self.core.connected(attempt, connection, now_ms)
        self._finish(now_ms)

    def connect_failed(self, attempt: int, reason: str, now_ms: int) -> None:
        self.core.connect_failed(attempt, reason, now_ms)
        self._finish(now_ms)

    def _from_master(self, connection: int, frames: Sequence[FromMaster], now_ms: int) -> None:
        """Frames of the master, in order. Bodies are used before this returns."""
        pieces: list[Piece] = []
        for frame in frames:
            if isinstance(frame, Piece):
                pieces.append(frame)
                continue
            if pieces:
                self.core.received(connection, pieces, now_ms)
                pieces = []
            self.core.replied(connection, frame, now_ms)
        if pieces:
            self.core.received(connection, pieces, now_ms)
        self._finish(now_ms)

    def lost(self, connection: int, now_ms: int) -> None:
        end = self.channels.replica_end(connection)
        self.channels.forget(connection)
        self.core.lost(connection, now_ms, end.unfinished if end is not None else "")
        self._finish(now_ms)

    def _refuse(self, connection: int, error: ProtocolError, now_ms: int) -> None:
        """The peer broke the protocol, or did not prove itself."""
        sentence = self.channels.refuse(connection, error)
        if sentence:
            log.warning("%s", sentence)
        self._close(connection, str(error))
        self.core.lost(connection, now_ms, str(error))
        self._finish(now_ms)

    def pump(self, connection: int, now_ms: int) -> None:
        """The connection can take bytes again."""
        self._pump(connection, now_ms)
        self._finish(now_ms)

    def follow_classic(self, address: str, now_ms: int) -> None:
        """Copy the log of a master that knows no controllers, and do nothing else."""
        self.core.follow_classic(address, now_ms)
        self._finish(now_ms)

    # From the control shell

    def identified(self, broker_id: int) -> None:
        self.core.identify(broker_id)

    def observed(self, view: RoleView, now_ms: int) -> None:
        self.core.observe(view, now_ms)
        self._finish(now_ms)

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        self.core.members_known(broker_ids, learners, now_ms)
        self._finish(now_ms)

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None:
        self.core.proposal_accepted(token, members, set_epoch, now_ms)
        self._finish(now_ms)

    def proposal_answered(self, token: int, code: int, now_ms: int) -> None:
        self.core.proposal_answered(token, code, now_ms)
        self._finish(now_ms)

    def proposal_unanswered(self, token: int, now_ms: int) -> None:
        self.core.proposal_unanswered(token, now_ms)
        self._finish(now_ms)

    # Time and end

    def tick(self, now_ms: int, interval_ms: int) -> None:
        if self.core.failure:
            return
        if self._log.min_offset > self.core.log.min_offset:
            self.core.prefix_removed(self._log.min_offset)
        self.core.tick(now_ms, interval_ms)
        self._finish(now_ms)
        if self._settings.max_transfer_bytes_per_s and self.core.leading is not None:
            for peer in self.core.leading.peers:  # those that had used up what they may be sent
                self._pump(peer.connection, now_ms)
        since_ms = self.acks.waiting_since_ms
        leading = self.core.leading
        if since_ms is None or leading is None or now_ms - since_ms < patience_ms(self._settings):
            return
        own_position, replicas_position = leading.own_position, leading.replicas_position()

        def verdict(position: int, waited_ms: int) -> PutStatus | None:
            flushed, replicated = position <= own_position, leading.enough_replicas and position <= replicas_position
            return overdue(self._settings, waited_ms, flushed=flushed, replicated=replicated)

        self.acks.expire(now_ms, verdict)
        self._finish(now_ms)

    def reconfigure(self, settings: ReplicationSettings, now_ms: int) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self.core.reconfigure(settings)
        self._finish(now_ms)

    def stop(self, reason: str, now_ms: int) -> None:
        """The broker stops: no role, no connection, no waiter is left."""
        self.core.fail(reason)
        self._finish(now_ms)

    def break_down(self, reason: str, now_ms: int) -> None:
        """Something that must hold does not (a disk refused, or a shell caught an unexpected error of a call above): end the
        role and have the broker stopped."""
        already = bool(self.core.failure)
        self.core.fail(reason)
        self._finish(now_ms)
        if not already and self._failure_listener is not None:
            self._failure_listener(reason)

    # Carrying out

    def _pump(self, connection: int, now_ms: int) -> None:
        try:
            self._sender.pump(connection, now_ms)
        except StorageError as error:
            self._failed(error, now_ms)

    def _finish(self, now_ms: int) -> None:
        """Carry out effects and complete waiters until nothing is left to do."""
        if self._running:
            return
        core = self.core
        self._running = True
        try:
            while True:
                while core.has_effects:
                    for effect in core.take_effects():
                        self._carry_out(effect, now_ms)
                self._tell_confirmed()
                leading = core.leading
                completed = leading is not None and self.acks.acknowledge(leading.acknowledged_offset)
                if not completed and not core.has_effects:
                    break
            if self._hand_over is not None:
                self._look_at_hand_over(self._hand_over, now_ms)
        except _LogRefusedError as error:
            self._running = False
            self._refused(error, now_ms)
        except StorageError as error:
            self._running = False
            self._failed(error, now_ms)
        finally:
            self._running = False

    def _tell_confirmed(self) -> None:
        """Before anybody is told that a message is safe, consumers can see it."""
        confirm_offset = self.core.confirm_offset
        if confirm_offset != self._confirm_told:
            rose = confirm_offset > self._confirm_told
            self._confirm_told = confirm_offset
            if rose:
                for listener in self._confirm_listeners:
                    listener(confirm_offset)

    def _refused(self, error: _LogRefusedError, now_ms: int) -> None:
        """The log did not take what a master sent, and the effects behind that were not carried out: go on from what is
        really there."""
        log.error("the log does not take the master's bytes: %s", error)
        try:
            entries = self._epoch_file.load()[0].entries
        except StorageError as again:
            self._failed(again, now_ms)
            return
        position = LogPosition(self._log.min_offset, self._log.end_offset, self._log.flushed_offset)
        self.core.log_refused(position, entries, str(error), error.full, now_ms)
        self._finish(now_ms)

    def _failed(self, error: StorageError, now_ms: int) -> None:
        """The disk refused: what should have followed must not happen, so the role ends here."""
        log.critical("replication stops: %s", error)
        self.break_down(str(error), now_ms)

    def _carry_out(self, effect: Effect, now_ms: int) -> None:
        match effect:
            case fx.AppendReplicated(offset, buffers):
                self._append_replicated(offset, buffers)
            case fx.RequestFlush():
                self._log.request_flush()
            case fx.SendAck(connection, offset):
                replica_end = self.channels.replica_end(connection)
                if replica_end is not None:
                    self._outlet.send(connection, (replica_end.encode_ack(offset),))
            case fx.SendHeartbeat(connection, header):
                self._sender.heartbeat(connection, header)
            case fx.SendHandshake(connection, handshake):
                self._greet(connection, handshake, now_ms)
            case fx.SendReply(connection, reply):
                master_end = self.channels.master_end(connection)
                if master_end is not None:
                    self._outlet.send(connection, (master_end.encode_reply(reply),))
            case fx.Connect(address, attempt):
                self._outlet.connect(address, attempt)
            case fx.CloseConnection(connection, reason):
                self._close(connection, reason)
            case fx.RequestSync():
                self._control.request_sync()
            case fx.RequestElection():
                self._control.request_election()
            case fx.RequestMembers():
                self._control.request_members()
            case fx.ProposeSyncStateSet(proposal, master_epoch):
                log.info("proposing the sync-state set %s", sorted(proposal.members))
                self._control.propose(proposal, master_epoch)
            case _:
                self._switch(effect, now_ms)

    def _switch(self, effect: Effect, now_ms: int) -> None:
        """The rare effects: role, epochs, and what changes the log otherwise than by appending."""
        match effect:
            case fx.FailWaiters():
                self.acks.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
            case fx.PersistMasterEpoch(epoch):
                self._epoch_file.save_master_epoch(epoch)
            case fx.PersistEpochs(entries):
                self._epoch_file.save_entries(entries)
            case fx.TruncateLog(offset):
                self._note(f"cutting the log from {self._log.end_offset} to {offset}, where the master's differs")
                self._sender.forget()
                self._change(lambda: self._log.truncate(offset))
                assert self._log.end_offset == offset
            case fx.ResetLog(offset):
                if self._log.end_offset > self._log.min_offset:
                    self._note("dropping the whole log, to copy the master's")
                self._sender.forget()
                self._change(lambda: self._log.reset(offset))
                assert self._log.min_offset == self._log.end_offset == offset
            case fx.SettleLog():
                self._sender.forget()
                self._log.settle()
                self.core.log_settled(self._log.end_offset, now_ms)
            case fx.RoleChanged(role, master_epoch):
                log.info("role %s, master epoch %d, log end %d", role.value, master_epoch, self._log.end_offset)
                if role is Role.MASTER:
                    self.acks.reset(self.core.acknowledged_offset)
                for listener in self._listeners:
                    listener(role, master_epoch)
            case _:
                raise AssertionError(f"nobody carries out {effect}")

    def _append_replicated(self, offset: int, buffers: Sequence[Bytes]) -> None:
        try:
            self._log.append_replicated(offset, buffers)
        except ProtocolError as error:
            raise _LogRefusedError(str(error), full=False) from error
        except StorageError as error:
            if error.is_out_of_space:
                raise _LogRefusedError(str(error), full=True) from error
            raise
        assert self._log.end_offset == offset + sum(map(len, buffers))

    @staticmethod
    def _change(change: Callable[[], None]) -> None:
        try:
            change()
        except ProtocolError as error:
            raise _LogRefusedError(str(error), full=False) from error

    def _greet(self, connection: int, handshake: Handshake, now_ms: int) -> None:
        following = self.core.following
        address = following.address if following is not None else ""
        try:
            said = self.channels.dial(connection, host_of(address), handshake)
        except ProtocolError as error:
            self._refuse(connection, error, now_ms)
            return
        if said:
            self._outlet.send(connection, said)

    def _close(self, connection: int, reason: str) -> None:
        # Whoever only connects must not fill the log; the first refusal of each peer is in it.
        level = logging.INFO if self.channels.is_open(connection) else logging.DEBUG
        self._note(f"replication connection {connection} closed: {reason}", level)
        self.channels.forget(connection)
        self._outlet.close(connection)

    def _note(self, sentence: str, level: int = logging.INFO) -> None:
        log.log(level, "%s", sentence)
        self.last_errors.append(sentence)
        del self.last_errors[:-20]

    # For the console

    def state(self, now_ms: int) -> ReplicaFacts:
        """The facts that a person wants to see."""
        return replace(
            core_facts(self.core, self._settings, now_ms),
            waiting_sends=len(self.acks),
            waited_ms=now_ms - (self.acks.waiting_since_ms or now_ms),
            unacknowledged={status.name: count for status, count in self.acks.ended.items()},
            refused_peers=dict(self.channels.refused),
        )
