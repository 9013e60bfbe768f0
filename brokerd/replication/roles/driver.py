"""Carries out what the role machine decides, over the seams to log, disk, network and controllers, in the order given.

No sockets, no tasks, no clock here: `Outlet` and `RoleAuthority` are what asyncio shells and the simulator implement, and every
call takes `now_ms`. Everything runs on the broker's one thread; a call that comes from within a callback (a listener that
appends, a completed sender that sends again) is queued behind what is being carried out, so effects never overtake each other.

The waiting sends live here too: they are completed from the machine's acknowledged offset, or failed by its role changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.log import ReplicatedLog
from brokerd.replication.required_set.ack_queue import AckQueue, Callback
from brokerd.replication.required_set.quorum import ALL, overdue, patience_ms
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.rocketmq_peers import host_of
from brokerd.replication.roles import effects
from brokerd.replication.roles.disk_effects import DiskEffects, LogRefusedError
from brokerd.replication.roles.effects import Ask, Effect, Role, RoleView
from brokerd.replication.roles.hand_over import HandOver, Told
from brokerd.replication.roles.log_sender import LogSender, Outlet
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire import own_layout
from brokerd.replication.wire.channels import Channels
from brokerd.replication.wire.frames import Ack, Frame, Handshake, Piece, Released, Reply, TwinConnected
from brokerd.replication.wire.proof import Credentials
from brokerd.store.put_status import PutStatus
from remoting.disk import Bytes
from remoting.errors import ProtocolError, StorageError

log = logging.getLogger(__name__)


_READ_AGAIN_MS = 1000  # how long a replica waits for what could not be read before it is tried again

RoleListener = Callable[[Role, int], None]


class RoleAuthority(Protocol):
    """Who decides the roles of the group, as the driver asks him; answers come as calls of the driver."""

    def ask(self, what: Ask) -> None: ...

    def propose(self, proposal: Proposal, master_epoch: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Seams:
    """What a driver carries out effects on."""

    log: ReplicatedLog
    epoch_file: EpochFile
    outlet: Outlet
    authority: RoleAuthority


class ReplicationDriver:
    """One broker's replication, without its sockets."""

    def __init__(
        self,
        settings: ReplicationSettings,
        seams: Seams,
        credentials: Credentials,
        *,
        confirm_offset: int,
        now_ms: int,
    ) -> None:
        """`confirm_offset` is the last one known to be on disk (a lower bound is fine). Raises CorruptedFile."""
        epochs, highest_epoch = seams.epoch_file.load()
        self._disk = DiskEffects(seams.log, seams.epoch_file)
        self.channels = Channels(settings, credentials)
        self._incarnation = credentials.incarnation
        self.machine = RoleMachine(settings, epochs, highest_epoch, self._disk.position(), confirm_offset, now_ms)
        self.acks = AckQueue(settings.max_waiting_acks)
        self._is_draining = False  # the broker is about to stop: nothing new is accepted
        self._hand_over: HandOver | None = None
        self._log = seams.log
        self._outlet = seams.outlet
        self._authority = seams.authority
        # Told after every change of role, in the order of the switch: when it is MASTER the log is settled
        self.role_listeners: list[RoleListener] = []
        # Called while messages are accepted for the last time before a planned switch
        self.hand_over_listeners: list[Callable[[], None]] = []
        # Called before an acknowledgement may mean something else: somebody may begin to copy the log, or settings change
        self.meaning_listeners: list[Callable[[], None]] = []
        # Asked how many groups of messages wait for the disk elsewhere than in `acks`, and the first of them for how many ms
        self.waiting_elsewhere: Callable[[], tuple[int, int]] = lambda: (0, 0)
        # Told the confirm offset whenever it rose, before the sends below it are answered
        self.confirm_listeners: list[Callable[[int], None]] = []
        # Told once when the disk refused something: the broker has no role any more and must stop
        self.failure_listeners: list[Callable[[str], None]] = []
        self._confirm_told = -1
        self._seals: bool | None = None  # what the log was last told in this role
        self._disk_stood = False  # as told in the log
        self._running = False
        self._not_sent_until_ms: dict[int, int] = {}  # of connections whose next bytes could not be read
        self._sender = LogSender(self.machine, seams.log, self.channels, seams.outlet)
        # Told what of the log is damaged, whenever a replica lacks it; until that is repaired, the replica waits
        self.damage_listeners = self._sender.damage_listeners
        self._finish(now_ms)

    # For the rest of the broker

    @property
    def is_master(self) -> bool:
        return self.machine.role is Role.MASTER

    @property
    def is_handing_over(self) -> bool:
        """A planned switch is under way: somebody else is the master in a moment, or this broker goes on."""
        return self._hand_over is not None

    @property
    def accepts_messages(self) -> bool:
        """A master with enough replicas and room for another waiting append."""
        mastership = self.machine.mastership
        if self._is_draining or self._hand_over is not None:
            return False
        return mastership is not None and mastership.enough_replicas and not self._is_crowded

    @property
    def acknowledges_alone(self) -> bool:
        """Whether a message is acknowledged as soon as it is in the log, or durable there (`acknowledges_durable`): nobody else
        has to have it. It is so until `meaning_listeners` are called, the role changes, or the broker stops."""
        mastership = self.machine.mastership
        return (
            mastership is not None
            and self.accepts_messages
            and not mastership.followers
            and mastership.sync.required == {mastership.sync.self_id}
            and mastership.quorum.needed in (ALL, 1)
            and self._has_caught_up
        )

    @property
    def acknowledges_durable(self) -> bool:
        """Whether what is acknowledged is durable."""
        return self.machine.settings.ack_after_flush

    @property
    def _has_caught_up(self) -> bool:
        """Nobody waits who may wait for others, and the disk keeps pace."""
        if not self.acknowledges_durable:
            return not self.acks
        log = self.machine.log
        return log.end_offset - log.flushed_offset <= self.machine.settings.max_waiting_bytes

    @property
    def _is_crowded(self) -> bool:
        """So much waits to be acknowledged that another append would only wait longer."""
        acks = self.acks
        if acks.is_full:
            return True
        return bool(acks) and self._log.end_offset - acks.acknowledged > self.machine.settings.max_waiting_bytes

    @property
    def refusal(self) -> PutStatus:
        """Why `accepts_messages` is false."""
        mastership = self.machine.mastership
        if mastership is not None and not mastership.enough_replicas:
            return PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
        return PutStatus.SERVICE_NOT_AVAILABLE

    def drain(self) -> None:
        """The broker is about to stop: accept nothing new."""
        self._is_draining = True

    def wait(self, position: int, callback: Callback, now_ms: int) -> None:
        """Complete `callback` when everything below `position` is acknowledged, or the wait is over; exactly once."""
        if self.machine.mastership is None:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        self.acks.wait(position, now_ms, callback)

    def on_appended(self, end_offset: int, now_ms: int) -> None:
        """The master's log grew to `end_offset`: send it on. Once per append of a read event's messages."""
        self.machine.appended(end_offset)
        for follower in self.machine.mastership.followers if self.machine.mastership is not None else ():
            self._pump(follower.connection, now_ms)
        self._finish(now_ms)

    def _take_real_end(self, end_offset: int, now_ms: int) -> None:
        """The log may end behind what was told: the filler at a file's end stays when the append behind it fails, and the
        replicas need it like any other byte. Looked at before anything that may change the role, which counts on that end."""
        if self.machine.mastership is not None and end_offset > self.machine.log.end_offset:
            self._log.request_flush()
            self.on_appended(end_offset, now_ms)

    def on_flushed(self, now_ms: int) -> None:
        """A flush of the log ended."""
        if not self.machine.failure:
            # not the end itself: who appends beside the loop would have to stop for each flush
            self._take_real_end(self._log.known_end_offset, now_ms)
            self.machine.flushed(self._log.flushed_offset, now_ms)
            self._tell_of_disk()
            self._finish(now_ms)

    def hand_over(self, successor: int, master_epoch: int, wait_ms: int, hold_ms: int, told: Told, now_ms: int) -> None:
        """A planned switch to `successor` is about to be decided: accept nothing new until it has the whole log, then tell, and
        wait `hold_ms` for the change of role before going on as master."""
        mastership = self.machine.mastership
        if mastership is None or mastership.epoch != master_epoch:
            told(f"this broker is not the master of epoch {master_epoch}", 0)
            return
        if self._hand_over is not None:
            self._hand_over.end("another switch was asked for", self._log.end_offset, now_ms)
        else:
            for listener in self.hand_over_listeners:
                listener()
        log.info("handing over to broker %d", successor)
        self._hand_over = HandOver(successor, wait_ms, hold_ms, now_ms, told)
        self._finish(now_ms)

    def _look_at_hand_over(self, hand_over: HandOver, now_ms: int) -> None:
        if self.machine.mastership is None:
            hand_over.end("this broker is not the master any more", self._log.end_offset, now_ms)
        else:
            hand_over.look(self.machine.mastership, self._log.end_offset, len(self.acks), now_ms)
        if hand_over.is_over(now_ms):
            self._hand_over = None
            if self.machine.mastership is not None:
                log.info("not handed over: this broker goes on as master")

    # From the network shells

    def accepted(self, connection: int, now_ms: int, *, host: str = "") -> None:
        """Somebody at the address `host` connected."""
        self._meaning_changes()
        self.channels.accept(connection, host, now_ms)
        self.machine.accepted(connection, now_ms, host)
        self._finish(now_ms)

    def received(self, connection: int, data: Bytes, now_ms: int) -> None:
        """Bytes of the other side, cut anywhere; they are used before this returns."""
        self._take_real_end(self._log.end_offset, now_ms)
        try:
            frames, said = self.channels.receive(connection, data)
            if said:
                self._outlet.send(connection, said)
            self._take(connection, frames, now_ms)
            self._finish(now_ms)
            self._pump(connection, now_ms)
        except ProtocolError as error:
            self._refuse(connection, error, now_ms)

    def _take(self, connection: int, frames: Sequence[Frame], now_ms: int) -> None:
        """Frames of a replica or of the master, in order."""
        machine = self.machine
        pieces: list[Piece] = []
        for frame in frames:
            if isinstance(frame, Ack):
                machine.acked(connection, frame.offset, now_ms)
            elif isinstance(frame, Piece):
                pieces.append(frame)
            elif isinstance(frame, Reply):
                if pieces:
                    machine.received(connection, pieces, now_ms)
                    pieces = []
                machine.replied(connection, frame, now_ms)
            elif isinstance(frame, Handshake):
                machine.handshake(connection, frame, now_ms)
            elif isinstance(frame, Released):
                machine.released(connection, now_ms)
            elif isinstance(frame, TwinConnected):
                machine.twin_connected(connection, now_ms)
            else:
                machine.saw_newer_epoch(connection, frame.epoch, now_ms)
        if pieces:
            machine.received(connection, pieces, now_ms)

    def _meaning_changes(self) -> None:
        for listener in self.meaning_listeners:
            listener()

    def connected(self, attempt: int, connection: int, now_ms: int) -> None:
        self.machine.connected(attempt, connection, now_ms)
        self._finish(now_ms)

    def connect_failed(self, attempt: int, reason: str, now_ms: int) -> None:
        self.machine.connect_failed(attempt, reason, now_ms)
        self._finish(now_ms)

    def lost(self, connection: int, now_ms: int) -> None:
        end = self.channels.dialled_end(connection)
        self.channels.forget(connection)
        self._not_sent_until_ms.pop(connection, None)
        self.machine.lost(connection, now_ms, end.unfinished if end is not None else "")
        self._finish(now_ms)

    def _refuse(self, connection: int, error: ProtocolError, now_ms: int) -> None:
        """The peer broke the protocol, or did not prove itself."""
        sentence = self.channels.refuse(connection, error)
        if sentence:
            log.warning("%s", sentence)
        self._close(connection, str(error))
        self.machine.lost(connection, now_ms, str(error))
        self._finish(now_ms)

    def pump(self, connection: int, now_ms: int) -> None:
        """The connection can take bytes again."""
        self._pump(connection, now_ms)
        self._finish(now_ms)

    def follow_classic(self, now_ms: int) -> None:
        """Copy the log of a master that knows no controllers, and do nothing else."""
        self.machine.follow_classic(now_ms)
        self._finish(now_ms)

    # From the session

    def identified(self, broker_id: int) -> None:
        self.machine.identify(broker_id, self._incarnation)

    def lineage_known(self, name: str) -> None:
        """In a group with fixed roles: the name of the log, which is part of what is proven from now on."""
        self.channels.prove_lineage(name)

    def observed(self, view: RoleView, now_ms: int) -> None:
        self._take_real_end(self._log.end_offset, now_ms)
        self.machine.observe(view, now_ms)
        self._finish(now_ms)

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        self.machine.members_known(broker_ids, learners, now_ms)
        self._finish(now_ms)

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None:
        self.machine.proposal_accepted(token, members, set_epoch, now_ms)
        self._finish(now_ms)

    def proposal_failed(self, token: int, code: int | None, now_ms: int) -> None:
        self.machine.proposal_failed(token, code, now_ms)
        self._finish(now_ms)

    # Time and end

    def tick(self, now_ms: int, interval_ms: int) -> None:
        if self.machine.failure:
            return
        self._note_removed()
        self._take_real_end(self._log.end_offset, now_ms)
        self.machine.tick(now_ms, interval_ms)
        self._tell_of_disk()
        self._finish(now_ms)
        if self.machine.settings.max_transfer_bytes_per_s and self.machine.mastership is not None:
            for follower in self.machine.mastership.followers:  # those that had used up what they may be sent
                self._pump(follower.connection, now_ms)
        since_ms = self.acks.waiting_since_ms
        mastership = self.machine.mastership
        if since_ms is None or mastership is None or now_ms - since_ms < patience_ms(self.machine.settings):
            return
        own_position, replicas_position = mastership.own_position, mastership.replicas_position()

        def verdict(position: int, waited_ms: int) -> PutStatus | None:
            flushed, replicated = position <= own_position, mastership.enough_replicas and position <= replicas_position
            return overdue(self.machine.settings, waited_ms, flushed=flushed, replicated=replicated)

        self.acks.expire(now_ms, verdict)
        self._finish(now_ms)

    def _tell_of_disk(self) -> None:
        disk = self.machine.disk
        if disk.stands != self._disk_stood:
            self._disk_stood = disk.stands
            if disk.stands:
                log.error("the disk stands still: nothing of the log became durable for %d ms", disk.standing_ms)
            else:
                log.warning("the disk goes on")

    def is_calm(self, now_ms: int, for_ms: int) -> bool:
        """Whether a tick has nothing to do for so long."""
        return self.acks.waiting_since_ms is None and self._hand_over is None and self.machine.is_calm(now_ms, for_ms)

    def reconfigure(self, settings: ReplicationSettings, now_ms: int) -> None:
        """Use these settings from now on."""
        self._meaning_changes()
        self.machine.reconfigure(settings)
        self._finish(now_ms)

    def stop(self, reason: str, now_ms: int) -> None:
        """The broker stops: no role, no connection, no waiter is left."""
        self.machine.fail(reason, now_ms)
        self._finish(now_ms)

    def break_down(self, reason: str, now_ms: int) -> None:
        """Something that must hold does not (a disk refused, or a shell caught an unexpected error of a call above): end the
        role and have the broker stopped."""
        already = bool(self.machine.failure)
        try:
            self.machine.fail(reason, now_ms)
            self._finish(now_ms)
        finally:  # what is broken may break that, too: the process has to end all the same
            if not already:
                for listener in self.failure_listeners:
                    listener(reason)

    # Carrying out

    def _pump(self, connection: int, now_ms: int) -> None:
        if now_ms < self._not_sent_until_ms.get(connection, now_ms):
            return
        self._note_removed()
        try:
            self._sender.pump(connection, now_ms)
        except StorageError as error:
            self._not_read(connection, error, now_ms)

    def _note_removed(self) -> None:
        """Retention may have taken files since anybody looked: what was there is neither sent nor damaged."""
        if self._log.min_offset > self.machine.log.min_offset:
            self.machine.prefix_removed(self._log.min_offset)

    def _not_read(self, connection: int, error: StorageError, now_ms: int) -> None:
        """A part of the log that a replica asked for cannot be read. What every member has is damage of a range, which somebody
        else has intact: that one replica waits until it can be. What perhaps nobody else has must be another master's matter."""
        mastership = self.machine.mastership
        transfer = mastership.next_transfer(connection) if mastership is not None else None
        if transfer is None or transfer.header.offset >= self.machine.confirm_offset:
            self._failed(error, now_ms)
            return
        log.error("a replica is not sent the log from %d on: %s", transfer.header.offset, error)
        self._not_sent_until_ms[connection] = now_ms + _READ_AGAIN_MS

    def _finish(self, now_ms: int) -> None:
        """Carry out effects and complete waiters until nothing is left to do."""
        if self._running:
            return
        machine = self.machine
        self._running = True
        try:
            while True:
                while machine.has_effects:
                    for effect in machine.take_effects():
                        self._carry_out(effect, now_ms)
                confirm_offset = machine.confirm_offset
                if confirm_offset != self._confirm_told:
                    self._tell_confirmed(confirm_offset)
                mastership = machine.mastership
                completed = mastership is not None and self.acks.acknowledge(mastership.acknowledged_offset)
                if not completed and not machine.has_effects:
                    break
            if mastership is not None:
                self._tell_seals()
            if self._hand_over is not None:
                self._look_at_hand_over(self._hand_over, now_ms)
        except LogRefusedError as error:
            self._running = False
            self._refused(error, now_ms)
        except StorageError as error:
            self._running = False
            self._failed(error, now_ms)
        finally:
            self._running = False

    def _tell_seals(self) -> None:
        mastership = self.machine.mastership
        if mastership is not None and mastership.seals not in (None, self._seals):
            self._seals = mastership.seals
            log.info(
                "new records get %s", "checksums" if self._seals else "no checksums: not all of the group know them"
            )
            self._log.seal_records(self._seals)

    def _tell_confirmed(self, confirm_offset: int) -> None:
        """Before anybody is told that a message is safe, consumers can see it."""
        rose = confirm_offset > self._confirm_told
        self._confirm_told = confirm_offset
        if rose:
            for listener in self.confirm_listeners:
                listener(confirm_offset)

    def _refused(self, error: LogRefusedError, now_ms: int) -> None:
        """The log did not take what a master sent, and the effects behind that were not carried out: go on from what is
        really there."""
        log.error("the log does not take the master's bytes: %s", error)
        try:
            entries = self._disk.entries()
        except StorageError as again:
            self._failed(again, now_ms)
            return
        self.machine.log_refused(self._disk.position(), entries, str(error), error.why, now_ms)
        self._finish(now_ms)

    def _failed(self, error: StorageError, now_ms: int) -> None:
        """The disk refused: what should have followed must not happen, so the role ends here."""
        log.critical("replication stops: %s", error)
        self.break_down(str(error), now_ms)

    def _carry_out(self, effect: Effect, now_ms: int) -> None:
        match effect:
            case effects.AppendReplicated() | effects.PersistMasterEpoch() | effects.PersistEpochs():
                self._disk.carry_out(effect)
            case effects.RequestFlush():
                self._log.request_flush()
            case effects.SendAck(connection, offset):
                dialled_end = self.channels.dialled_end(connection)
                if dialled_end is not None:
                    self._outlet.send(connection, (dialled_end.encode_ack(offset),))
            case effects.SendHeartbeat(connection, header):
                self._sender.heartbeat(connection, header)
            case effects.SendHandshake(connection, handshake):
                self._greet(connection, handshake, now_ms)
            case effects.SendReply(connection, reply):
                accepted_end = self.channels.accepted_end(connection)
                if accepted_end is not None:
                    self._outlet.send(connection, (accepted_end.encode_reply(reply),))
            case effects.SendRelease(connection):
                self._note(connection, own_layout.RELEASED)
            case effects.SendTwinConnected(connection):
                self._note(connection, own_layout.TWIN)
            case effects.Connect(address, attempt):
                self._outlet.connect(address, attempt)
            case effects.CloseConnection(connection, reason):
                self._close(connection, reason)
            case Ask():
                self._authority.ask(effect)
            case effects.ProposeSyncStateSet(proposal, master_epoch):
                log.info("proposing the sync-state set %s", sorted(proposal.members))
                self._authority.propose(proposal, master_epoch)
            case _:
                self._switch(effect, now_ms)

    def _switch(self, effect: Effect, now_ms: int) -> None:
        """The rare effects: role, and what changes the log otherwise than by appending."""
        match effect:
            case effects.FailWaiters():
                self.acks.fail_all(PutStatus.SERVICE_NOT_AVAILABLE)
            case effects.TruncateLog() | effects.ResetLog() | effects.SettleLog():
                self._sender.forget()
                self._disk.carry_out(effect)
                if isinstance(effect, effects.SettleLog):
                    self.machine.log_settled(self._log.end_offset, now_ms)
            case effects.RoleChanged(role, master_epoch):
                log.info("role %s, master epoch %d, log end %d", role.value, master_epoch, self._log.end_offset)
                if role is Role.MASTER:
                    self.acks.reset(self.machine.acknowledged_offset)
                    self._seals = None
                    self._log.seal_records(None)
                    self._tell_seals()
                for listener in self.role_listeners:
                    listener(role, master_epoch)
            case _:
                raise AssertionError(f"nobody carries out {effect}")

    def _note(self, connection: int, state: int) -> None:
        accepted_end = self.channels.accepted_end(connection)
        note = accepted_end.encode_note(state, self.machine.master_epoch) if accepted_end is not None else b""
        if note:
            self._outlet.send(connection, (note,))

    def _greet(self, connection: int, handshake: Handshake, now_ms: int) -> None:
        followership = self.machine.followership
        address = followership.address if followership is not None else ""
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
        log.log(level, "replication connection %d closed: %s", connection, reason)
        self.channels.forget(connection)
        self._not_sent_until_ms.pop(connection, None)
        self._outlet.close(connection)
