"""What a process has used: CPU time and memory, as the kernel counts them.

CPU time per message is the steadier measure on a machine that others use too: a wait for the processor does not count in it.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 1024 * 1024
_REST_S: Final = 0.5
_REST_SHARE: Final = 0.06  # of a processor, of which a process that nobody asks for anything takes some
_ROLLUP_LINE: Final = re.compile(r"^(Rss|Pss|Anonymous):\s+(\d+) kB$", re.MULTILINE)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process since it started."""
    # the program's name, in parentheses, may have blanks: the fields are counted after it
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / _TICKS_PER_SECOND


def wait_at_rest(pid: int, timeout_s: float = 120) -> None:
    """Until the process does next to nothing: what it had put off is done. Raises RuntimeError when it never is."""
    deadline, used_s = time.monotonic() + timeout_s, cpu_seconds(pid)
    while True:
        time.sleep(_REST_S)
        before_s, used_s = used_s, cpu_seconds(pid)
        if used_s - before_s <= _REST_SHARE * _REST_S:
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} is still busy after {timeout_s} s")


def family_cpu_seconds(pid: int) -> float:
    """The same of a process, all that descend from it, and what those used that have ended."""
    stats = _all_stats()
    return sum(sum(map(int, stats[member][11:15])) for member in _family(pid, stats)) / _TICKS_PER_SECOND


def family_of(pid: int) -> set[int]:
    """A process and all that descend from it."""
    return _family(pid, _all_stats())


def _all_stats() -> dict[int, list[str]]:
    """Of each process: the fields of its `stat` from its state on."""
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                stats[int(entry.name)] = (entry / "stat").read_text().rpartition(") ")[2].split()
    return stats


def _family(pid: int, stats: dict[int, list[str]]) -> set[int]:
    family = {pid} & stats.keys()
    while more := {child for child, fields in stats.items() if int(fields[1]) in family} - family:
        family |= more
    return family


@dataclass(frozen=True)
class Memory:
    """Resident memory in MB: what is the process's own, and what are pages of files (programs, libraries, mapped data)."""

    resident_mb: float
    anonymous_mb: float
    shared_once_mb: float  # what is shared with other processes counted in part (PSS)

    @property
    def file_mb(self) -> float:
        return self.resident_mb - self.anonymous_mb


def memory_of(pid: int) -> Memory:
    """What a process holds now."""
    lines = dict(_ROLLUP_LINE.findall(Path(f"/proc/{pid}/smaps_rollup").read_text()))
    resident, anonymous, proportional = (int(lines[name]) * 1024 / _MIB for name in ("Rss", "Anonymous", "Pss"))
    return Memory(resident, anonymous, proportional)
