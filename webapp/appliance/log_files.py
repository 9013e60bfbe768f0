"""The processes' log files: kept to a size, and asked for the last thing a process said.

A process writes into its file directly (see `processes`), so the file cannot be moved away: it is copied to NAME.log.1 and
cut to nothing. Appending writers go on at the new end. What a process writes between copy and cut, a few lines at most, is
lost; that is the price for never blocking a broker on its log.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROTATE_AT_BYTES = 10 * 1024 * 1024
KEPT = 3

_TAIL_BYTES = 4096
_LINE_CHARACTERS = 300
_PREFIX = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: ")  # of our daemons' log


def rotate(path: Path, rotate_at_bytes: int = ROTATE_AT_BYTES, kept: int = KEPT) -> bool:
    """Rotate the file if it is too large; say whether it was."""
    if not path.exists() or path.stat().st_size < rotate_at_bytes:
        return False
    for number in range(kept, 1, -1):
        older, newer = numbered(path, number), numbered(path, number - 1)
        if newer.exists():
            os.replace(newer, older)
    shutil.copyfile(path, numbered(path, 1))
    os.truncate(path, 0)
    return True


def numbered(path: Path, number: int) -> Path:
    """The name of the `number`-th older file."""
    return path.with_name(f"{path.name}.{number}")


def size(path: Path) -> int:
    """How many bytes it has; 0 without a file."""
    return path.stat().st_size if path.exists() else 0


def last_line(path: Path, begin: int = 0) -> str | None:
    """The last line from `begin` on that says something, for an error message, without its time; None when there is none. A file
    that was cut since counts from its begin."""
    try:
        with path.open("rb") as file:
            end = os.fstat(file.fileno()).st_size
            file.seek(max(begin if begin <= end else 0, end - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    said = (_PREFIX.sub("", line.strip()) for line in reversed(lines))
    return next((line[:_LINE_CHARACTERS] for line in said if line), None)
