"""How much memory a process and all its descendants use, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tree_memory_bytes(pid: int) -> int:
    """Resident memory of the process and its living descendants."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            status = path.read_text()
        except OSError:
            continue  # it ended meanwhile
        # the name stands in brackets and may hold anything: the fields begin after the last one
        fields = status.rpartition(")")[2].split()
        each = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(each)
        pages[each] = int(fields[21])
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return sum(pages.get(each, 0) for each in found) * _PAGE_BYTES
