"""The Raft state machine: messages and ticks go in, `Ready` comes out (pure)

A shell calls `step`, `tick`, `propose` and `read_index` whenever something happens, and carries out one `Ready` at a time, in the
order of its fields, then calls `advance`. Input may go on while a `Ready` is being carried out.

Rules beyond the paper's: elections are preceded by a pre-vote that changes no term; a voter that heard its leader within the
minimum election timeout ignores candidates; a leader that does not hear a majority for that long steps down; a new leader appends
an empty entry and serves nothing before it is committed; reads are confirmed by a round of heartbeats, never by a lease. The node
counts its own entries and its own vote only once they are durable: both come back to it through `advance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controllerd.raft.log import RaftLog
from controllerd.raft.messages import (
    LEADER_TRAFFIC,
    RESPONSES,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    NodeId,
    Persist,
    Proposed,
    ReadState,
    Ready,
    Role,
    Snapshot,
    SoftState,
)
from controllerd.raft.progress import Progress, ProgressState
from controllerd.raft.quorum import Configuration, VoteResult
from remoting import codes
from remoting.errors import LogboomError, NotLeader

if TYPE_CHECKING:
    from random import Random

_VOTES = frozenset({MessageKind.VOTE, MessageKind.PRE_VOTE})


class ProposalRefused(LogboomError):
    """The leader cannot take the proposal now (too much is uncommitted) or at all (too large). Nothing was logged."""

    code = codes.SYSTEM_BUSY
    retriable = True


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Timers in ticks, and the bounds of everything that grows."""

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    max_entry_bytes: int = 1 << 20
    max_append_bytes: int = 1 << 20
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 16 << 20
    max_apply_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        assert 1 <= self.heartbeat_ticks < self.election_ticks
        assert 0 < self.max_entry_bytes <= self.max_uncommitted_bytes


@dataclass(slots=True)
class _PendingRead:
    context: int
    index: int
    confirmed_by: set[NodeId]


@dataclass(frozen=True, slots=True)
class Compaction:
    """What the log file must hold after compaction: the snapshot, and the stable entries behind `compacted_index`."""

    snapshot: Snapshot
    hard_state: HardState
    compacted_index: int
    compacted_term: int
    entries: tuple[Entry, ...]


