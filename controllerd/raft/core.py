"""The Raft state machine: messages and ticks go in, `Ready` comes out (pure)

A shell calls `step`, `tick` and `read_index` whenever something happens, and `proposals` with what it gets from `serving`. It
carries out one `Ready` at a time, in the order of its fields, then calls `advance`. Input may go on meanwhile.

Rules beyond the paper's: elections are preceded by a pre-vote that changes no term; a voter that heard its leader within the
minimum election timeout ignores candidates, except those that the leader itself chose; a leader that does not hear a majority for
that long steps down; a new leader appends an empty entry and serves nothing before it is committed; reads are confirmed by a
round of heartbeats, never by a lease. The node counts its own entries and its own vote only once they are durable: both come back
to it through `advance`. The rules for changes of the membership are in `membership`; what only a leader has is in `leading`, what
the shell is to be told in `outbox`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from controllerd.raft import proposals
from controllerd.raft.codec import decode_configuration
from controllerd.raft.leading import CoreSettings, Leading
from controllerd.raft.log import RaftLog
from controllerd.raft.messages import (
    LEADER_TRAFFIC,
    Entry,
    EntryKind,
    HardState,
    Message,
    MessageKind,
    Ready,
    Role,
    Snapshot,
    SoftState,
)
from controllerd.raft.outbox import Outbox
from controllerd.raft.progress import Progress
from controllerd.raft.quorum import Configuration, NodeId, VoteResult
from remoting.errors import NotLeader

if TYPE_CHECKING:
    from random import Random

_VOTES = frozenset({MessageKind.VOTE, MessageKind.PRE_VOTE})


@dataclass(frozen=True, slots=True)
class Compaction:
    """What the log file must hold after compaction: the snapshot, and the stable entries behind `compacted_index`."""

    snapshot: Snapshot
    hard_state: HardState
    compacted_index: int
    compacted_term: int
    entries: tuple[Entry, ...]


class RaftCore:
    """One node of one group. `configuration` is what the group was made of, if the log has no snapshot that knows better."""

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
        self.configuration = log.snapshot.configuration if log.snapshot else configuration
        self.log = log
        self.settings = settings
        self._rng = rng
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.leader: NodeId | None = None
        self.role = Role.FOLLOWER
        self._leading: Leading | None = None
        self._successor_of = 0  # the term whose leader chose this node, while something has to be applied first
        self._votes: dict[NodeId, bool] = {}
        self._election_elapsed = 0
        self._randomized_election_ticks = 0
        self._read_context = 0
        self._outbox = Outbox(node_id, log, hard_state, SoftState(self.role, self.leader, self.term))
        assert log.last_term <= self.term, "a log from a later term than the one remembered"
        self._become_follower(self.term, None)

    # Input

    def tick(self) -> None:
        """One unit of time passed."""
        if self._leading is not None:
            if not self._leading.tick():
                self._become_follower(self.term, None)
                return
            proposals.end_joint_change(self._leading)
            return
        self._election_elapsed += 1
        if self._is_voter and self._election_elapsed >= self._randomized_election_ticks:
            self.campaign()
        elif self.id in self.configuration.retired and self._election_elapsed % self.settings.election_ticks == 0:
            self._tell_what_is_decided()

    @property
    def calm_ticks(self) -> int:
        """How many of the ticks that come bring nothing, or a leader's heartbeat with the last: they may be counted together.

        Who follows has time for a heartbeat left behind them: it may have slept, and what its leader said meanwhile waits.
        """
        if self._leading is not None:
            return self._leading.heartbeat_ticks if self._leading.is_calm else 1
        left = self._randomized_election_ticks - self._election_elapsed - self.settings.heartbeat_ticks - 1
        return max(1, left) if self.leader is not None else 1

    def was_late(self) -> None:
        """The shell told of ticks late: this process stood still for a moment."""
        if self._leading is not None:
            self._leading.was_late()

    def campaign(self) -> None:
        """Ask the others whether an election could be won; also by hand in tests."""
        if self.role is Role.LEADER or not self._is_voter:
            return
        self._election_elapsed = 0
        if self._may_campaign:
            self._become_pre_candidate()

    def forget_leader(self) -> None:
        """A follower has reason to think that its leader is gone: let others be elected without waiting until it is missed.

        Changes no term and no timer, and nothing on a candidate or leader.
        """
        if self.role is Role.FOLLOWER:
            self.leader = None

    def step_down(self) -> None:
        """This node cannot do a leader's work any more (its disk fails)."""
        if self.role is not Role.FOLLOWER:
            self._become_follower(self.term, None)

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
        elif message.kind is MessageKind.TIMEOUT_NOW:
            self._on_timeout_now()
        elif self._leading is None:
            self._on_ballot(message)
        elif message.kind is MessageKind.APPEND_RESPONSE:
            self._leading.on_append_response(message)
        elif message.kind is MessageKind.HEARTBEAT_RESPONSE:
            self._leading.on_heartbeat_response(message)

    def read_index(self) -> int:
        """Start to confirm that this node still leads; the answer is a `ReadState` with the returned context.

        Raises NotLeader as `serving` does. A read whose leader steps down is never confirmed.
        """
        leading = self.serving()
        self._read_context += 1
        leading.read(self._read_context)
        return self._read_context

    def report_unreachable(self, node: NodeId) -> None:
        """Messages to the node get lost: stop sending ahead."""
        if self._leading is not None:
            self._leading.report_unreachable(node)

    def report_snapshot(self, node: NodeId, *, delivered: bool) -> None:
        """What became of the snapshot that was sent to the node."""
        if self._leading is not None:
            self._leading.report_snapshot(node, delivered=delivered)

    # Output

    @property
    def is_serving(self) -> bool:
        """Whether this node leads and has applied an entry of its own term, so that its state is not an old one."""
        return self.role is Role.LEADER and self.log.term(self.log.applied) == self.term

    @property
    def progress(self) -> Mapping[NodeId, Progress]:
        """The other members as this node sees them while it leads; empty otherwise."""
        return self._leading.progress if self._leading is not None else {}

    @property
    def transferee(self) -> NodeId | None:
        """To whom this leader is handing over."""
        return self._leading.transferee if self._leading is not None else None

    @property
    def active(self) -> set[NodeId]:
        """The members that this leader heard lately; empty otherwise."""
        return self._leading.active() if self._leading is not None else set()

    @property
    def soft_state(self) -> SoftState:
        known = self._outbox.reported  # mostly still what is so: this is asked for after everything that happens
        if known.role is self.role and known.leader == self.leader and known.term == self.term:
            return known
        return SoftState(self.role, self.leader, self.term)

    @property
    def hard_state(self) -> HardState:
        return HardState(self.term, self.vote, self.log.committed)

    def has_ready(self) -> bool:
        if self._outbox.is_outstanding:
            return False
        return self._outbox.has_something(self.soft_state) or self._must_persist()

    def ready(self) -> Ready:
        """The next batch of effects. One at a time: `advance` must follow."""
        hard_state = self.hard_state if self._must_persist() else None
        return self._outbox.ready(self.soft_state, hard_state, self.settings.max_apply_bytes)

    def advance(self) -> None:
        """The outstanding `Ready` was carried out, wholly."""
        committed, own_messages = self._outbox.carried_out()
        if committed:
            self._applied(committed)
        for message in own_messages:
            self.step(message)
        if self._leading is not None:
            self._leading.count_own_entries()
            proposals.end_joint_change(self._leading)

    @property
    def can_compact(self) -> bool:
        """Whether `compact` may be called: nothing is outstanding and no received snapshot waits to be restored."""
        return not self._outbox.is_outstanding and self.log.pending_snapshot is None

    def compact(self, data: bytes, keep_entries: int) -> Compaction:
        """Replace the applied prefix by `data`, a snapshot of the state machine at `log.applied`."""
        assert self.can_compact
        term = self.log.term(self.log.applied)
        assert term is not None
        snapshot = Snapshot(self.log.applied, term, self.configuration, data)
        self.log.compact(snapshot, keep_entries)
        return Compaction(
            snapshot, self.hard_state, self.log.compacted_index, self.log.compacted_term, self.log.kept_entries()
        )

    def _must_persist(self) -> bool:
        # A commit index alone is not worth a sync: it is learned again from the leader, so it travels with the next write. But
        # a decided change of the membership is: who forgot it would go on needing those whom it removed.
        return (
            self.log.pending_snapshot is not None
            or self.log.stable_index < self.log.last_index
            or self._outbox.persisted_vote != (self.term, self.vote)
            or self._has_decided_change(max(self.log.applied, self._outbox.persisted_commit))
        )

    # Terms

    def _accept_later_term(self, message: Message) -> bool:
        """Deal with the higher term; False when the message must not be looked at further."""
        hears_leader = self.leader is not None and self._election_elapsed < self.settings.election_ticks
        if message.kind in _VOTES and hears_leader and not message.forced:
            return False  # this node hears its leader, or is it: whoever asks was cut off
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
            self._send(MessageKind.PRE_VOTE_RESPONSE, message.sender, reject=True, tells_decided=True)

    # Roles

    def _reset(self, term: int) -> None:
        if term != self.term:
            self.term = term
            self.vote = None
        self.leader = None
        self._election_elapsed = 0
        self._randomized_election_ticks = self._rng.randint(
            self.settings.election_ticks, 2 * self.settings.election_ticks - 1
        )
        self._votes = {}
        self._leading = None

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

    def _become_candidate(self, *, forced: bool = False) -> None:
        self._reset(self.term + 1)
        self.role = Role.CANDIDATE
        self.vote = self.id
        self._ask_for_votes(MessageKind.VOTE, self.term, forced=forced)

    def _ask_for_votes(self, kind: MessageKind, term: int, *, forced: bool = False) -> None:
        own = MessageKind.VOTE_RESPONSE if kind is MessageKind.VOTE else MessageKind.PRE_VOTE_RESPONSE
        self._outbox.send_after_persist.append(Message(own, self.id, self.id, term))
        for voter in self.configuration.all_voters:
            if voter != self.id:
                self._send(
                    kind,
                    voter,
                    term=term,
                    index=self.log.last_index,
                    log_term=self.log.last_term,
                    forced=forced,
                    tells_decided=True,
                )

    def _become_leader(self) -> None:
        assert self.role is Role.CANDIDATE
        self._reset(self.term)
        self.role = Role.LEADER
        self.leader = self.id
        self._leading = Leading(
            self.id,
            self.term,
            self.log,
            self.configuration,
            self.settings,
            self._outbox,
        )
        self._leading.append(EntryKind.EMPTY, b"")
        self._leading.broadcast_append()

    @property
    def _is_voter(self) -> bool:
        return self.id in self.configuration.all_voters

    @property
    def _may_campaign(self) -> bool:
        """Whether this node knows the membership that it would be elected by."""
        return self.log.pending_snapshot is None and not self._has_decided_change(self.log.applied)

    def _has_decided_change(self, index: int) -> bool:
        """Whether a change of the membership was decided behind `index`."""
        if index >= self.log.committed:
            return False
        decided = self.log.slice(index + 1, self.log.committed + 1, 1 << 62)
        return any(entry.kind is EntryKind.MEMBERSHIP for entry in decided)

    def serving(self) -> Leading:
        """What takes proposals (see `proposals`). Raises NotLeader, also before the empty entry of the own term is applied."""
        if self._leading is None or not self.is_serving:
            raise NotLeader()
        return self._leading

    # Membership

    def _applied(self, entries: Sequence[Entry]) -> None:
        self.log.applied_to(entries[-1].index)
        if self._leading is not None:
            self._leading.applied(sum(len(entry.data) for entry in entries))
        snapshot_index = self.log.snapshot.index if self.log.snapshot else 0
        for entry in entries:
            # A snapshot that came meanwhile brought a later configuration.
            if entry.kind is EntryKind.MEMBERSHIP and entry.index > snapshot_index:
                self._adopt(decode_configuration(entry.data))
        if self._successor_of == self.term and self._may_campaign:
            self._successor_of = 0
            self._on_timeout_now()

    def _adopt(self, configuration: Configuration) -> None:
        self.configuration = configuration
        if self._leading is None:
            return
        self._leading.adopt(configuration)
        if not self._is_voter:
            self._leading.hand_over()
            self._become_follower(self.term, None)

    # Votes

    def _on_vote_request(self, message: Message) -> None:
        self._learn_what_is_decided(message)
        is_pre_vote = message.kind is MessageKind.PRE_VOTE
        may_vote = (
            self.vote == message.sender
            or (self.vote is None and self.leader is None)
            or (is_pre_vote and message.term > self.term)
        )
        granted = may_vote and self.log.is_up_to_date(message.index, message.log_term)
        kind = MessageKind.PRE_VOTE_RESPONSE if is_pre_vote else MessageKind.VOTE_RESPONSE
        # A grant answers in the candidate's term (a pre-vote's is not ours yet), a refusal in our own.
        self._send(
            kind, message.sender, term=message.term if granted else self.term, reject=not granted, tells_decided=True
        )
        if granted and not is_pre_vote:
            self._election_elapsed = 0
            self.vote = message.sender

    def _learn_what_is_decided(self, message: Message) -> None:
        """Votes say up to where the log is decided: who holds that entry, too, knows as much.

        Without this a group could wait for ever: the last one that knows that it was removed refuses its vote to those that do
        not know, as its log is longer than theirs, and never campaigns itself.
        """
        if self._leading is None and message.commit and self.log.matches(message.commit, message.reject_hint):
            self.log.commit_to(message.commit)

    def _tell_what_is_decided(self) -> None:
        """A former member tells those that may not know it yet, with a refusal that nobody asked for."""
        for voter in self.configuration.voters:
            self._send(MessageKind.PRE_VOTE_RESPONSE, voter, reject=True, tells_decided=True)

    def _on_ballot(self, message: Message) -> None:
        self._learn_what_is_decided(message)
        if self.role is not Role.FOLLOWER and not self._may_campaign:
            self._become_follower(self.term, None)
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

    def _on_timeout_now(self) -> None:
        """The leader hands over to this node: no pre-vote, and the others need not miss the leader first.

        A leader that leaves asks this right behind the change that removes it, so that may have to be applied first.
        """
        if self.role is Role.LEADER:
            return
        if not self._may_campaign:
            self._successor_of = self.term
        elif self._is_voter:
            self._become_candidate(forced=True)

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
        self.configuration = snapshot.configuration
        self._send(MessageKind.APPEND_RESPONSE, message.sender, index=self.log.last_index)

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
        forced: bool = False,
        tells_decided: bool = False,
    ) -> None:
        """Queue a vote request or a response: both tell what must be durable first, and so leave after the next write."""
        self._outbox.send_after_persist.append(
            Message(
                kind,
                self.id,
                to,
                self.term if term is None else term,
                index=index,
                log_term=log_term,
                reject=reject,
                reject_hint=self.log.term(self.log.committed) or 0 if tells_decided else reject_hint,
                context=context,
                forced=forced,
                commit=self.log.committed if tells_decided else 0,
            )
        )
