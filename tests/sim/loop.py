"""An event loop of asyncio on a simulated node: what the daemons write as coroutines runs in the world's time, from its seed.

Whatever can run runs at once, until all of it waits for something; so nothing is left over between two events of the world. What
`asyncio.to_thread` is given to do is a step of its own, which comes a moment later. All of it belongs to the life in which it
began: what waits when that ends never goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any

from tests.sim.world import Node

_THREAD_MS = 0.3  # most that a helper thread takes to begin


class SimLoop(asyncio.BaseEventLoop):
    """Of one life of one node."""

    def __init__(self, node: Node, rng: Random) -> None:
        super().__init__()
        self._node = node
        self._rng = rng
        self._ready_now: deque[asyncio.Handle] = deque()
        self._errors: list[Exception] = []
        self._is_turning = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it as a task; an error that it ends with is raised out of the event in which it does."""
        task = asyncio.Task(work, loop=self)
        task.add_done_callback(lambda task: task.result())
        self.turn()

    def turn(self) -> None:
        """Run what can run. Raises what nobody handled."""
        if self._is_turning:
            return  # whoever does goes on until nothing is left
        self._is_turning = True
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            while self._ready_now:
                handle = self._ready_now.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(outer)
            self._is_turning = False
        if self._errors:
            raise self._errors.pop()

    # ---- what asyncio asks of a loop

    def time(self) -> float:
        return self._node.time()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready_now.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)

        def fire() -> None:
            self._ready_now.append(handle)
            self.turn()

        self._node.call_later(max(0.0, when - self.time()), fire)
        return handle

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.Task(self._do_in_thread(func, args), loop=self)

    async def _do_in_thread(self, func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        turn: asyncio.Future[None] = self.create_future()
        self._node.after(self._rng.uniform(0, _THREAD_MS), self._node.guarded(lambda: self.settle(turn, None)))
        await turn
        return func(*args)

    def settle(self, future: asyncio.Future[Any], outcome: Any) -> None:
        """Give the future its result, or raise the error in who waits for it, unless it has one; who waits goes on."""
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        self.turn()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Of an error in a callback; that a task of an ended life was never finished is nothing to tell."""
        if isinstance(error := context.get("exception"), Exception):
            self._errors.append(error)

    def __del__(self, _warn: Any = None) -> None:
        """It holds nothing that would have to be closed."""
