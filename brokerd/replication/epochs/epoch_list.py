"""The epoch list: which master epoch wrote which part of the log, and what two logs therefore have in common (pure).

The whole of replication rests on one lemma. A master epoch has one incarnation of one master; it begins at a fixed position
and only appends. So when two replicas both have an entry (epoch, start), their logs are byte-identical on [0, min of that
epoch's two ends). The rules here keep the premises true: epochs and starts strictly increase, a start never moves once a byte
of its epoch was sent, and an epoch that got no byte leaves no entry behind.

Owned by `role_machine`, which persists every change through `epoch_file` before it acts on it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from remoting.checksum import crc32
from remoting.errors import CorruptedFile

MAX_ENTRIES_READ = 100_000
_MAX_EPOCH = 2**31 - 1
_MAX_OFFSET = 2**63 - 1


class EpochEntry(NamedTuple):
    """Everything from `start_offset` to the next entry's start was written by the master of `epoch`."""

    epoch: int
    start_offset: int


class EpochList:
    """The entries of one replica, oldest first."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[EpochEntry] = ()) -> None:
        self._entries: list[EpochEntry] = list(entries)
        assert is_increasing(self._entries), f"epochs and starts must both increase: {self._entries}"

    @property
    def entries(self) -> Sequence[EpochEntry]:
        return tuple(self._entries)

    @property
    def last(self) -> EpochEntry | None:
        return self._entries[-1] if self._entries else None

    @property
    def last_epoch(self) -> int:
        """The newest epoch, or -1 when there is none (as the wire has it)."""
        return self._entries[-1].epoch if self._entries else -1

    def begin(self, epoch: int, start_offset: int) -> None:
        """Let `epoch` begin at `start_offset`, which is the end of the log.

        Entries that start there (or, after a cut, beyond) never got a byte: they make room, whatever their epoch. If one were
        kept, the bytes that follow would carry its number, and two masters' bytes would share it.
        """
        assert epoch >= 0, epoch
        assert start_offset >= 0, start_offset
        while self._entries and (self._entries[-1].epoch >= epoch or self._entries[-1].start_offset >= start_offset):
            assert self._entries[-1].start_offset >= start_offset, (
                f"epoch {epoch} cannot begin at {start_offset}: epoch {self._entries[-1].epoch} has bytes before that"
            )
            self._entries.pop()
        self._entries.append(EpochEntry(epoch, start_offset))

    def cover(self, min_offset: int) -> None:
        """Give bytes from before the first known epoch (a log that was written without epochs) the number 0."""
        if not self._entries or (self._entries[0].start_offset > min_offset and self._entries[0].epoch > 0):
            self._entries.insert(0, EpochEntry(0, min_offset))

    def cut(self, offset: int) -> bool:
        """The log was cut to `offset`: forget the epochs that begin there or later. Says whether anything changed."""
        before = len(self._entries)
        while self._entries and self._entries[-1].start_offset >= offset:
            self._entries.pop()
        return len(self._entries) != before

    def drop_beyond(self, end_offset: int) -> bool:
        """Forget epochs that begin beyond the log's end (a crash between cutting the log and writing this list)."""
        return self.cut(end_offset + 1)

    def forget_before(self, min_offset: int) -> bool:
        """Files below `min_offset` are gone: forget epochs that end there; the one that covers it stays."""
        count = max(0, self._index(min_offset))
        del self._entries[:count]
        return count > 0

    def replace(self, entries: Sequence[EpochEntry]) -> None:
        """Hold these entries instead."""
        assert is_increasing(entries), entries
        self._entries[:] = entries

    def find(self, offset: int) -> tuple[EpochEntry, int | None] | None:
        """The entry whose epoch wrote `offset` (or will write it next) and that epoch's end; None end = the newest epoch."""
        index = self._index(offset)
        if index < 0:
            return None
        end = self._entries[index + 1].start_offset if index + 1 < len(self._entries) else None
        return self._entries[index], end

    def common_end(self, own_end: int, peer: Sequence[EpochEntry], peer_end: int) -> int | None:
        """Up to where this log (ending at `own_end`) and the peer's are surely identical; None = no epoch in common."""
        peer_ends: dict[EpochEntry, int] = {}
        for index, entry in enumerate(peer):
            peer_ends[entry] = peer[index + 1].start_offset if index + 1 < len(peer) else peer_end
        end = own_end
        for entry in reversed(self._entries):
            other = peer_ends.get(entry)
            if other is not None:
                return min(end, other)
            end = entry.start_offset
        return None

    def _index(self, offset: int) -> int:
        """Of the entry whose epoch wrote `offset`; -1 for one before the first."""
        return bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1


def is_increasing(entries: Sequence[EpochEntry]) -> bool:
    """Both columns strictly increase and fit the file's and the wire's integers."""
    previous = EpochEntry(-1, -1)
    for entry in entries:
        if not (
            previous.epoch < entry.epoch <= _MAX_EPOCH and previous.start_offset < entry.start_offset <= _MAX_OFFSET
        ):
            return False
        previous = entry
    return True


def encode_epochs(entries: Sequence[EpochEntry]) -> bytes:
    """The epoch file: the number of entries, the CRC of the entry lines, one `epoch-startOffset` line each."""
    lines = "".join(f"{entry.epoch}-{entry.start_offset}\n" for entry in entries).encode("ascii")
    return b"%d\n%d\n%s" % (len(entries), crc32(lines) & 0x7FFFFFFF, lines)


def decode_epochs(content: bytes, path: str) -> list[EpochEntry]:
    """Read an epoch file; a CRC of 0 is not checked (older writers). Raises CorruptedFile."""
    try:
        lines = content.decode("ascii").splitlines()
        count, checksum = int(lines[0]), int(lines[1])
        body = lines[2:]
        if count != len(body) or count > MAX_ENTRIES_READ:
            raise CorruptedFile(f"{path}: {len(body)} epoch entries where its first line says {count}")
        covered = "".join(f"{line}\n" for line in body).encode("ascii")
        if checksum not in (0, crc32(covered) & 0x7FFFFFFF):
            raise CorruptedFile(f"{path}: the checksum {checksum} does not fit the epoch entries")
        entries = [_decode_entry(line) for line in body]
    except (IndexError, ValueError) as error:
        raise CorruptedFile(f"{path}: not an epoch file: {error}") from error
    if not is_increasing(entries):
        raise CorruptedFile(f"{path}: epochs and start offsets must both increase: {entries[:10]}")
    return entries


def _decode_entry(line: str) -> EpochEntry:
    epoch, _, start = line.partition("-")
    if not (epoch.isdigit() and start.isdigit()):
        raise ValueError(f"bad entry {line[:60]!r}")
    return EpochEntry(int(epoch), int(start))
