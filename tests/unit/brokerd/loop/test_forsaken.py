"""Threads that nobody waits for: they do what a pool's do, and a process ends whatever they are in."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from brokerd.loop.forsaken import ForsakenThreads

_PATIENCE_S = 60


def test_a_process_ends_while_a_thread_reads_what_never_comes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "object")
    program = f"""
import asyncio
from pathlib import Path
from brokerd.tiers.objects.directory import DirectoryFiles

async def stop():
    reading = asyncio.ensure_future(files.in_thread(files.read, "object", 0, 1))
    await files.in_thread(print, "the other one reads")
    reading.cancel()

files = DirectoryFiles(Path({str(tmp_path)!r}))
asyncio.run(stop())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=_PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the other one reads\n", "")


async def test_what_is_done_is_the_answer() -> None:
    threads, loop = ForsakenThreads(2, "forsaken"), asyncio.get_running_loop()
    assert await loop.run_in_executor(threads, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(threads, divmod, 7, 0)
    assert await asyncio.wrap_future(threads.submit(int, "11", base=2)) == 3


async def test_so_many_at_most_and_no_more_than_are_needed() -> None:
    threads, loop = ForsakenThreads(3, "forsaken"), asyncio.get_running_loop()
    for _ in range(10):
        names = {await loop.run_in_executor(threads, _own_name)}
    assert names == {"forsaken_0"}
    together = threading.Barrier(4)
    waiting = [loop.run_in_executor(threads, together.wait, _PATIENCE_S) for _ in range(3)]
    queued = [loop.run_in_executor(threads, _own_name) for _ in range(5)]
    await asyncio.to_thread(together.wait, _PATIENCE_S)
    await asyncio.gather(*waiting)
    assert set(await asyncio.gather(*queued)) <= {f"forsaken_{number}" for number in range(3)}


async def test_what_was_cancelled_before_its_turn_is_not_done() -> None:
    threads, loop = ForsakenThreads(1, "forsaken"), asyncio.get_running_loop()
    go_on, done = threading.Event(), list[int]()
    first = loop.run_in_executor(threads, go_on.wait, _PATIENCE_S)
    second = threads.submit(done.append, 2)
    third = threads.submit(done.append, 3)
    assert second.cancel()
    go_on.set()
    await asyncio.gather(first, asyncio.wrap_future(third))
    assert done == [3]


async def test_nothing_of_what_is_done_is_kept() -> None:
    class Content:
        """Of an object."""

    threads, loop = ForsakenThreads(1, "forsaken"), asyncio.get_running_loop()
    content: Any = Content()
    gone = weakref.ref(content)
    assert await loop.run_in_executor(threads, lambda each: each is not None, content)
    await loop.run_in_executor(threads, _own_name)  # it waits for the next one since
    del content
    gc.collect()
    assert gone() is None


def _own_name() -> str:
    return threading.current_thread().name
