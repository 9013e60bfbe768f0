"""How much memory a process and all its descendants use, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree_memory_bytes(pid: int) -> int:
    """Resident memory of the process and its descendants; those that end meanwhile count as nothing."""
    return sum(_resident_bytes(each) for each in tree(pid))


def tree(pid: int) -> list[int]:
    """The process and its living descendants."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            parent = _parent(int(entry.name))
            if parent is not None:
                parents.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        each = waiting.pop()
        found.append(each)
        waiting += parents.get(each, [])
    return found


def _parent(pid: int) -> int | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name stands in brackets and may hold anything: the fields begin after the last one
    return int(status.rpartition(")")[2].split()[1])


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
