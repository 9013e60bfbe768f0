"""Connections of the console's server that nothing is done for: how many there may be (`remoting/transport/waiting.py`).

A connection waits while nothing came of it, while a handshake or a request is on its way, between two requests, and while it is
closing. Each has its time, but in it strangers can open so many that memory or file descriptors run out; who has a request
served, or a websocket, is none of them.
"""

from __future__ import annotations

import resource
from typing import Final

MOST_WAITING: Final = 1024  # of which a handshake holds some 80 KiB at the worst


def most_waiting() -> int:
    """How many there may be in this process, which leaves half of its file descriptors to others."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_WAITING if soft == resource.RLIM_INFINITY else min(MOST_WAITING, soft // 2)
