"""For how long a thread keeps its processor while another one is ready (Linux; elsewhere nothing happens).

Linux gives threads slices of some milliseconds, and since 6.12 those who ask for it shorter ones. Who is woken then does not wait
for the end of a long slice: neither for the thread that asked, nor that one for others.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import struct
from typing import Final

log = logging.getLogger(__name__)

SHORT_NS: Final = 100_000  # the least that Linux gives
_DEFAULT: Final = 0
# sched_setattr, which not every libc has
_CALLS: Final = {"x86_64": 314, "aarch64": 274}
_THIS_THREAD: Final = 0
# struct sched_attr: its size, policy, flags, nice, priority, and the slice; deadline and period are those of other policies
_ATTRIBUTES: Final = struct.Struct("=IIQiIQQQ")
_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_ORDINARY: Final = (os.SCHED_OTHER, os.SCHED_BATCH)


def keep_short(is_short: bool) -> None:
    """This thread's slices are short from now on, or the usual ones."""
    _ask(os.sched_getscheduler(_THIS_THREAD), SHORT_NS if is_short else _DEFAULT)


def give_way() -> None:
    """This thread interrupts nobody when it is woken; its slices are the usual ones, whatever those of who began it are."""
    _ask(os.SCHED_BATCH, _DEFAULT)


def _ask(policy: int, slice_ns: int) -> None:
    call = _CALLS.get(platform.machine())
    if (
        call is None or os.sched_getscheduler(_THIS_THREAD) not in _ORDINARY
    ):  # somebody gave it another one, who knows why
        return
    nice = os.getpriority(os.PRIO_PROCESS, _THIS_THREAD)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, policy, 0, nice, 0, slice_ns, 0, 0)
    if _LIBC.syscall(call, _THIS_THREAD, attributes, 0):
        log.debug("slices stay as they are: %s", os.strerror(ctypes.get_errno()))  # a container may forbid the call
