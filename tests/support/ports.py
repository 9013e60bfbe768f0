"""Ports for listeners that a test starts: free, and given to nobody else, also where several test runs look for them at once."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

_LOWEST_PORT = 12_000
_PORTS = 10_000  # a broker's metrics listen as many above its own port, below outgoing connections too
_CHANCE = random.SystemRandom()  # another one in each process, whatever seed a test set
_given: set[int] = set()  # a listener that died, and its port with it, may come back


def free_ports(count: int, in_a_row: int = 1) -> list[int]:
    """Ports that nobody listened on a moment ago; all different, and each with the next ones of its row free as well.

    They lie below those that the system gives to outgoing connections: a process that is killed and restarted finds them free.
    They are given once: until this process ends, nobody in any process gets them from here.
    """
    found: list[int] = []
    while len(found) < count:
        port = _CHANCE.randrange(_LOWEST_PORT, _LOWEST_PORT + _PORTS - in_a_row)
        row = range(port, port + in_a_row)
        if _given.isdisjoint(row) and all(_is_ours(each) and _is_free(each) for each in row):
            found.append(port)
            _given.update(row)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_ours(port: int) -> bool:
    """Claim the port among test runs: a lock on one byte of a file, which the system gives back when this process ends."""
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


@cache
def _claims() -> int:
    """The file of claims, open once: closing it anywhere in this process would give all its claims back."""
    path = Path(tempfile.gettempdir()) / f"logboom-test-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
