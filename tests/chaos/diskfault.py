"""A daemon's disk that fails on order: gives the orders to the preloaded shim, and says how often it obeyed.

dm-flakey would do it below the file system, for whole devices and where a kernel has it. The shim fails chosen calls on chosen
files of one process, needs no device, and counts what it did.
"""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.chaos.plan import DiskRule
from tests.chaos.shim import compile_shim, compiler_missing, preloading

_SOURCE: Final = Path(__file__).with_name("diskfault.c")
_ORDER: Final = struct.Struct("=7q72x128s")
_IN_FORCE: Final = struct.Struct("=q")
_COUNTS_AT: Final = 32
_CALLS: Final = {"read": 1, "write": 2, "sync": 4, "grow": 8}


class DiskFault:
    """One process's disk. Without an order it does what it is told."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises RuntimeError when the shim does not compile."""
        self._file = directory / f"{name}.disk"
        self._file.write_bytes(bytes(_ORDER.size))
        self.environment = preloading(compile_shim(_SOURCE, directory), "CHAOS_DISK_FAULT", self._file)

    def fail(self, rule: DiskRule) -> None:
        """From now on, until `obey`."""
        self.obey()
        calls = sum(_CALLS[each] for each in rule.calls)
        number = int(getattr(errno, rule.error)) if rule.error else 0
        part = rule.part.encode()
        with open(self._file, "r+b") as file:
            file.write(_ORDER.pack(0, calls, number, rule.every, 0, 0, int(rule.stands), part))
        self._put_in_force(1)

    def obey(self) -> None:
        self._put_in_force(0)

    def _put_in_force(self, value: int) -> None:
        with open(self._file, "r+b") as file:
            file.write(_IN_FORCE.pack(value))

    @property
    def hits(self) -> int:
        """How many calls the present order, or the last one, has failed, or made wait."""
        _, hits = struct.unpack_from("=2q", self._file.read_bytes(), _COUNTS_AT)
        return int(hits)


def why_not() -> str | None:
    """One sentence that says why no disk can be made to fail here, or None: tried with a program that reads a file."""
    if reason := compiler_missing():
        return reason
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        try:
            fault = DiskFault(directory, "probe")
        except RuntimeError as error:
            return str(error)
        probe = directory / "file"
        probe.write_bytes(b"x")
        fault.fail(DiskRule(str(probe), ("read",), "EIO"))
        program = "import os, sys; os.pread(os.open(sys.argv[1], os.O_RDONLY), 1, 0)"
        done = subprocess.run(
            [sys.executable, "-c", program, str(probe)],
            env=fault.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0 or not fault.hits:
            return f"a preloaded library does not come between programs and their files here: {done.stderr[-200:]}"
    return None
