"""Records that are laid out for the end of the log and are not in it yet (pure).

The store begins a run, one who lays out records adds them to it, and the store appends it as one: until then nothing but the run
knows the numbers that its messages take, and a run that is dropped leaves nothing behind. The store appends nothing else in
between, so nobody waits while he holds a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from brokerd.store.log.derive import Entry
from brokerd.store.queues.queue_offsets import TakenOffsets
from remoting.disk import Bytes


class AppendResult(NamedTuple):
    """Where one message went; `end_offset` is where its record ends, `queue_offset` -1 for one that enters no queue."""

    physical_offset: int
    size: int
    queue_offset: int
    end_offset: int


class Run:
    """Whole records for the log from `start` on, and what their append changes.

    Whoever lays out adds to `records` (bytes in any pieces), adds to `entries` what `derive` would find in them, in log order,
    moves `end_offset` on, never beyond `limit`, and takes queue offsets from `next_offsets`, or in C from `taken`, which is the
    same before what C took is settled; `add_together` is for records whose entries are a sequence of their own. `folded` counts
    the messages that have no entry of their own. All records carry `timestamp_ms`, and with `seals` a checksum, wherever they
    have room for it. What is in `appended` is called, in order, when the run is in the log. One that `is_own` has nothing of
    clients.
    """

    __slots__ = (
        "appended",
        "end_offset",
        "entries",
        "folded",
        "is_own",
        "limit",
        "most_bytes",
        "parts",
        "records",
        "seals",
        "start",
        "taken",
        "timestamp_ms",
    )

    def __init__(
        self, start: int, limit: int, most_bytes: int, timestamp_ms: int, next_offsets: TakenOffsets, seals: bool
    ) -> None:
        """`most_bytes` is what a run has room for that begins a file of the log."""
        self.start = self.end_offset = start
        self.limit = limit
        self.most_bytes = most_bytes
        self.timestamp_ms = timestamp_ms
        self.taken = next_offsets
        self.seals = seals
        self.is_own = False
        self.records: list[Bytes] = []
        self.parts: list[tuple[Sequence[Entry], int]] = []  # entries in front of `entries`, and where each part ends
        self.entries: list[Entry] = []
        self.folded = 0
        self.appended: list[Callable[[], None]] = []

    @property
    def next_offsets(self) -> TakenOffsets:
        """What comes next in the queues."""
        taken = self.taken
        if taken.in_c:
            taken.settle()
        return taken

    @property
    def size(self) -> int:
        """Bytes laid out so far."""
        return self.end_offset - self.start

    @property
    def room(self) -> int:
        """Bytes that still fit."""
        return self.limit - self.end_offset

    @property
    def message_count(self) -> int:
        """Messages that enter a queue."""
        return self.entry_count + self.folded

    def add_together(self, records: Bytes, entries: Sequence[Entry], size: int) -> None:
        """Lay out records of so many bytes whose entries are dispatched as they are here."""
        if self.entries:
            self.parts.append((self.entries, self.end_offset))
            self.entries = []
        self.records.append(records)
        self.end_offset += size
        self.parts.append((entries, self.end_offset))

    @property
    def entry_count(self) -> int:
        """Entries in all."""
        return sum(len(entries) for entries, _ in self.parts) + len(self.entries)

    def all_entries(self) -> Iterator[Entry]:
        """Those of all parts, in log order."""
        for entries, _ in self.parts:
            yield from entries
        yield from self.entries

    def offers(self) -> Iterator[tuple[int, Sequence[Entry], int]]:
        """The entries of all of it, in parts: each with where it begins and ends."""
        begin = self.start
        for entries, end in (*self.parts, (self.entries, self.end_offset)):
            if end > begin:
                yield begin, entries, end
            begin = end
