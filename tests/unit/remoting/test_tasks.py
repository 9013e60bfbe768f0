from __future__ import annotations

import asyncio

import pytest

from remoting.transport import tasks
from remoting.transport.tasks import TaskOwner, end_tasks


async def test_a_task_that_swallows_a_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_ASK_AGAIN_S", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 2:
                    raise

    owner = TaskOwner("test")
    owner.spawn(stubborn(), "stubborn")
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await owner.close()
    assert swallowed == 3


async def test_what_a_task_ends_with_is_nobodys_concern() -> None:
    async def breaks() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("on the way out")

    broken = asyncio.create_task(breaks())
    await asyncio.sleep(0)
    await end_tasks([broken])
    assert broken.done()
