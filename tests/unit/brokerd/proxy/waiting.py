"""Waiting for a named condition instead of for time to pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(what: str, condition: Callable[[], object], timeout_s: float = 60) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s} s in vain for: {what}") from None
