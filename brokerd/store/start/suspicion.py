"""A log that ends at damage which no crash need have made: what a start found, and the file that remembers it.

    suspicion    one line of JSON {"start", "until", "confirmed"}, and a line with its CRC-32 in decimal digits

A suspect log is told to the controllers and not elected while another copy may be. What is behind the damage stays where it is
until they have decided without it. The file outlives the process, since the damage may be overwritten before they were told; one
that cannot be read is a suspicion of which nothing is known.

`MessageStore` owns it.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Final

import orjson

from brokerd.store.log.commitlog import DIRECTORY as COMMITLOG
from brokerd.store.log.layout import file_name, file_start
from remoting.checksum import crc32
from remoting.disk import Disk
from remoting.errors import ProtocolError
from remoting.facts.codec import decode

PATH: Final = "suspicion"
DIRECTORY: Final = "damaged"
_LEAST_BYTES: Final = 1 << 16
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SuspectEnd:
    """Physical offsets: the log ends at `start`, where it is damaged; intact records were found behind it, the last of which ends
    at `until` (`start` when none was). `confirmed`: how far those say that the log was confirmed, -1 when they say nothing."""

    start: int
    until: int
    confirmed: int = -1

    def and_earlier(self, earlier: SuspectEnd | None) -> SuspectEnd:
        """With what an earlier start knew, which nobody has judged since; its checkpoint may have been another one."""
        if earlier is None:
            return self
        confirmed = max(self.confirmed, earlier.confirmed)
        return SuspectEnd(self.start, max(self.until, earlier.until), confirmed if confirmed > self.start else -1)

    @property
    def sentence(self) -> str:
        """For a person."""
        behind = f", and whole records follow up to {self.until}" if self.until > self.start else ""
        if self.confirmed > self.start:
            lacks = (
                f"it lacks acknowledged messages, as the log was confirmed up to {self.confirmed}, and is not elected; when no "
                "other copy exists, start once with --set store.truncate_damaged_log=true to give them up"
            )
        else:
            lacks = "it may lack acknowledged messages, and is not elected while a copy that does not may be"
        return f"the commitlog is damaged at offset {self.start}, as no crash need have left it{behind}: {lacks}"


def set_aside(disk: Disk, suspicion: SuspectEnd, segment_size_bytes: int) -> None:
    """Copy what the log's files have from the damage on, as far as anything whole is there: it may be the last copy of what the
    log goes on without. Durable when it returns. Raises StorageError."""
    offset, end = suspicion.start, max(suspicion.until, suspicion.start + _LEAST_BYTES)
    while offset < end:
        start = file_start(offset, segment_size_bytes)
        length = min(end, start + segment_size_bytes) - offset
        source = f"{COMMITLOG}/{file_name(start)}"
        if not disk.exists(source):
            return
        with (
            closing(disk.open(source)) as file,
            closing(disk.open(f"{DIRECTORY}/{file_name(offset)}", create=True)) as copy,
        ):
            for position in range(0, length, _PIECE_BYTES):
                piece = file.read(offset - start + position, min(_PIECE_BYTES, length - position))
                copy.write(position, (piece,))
            copy.sync()
        offset += length


class SuspicionFile:
    """The file, if there is one."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def load(self, end: int) -> SuspectEnd | None:
        """What is remembered, None without a file; `end` is where the log ends now."""
        content = self._disk.read_bytes(PATH)
        if content is None:
            return None
        line, _, checksum = content.partition(b"\n")
        try:
            if int(checksum) == crc32(line):
                return decode(SuspectEnd, line, exactly=True)
        except (ValueError, ProtocolError):
            pass
        return SuspectEnd(end, end)

    def save(self, suspicion: SuspectEnd) -> None:
        """Durable when it returns."""
        line = orjson.dumps(asdict(suspicion))
        self._disk.replace_bytes(PATH, b"%b\n%d\n" % (line, crc32(line)))

    def remove(self) -> None:
        self._disk.remove(PATH)
