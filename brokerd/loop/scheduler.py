"""What the broker's services need of an event loop. asyncio's loops have it, and so has the simulator's.

All callbacks run on the one thread of the loop, never inside the call that scheduled them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    def time(self) -> float:
        """Monotonic seconds."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any:
        """Run the callback in the next turn of the loop."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Run the callback after `delay` seconds unless the timer is cancelled."""
