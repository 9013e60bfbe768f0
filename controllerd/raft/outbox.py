"""What a node has to tell its shell: gathered into one `Ready` at a time, and taken note of when that was carried out (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from controllerd.raft.log import RaftLog
from controllerd.raft.messages import Entry, HardState, Message, Persist, ReadState, Ready, SoftState
from controllerd.raft.quorum import NodeId


class Outbox:
    """Of one node. Knows what was persisted and reported last; what is worth persisting is for the core to say."""

    def __init__(self, node_id: NodeId, log: RaftLog, hard_state: HardState, reported: SoftState) -> None:
        self._id = node_id
        self._log = log
        self.send_after_persist: list[Message] = []  # those to the node itself come back to it
        self.persisted_vote = (hard_state.term, hard_state.vote)
        self.persisted_commit = hard_state.commit
        self._send_now: list[Message] = []
        self._reads: list[ReadState] = []
        self.reported = reported
        self._outstanding: Ready | None = None
        self._own_messages: list[Message] = []

    def send(self, message: Message) -> None:
        """A message that may leave before anything is written."""
        self._send_now.append(message)

    def confirm(self, read: ReadState) -> None:
        self._reads.append(read)

    @property
    def is_outstanding(self) -> bool:
        return self._outstanding is not None

    def has_something(self, soft_state: SoftState) -> bool:
        """Whether there is something to do besides persisting."""
        return bool(
            self._send_now
            or self.send_after_persist
            or self._reads
            or self._log.has_next_committed()
            or (self.reported is not soft_state and self.reported != soft_state)
        )

    def ready(self, soft_state: SoftState, hard_state: HardState | None, max_apply_bytes: int) -> Ready:
        """The next batch of effects; `hard_state` is what must be persisted, with the entries that are not yet, if anything."""
        assert self._outstanding is None, "the previous Ready was not finished"
        snapshot = self._log.pending_snapshot
        ready = Ready(
            send_now=tuple(self._send_now),
            persist=Persist(hard_state, snapshot, self._log.unstable_entries()) if hard_state is not None else None,
            send_after_persist=tuple(message for message in self.send_after_persist if message.to != self._id),
            restore=snapshot,
            committed=self._log.next_committed(max_apply_bytes),
            reads=tuple(self._reads),
        )
        self._own_messages = [message for message in self.send_after_persist if message.to == self._id]
        self._send_now = []
        self.send_after_persist = []
        self._reads = []
        self.reported = soft_state
        self._outstanding = ready
        return ready

    def carried_out(self) -> tuple[Sequence[Entry], list[Message]]:
        """The outstanding `Ready` was carried out: what it committed, and what the node has to tell itself now."""
        ready = self._outstanding
        assert ready is not None
        self._outstanding = None
        if ready.restore is not None:
            self._log.snapshot_restored(ready.restore)
        if ready.persist is not None:
            self.persisted_vote = (ready.persist.hard_state.term, ready.persist.hard_state.vote)
            self.persisted_commit = ready.persist.hard_state.commit
            if ready.persist.entries:
                last = ready.persist.entries[-1]
                self._log.stable_to(last.index, last.term)
        return ready.committed, self._own_messages
