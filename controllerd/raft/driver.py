"""The shell around a Raft node: ticks it, writes its log in a helper thread, sends its messages, and lets coroutines wait for it.

Owns one task (write, send, apply, in the order the core asks for) and the ticker. The loop thread never waits for the disk.

When the disk refuses a write and nothing of it counts (it is full, say), the node is out of service: it leads no more, answers
nobody, hears nobody, and tries the same write again until the disk takes it. When a sync fails, or the log turns out to be lost,
`run` raises and the process must end: a node that cannot remember must not vote. It also ends when the group has removed it and
others know that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from controllerd.raft.log_file import RaftLogFile, WriteRefused
from controllerd.raft.membership import MemberChange
from controllerd.raft.messages import Message, Persist, SoftState
from controllerd.raft.node import RaftNode
from controllerd.raft.quorum import Configuration, NodeId
from controllerd.raft.ticking import Ticking
from remoting.errors import LogboomError, NotLeader, RequestTimeout, StorageError

log = logging.getLogger(__name__)

_WRITE_RETRY_S: Final = 0.5
_REPORT_EVERY: Final = 20


class MemberRemoved(LogboomError):
    """The group goes on without this node; it can never come back under its id."""

    def __init__(self) -> None:
        super().__init__(
            "this controller was removed from its group; its data directory is of no use any more and may be deleted"
        )


class CopiedDirectory(LogboomError):
    """Another process speaks for this node; the message says who found that out."""


def _nobody(_: Configuration) -> None:
    """Who has no use for the membership."""


@dataclass(frozen=True, slots=True)
class DriverEvents:
    """Who hears of what happens here. `send` must not block; `changed` is told of every new role, leader or term, `configured`
    of every new membership."""

    send: Callable[[Message], None]
    changed: Callable[[SoftState], None]
    configured: Callable[[Configuration], None] = _nobody


class RaftDriver:
    def __init__(
        self,
        node: RaftNode,
        file: RaftLogFile,
        events: DriverEvents,
        tick_ms: int,
        *,
        founding: tuple[str, Mapping[NodeId, str]] | None = None,
    ) -> None:
        """`founding` is the id and the addresses with which this node founds the group if nobody did."""
        self.node = node
        self._file = file
        self._events = events
        self._founding = founding
        self._ticking = Ticking(node.core, tick_ms, 0.0)
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="raft-log")
        self._ticker: asyncio.TimerHandle | None = None
        self._failure: LogboomError | None = None
        self._soft_state: SoftState | None = None
        self._configuration: Configuration | None = None
        self._founded_in_term = 0
        self.disk_error: str | None = None

    @property
    def is_serving(self) -> bool:
        """Whether this controller may answer for the group now."""
        return self._failure is None and self.disk_error is None and self.node.is_serving

    @property
    def log_bytes(self) -> int:
        return self._file.size_bytes

    async def run(self) -> None:
        """Work until cancelled. Raises StorageError (also LostLog), MemberRemoved, and what the state machine raises at an entry
        that it cannot apply, when this node must stop."""
        loop = asyncio.get_running_loop()
        self._report()
        self._tick()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                await self._carry_out()
                if (at_s := self._ticking.plan_anew(loop.time())) is not None:
                    self._look_at(at_s)
        finally:
            if self._ticker is not None:
                self._ticker.cancel()
            self.node.close()
            self._executor.shutdown(wait=True)
            self._file.close()

    def receive(self, message: Message) -> None:
        if self.disk_error is not None:
            return  # what it would answer could not be kept
        try:
            self._pass_time(asyncio.get_running_loop().time())
            self.node.step(message)
        except StorageError as error:
            self._failure = error
        self._wake.set()

    def fail(self, error: LogboomError) -> None:
        """End the node: `run` raises this."""
        self._failure = self._failure or error
        self._wake.set()

    def report_snapshot(self, node: NodeId, *, delivered: bool) -> None:
        self.node.core.report_snapshot(node, delivered=delivered)
        self._wake.set()

    def peer_lost(self, node: NodeId) -> None:
        """The node closed its connection: if it leads, others may be elected without waiting until it is missed."""
        if self.node.core.leader == node:
            self.node.core.forget_leader()
            self._wake.set()

    async def propose(self, request: Any, timeout_ms: int) -> Any:
        """Decide a request and return the state machine's reply when that is committed.

        Raises NotLeader, ProposalRefused and what the state machine raises when it decides (nothing happened), OutcomeUnknown and
        RequestTimeout (it may have, or may yet).
        """
        return await self._wait(lambda answered: self.node.propose(request, answered), timeout_ms, "decide")

    async def read_barrier(self, timeout_ms: int) -> None:
        """Return when the state machine holds everything decided, or proposed here, before the call.

        Raises NotLeader or RequestTimeout.
        """
        await self._wait(self.node.read, timeout_ms, "confirm a read")

    async def change_membership(
        self,
        changes: Sequence[MemberChange],
        addresses: Mapping[NodeId, str],
        timeout_ms: int,
    ) -> Configuration:
        """Change who is a member; returns the membership when the change is complete.

        Raises NotLeader, ProposalRefused and ChangeRefused (nothing happened), OutcomeUnknown and RequestTimeout (it may have).
        """
        found = await self._wait(
            lambda answered: self.node.change_membership(changes, addresses, answered),
            timeout_ms,
            "change the membership",
        )
        assert isinstance(found, Configuration)
        return found

    async def transfer_leader(self, target: NodeId, timeout_ms: int) -> None:
        """Return when the target leads. Raises NotLeader, TransferRefused and RequestTimeout."""
        await self._wait(
            lambda answered: self.node.transfer_leader(target, answered), timeout_ms, f"hand leadership to {target}"
        )

    async def hand_over(self, timeout_ms: int) -> None:
        """Before stopping: let the voter that is furthest lead, if there is one that is heard."""
        core = self.node.core
        targets = [
            (core.progress[node].match, node)
            for node in core.configuration.voters
            if node != core.id and node in core.active
        ]
        if self.is_serving and targets:
            await self.transfer_leader(max(targets)[1], timeout_ms)

    async def _wait(self, start: Callable[[Callable[[Any], None]], None], timeout_ms: int, what: str) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, LogboomError):
                future.set_exception(result)
            else:
                future.set_result(result)

        if self.disk_error is not None:
            raise NotLeader(f"this controller is out of service: {self.disk_error}")
        self._pass_time(asyncio.get_running_loop().time())  # what is asked for now has not waited that long
        start(answered)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError as error:
            raise RequestTimeout(f"the controllers could not {what} within {timeout_ms} ms") from error

    async def _carry_out(self) -> None:
        while (ready := self.node.ready()) is not None:
            for message in ready.send_now:
                self._events.send(message)
            if ready.persist is not None:
                await self._persist(ready.persist)
            for message in ready.send_after_persist:
                self._events.send(message)
            self.node.finish()
            if ready.restore is not None:
                log.info("restored the leader's snapshot of entry %d", ready.restore.index)
            self._report()
            await self._compact()

    async def _persist(self, persist: Persist) -> None:
        loop = asyncio.get_running_loop()
        attempts = 0
        while True:
            try:
                await loop.run_in_executor(self._executor, self._file.persist, persist)
            except WriteRefused as error:
                if attempts % _REPORT_EVERY == 0:
                    log.error("out of service until the disk takes what must be kept: %s", error)
                attempts += 1
                self.disk_error = str(error)
                self.node.step_down()
                self._report()
                await asyncio.sleep(_WRITE_RETRY_S)
                continue
            if self.disk_error is not None:
                self.disk_error = None
                log.warning("the disk takes writes again: back in service")
            return

    async def _compact(self) -> None:
        compaction = self.node.compaction()
        if compaction is None:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._file.compact, compaction)
        except WriteRefused as error:
            log.warning("the raft log stays long for now: %s", error)
            self.node.compaction_refused()
        else:
            log.info("compacted the raft log up to %d", compaction.snapshot.index)

    def _report(self) -> None:
        state = self.node.core.soft_state
        if state != self._soft_state:
            self._soft_state = state
            log.info("raft: %s in term %d, leader %s", state.role, state.term, state.leader or "unknown")
            self._events.changed(state)
        configuration = self.node.core.configuration
        if configuration is not self._configuration:
            self._configuration = configuration
            self._report_membership(configuration)
        if self._founding is not None and not configuration.cluster and self.is_serving:
            progress = self.node.core.progress
            if all(progress[node].match > 0 for node in configuration.voters):
                # From now on a member without any entry is one that lost its log.
                self._found(state.term, *self._founding)

    def _report_membership(self, configuration: Configuration) -> None:
        log.info(
            "raft: the voters are %s, the learners %s",
            ", ".join(configuration.all_voters) or "not known yet",
            ", ".join(configuration.learners) or "none",
        )
        self._events.configured(configuration)
        if self.node.core.id in configuration.retired:
            log.warning(
                "this controller was removed; it ends when another member confirms that it is not needed any more"
            )

    def _found(self, term: int, cluster: str, addresses: Mapping[NodeId, str]) -> None:
        if term == self._founded_in_term:
            return

        def answered(result: Any) -> None:
            if isinstance(result, LogboomError):
                log.info("the founding of the group was not confirmed, the next leader sees to it: %s", result)
            else:
                log.info("founded the group as %s", result.cluster)

        try:
            self.node.found(cluster, addresses, answered)
        except LogboomError as error:
            log.info("the group cannot be founded now: %s", error)
        else:
            self._founded_in_term = term
            self._wake.set()

    def _tick(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._pass_time(now_s)
        if self.disk_error is None and self.node.core.has_ready():
            self._wake.set()
        self._look_at(self._ticking.plan(now_s))

    def _look_at(self, at_s: float) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = asyncio.get_running_loop().call_at(at_s, self._tick)

    def _pass_time(self, until_s: float) -> None:
        """Let the node know of the ticks until then. Before a message or a request, it is told how late that is."""
        for _ in range(self._ticking.passed(until_s)):
            if self.disk_error is None:
                self.node.tick()