class RaftCore:
    """One node of one group."""

    def __init__(
        self,
        node_id: NodeId,
        configuration: Configuration,
        log: RaftLog,
        hard_state: HardState,
        settings: CoreSettings,
        rng: Random,
    ) -> None:
        self.id = node_id
        self.configuration = configuration
        self.log = log
        self.settings = settings
        self._rng = rng
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader: NodeId | None = None
        self.role = Role.FOLLOWER
        self.progress: dict[NodeId, Progress] = {}
        self._votes: dict[NodeId, bool] = {}
        self._election_elapsed = 0
        self._heartbeat_elapsed = 0
        self._randomized_election_ticks = 0
        self._uncommitted_bytes = 0
        self._read_context = 0
        self._pending_reads: list[_PendingRead] = []
        self._confirmed_reads: list[ReadState] = []
        self._send_now: list[Message] = []
        self._send_after_persist: list[Message] = []
        self._persisted = (self.term, self.vote)
        self._reported = SoftState(self.role, self.leader, self.term)
        self._outstanding: Ready | None = None
        self._own_messages: list[Message] = []
        assert log.last_term <= self.term, "a log from a later term than the one remembered"
        self._become_follower(self.term, None)

    # Input

    def tick(self) -> None:
        """One unit of time passed."""
        self._election_elapsed += 1
        if self.role is Role.LEADER:
            self._tick_leader()
        elif self._election_elapsed >= self._randomized_election_ticks and self._is_voter:
            self.campaign()

    def campaign(self) -> None:
        """Ask the others whether an election could be won; also by hand in tests."""
        if self.role is Role.LEADER or not self._is_voter:
            return
        self._election_elapsed = 0
        self._become_pre_candidate()

    def step(self, message: Message) -> None:
        """Take a message from another node. Raises LostLog when this node's disk lost what it had acknowledged."""
        if message.term > self.term:
            if not self._accept_later_term(message):
                return
        elif message.term < self.term:
            self._answer_earlier_term(message)
            return
        if message.kind in _VOTES:
            self._on_vote_request(message)
        elif message.kind in LEADER_TRAFFIC:
            self._on_leader_traffic(message)
        elif self.role is Role.LEADER:
            self._on_response_as_leader(message)
        else:
            self._on_ballot(message)

    def propose(self, data: bytes) -> Proposed:
        """Append a command to the log.

        Raises NotLeader (also before the empty entry of the own term is applied) and ProposalRefused.
        """
        self._require_serving()
        if len(data) > self.settings.max_entry_bytes:
            raise ProposalRefused(
                f"a command of {len(data)} bytes exceeds the limit of {self.settings.max_entry_bytes}"
            )
        if self._uncommitted_bytes + len(data) > self.settings.max_uncommitted_bytes:
            raise ProposalRefused("too many commands wait to be committed; try again later")
        self._append_entry(EntryKind.COMMAND, data)
        self._broadcast_append()
        return Proposed(self.log.last_index, self.term)

    def read_index(self) -> int:
        """Start to confirm that this node still leads; the answer is a `ReadState` with the returned context.

        Raises NotLeader as `propose` does. A read whose leader steps down is never confirmed.
        """
        self._require_serving()
        self._read_context += 1
        # The whole log, not only what is decided: who lost the answer to a proposal reads to learn what became of it, and must
        # not be told the state before it while it can still be decided.
        read = _PendingRead(self._read_context, self.log.last_index, {self.id})
        self._pending_reads.append(read)
        if not self._release_reads(read):
            self._broadcast_heartbeat()
        return read.context

    def report_unreachable(self, node: NodeId) -> None:
        """Messages to the node get lost: stop sending ahead."""
        progress = self.progress.get(node)
        if self.role is Role.LEADER and progress is not None and progress.state is ProgressState.REPLICATE:
            progress.become_probe()

    # Output

    @property
    def is_serving(self) -> bool:
        """Whether this node leads and has applied an entry of its own term, so that its state is not an old one."""
        return self.role is Role.LEADER and self.log.term(self.log.applied) == self.term

    @property
    def soft_state(self) -> SoftState:
        return SoftState(self.role, self.leader, self.term)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    def has_ready(self) -> bool:
        """Whether `ready` would return something to do."""
        if self._outstanding is not None:
            return False
        return bool(
            self._send_now
            or self._send_after_persist
            or self._confirmed_reads
            or self._must_persist()
            or self.log.has_next_committed()
            or self._reported != self.soft_state
        )

    def ready(self) -> Ready:
        """The next batch of effects. One at a time: `advance` must follow."""
        assert self._outstanding is None, "the previous Ready was not finished"
        snapshot = self.log.pending_snapshot
        ready = Ready(
            soft_state=self.soft_state,
            send_now=tuple(self._send_now),
            persist=Persist(self.hard_state, snapshot, self.log.unstable_entries()) if self._must_persist() else None,
            send_after_persist=tuple(message for message in self._send_after_persist if message.to != self.id),
            restore=snapshot,
            committed=self.log.next_committed(self.settings.max_apply_bytes),
            reads=tuple(self._confirmed_reads),
        )
        self._own_messages = [message for message in self._send_after_persist if message.to == self.id]
        self._send_now = []
        self._send_after_persist = []
        self._confirmed_reads = []
        self._reported = ready.soft_state
        self._outstanding = ready
        return ready

    def advance(self) -> None:
        """The outstanding `Ready` was carried out, wholly."""
        ready = self._outstanding
        assert ready is not None
        self._outstanding = None
        if ready.restore is not None:
            self.log.snapshot_restored(ready.restore)
        if ready.persist is not None:
            self._persisted = (ready.persist.hard_state.term, ready.persist.hard_state.vote)
            if ready.persist.entries:
                last = ready.persist.entries[-1]
                self.log.stable_to(last.index, last.term)
        if ready.committed:
            self.log.applied_to(ready.committed[-1].index)
            self._uncommitted_bytes = max(
                0, self._uncommitted_bytes - sum(len(entry.data) for entry in ready.committed)
            )
        for message in self._own_messages:
            self.step(message)
        if self.role is Role.LEADER:
            self._count_own_entries()

    @property
    def can_compact(self) -> bool:
        """Whether `compact` may be called: nothing is outstanding and no received snapshot waits to be restored."""
        return self._outstanding is None and self.log.pending_snapshot is None

    def compact(self, data: bytes, keep_entries: int) -> Compaction:
        """Replace the applied prefix by `data`, a snapshot of the state machine at `log.applied`."""
        assert self.can_compact
        term = self.log.term(self.log.applied)
        assert term is not None
        snapshot = Snapshot(self.log.applied, term, self.configuration.voters, data)
        self.log.compact(snapshot, keep_entries)
        return Compaction(
            snapshot, self.hard_state, self.log.compacted_index, self.log.compacted_term, self.log.kept_entries()
        )

    def _must_persist(self) -> bool:
        # A commit index alone is not worth a sync: it is learned again from the leader, so it travels with the next write.
        return (
            self.log.pending_snapshot is not None
            or self.log.stable_index < self.log.last_index
            or self._persisted != (self.term, self.vote)
        )

    # Terms

    def _accept_later_term(self, message: Message) -> bool:
        """Deal with the higher term; False when the message must not be looked at further."""
        if message.kind in _VOTES and self.leader is not None and self._election_elapsed < self.settings.election_ticks:
            # This node hears its leader, or is it: whoever asks was cut off. A leader transfer will need a way around this.
            return False
        if message.kind is MessageKind.PRE_VOTE:
            return True
        if message.kind is MessageKind.PRE_VOTE_RESPONSE and not message.reject:
            # A granted pre-vote names the term that the election would have; the term changes with the election only.
            return True
        self._become_follower(message.term, message.sender if message.kind in LEADER_TRAFFIC else None)
        return True

    def _answer_earlier_term(self, message: Message) -> None:
        if message.kind in LEADER_TRAFFIC:
            # A leader that was cut off does not hear the new term by itself, as nobody campaigns against it: tell it.
            self._send(MessageKind.APPEND_RESPONSE, message.sender)
        elif message.kind is MessageKind.PRE_VOTE:
            self._send(MessageKind.PRE_VOTE_RESPONSE, message.sender, reject=True)

    # Roles

    def _reset(self, term: int) -> None:
        if term != self.term:
            self.term = term
            self.vote = None
        self.leader = None
        self._election_elapsed = 0
        self._heartbeat_elapsed = 0
        self._randomized_election_ticks = self._rng.randint(
            self.settings.election_ticks, 2 * self.settings.election_ticks - 1
        )
        self._votes = {}
        self._pending_reads = []
        self.progress = {}

    def _become_follower(self, term: int, leader: NodeId | None) -> None:
        assert term >= self.term
        self._reset(term)
        self.role = Role.FOLLOWER
        self.leader = leader

    def _become_pre_candidate(self) -> None:
        self.role = Role.PRE_CANDIDATE
        self.leader = None
        self._votes = {}
        self._ask_for_votes(MessageKind.PRE_VOTE, self.term + 1)

    def _become_candidate(self) -> None:
        self._reset(self.term + 1)
        self.role = Role.CANDIDATE
        self.vote = self.id
        self._ask_for_votes(MessageKind.VOTE, self.term)

    def _ask_for_votes(self, kind: MessageKind, term: int) -> None:
        own = MessageKind.VOTE_RESPONSE if kind is MessageKind.VOTE else MessageKind.PRE_VOTE_RESPONSE
        self._send_after_persist.append(Message(own, self.id, self.id, term))
        for voter in self.configuration.voters:
            if voter != self.id:
                self._send(kind, voter, term=term, index=self.log.last_index, log_term=self.log.last_term)

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE
        self._reset(self.term)
        self.role = Role.LEADER
        self.leader = self.id
        self.progress = {
            voter: Progress(
                self.log.last_index + 1, self.settings.max_inflight_messages, self.settings.max_inflight_bytes
            )
            for voter in self.configuration.voters
        }
        own = self.progress[self.id]
        own.is_recently_active = True
        own.acknowledged(self.log.stable_index)
        self._uncommitted_bytes = 0
        self._append_entry(EntryKind.EMPTY, b"")
        self._broadcast_append()

    @property
    def _is_voter(self) -> bool:
        return self.id in self.configuration.voters

    def _require_serving(self) -> None:
        if not self.is_serving:
            raise NotLeader()

    # Votes

    def _on_vote_request(self, message: Message) -> None:
        is_pre_vote = message.kind is MessageKind.PRE_VOTE
        may_vote = (
            self.vote == message.sender
            or (self.vote is None and self.leader is None)
            or (is_pre_vote and message.term > self.term)
        )
        granted = may_vote and self.log.is_up_to_date(message.index, message.log_term)
        kind = MessageKind.PRE_VOTE_RESPONSE if is_pre_vote else MessageKind.VOTE_RESPONSE
        # A grant answers in the candidate's term (a pre-vote's is not ours yet), a refusal in our own.
        self._send(kind, message.sender, term=message.term if granted else self.term, reject=not granted)
        if granted and not is_pre_vote:
            self._election_elapsed = 0
            self.vote = message.sender

    def _on_ballot(self, message: Message) -> None:
        expected = {
            Role.PRE_CANDIDATE: MessageKind.PRE_VOTE_RESPONSE,
            Role.CANDIDATE: MessageKind.VOTE_RESPONSE,
        }.get(self.role)
        if message.kind is not expected:
            return
        if self.role is Role.PRE_CANDIDATE and not message.reject and message.term != self.term + 1:
            return  # granted for another election
        self._votes.setdefault(message.sender, not message.reject)
        result = self.configuration.vote_result(self._votes)
        if result is VoteResult.LOST:
            self._become_follower(self.term, None)
        elif result is VoteResult.WON:
            if self.role is Role.PRE_CANDIDATE:
                self._become_candidate()
            else:
                self._become_leader()

    # Following

    def _on_leader_traffic(self, message: Message) -> None:
        if self.role is Role.LEADER:
            return  # a second leader in one term cannot be; an echo of our own message can
        if self.role is not Role.FOLLOWER:
            self._become_follower(message.term, message.sender)
        self.leader = message.sender
        self._election_elapsed = 0
        if message.kind is MessageKind.APPEND:
            self._on_append(message)
        elif message.kind is MessageKind.HEARTBEAT:
            self.log.commit_to(message.commit)
            self._send(MessageKind.HEARTBEAT_RESPONSE, message.sender, context=message.context)
        else:
            self._on_snapshot(message)

    def _on_append(self, message: Message) -> None:
        if message.index < self.log.committed:
            self._send(MessageKind.APPEND_RESPONSE, message.sender, index=self.log.committed)
            return
        matched = self.log.try_append(message.index, message.log_term, message.entries)
        if matched is None:
            hint, hint_term = self.log.conflict_hint(min(message.index, self.log.last_index), message.log_term)
            self._send(
                MessageKind.APPEND_RESPONSE,
                message.sender,
                index=message.index,
                reject=True,
                reject_hint=hint,
                log_term=hint_term,
            )
            return
        self.log.commit_to(min(message.commit, matched))
        self._send(MessageKind.APPEND_RESPONSE, message.sender, index=matched)

    def _on_snapshot(self, message: Message) -> None:
        snapshot = message.snapshot
        if snapshot is None or snapshot.index <= self.log.committed:
            self._send(MessageKind.APPEND_RESPONSE, message.sender, index=self.log.committed)
            return
        if self.log.matches(snapshot.index, snapshot.term):
            self.log.commit_to(snapshot.index)
            self._send(MessageKind.APPEND_RESPONSE, message.sender, index=self.log.committed)
            return
        self.log.restore(snapshot)
        self.configuration = Configuration.of(snapshot.voters)
        self._send(MessageKind.APPEND_RESPONSE, message.sender, index=self.log.last_index)

    # Leading

    def _tick_leader(self) -> None:
        self._heartbeat_elapsed += 1
        if self._election_elapsed >= self.settings.election_ticks:
            self._election_elapsed = 0
            if not self._check_quorum():
                self._become_follower(self.term, None)
                return
        for progress in self.progress.values():
            if progress.state is ProgressState.SNAPSHOT:
                progress.waited_ticks += 1
        if self._heartbeat_elapsed >= self.settings.heartbeat_ticks:
            self._heartbeat_elapsed = 0
            self._broadcast_heartbeat()

    def _check_quorum(self) -> bool:
        """Whether a majority was heard since the last check; the count starts anew."""
        active = {node for node, progress in self.progress.items() if progress.is_recently_active or node == self.id}
        for node, progress in self.progress.items():
            progress.was_active = progress.is_recently_active
            progress.is_recently_active = node == self.id
        return self.configuration.has_majority(active)

    def _append_entry(self, kind: EntryKind, data: bytes) -> None:
        self.log.append([Entry(self.log.last_index + 1, self.term, data, kind)])
        self._uncommitted_bytes += len(data)

    def _count_own_entries(self) -> None:
        if self.progress[self.id].acknowledged(self.log.stable_index) and self._try_commit():
            self._broadcast_append()

    def _try_commit(self) -> bool:
        index = self.configuration.committed_index({node: progress.match for node, progress in self.progress.items()})
        # Only an entry of the own term says that no other leader can have decided otherwise.
        if index <= self.log.committed or self.log.term(index) != self.term:
            return False
        self.log.commit_to(index)
        return True

    def _on_response_as_leader(self, message: Message) -> None:
        progress = self.progress.get(message.sender)
        if progress is None or message.kind not in RESPONSES or message.sender == self.id:
            return
        if message.kind is MessageKind.APPEND_RESPONSE:
            progress.is_recently_active = progress.was_active = True
            if message.reject:
                self._on_append_refused(message, progress)
            else:
                self._on_append_accepted(message, progress)
        elif message.kind is MessageKind.HEARTBEAT_RESPONSE:
            progress.is_recently_active = progress.was_active = True
            self._on_heartbeat_response(message, progress)

    def _on_append_refused(self, message: Message, progress: Progress) -> None:
        hint = message.reject_hint
        if message.log_term > 0:
            # Skip whole terms that the follower cannot have: one round per conflicting term, not per entry.
            hint, _ = self.log.conflict_hint(min(hint, self.log.last_index), message.log_term)
        if progress.refused(message.index, hint):
            if progress.state is ProgressState.REPLICATE:
                progress.become_probe()
            self._try_send_append(message.sender, progress, even_if_empty=True)

    def _on_append_accepted(self, message: Message, progress: Progress) -> None:
        if message.index > self.log.last_index:
            return  # no correct follower acknowledges what was never sent
        is_news = progress.acknowledged(message.index)
        if not is_news and not (progress.match == message.index and progress.state is ProgressState.PROBE):
            return
        if progress.state is ProgressState.PROBE:
            progress.become_replicate()
        elif progress.state is ProgressState.SNAPSHOT:
            if progress.match + 1 >= self.log.first_index:
                progress.become_probe()
                progress.become_replicate()
        else:
            progress.inflights.free_to(message.index)
        if self._try_commit():
            self._broadcast_append()
        while self._try_send_append(message.sender, progress, even_if_empty=progress.needs_commit(self.log.committed)):
            pass

    def _on_heartbeat_response(self, message: Message, progress: Progress) -> None:
        if progress.state is ProgressState.SNAPSHOT and progress.waited_ticks >= self.settings.election_ticks:
            progress.snapshot_failed()
        progress.paused = False
        # Even with a full window one empty append goes out, so that the loss of all that filled it is noticed.
        if progress.match < self.log.last_index or progress.state is ProgressState.PROBE:
            self._try_send_append(message.sender, progress, even_if_empty=True)
        self._confirm_reads(message)

    def _try_send_append(self, to: NodeId, progress: Progress, *, even_if_empty: bool) -> bool:
        if progress.is_paused:
            return False
        prev_index = progress.next_index - 1
        prev_term = self.log.term(prev_index)
        if prev_term is None:
            return self._try_send_snapshot(to, progress)
        entries: tuple[Entry, ...] = ()
        if progress.state is not ProgressState.REPLICATE or not progress.inflights.is_full:
            entries = self.log.slice(progress.next_index, self.log.last_index + 1, self.settings.max_append_bytes)
        if not entries and not even_if_empty:
            return False
        self._send_now.append(
            Message(
                MessageKind.APPEND,
                self.id,
                to,
                self.term,
                index=prev_index,
                log_term=prev_term,
                commit=self.log.committed,
                entries=entries,
            )
        )
        progress.sent_entries(
            prev_index + len(entries), len(entries), sum(entry.size_bytes for entry in entries), self.log.committed
        )
        return True

    def _try_send_snapshot(self, to: NodeId, progress: Progress) -> bool:
        if not progress.is_recently_active:
            return False  # it would be lost, and it is large
        snapshot = self.log.snapshot
        assert snapshot is not None, "entries were compacted without a snapshot"
        self._send_now.append(Message(MessageKind.SNAPSHOT, self.id, to, self.term, snapshot=snapshot))
        progress.become_snapshot(snapshot.index)
        return True

    def _broadcast_append(self) -> None:
        for node, progress in self.progress.items():
            if node != self.id:
                self._try_send_append(node, progress, even_if_empty=True)

    def _broadcast_heartbeat(self) -> None:
        context = self._pending_reads[-1].context if self._pending_reads else 0
        for node, progress in self.progress.items():
            if node != self.id:
                commit = min(progress.match, self.log.committed)
                self._send_now.append(
                    Message(MessageKind.HEARTBEAT, self.id, node, self.term, commit=commit, context=context)
                )

    # Reads

    def _confirm_reads(self, message: Message) -> None:
        for read in self._pending_reads:
            if read.context <= message.context:
                read.confirmed_by.add(message.sender)
        for read in reversed(self._pending_reads):
            if self._release_reads(read):
                return

    def _release_reads(self, read: _PendingRead) -> bool:
        """When a majority confirmed this read, it and all earlier ones are good."""
        if not self.configuration.has_majority(read.confirmed_by):
            return False
        done = [earlier for earlier in self._pending_reads if earlier.context <= read.context]
        self._pending_reads = self._pending_reads[len(done) :]
        self._confirmed_reads.extend(ReadState(earlier.context, earlier.index) for earlier in done)
        return True

    def _send(
        self,
        kind: MessageKind,
        to: NodeId,
        *,
        term: int | None = None,
        index: int = 0,
        log_term: int = 0,
        reject: bool = False,
        reject_hint: int = 0,
        context: int = 0,
    ) -> None:
        """Queue a vote request or a response: both tell what must be durable first, and so leave after the next write."""
        self._send_after_persist.append(
            Message(
                kind,
                self.id,
                to,
                self.term if term is None else term,
                index=index,
                log_term=log_term,
                reject=reject,
                reject_hint=reject_hint,
                context=context,
            )
        )
