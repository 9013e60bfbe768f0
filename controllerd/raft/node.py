"""A Raft node with its state machine and those who wait for it: what the asyncio driver and the simulator share (pure)

Owns the core, the state machine, and the callbacks of open proposals and reads. Each callback is called exactly once, with the
state machine's reply or with an error; an outcome that is not known is an error, never a guess. The caller carries out what
`ready` returns (write, send) and then calls `finish`.

A node that serves has applied the first entry of its term, so its state holds all that earlier terms left in its log, and what
the log holds behind that was decided here: the state machine's tail state is the state at the log's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from controllerd.raft import proposals
from controllerd.raft.core import Compaction, RaftCore
from controllerd.raft.membership import MemberChange
from controllerd.raft.messages import EntryKind, Message, Proposed, ReadState, Ready, Role
from controllerd.raft.proposals import TransferRefused
from controllerd.raft.quorum import NodeId
from remoting import codes
from remoting.errors import LogboomError, NotLeader

Answered = Callable[[Any], None]


class OutcomeUnknown(LogboomError):
    """Leadership was lost while the decision was on its way: it may or may not be committed. Ask again; requests are fenced."""

    code = codes.SYSTEM_ERROR
    retriable = True


class StateMachine(Protocol):
    """What the log drives. The same entries must give the same state and replies on every node.

    Only the serving leader decides: against its tail state, in which everything that it appended in this term counts already.
    """

    def decide(self, request: Any) -> bytes:
        """What a request comes to, as an entry; changes nothing. Raises LogboomError when it cannot be taken."""

    def appended(self, data: bytes) -> None:
        """What was decided last is in the log."""

    def forget(self) -> None:
        """What was appended here may never be committed: the tail state is the state again."""

    def apply(self, data: bytes) -> Any:
        """Apply one committed entry and return its reply. Raises LogboomError when this node must stop at it."""

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
        self._changes: list[Answered] = []
        self._transfers: list[tuple[NodeId, Answered]] = []
        self._compact_again_at: int | None = None
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
        self.core.tick()
        self._answer_transfers()

    def step(self, message: Message) -> None:
        """Take a message. Raises LostLog when this node lost what it had acknowledged and must stop."""
        self.core.step(message)

    def propose(self, request: Any, answered: Answered) -> None:
        """Decide a request and have the outcome committed; the reply comes when it is applied.

        Raises NotLeader, ProposalRefused and what `decide` raises, and then nothing happened and `answered` is not called.
        """
        if not self.is_serving:
            raise NotLeader()
        self._waits_in(self.core.term)  # the tail state of an earlier term is gone before this one decides
        data = self.machine.decide(request)
        proposed = proposals.propose(self.core.serving(), data)
        self.machine.appended(data)
        self._wait_for(proposed, answered)

    def change_membership(
        self,
        changes: Sequence[MemberChange],
        addresses: Mapping[NodeId, str],
        answered: Answered,
    ) -> None:
        """Change who is a member; the reply is the new configuration, when no joint one is left that ends by itself.

        Raises NotLeader, ProposalRefused and ChangeRefused, and then `answered` is not called.
        """
        self._wait_for(proposals.propose_change(self.core.serving(), changes, addresses=addresses), answered)

    def found(self, cluster: str, addresses: Mapping[NodeId, str], answered: Answered) -> None:
        """Give the group its id. Raises as `change_membership` does."""
        self._wait_for(proposals.propose_founding(self.core.serving(), cluster, addresses), answered)

    def transfer_leader(self, target: NodeId, answered: Answered) -> None:
        """`answered(None)` when the target leads, or a TransferRefused when it does not. Raises NotLeader and TransferRefused."""
        proposals.transfer(self.core.serving(), target)
        self._transfers.append((target, answered))

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
            reply = self.machine.apply(entry.data) if entry.kind is EntryKind.DECISION else None
            waiting = self._proposals.pop(entry.index, None)
            if waiting is None:
                continue
            term, answered = waiting
            if term != entry.term:
                answered(NotLeader("another leader decided otherwise; try again"))
            elif entry.kind is EntryKind.MEMBERSHIP:
                self._changes.append(answered)
            else:
                answered(reply)
        self.core.advance()
        self._answer_changes()
        for read in ready.reads:
            self._confirm(read)
        self._answer_reads()
        self._answer_transfers()
        if self.core.role is not Role.LEADER or self.core.term != self._waiting_in_term:
            self._give_up()

    def step_down(self) -> None:
        """This node cannot write: it leads no more, and nobody here waits for what it would have decided."""
        self.core.step_down()
        self._give_up()

    def compaction(self) -> Compaction | None:
        """What the log file should hold from now on, when it is time; to be called between `finish` and `ready`."""
        log = self.core.log
        snapshot_index = log.snapshot.index if log.snapshot else 0
        due_at = self._compact_again_at
        if due_at is None:
            due_at = snapshot_index + self._compact_after_entries
        if log.applied < due_at or not self.core.can_compact:
            return None
        self._compact_again_at = None
        return self.core.compact(self.machine.snapshot(), self._keep_entries)

    def compaction_refused(self) -> None:
        """The disk did not take the compaction; the longer log goes on, and it is tried again a little later."""
        self._compact_again_at = self.core.log.applied + max(1, self._compact_after_entries // 10)

    def close(self) -> None:
        """Nothing will be decided here any more: answer everybody."""
        self._give_up()
        transfers, self._transfers = self._transfers, []
        for target, answered in transfers:
            answered(TransferRefused(f"this controller stopped before {target} led"))

    def _wait_for(self, proposed: Proposed, answered: Answered) -> None:
        self._waits_in(proposed.term)
        self._proposals[proposed.index] = proposed.term, answered

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

    def _answer_changes(self) -> None:
        if self._changes and not self.core.configuration.auto_leave:
            changes, self._changes = self._changes, []
            for answered in changes:
                answered(self.core.configuration)

    def _answer_transfers(self) -> None:
        if not self._transfers:
            return
        core, waiting = self.core, []
        for target, answered in self._transfers:
            if core.leader == target:
                answered(None)
            elif core.role is Role.LEADER and core.transferee != target:
                answered(TransferRefused(f"{target} did not take over in time; this controller leads on"))
            elif core.role is not Role.LEADER and core.leader is not None:
                answered(TransferRefused(f"{core.leader} was elected instead of {target}"))
            else:
                waiting.append((target, answered))
        self._transfers = waiting

    def _give_up(self) -> None:
        self.machine.forget()
        proposals, self._proposals = self._proposals, {}
        reads, self._reads = self._reads, {}
        confirmed, self._confirmed_reads = self._confirmed_reads, []
        changes, self._changes = self._changes, []
        self._joinable_read = None
        for answered in [*(answered for _, answered in proposals.values()), *changes]:
            answered(OutcomeUnknown("leadership was lost before the outcome was known; ask again"))
        for waiting in reads.values():
            for answered in waiting:
                answered(NotLeader())
        for _, answered in confirmed:
            answered(NotLeader())
