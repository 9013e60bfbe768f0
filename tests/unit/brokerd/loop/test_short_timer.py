"""The timer for parts of a millisecond, on a real event loop."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os

import pytest

from brokerd.loop import short_timer
from brokerd.loop.short_timer import ShortTimer


async def started() -> ShortTimer:
    timer = ShortTimer()
    timer.start(asyncio.get_running_loop())
    return timer


async def test_it_calls_when_the_time_is_over_and_not_before() -> None:
    loop, timer = asyncio.get_running_loop(), await started()
    for delay_s in (0.0001, 0.0, 0.02):
        done = asyncio.Event()
        began_s = loop.time()
        timer.call(delay_s, done.set)
        await done.wait()
        assert loop.time() - began_s >= delay_s
    timer.close()


async def test_sockets_are_looked_at_meanwhile() -> None:
    loop, timer = asyncio.get_running_loop(), await started()
    seen: list[str] = []
    done = asyncio.Event()
    reader, writer = os.pipe()

    def heard() -> None:
        os.read(reader, 1)
        seen.append("socket")

    def over() -> None:
        seen.append("timer")
        done.set()

    loop.add_reader(reader, heard)
    timer.call(0.05, over)
    os.write(writer, b"x")
    await done.wait()
    assert seen == ["socket", "timer"]
    loop.remove_reader(reader)
    os.close(reader)
    os.close(writer)
    timer.close()


async def test_what_it_is_asked_later_takes_the_place_of_what_it_waited_for() -> None:
    timer, heard, done = await started(), list[str](), asyncio.Event()
    timer.call(0.0001, lambda: heard.append("first"))
    await asyncio.sleep(0)
    timer.call(0.01, done.set)
    await done.wait()
    assert not heard
    timer.close()


async def test_nothing_comes_before_its_start_and_behind_its_end() -> None:
    heard: list[str] = []
    timer = ShortTimer()
    timer.call(0.0001, lambda: heard.append("too early"))
    timer.start(asyncio.get_running_loop())
    timer.call(0.0001, lambda: heard.append("closed"))
    timer.close()
    timer.call(0.0001, lambda: heard.append("too late"))
    timer.close()
    await asyncio.sleep(0.01)
    assert not heard


async def test_a_process_without_files_left_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def timerfd_create(self, _clock: int, _flags: int) -> int:
            ctypes.set_errno(errno.EMFILE)
            return -1

    monkeypatch.setattr(short_timer, "_LIBC", Full())
    with pytest.raises(OSError, match="open files"):
        await started()
