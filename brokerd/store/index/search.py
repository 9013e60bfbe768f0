"""One query of the index: walks the chains of a key from the newest message to the oldest, in steps.

The index knows hashes of keys and times by the second; every message it names is looked at, so what comes out has the key and the
time that were asked for. Bounded: the number of messages, their bytes, and how many items are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.store.index.hashing import key_hash
from brokerd.store.index.index_file import IndexFile
from brokerd.store.index.key_index import KeyIndex
from brokerd.store.index.postings import has_key
from remoting.record.fields import properties_of, store_timestamp_of, topic_of

MOST_MESSAGES: Final = 64
MOST_BYTES: Final = 8 << 20
_MOST_LOOKED_AT: Final = 100_000
_READ_COSTS: Final = 8  # a message that is read counts as so many items that are looked at


class Question(NamedTuple):
    """What to find: the newest `most` messages of the topic with the key that were stored in [begin_ms, end_ms]."""

    topic: str
    key: str
    most: int
    begin_ms: int
    end_ms: int


class Search:
    """One question to the index, answered in slices.

    `is_complete` tells whether everything was looked at that could answer the question.
    """

    def __init__(self, index: KeyIndex, read: Callable[[int], bytes | None], question: Question) -> None:
        """`read(physical_offset)` gives the record that starts there, if consumers may see it."""
        self._read = read
        self._question = question
        self._hash = key_hash(question.topic, question.key)
        self._files = [file for file in index.files if self._may_hold(file)]
        self._file: IndexFile | None = None
        self._generation = 0
        self._number = 0
        self._looked_at = 0
        self._bytes = 0
        self._found: dict[int, bytes] = {}
        self._seen = -1
        self.is_complete = False

    def step(self, most: int) -> bool:
        """Look at up to that many more items; whether the search is over."""
        while most > 0:
            if self._is_over():
                return True
            if self._number == 0:
                self._next_file()
                most -= 1
                continue
            cost = self._look()
            self._looked_at += cost
            most -= cost
        return self._is_over()

    def records(self) -> list[bytes]:
        """What was found, oldest first."""
        return [self._found[offset] for offset in sorted(self._found)]

    def _is_over(self) -> bool:
        if self._number == 0 and not self._files:
            self.is_complete = True
            return True
        return (
            len(self._found) >= self._question.most or self._bytes >= MOST_BYTES or self._looked_at >= _MOST_LOOKED_AT
        )

    def _may_hold(self, file: IndexFile) -> bool:
        header, question = file.header, self._question
        return header.begin_timestamp_ms <= question.end_ms and header.end_timestamp_ms >= question.begin_ms

    def _next_file(self) -> None:
        file = self._file = self._files.pop()
        self._generation = file.generation
        self._number = file.newest_of(self._hash) if file.is_open else 0
        if not 0 < self._number < file.header.next_item:  # there is none, or the slot is rotten
            self._number = 0

    def _look(self) -> int:
        """Look at one item and go to the next older one; returns what that cost."""
        file, number, question = self._file, self._number, self._question
        assert file is not None
        if file.generation != self._generation or not file.is_open:  # the log was cut, or the file expired
            self._number = 0
            return 1
        hashed, offset, difference, previous = file.item(number)
        # Links lead to older items, whatever a rotten file says.
        self._number = previous if 0 < previous < number else 0
        stored = file.header.begin_timestamp_ms + (difference * 1000 if number > 1 else 0)
        if stored + 999 < question.begin_ms:
            self._number = 0
            return 1
        if hashed != self._hash or stored > question.end_ms or offset in self._found or offset == self._seen:
            return 1
        self._seen = offset
        record = self._read(offset)
        if record is not None and answers(question, record):
            self._found[offset] = record
            self._bytes += len(record)
        return _READ_COSTS


def answers(question: Question, record: bytes) -> bool:
    """Whether it is of the topic, has the key, and was stored in that time."""
    return (
        question.begin_ms <= store_timestamp_of(record) <= question.end_ms
        and topic_of(record) == question.topic
        and has_key(properties_of(record), question.key)
    )
