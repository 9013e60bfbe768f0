"""The master's side of replication: who follows, how far each one is, and what is therefore acknowledged (pure).

One object per mastership (one master epoch), so nothing of an earlier epoch can be counted in it. Invariants:

- a connection acks nothing before its handshake named a registered broker id and was answered with this epoch;
- `confirm_offset` is at most the position of every member of the required set, a member without an acking connection counting as
  "nothing new"; it never goes back, and neither does `acknowledged_offset`;
- a replica joins the required set in the very call that finds it to have everything acknowledged;
- a replica that asks to be let go of, to drop its log, is released when it is not required: then the controllers' set is without
  it, no proposal with it is under way or may have been applied, and it joins again only by acks of the log that it has then;
- one process has a broker id: another one, told apart by its incarnation, is refused for as long as the first is connected;
- a connection that breaks a rule is closed, never argued with.

Owned by `role_machine`, whose outbox receives the effects.
"""

from __future__ import annotations

from typing import NamedTuple

from brokerd.replication.calm import EARLY_MS
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.required_set.log_hold import LogHold
from brokerd.replication.required_set.quorum import ALL, Quorum, decide, position_of
from brokerd.replication.required_set.replica_progress import ConnectionStage, Follower, MissingCopy, Progress
from brokerd.replication.required_set.sync_state import SyncState
from brokerd.replication.roles.effects import (
    Ask,
    CloseConnection,
    ProposeSyncStateSet,
    SendHeartbeat,
    SendRelease,
    SendReply,
    SendTwinConnected,
)
from brokerd.replication.roles.role_context import RoleContext
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake, Layout, Reply, TransferHeader
from brokerd.replication.wire.rocketmq_layouts import MAX_BODY_BYTES_SENT
from remoting.liveness import Patience, Silence

_ASK_AGAIN_MS = 250
_ASK_MEMBERS_AGAIN_MS = 50
_SETTLING_PATIENCE = 5


class Transfer(NamedTuple):
    """The next bytes for a connection: at most `length` from `header.offset`, all of one epoch."""

    header: TransferHeader
    length: int


