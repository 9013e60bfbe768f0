"""Where the bytes of the commitlog live: file names and offset arithmetic (pure).

A physical offset is a position in one endless log. The log is cut into files of one size; a file is named by the offset of
its first byte. A record never crosses a file: when a record and a filler behind it no longer fit, the rest of the file is
declared blank by a filler and the record goes to the next file. So there is always room for a filler.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from remoting.errors import CorruptedFile
from remoting.record.layout import FILLER_BYTES

_NAME_DIGITS: Final = 20


def file_name(start: int) -> str:
    """The name of the file that starts at the offset: 20 digits."""
    assert 0 <= start < 10**_NAME_DIGITS
    return f"{start:020d}"


def parse_file_name(name: str) -> int | None:
    """The offset in a file's name, or None when it is not such a name."""
    if len(name) != _NAME_DIGITS or not name.isascii() or not name.isdigit():
        return None
    return int(name)


def file_start(offset: int, file_size: int) -> int:
    """The first offset of the file that holds the byte at `offset`."""
    return offset - offset % file_size


def must_roll(size: int, remaining: int) -> bool:
    """Whether a record of this size has to go to the next file."""
    return size + FILLER_BYTES > remaining


def check_file_starts(starts: Iterable[int], file_size: int, directory: str) -> None:
    """Raise CorruptedFile unless the files are aligned and without a hole between them."""
    expected: int | None = None
    for start in starts:
        if start % file_size or (expected is not None and start != expected):
            missing = file_name(start - start % file_size if expected is None else expected)
            raise CorruptedFile(
                f"{directory}/{file_name(start)} does not follow the file before it: {directory}/{missing} is missing, or the "
                f"files were written with another size than {file_size} bytes; restore it, or set the size they have"
            )
        expected = start + file_size
