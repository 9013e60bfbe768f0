"""The shell around a Raft node: ticks it, writes its log in a helper thread, sends its messages, and lets coroutines wait for it.

Owns one task (write, send, apply, in the order the core asks for) and the ticker. The loop thread never waits for the disk. When
the disk fails or the log turns out to be lost, `run` raises and the process must end: a node that cannot remember must not vote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from controllerd.raft.log_file import RaftLogFile
from controllerd.raft.messages import Message, SoftState
from controllerd.raft.node import RaftNode
from remoting.errors import LogboomError, RequestTimeout, StorageError

log = logging.getLogger(__name__)


class RaftDriver:
    """Runs one node. `send` must not block; `changed` is told of every new role, leader or term."""

    def __init__(
        self,
        node: RaftNode,
        file: RaftLogFile,
        send: Callable[[Message], None],
        changed: Callable[[SoftState], None],
        tick_ms: int,
    ) -> None:
        self.node = node
        self._file = file
        self._send = send
        self._changed = changed
        self._tick_ms = tick_ms
        self._wake = asyncio.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="raft-log")
        self._ticker: asyncio.TimerHandle | None = None
        self._failure: LogboomError | None = None
        self._soft_state: SoftState | None = None

    @property
    def is_serving(self) -> bool:
        """Whether this controller may answer for the group now."""
        return self._failure is None and self.node.is_serving

    @property
    def soft_state(self) -> SoftState:
        return self.node.core.soft_state

    async def run(self) -> None:
        """Work until cancelled. Raises StorageError (also LostLog) when this node must stop."""
        self._tick()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._failure is not None:
                    raise self._failure
                await self._carry_out()
        finally:
            if self._ticker is not None:
                self._ticker.cancel()
            self.node.close()
            self._executor.shutdown(wait=True)
            self._file.close()

    def receive(self, message: Message) -> None:
        """A message from another node."""
        try:
            self.node.step(message)
        except StorageError as error:
            self._failure = error
        self._wake.set()

    async def propose(self, data: bytes, timeout_ms: int) -> Any:
        """Have a command decided and return the state machine's reply.

        Raises NotLeader and ProposalRefused (nothing happened), OutcomeUnknown and RequestTimeout (it may have, or may yet).
        """
        return await self._wait(lambda answered: self.node.propose(data, answered), timeout_ms, "decide")

    async def read_barrier(self, timeout_ms: int) -> None:
        """Return when the state machine holds everything decided, or proposed here, before the call.

        Raises NotLeader or RequestTimeout.
        """
        await self._wait(self.node.read, timeout_ms, "confirm a read")

    async def _wait(self, start: Callable[[Callable[[Any], None]], None], timeout_ms: int, what: str) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, LogboomError):
                future.set_exception(result)
            else:
                future.set_result(result)

        start(answered)
        self._wake.set()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        except TimeoutError as error:
            raise RequestTimeout(f"the controllers could not {what} within {timeout_ms} ms") from error

    async def _carry_out(self) -> None:
        loop = asyncio.get_running_loop()
        while (ready := self.node.ready()) is not None:
            for message in ready.send_now:
                self._send(message)
            if ready.persist is not None:
                await loop.run_in_executor(self._executor, self._file.persist, ready.persist)
            for message in ready.send_after_persist:
                self._send(message)
            self.node.finish()
            if ready.restore is not None:
                log.info("restored the leader's snapshot of entry %d", ready.restore.index)
            self._report()
            compaction = self.node.compaction()
            if compaction is not None:
                await loop.run_in_executor(self._executor, self._file.compact, compaction)
                log.info("compacted the raft log up to %d", compaction.snapshot.index)

    def _report(self) -> None:
        state = self.node.core.soft_state
        if state != self._soft_state:
            self._soft_state = state
            log.info("raft: %s in term %d, leader %s", state.role, state.term, state.leader or "unknown")
            self._changed(state)

    def _tick(self) -> None:
        # A late tick is one tick: after a pause of the process, time that the node slept through must not depose anybody.
        self.node.tick()
        self._wake.set()
        self._ticker = asyncio.get_running_loop().call_later(self._tick_ms / 1000, self._tick)
