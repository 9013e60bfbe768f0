"""What a node does and knows while it leads, from the election it won to the moment it steps down (pure)

Owns the progress of every other member, the window of what may be sent to it, reads that wait for their round of heartbeats, the
open leadership transfer and the last membership change. Made by the core when an election is won and dropped with the role, so
nothing of one term can be mistaken for another's. It appends to the core's log and advances its commit index; nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from controllerd.raft.log import RaftLog
from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, ReadState
from controllerd.raft.outbox import Outbox
from controllerd.raft.progress import Progress, ProgressState
from controllerd.raft.quorum import Configuration, NodeId

_READ_TICKS: Final = 2  # that a majority has to confirm a read


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Timers in ticks, and the bounds of everything that grows.

    `snapshot_ticks` is how long a snapshot may be on its way before it counts as lost without having been reported so (None: an
    election timeout); `promote_lag_entries` how far a learner may be behind what is decided when it becomes a voter. A leader
    speaks every `calm_heartbeat_ticks` (0: no other than `heartbeat_ticks`) when for `calm_after_ticks` nothing was late.
    """

    election_ticks: int = 10
    heartbeat_ticks: int = 1
    calm_heartbeat_ticks: int = 0
    calm_after_ticks: int = 200
    max_entry_bytes: int = 1 << 20
    max_append_bytes: int = 1 << 20
    max_inflight_messages: int = 64
    max_inflight_bytes: int = 8 << 20
    max_uncommitted_bytes: int = 16 << 20
    max_apply_bytes: int = 4 << 20
    snapshot_ticks: int | None = None
    promote_lag_entries: int = 64

    def __post_init__(self) -> None:
        assert 1 <= self.heartbeat_ticks < self.election_ticks
        assert self.calm_heartbeat_ticks <= max(self.heartbeat_ticks, self.election_ticks // 2), "two are heard in time"
        assert 0 < self.max_entry_bytes <= self.max_uncommitted_bytes


@dataclass(slots=True)
class _PendingRead:
    context: int
    index: int
    confirmed_by: set[NodeId]
    waited_ticks: int = 0
    is_asked_of_all: bool = False


class Leading:
    def __init__(
        self,
        node_id: NodeId,
        term: int,
        log: RaftLog,
        configuration: Configuration,
        settings: CoreSettings,
        outbox: Outbox,
    ) -> None:
        self.id = node_id
        self.term = term
        self.progress: dict[NodeId, Progress] = {}
        self.transferee: NodeId | None = None
        self.uncommitted_bytes = 0
        self.last_change_index = log.last_index  # whatever change an earlier leader left behind is before this
        self.log = log
        self.configuration = configuration
        self.settings = settings
        self._outbox = outbox
        self._send = outbox.send
        self._pending_reads: list[_PendingRead] = []
        self._ticks = 0
        self._heartbeat_ticks = 0
        self._punctual_ticks = 0  # for how long this node and all that it hears were
        self._transfer_ticks = 0
        for node in configuration.members:
            self._add_progress(node)
        own = self.progress[self.id]
        own.is_recently_active = True
        own.acknowledged(log.stable_index)

    def _add_progress(self, node: NodeId) -> None:
        self.progress[node] = Progress(
            self.log.last_index + 1, self.settings.max_inflight_messages, self.settings.max_inflight_bytes
        )

    # Time

    def tick(self) -> bool:
        """One unit of time passed; False when the leader has not heard a majority for an election timeout."""
        self._ticks += 1
        self._heartbeat_ticks += 1
        self._punctual_ticks += 1
        if self._ticks >= self.settings.election_ticks:
            self._ticks = 0
            if not self._check_quorum():
                return False
        if self.transferee is not None:
            self._transfer_ticks += 1
            if self._transfer_ticks >= self.settings.election_ticks:
                self.transferee = None
        for progress in self.progress.values():
            if progress.state is ProgressState.SNAPSHOT:
                progress.waited_ticks += 1
        has_late_read = self._has_late_read()
        if has_late_read or self._heartbeat_ticks >= self.heartbeat_ticks:
            self._heartbeat_ticks = 0
            self._look_who_answered(in_time=not has_late_read)
            self.broadcast_heartbeat()
            self._tell_transferee()
        return True

    def _has_late_read(self) -> bool:
        """Another tick passed: whether a read waits for too long for those who were asked."""
        for read in self._pending_reads:
            read.waited_ticks += 1
        return any(read.waited_ticks >= _READ_TICKS and not read.is_asked_of_all for read in self._pending_reads)

    def _look_who_answered(self, *, in_time: bool) -> None:
        """Who was heard since the last heartbeat; nobody counts as such while those who were asked owe an answer."""
        for node, each in self.progress.items():
            if node != self.id:
                each.is_punctual, each.has_answered = in_time and each.has_answered, False
                if not each.is_punctual:
                    self._punctual_ticks = 0

    def was_late(self) -> None:
        """This process stood still for a moment: for a while others shall hear it more often."""
        self._punctual_ticks = 0

    @property
    def heartbeat_ticks(self) -> int:
        """How often this leader speaks now. Where pauses are to be expected, so often that one heartbeat more may be late."""
        settings = self.settings
        if self._punctual_ticks < settings.calm_after_ticks or not self.is_calm:
            return settings.heartbeat_ticks
        return max(settings.heartbeat_ticks, settings.calm_heartbeat_ticks)

    @property
    def is_calm(self) -> bool:
        """Whether all members are sent what there is as it comes, nobody waits for them, and leadership stays here."""
        if self.transferee is not None or self._pending_reads:
            return False
        return all(each.state is ProgressState.REPLICATE for node, each in self.progress.items() if node != self.id)

    def _check_quorum(self) -> bool:
        """Whether a majority was heard since the last check; the count starts anew."""
        active = {node for node, progress in self.progress.items() if progress.is_recently_active or node == self.id}
        for node, progress in self.progress.items():
            progress.was_active = progress.is_recently_active
            progress.is_recently_active = node == self.id
        return self.configuration.has_majority(active)

    def active(self) -> set[NodeId]:
        """The members that were heard lately, the leader included."""
        return {node for node, progress in self.progress.items() if progress.was_active} | {self.id}

    # The log

    def append(self, kind: EntryKind, data: bytes) -> None:
        """Put an entry behind the log; it is sent by the next broadcast."""
        self.log.append([Entry(self.log.last_index + 1, self.term, data, kind)])
        self.uncommitted_bytes += len(data)
        if kind is EntryKind.MEMBERSHIP:
            self.last_change_index = self.log.last_index

    def applied(self, size_bytes: int) -> None:
        self.uncommitted_bytes = max(0, self.uncommitted_bytes - size_bytes)

    def count_own_entries(self) -> None:
        """Own entries became durable."""
        if self.progress[self.id].acknowledged(self.log.stable_index) and self._try_commit():
            self.broadcast_append()

    def _try_commit(self) -> bool:
        matched = {node: progress.match for node, progress in self.progress.items()}
        index = self.configuration.committed_index(matched)
        # Only an entry of the own term says that no other leader can have decided otherwise.
        if index <= self.log.committed or self.log.term(index) != self.term:
            return False
        self.log.commit_to(index)
        return True

    def adopt(self, configuration: Configuration) -> None:
        """Go on with other members: a smaller majority may have decided already, and new members are to be heard of."""
        self.configuration = configuration
        members = set(configuration.members)
        self.progress = {node: progress for node, progress in self.progress.items() if node in members}
        for node in configuration.members:
            if node not in self.progress:
                self._add_progress(node)
                # It had no chance to be heard yet, and that must not depose the leader.
                self.progress[node].is_recently_active = True
        if self.transferee is not None and self.transferee not in configuration.voters:
            self.transferee = None
        self._try_commit()
        self.broadcast_append()

    # Leadership transfer

    def transfer(self, target: NodeId) -> None:
        """Hand over to a voter as soon as it has everything; given up after an election timeout."""
        self.transferee = target
        self._transfer_ticks = 0
        if not self._tell_transferee():
            self._try_send_append(target, self.progress[target], even_if_empty=True)

    def _tell_transferee(self) -> bool:
        """Let it start an election now, if it has everything. It is told again with each heartbeat, should the word be lost: who
        started one is in a later term, and hears of this one no more."""
        target = self.transferee
        if target is None or self.progress[target].match < self.log.last_index:
            return False
        self._send(Message(MessageKind.TIMEOUT_NOW, self.id, target, self.term))
        return True

    def hand_over(self) -> None:
        """Before giving up for good: let the follower that has most start an election now."""
        best = max(
            (node for node in self.configuration.voters if node != self.id and node in self.progress),
            key=lambda node: (self.progress[node].match, self.progress[node].was_active, node),
            default=None,
        )
        if best is not None:
            self._send(Message(MessageKind.TIMEOUT_NOW, self.id, best, self.term))

    # Answers

    def on_append_response(self, message: Message) -> None:
        progress = self._heard(message)
        if progress is None:
            return
        if message.reject:
            self._on_append_refused(message, progress)
        else:
            self._on_append_accepted(message, progress)

    def on_heartbeat_response(self, message: Message) -> None:
        progress = self._heard(message)
        if progress is None:
            return
        limit = self.settings.snapshot_ticks or self.settings.election_ticks
        if progress.state is ProgressState.SNAPSHOT and progress.waited_ticks >= limit:
            progress.snapshot_failed()
        progress.paused = False
        # Even with a full window one empty append goes out, so that the loss of all that filled it is noticed.
        if progress.match < self.log.last_index or progress.state is ProgressState.PROBE:
            self._try_send_append(message.sender, progress, even_if_empty=True)
        self._confirm_reads(message)

    def _heard(self, message: Message) -> Progress | None:
        progress = self.progress.get(message.sender)
        if progress is None or message.sender == self.id:
            return None
        progress.is_recently_active = progress.was_active = progress.has_answered = True
        return progress

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
            progress.inflights.release_up_to(message.index)
        if self._try_commit():
            self.broadcast_append()
        while self._try_send_append(message.sender, progress, even_if_empty=progress.needs_commit(self.log.committed)):
            pass
        if message.sender == self.transferee:
            self._tell_transferee()

    # Reports of the shell

    def report_unreachable(self, node: NodeId) -> None:
        progress = self.progress.get(node)
        if progress is not None and progress.state is ProgressState.REPLICATE:
            progress.become_probe()

    def report_snapshot(self, node: NodeId, *, delivered: bool) -> None:
        progress = self.progress.get(node)
        if progress is None or progress.state is not ProgressState.SNAPSHOT:
            return
        if delivered:
            progress.snapshot_delivered()
        else:
            progress.snapshot_failed()

    # Sending

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
        self._send(
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
        self._send(Message(MessageKind.SNAPSHOT, self.id, to, self.term, snapshot=snapshot))
        progress.become_snapshot(snapshot.index)
        return True

    def broadcast_append(self) -> None:
        """Send everybody what it lacks, or at least what is decided."""
        for node, progress in self.progress.items():
            if node != self.id:
                self._try_send_append(node, progress, even_if_empty=True)

    def broadcast_heartbeat(self) -> None:
        """Tell everybody who leads, and let them confirm the newest read."""
        for read in self._pending_reads:
            read.is_asked_of_all = True
        self._speak_to(self.progress)

    def _speak_to(self, nodes: Iterable[NodeId]) -> None:
        context = self._pending_reads[-1].context if self._pending_reads else 0
        for node in nodes:
            if node != self.id:
                commit = min(self.progress[node].match, self.log.committed)
                self._send(Message(MessageKind.HEARTBEAT, self.id, node, self.term, commit=commit, context=context))

    # Reads

    def read(self, context: int) -> None:
        """Confirm with a round of heartbeats that this node still leads."""
        # The whole log, not only what is decided: who lost the answer to a proposal reads to learn what became of it, and must
        # not be told the state before it while it can still be decided.
        read = _PendingRead(context, self.log.last_index, {self.id})
        self._pending_reads.append(read)
        if not self._release_reads(read):
            self._speak_to(self._least_majority() or self.progress)

    def _least_majority(self) -> set[NodeId]:
        """Members that are enough with this one, of those who answer in time; nobody when those are too few. Who does not answer
        after all is not waited for: a tick or two later everybody is asked."""
        found = {self.id}
        for voter in self.configuration.all_voters:
            if self.configuration.has_majority(found):
                break
            progress = self.progress[voter]
            if progress.is_punctual and progress.state is ProgressState.REPLICATE:
                found.add(voter)
        return found if self.configuration.has_majority(found) else set()

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
        for earlier in done:
            self._outbox.confirm(ReadState(earlier.context, earlier.index))
        return True
