"""Slices of the processor: what a thread asked for, and that nobody else has it by that."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import pytest

from brokerd.loop.aside import HelperThreads
from brokerd.loop.slices import SHORT_NS, give_way, keep_short

_GET: Final = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_LINUX: Final = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2])

pytestmark = pytest.mark.skipif(
    platform.machine() not in _GET or _LINUX < (6, 12), reason="this system has no slices that can be asked for"
)


class Asked(NamedTuple):
    policy: int
    nice: int
    slice_ns: int


def asked() -> Asked:
    """What this thread has."""
    out = ctypes.create_string_buffer(_ATTRIBUTES.size)
    assert not ctypes.CDLL(None).syscall(_GET[platform.machine()], 0, out, _ATTRIBUTES.size, 0)
    _, policy, _, nice, _, slice_ns, _, _ = _ATTRIBUTES.unpack(out.raw)
    return Asked(policy, nice, slice_ns)


def in_thread(work: Callable[[], Asked]) -> Asked:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def test_a_thread_has_short_slices_as_long_as_it_wants() -> None:
    usual = asked()

    def short() -> Asked:
        keep_short(is_short=True)
        return asked()

    def usual_again() -> Asked:
        short()
        keep_short(is_short=False)
        return asked()

    assert in_thread(short) == usual._replace(slice_ns=SHORT_NS)
    assert in_thread(usual_again) == usual
    assert asked() == usual, "others have what they had"


async def test_helpers_interrupt_nobody_and_have_usual_slices_whoever_begins_them() -> None:
    usual = asked()
    keep_short(is_short=True)
    try:
        helper = await HelperThreads(1, "helper").run(asked)
    finally:
        keep_short(is_short=False)
    assert helper == usual._replace(policy=os.SCHED_BATCH)


def test_who_has_another_policy_keeps_it() -> None:
    def idle() -> Asked:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        before = asked()
        keep_short(is_short=True)
        give_way()
        assert asked() == before
        return before

    assert in_thread(idle).policy == os.SCHED_IDLE
