"""A Raft node with its state machine and those who wait for it: what the asyncio driver and the simulator share (pure)

Owns the core, the state machine, and the callbacks of open proposals and reads. Each callback is called exactly once, with the
state machine's reply or with an error; an outcome that is not known is an error, never a guess. The caller carries out what
`ready` returns (write, send) and then calls `finish`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from controllerd.raft.core import Compaction, RaftCore
from controllerd.raft.messages import EntryKind, Message, ReadState, Ready, Role
from remoting import codes
from remoting.errors import LogboomError, NotLeader

Answered = Callable[[Any], None]


class OutcomeUnknown(LogboomError):
    """Leadership was lost while the command was on its way: it may or may not be decided. Ask again; commands are fenced."""

    code = codes.SYSTEM_ERROR
    retriable = True


class StateMachine(Protocol):
    """What the log drives. The same commands must give the same state and replies on every node."""

    def apply(self, data: bytes) -> Any:
        """Apply one command and return its reply; cannot fail."""

    def snapshot(self) -> bytes:
        """The whole state."""

    def restore(self, data: bytes) -> None:
        """Replace the whole state."""


class RaftNode:
    """One node of a group. `answered` callbacks get a reply or a LogboomError and must not call back into the node."""

    def __init__(self, core: RaftCore, machine: StateMachine, *, compact_after_entries: int, keep_entries: int) -> None:
        self.core = core
        self.machine = machine
        self._compact_after_entries = compact_after_entries
        self._keep_entries = keep_entries
        self._proposals: dict[int, tuple[int, Answered]] = {}
        self._reads: dict[int, list[Answered]] = {}
        self._confirmed_reads: list[tuple[int, Answered]] = []
        self._joinable_read: tuple[int, int] | None = None
        self._waiting_in_term = 0
        self._ready: Ready | None = None
        snapshot = core.log.snapshot
        if snapshot is not None:
            machine.restore(snapshot.data)

    @property
    def is_serving(self) -> bool:
        """Whether this node leads and its state machine has reached its own term."""
        return self.core.is_serving

    def tick(self) -> None:
        """One unit of time passed."""
        self.core.tick()

    def step(self, message: Message) -> None:
        """Take a message. Raises LostLog when this node lost what it had acknowledged and must stop."""
        self.core.step(message)

    def propose(self, data: bytes, answered: Answered) -> None:
        """Have a command applied. Raises NotLeader or ProposalRefused, and then `answered` is not called."""
        proposed = self.core.propose(data)
        self._waits_in(proposed.term)
        self._proposals[proposed.index] = proposed.term, answered

    def read(self, answered: Answered) -> None:
        """`answered(None)` when the state machine holds everything decided or proposed here before now. Raises NotLeader."""
        if self._joinable_read is not None and self._joinable_read[1] == self.core.log.last_index and self.is_serving:
            self._reads[self._joinable_read[0]].append(answered)
            return
        context = self.core.read_index()
        self._waits_in(self.core.term)
        self._reads[context] = [answered]
        self._joinable_read = context, self.core.log.last_index

    def ready(self) -> Ready | None:
        """What to write and send next; None when there is nothing. `finish` must follow."""
        if not self.core.has_ready():
            return None
        self._joinable_read = None  # its round of heartbeats leaves now
        self._ready = self.core.ready()
        return self._ready

    def finish(self) -> None:
        """The last `ready` was written and sent: apply what it decided and answer those who wait."""
        ready = self._ready
        assert ready is not None
        self._ready = None
        if ready.restore is not None:
            self.machine.restore(ready.restore.data)
        for entry in ready.committed:
            reply = self.machine.apply(entry.data) if entry.kind is EntryKind.COMMAND else None
            waiting = self._proposals.pop(entry.index, None)
            if waiting is not None:
                term, answered = waiting
                answered(reply if term == entry.term else NotLeader("another leader decided otherwise; try again"))
        self.core.advance()
        for read in ready.reads:
            self._confirm(read)
        self._answer_reads()
        if self.core.role is not Role.LEADER or self.core.term != self._waiting_in_term:
            self._give_up()

    def compaction(self) -> Compaction | None:
        """What the log file should hold from now on, when it is time; to be called between `finish` and `ready`."""
        log = self.core.log
        snapshot_index = log.snapshot.index if log.snapshot else 0
        if log.applied - snapshot_index < self._compact_after_entries or not self.core.can_compact:
            return None
        return self.core.compact(self.machine.snapshot(), self._keep_entries)

    def close(self) -> None:
        """Nothing will be decided here any more: answer everybody."""
        self._give_up()

    def _waits_in(self, term: int) -> None:
        """Somebody waits for something of this term; who waited for an earlier one has lost its leader."""
        if term != self._waiting_in_term:
            self._give_up()
            self._waiting_in_term = term

    def _confirm(self, read: ReadState) -> None:
        self._confirmed_reads += [(read.index, answered) for answered in self._reads.pop(read.context, ())]

    def _answer_reads(self) -> None:
        applied = self.core.log.applied
        due = [answered for index, answered in self._confirmed_reads if index <= applied]
        if due:
            self._confirmed_reads = [(index, answered) for index, answered in self._confirmed_reads if index > applied]
            for answered in due:
                answered(None)

    def _give_up(self) -> None:
        proposals, self._proposals = self._proposals, {}
        reads, self._reads = self._reads, {}
        confirmed, self._confirmed_reads = self._confirmed_reads, []
        self._joinable_read = None
        for _, answered in proposals.values():
            answered(OutcomeUnknown("leadership was lost before the outcome was known; ask again"))
        for waiting in reads.values():
            for answered in waiting:
                answered(NotLeader())
        for _, answered in confirmed:
            answered(NotLeader())