class Mastership:
    """One mastership."""

    def __init__(
        self,
        context: RoleContext,
        began: EpochEntry,
        sync: SyncState,
        registered: set[int],
        confirm_offset: int,
        now_ms: int,
    ) -> None:
        """`began` is the mastership's epoch and where in the log it starts; `registered` grows as the group does."""
        settings = context.settings
        self.epoch, self._epoch_start = began
        self.sync = sync
        self.confirm_offset = confirm_offset
        self.acknowledged_offset = confirm_offset
        self._settings = settings
        self._self_id = sync.self_id
        self._epochs = context.epochs
        self._log = context.log
        self._registered = registered
        self._outbox = context.outbox
        self._patience = Patience(settings.heartbeat_ms, settings.silence_floor_ms, settings.silence_limit_ms)
        self._followers: dict[int, Follower] = {}
        self._by_id: dict[int, Follower] = {}
        self._missing: dict[int, tuple[str, bool, int]] = {}  # by broker id: why, whether sends wait for it, since when
        self._expected: frozenset[int] = frozenset()  # who belongs to the group, as last told
        self._told_learners: frozenset[int] = frozenset()
        self._hold = LogHold()
        self._hold.expect(registered - {sync.self_id}, now_ms)
        self.expected_offset: int | None = (
            None  # from where on replicas that are away need the log, as of the last tick
        )
        # A member that was never seen in this epoch gets the long limit: it has yet to learn who the master is.
        first_limit_ms = now_ms + settings.not_caught_up_ms
        self._progress = {each: Progress(now_ms, first_limit_ms) for each in sync.required}
        self._members_asked_ms = now_ms - _ASK_AGAIN_MS
        self._sync_asked_ms = now_ms - _ASK_AGAIN_MS
        # Who of the group said whether he knows records' checksums, and until when the others are waited for
        self._knows_checksums: dict[int, bool] = {}
        self._checksums_wait_ms = first_limit_ms
        self._look_at_checksums(now_ms)
        self.advance()

    # What others ask

    seals: bool | None
    """Whether records may get a checksum: every other broker of the group that could be master after this one knows them. None
    while that is not known: then it is as the master before found.

    A broker of an earlier version would copy it with a delayed message into a new record, where it is wrong. Who did not come in
    some seconds is not waited for.
    """

    @property
    def followers(self) -> list[Follower]:
        return list(self._followers.values())

    @property
    def quorum(self) -> Quorum:
        """How many copies an acknowledgement means now, and whether messages are refused."""
        return decide(self._settings, len(self.sync.required), self._near() if self._settings.acting_master else 0)

    @property
    def learners(self) -> frozenset[int]:
        """Who copies without ever counting: by its own word while it is connected, else by the controllers'."""
        own_word = {broker_id: follower.learner for broker_id, follower in self._by_id.items()}
        return frozenset(each for each, learner in own_word.items() if learner) | (
            self._told_learners - own_word.keys()
        )

    @property
    def enough_replicas(self) -> bool:
        """Enough of the group is in sync for a message to be accepted."""
        return not self.quorum.refused

    @property
    def copies(self) -> tuple[int, int]:
        """(how many copies an acknowledgement means now, how many it would if nobody were missing)."""
        quorum = self.quorum
        if quorum.needed != ALL:
            return quorum.needed, self._settings.in_sync_replicas
        others = (self._expected | self.sync.required) - self.learners - {self._self_id}
        return len(self.sync.required), 1 + len(others)

    def missing(self, now_ms: int) -> list[MissingCopy]:
        """The copies that were missing at the last tick.

        A replica is missing while an acknowledgement does not mean that it has the message (it left the set, or never joined), or
        while sends wait for it in vain. It is back as soon as it is in the set and keeps up: nothing has to be reset by hand.
        """
        return [
            MissingCopy(broker_id, reason, stalls, now_ms - since_ms)
            for broker_id, (reason, stalls, since_ms) in sorted(self._missing.items())
        ]

    @property
    def own_position(self) -> int:
        return self._log.flushed_offset if self._settings.ack_after_flush else self._log.end_offset

    def replicas_position(self) -> int:
        """How far the replicas that the quorum waits for are known to be (the own end when it waits for none)."""
        return position_of(self.quorum, self._log.end_offset, self._positions())

    # Connections

    def accepted(self, connection: int, now_ms: int, host: str = "") -> None:
        if len(self._followers) >= self._settings.max_connections:
            # Whoever connects without a word must not keep replicas out.
            idle = next((each for each in self.followers if each.stage is ConnectionStage.ACCEPTED), None)
            if idle is None:
                self._outbox.append(CloseConnection(connection, "too many replication connections"))
                return
            self._drop(idle, "too many replication connections", now_ms)
        self._followers[connection] = Follower(connection, Silence(self._patience, now_ms), now_ms, host=host)

    def lost(self, connection: int, now_ms: int) -> None:
        follower = self._followers.pop(connection, None)
        if follower is None:
            return
        if self._by_id.get(follower.broker_id) is follower:
            del self._by_id[follower.broker_id]
            progress = self._progress.get(follower.broker_id)
            if progress is not None and follower.stage is ConnectionStage.STREAMING:
                progress.lost_ms = now_ms
                self._hold.left(follower.broker_id, follower.ack_offset, now_ms)
        if follower.stage is ConnectionStage.GREETED:
            # A replica that leaves after having read our epochs may know of a newer one.
            self._ask_sync(now_ms)

    def handshake(self, connection: int, handshake: Handshake, now_ms: int) -> None:
        follower = self._followers.get(connection)
        if follower is None:
            return
        follower.silence.heard(now_ms)
        broker_id = handshake.broker_id
        if follower.stage is ConnectionStage.STREAMING or (
            follower.stage is ConnectionStage.GREETED and broker_id != follower.broker_id
        ):
            self._drop(follower, "a second handshake", now_ms)
            return
        if handshake.layout.is_of_guests:
            self._greet_guest(follower, handshake, now_ms)
            return
        if broker_id == self._self_id:
            self._drop(follower, f"broker {broker_id} is this broker itself", now_ms)
            return
        if broker_id not in self._registered:
            # A replica that is new to the group: it waits until a controller told who belongs to it.
            follower.unanswered = handshake
            self._ask_members(now_ms)
            return
        follower.unanswered = None
        older = self._by_id.get(broker_id)
        if older is not None and older is not follower:
            if handshake.incarnation and older.incarnation not in (0, handshake.incarnation):
                self._refuse_twin(follower, older, broker_id, now_ms)
                return
            self._drop(older, f"broker {broker_id} has a newer connection", now_ms)
        follower.broker_id = broker_id
        # An ack from memory is less than this master asks of itself: such a replica copies, and is not counted.
        is_weaker = self._settings.ack_after_flush and not handshake.acks_flushed and not handshake.layout.is_rocketmq
        follower.learner = handshake.learner or is_weaker
        self._by_id[broker_id] = follower
        self._knows_checksums[broker_id] = handshake.layout is Layout.OWN and handshake.knows_checksums
        self._look_at_checksums(now_ms)
        self._introduce(follower, handshake)
        if handshake.starts_anew:
            follower.stage = ConnectionStage.LEAVING
            self.propose(now_ms)
        else:
            self._greet(follower, now_ms)

    def _refuse_twin(self, follower: Follower, older: Follower, broker_id: int, now_ms: int) -> None:
        """A connected replica keeps its id: that it was there first is all that tells it from a copy of its data directory."""
        self._outbox.append(SendTwinConnected(follower.connection))
        self._drop(
            follower,
            f"two processes have broker id {broker_id}: the one at {older.host or 'an unknown address'} is connected, "
            f"the other one at {follower.host or 'an unknown address'} is refused until it is gone",
            now_ms,
        )

    def _introduce(self, follower: Follower, handshake: Handshake) -> None:
        follower.layout = handshake.layout
        follower.incarnation = handshake.incarnation
        follower.from_last_file = handshake.from_last_file

    def _release_leaving(self, now_ms: int) -> None:
        """Let go of those who want to drop their logs, if nothing counts on them any more."""
        for follower in self.followers:
            if follower.stage is ConnectionStage.LEAVING and follower.broker_id not in self.sync.required:
                self._outbox.append(SendRelease(follower.connection))
                self._greet(follower, now_ms)

    def _greet(self, follower: Follower, now_ms: int) -> None:
        follower.stage = ConnectionStage.GREETED
        follower.sent_ms = now_ms
        if follower.layout is not Layout.CLASSIC:
            entries = tuple(self._epochs.entries)
            reply = Reply(self._log.end_offset, self.epoch, entries, self._log.min_offset)
            self._outbox.append(SendReply(follower.connection, reply))

    def _greet_guest(self, follower: Follower, handshake: Handshake, now_ms: int) -> None:
        """A replica without a broker id: it is sent the log, its acks say how far it is, and nothing waits for it."""
        for other in self.followers:
            if other is not follower and handshake.address and other.address == handshake.address:
                self._drop(other, f"{handshake.address} has a newer connection", now_ms)
        follower.address = handshake.address
        follower.learner = True
        self._introduce(follower, handshake)
        self._greet(follower, now_ms)

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None:
        """A controller told the group's members: answer the handshakes that waited for that."""
        self._expected = broker_ids
        self._told_learners = learners
        self._hold.expect(broker_ids - {self._self_id}, now_ms)
        for follower in self.followers:
            handshake = follower.unanswered
            if handshake is None:
                continue
            if handshake.broker_id in self._registered:
                self.handshake(follower.connection, handshake, now_ms)
            else:
                reason = f"no controller has registered broker {handshake.broker_id} in this group"
                self._drop(follower, reason, now_ms)

    def acked(self, connection: int, offset: int, now_ms: int) -> None:
        """An ack, which is the replica's own position on this connection, and the first time also where to send from."""
        follower = self._followers.get(connection)
        if follower is None:
            return
        follower.silence.heard(now_ms)
        if follower.stage is ConnectionStage.STREAMING:
            if not follower.ack_offset <= offset <= follower.next_offset:
                reason = f"an ack of {offset} after {follower.ack_offset}, with {follower.next_offset} sent"
                self._drop(follower, reason, now_ms)
                return
        elif follower.stage is ConnectionStage.GREETED:
            if not 0 <= offset <= self._log.end_offset:
                reason = f"a log that ends at {offset} where the master's ends at {self._log.end_offset}"
                self._drop(follower, reason, now_ms)
                return
            follower.stage = ConnectionStage.STREAMING
            follower.silence = Silence(self._patience, now_ms)
            # Older files are gone: what is sent then does not fit the replica's end, by which it knows that it must start anew.
            first = self._log.last_file_start if follower.from_last_file and not offset else self._log.min_offset
            follower.next_offset = max(offset, first)
            if not follower.layout.is_of_guests:
                self._progress.setdefault(follower.broker_id, Progress(now_ms, now_ms))
                follower.went_back = follower.broker_id in self.sync.required and offset < self.confirm_offset
        else:
            self._drop(follower, "an ack before the handshake", now_ms)
            return
        follower.ack_offset = offset
        if follower.layout.is_of_guests:
            return
        self._progress[follower.broker_id].acked(offset, self._log.end_offset, now_ms)
        if not follower.learner and self.sync.may_join(follower.broker_id, now_ms) and offset >= self._join_floor():
            self._progress[follower.broker_id] = Progress(now_ms, now_ms)
            self.sync.join(follower.broker_id)
            self.propose(now_ms)
        if follower.went_back:
            follower.went_back = offset < self._join_floor()
            self.propose(now_ms)
        self.advance()

    def next_transfer(self, connection: int) -> Transfer | None:
        """What to send next on a connection; None = nothing (yet)."""
        follower = self._followers.get(connection)
        if follower is None or follower.stage is not ConnectionStage.STREAMING:
            return None
        offset, end = follower.next_offset, self._log.end_offset
        if offset >= end:
            return None
        if offset < self._log.min_offset:
            self._outbox.append(CloseConnection(connection, "the files that it was copying are gone"))
            return None
        found = self._epochs.find(offset)
        assert found is not None, f"no epoch covers {offset}"
        (epoch, start), epoch_end = found
        if epoch_end is not None and epoch_end < end:
            end = epoch_end
        header = TransferHeader(offset, epoch, start, self.confirm_offset)
        most = self._settings.transfer_batch_bytes
        if follower.layout.is_rocketmq:
            most = min(most, MAX_BODY_BYTES_SENT)
        return Transfer(header, min(end - offset, most))

    def held_offset(self) -> int | None:
        """From where on the replicas of the group that are here still need the log; None without any."""
        return min(
            (
                follower.ack_offset if follower.ack_offset >= 0 else follower.next_offset
                for follower in self._by_id.values()
                if follower.stage is ConnectionStage.STREAMING
            ),
            default=None,
        )

    def transferred(self, connection: int, length: int, now_ms: int) -> None:
        """`length` bytes of the transfer last asked for were handed to the connection."""
        follower = self._followers[connection]
        follower.next_offset += length
        follower.sent_ms = now_ms
        follower.confirm_sent = self.confirm_offset

    # Time

    def tick(self, now_ms: int) -> None:
        """Heartbeats, silent followers, members that do not keep up."""
        for follower in self.followers:
            if self._is_dead(follower, now_ms):
                self._drop(follower, f"silent for {follower.silence.silent_ms(now_ms)} ms", now_ms)
            elif follower.stage is ConnectionStage.STREAMING and (
                now_ms + EARLY_MS - follower.sent_ms >= self._settings.heartbeat_ms
                or follower.confirm_sent != self.confirm_offset
            ):
                follower.sent_ms = now_ms
                follower.confirm_sent = self.confirm_offset
                self._outbox.append(SendHeartbeat(follower.connection, self._heartbeat(follower)))
            if (
                follower.layout.is_rocketmq
                and follower.broker_id in self._progress
                and follower.ack_offset >= self._log.end_offset
            ):
                # It acks what is new, and otherwise only every few seconds.
                self._progress[follower.broker_id].caught_up_ms = now_ms
        self.propose(now_ms)
        self.advance()
        self._look_at_checksums(now_ms)
        self._look_for_missing(now_ms)
        self.expected_offset = self._hold.offset(
            {each.broker_id for each in self.followers if each.stage is ConnectionStage.STREAMING},
            range(self._log.min_offset, self._log.end_offset),
            now_ms,
            for_ms=self._settings.hold_log_ms,
            most_bytes=self._settings.hold_log_bytes,
        )

    def is_calm(self, now_ms: int, for_ms: int) -> bool:
        """Whether nothing is under way, everybody has everything, and nobody's silence can be too long within `for_ms`."""
        return (
            self.confirm_offset == self._log.end_offset
            and self.sync.is_settled
            and self.seals is not None
            and not self._missing
            and self.sync.required <= self._by_id.keys() | {self._self_id}
            and all(self._is_calm_with(each, now_ms, for_ms) for each in self._followers.values())
        )

    def _is_calm_with(self, follower: Follower, now_ms: int, for_ms: int) -> bool:
        return (
            follower.stage is ConnectionStage.STREAMING
            and not follower.layout.is_rocketmq
            and follower.ack_offset == self._log.end_offset
            and follower.confirm_sent == self.confirm_offset
            and follower.silence.silent_ms(now_ms) + for_ms <= follower.silence.limit_ms
        )

    def _is_dead(self, follower: Follower, now_ms: int) -> bool:
        if follower.layout.is_rocketmq:
            return follower.silence.silent_ms(now_ms) > self._settings.plain_silence_limit_ms
        if follower.stage is ConnectionStage.STREAMING:
            return follower.silence.is_dead(now_ms)
        # A replica that cuts its log and flushes what is left, or waits to be let go of, says nothing meanwhile.
        is_busy = follower.stage in (ConnectionStage.GREETED, ConnectionStage.LEAVING)
        times = _SETTLING_PATIENCE if is_busy else 1
        return follower.silence.silent_ms(now_ms) > times * self._settings.silence_limit_ms

    def _heartbeat(self, follower: Follower) -> TransferHeader:
        epoch, start = self.epoch, self._epoch_start
        if follower.layout.is_rocketmq:
            # It would note an epoch without bytes, and then refuse to note the next one, which begins at the same offset.
            found = self._epochs.find(follower.next_offset - 1)
            epoch, start = found[0] if found is not None else (-1, -1)
        return TransferHeader(follower.next_offset, epoch, start, self.confirm_offset)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """The settings changed; what waits may be enough now."""
        self._settings = settings
        self.advance()

    def discount_pause(self, pause_ms: int, now_ms: int) -> None:
        """This process stood still: nobody else was slow in that time."""
        for follower in self._followers.values():
            follower.silence.discount_pause(pause_ms, now_ms)
        for progress in self._progress.values():
            progress.caught_up_ms += pause_ms
            progress.mark_ms += pause_ms
            progress.lost_ms += pause_ms

    # The sync-state set

    def propose(self, now_ms: int) -> None:
        """Ask for a change of the set if one is due."""
        lagging = self._lagging(now_ms)
        if lagging & self.sync.joining:
            self.sync.leave_joining(lagging)
        self._release_leaving(now_ms)
        if self.sync.needs_read:
            self._ask_sync(now_ms)
            return
        proposal = self.sync.propose(lagging, now_ms)
        if proposal is not None:
            self._outbox.append(ProposeSyncStateSet(proposal, self.epoch))

    def advance(self) -> None:
        """Work out anew what is confirmed and acknowledged."""
        required = self.sync.required
        own = self.own_position
        low = own
        for broker_id in required:
            if broker_id != self._self_id:
                position = self._position(broker_id)
                if position < low:
                    low = position
        assert self.confirm_offset <= own <= self._log.end_offset
        if low > self.confirm_offset:
            self.confirm_offset = low
        quorum = self.quorum
        if quorum.refused:
            return
        if quorum.needed != ALL:
            low = position_of(quorum, own, self._positions())
        if low > self.acknowledged_offset:
            self.acknowledged_offset = low

    def _join_floor(self) -> int:
        return max(self.acknowledged_offset, self.confirm_offset, self._epoch_start)

    def _position(self, broker_id: int) -> int:
        """The replica's last ack on its present connection; -1 = not known, which confirms nothing new."""
        follower = self._by_id.get(broker_id)
        return follower.ack_offset if follower is not None else -1

    def _positions(self) -> list[int]:
        """Of the members that count, without this one."""
        return [self._position(each) for each in self.sync.required if each != self._self_id]

    def _near(self) -> int:
        """How many replicas lack little; learners are none."""
        floor = self._log.end_offset - self._settings.max_gap_not_in_sync_bytes
        return sum(
            1
            for follower in self._by_id.values()
            if not follower.learner and follower.stage is ConnectionStage.STREAMING and follower.ack_offset >= floor
        )

    def _lagging(self, now_ms: int) -> frozenset[int]:
        lagging = []
        for broker_id in self.sync.required:
            if broker_id == self._self_id:
                continue
            progress = self._progress.setdefault(broker_id, Progress(now_ms, now_ms))
            follower = self._by_id.get(broker_id)
            if follower is None or follower.stage is not ConnectionStage.STREAMING:
                late = now_ms - progress.lost_ms >= self._settings.reconnect_grace_ms
            else:
                late = now_ms - progress.caught_up_ms >= self._settings.not_caught_up_ms
            # Whoever wants to drop its log, or has lost a part of it, is not worth waiting for.
            if follower is not None and (follower.stage is ConnectionStage.LEAVING or follower.went_back):
                late = True
            if late:
                lagging.append(broker_id)
        return frozenset(lagging)

    def _look_at_checksums(self, now_ms: int) -> None:
        knows, others = self._knows_checksums, self._registered | self.sync.required
        if not all(knows.values()):
            self.seals = False
        elif now_ms >= self._checksums_wait_ms or others <= knows.keys() | {self._self_id}:
            self.seals = True
        else:
            self.seals = None

    def _look_for_missing(self, now_ms: int) -> None:
        """Who of the group does not have, or holds up, what is acknowledged; learners are not asked for it."""
        required, lagging = self.sync.required, self._lagging(now_ms)
        before, self._missing = self._missing, {}
        for broker_id in (self._expected | required) - self.learners - {self._self_id}:
            if broker_id in required and broker_id not in lagging:
                continue
            follower = self._by_id.get(broker_id)
            if follower is None:
                reason = "it is not connected"
            elif follower.stage is ConnectionStage.LEAVING:
                reason = "it waits to be let go of, to copy the log anew"
            elif follower.stage is not ConnectionStage.STREAMING:
                reason = "it is connected and settles its log"
            else:
                reason = "it does not keep up" if broker_id in required else "it is copying what it lacks"
            since_ms = before[broker_id][2] if broker_id in before else now_ms
            self._missing[broker_id] = reason, broker_id in required, since_ms

    def _drop(self, follower: Follower, reason: str, now_ms: int) -> None:
        self._outbox.append(CloseConnection(follower.connection, reason))
        self.lost(follower.connection, now_ms)

    def _ask_sync(self, now_ms: int) -> None:
        if now_ms - self._sync_asked_ms >= _ASK_AGAIN_MS:
            self._sync_asked_ms = now_ms
            self._outbox.append(Ask.SYNC)

    def _ask_members(self, now_ms: int) -> None:
        if now_ms - self._members_asked_ms >= _ASK_MEMBERS_AGAIN_MS:
            self._members_asked_ms = now_ms
            self._outbox.append(Ask.MEMBERS)
