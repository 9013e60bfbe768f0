"""The properties of many records -> the columns that come from them, without a Python object for each (pure)

All property strings lie in one buffer, one behind the other. What separates names, values and entries is found in it at once, and
from then on entries are numbers: where each begins, where its value does, where it ends. Entries without a name or a value are
dropped, and so is the record's checksum. A name may occur twice in a record: the last one counts.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remoting.record import checksum
from remoting.record.properties import NAME_SEPARATOR, PROPERTY_SEPARATOR
from tasks.spark.parts import Ints

Marks = npt.NDArray[np.uint64]  # a few bytes of a text, as a number

_NAME_END: Final = ord(NAME_SEPARATOR)
_ENTRY_END: Final = ord(PROPERTY_SEPARATOR)
_MARK_BYTES: Final = 8
# What is left of a mark when a name has fewer bytes, by how many: of its first ones, and of its last ones
_FIRST_OF: Final = np.array([(1 << 8 * length) - 1 for length in range(_MARK_BYTES + 1)], dtype=np.uint64)
_LAST_OF: Final = ~_FIRST_OF[::-1]
_CHECKSUM: Final = checksum.NAME.encode()
# Odd numbers without a pattern, to mix what tells names apart into one number
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], dtype=np.uint64)


class Properties:
    """The properties of all records, taken apart once for all columns that come from them."""

    def __init__(self, strings: pa.Array) -> None:
        """`strings` are the records' property strings, in order."""
        self._count = len(strings)
        rows, begins, middles, ends = _entries(strings)
        data = strings.buffers()[2]
        text = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
        lengths = middles - begins
        # Room on both sides, so that a mark can be taken at every byte
        self._padded = np.concatenate([np.zeros(_MARK_BYTES, np.uint8), text, np.zeros(_MARK_BYTES, np.uint8)])
        first = self._marks(begins + _MARK_BYTES) & _FIRST_OF[np.minimum(lengths, _MARK_BYTES)]
        whole = (lengths > 0) & (ends > middles + 1) & ~_is(_CHECKSUM, lengths, first, len(_CHECKSUM))
        if not whole.all():
            rows, begins, middles, ends = rows[whole], begins[whole], middles[whole], ends[whole]
            lengths, first = lengths[whole], first[whole]
        self._rows, self._lengths, self._first, self._middles = rows, lengths, first, middles
        # Names, separators and values are the values of one array over the text: four for each entry, the name the first
        borders = np.empty(4 * len(rows) + 1, dtype=np.int32)
        borders[0:-1:4], borders[1::4], borders[2::4], borders[3::4] = begins, middles, middles + 1, ends
        borders[-1] = ends[-1] if len(ends) else 0
        self._pieces = pa.StringArray.from_buffers(4 * len(rows), pa.py_buffer(borders), data or pa.py_buffer(b""))

    def values_of(self, name: str) -> pa.Array:
        """The last value of a property in each record; null without one."""
        found = self._entries_of(name)
        places = np.full(self._count, -1, dtype=np.int64)
        places[self._rows[found]] = 4 * found + 2  # the last of a name wins, because it is assigned last
        return self._pieces.take(pa.array(places, mask=places < 0))

    def maps(self) -> pa.Array:
        """All properties of each record as a map."""
        chosen = np.arange(len(self._rows))
        rows = self._rows
        if self._may_repeat():
            chosen = self._last_of_names()
            rows = rows[chosen]
        ends = np.cumsum(np.bincount(rows, minlength=self._count))
        offsets = np.concatenate([[0], ends]).astype(np.int32)
        names, values = self._pieces.take(pa.array(4 * chosen)), self._pieces.take(pa.array(4 * chosen + 2))
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _entries_of(self, name: str) -> Ints:
        """The entries of that name: by its first bytes, and of a longer one the rest."""
        encoded = name.encode()
        found = np.flatnonzero(_is(encoded[:_MARK_BYTES], self._lengths, self._first, len(encoded)))
        for at in range(_MARK_BYTES, len(encoded), _MARK_BYTES):
            begin = min(at, len(encoded) - _MARK_BYTES)
            marks = self._marks(self._middles[found] - len(encoded) + begin + _MARK_BYTES)
            found = found[marks == _mark(encoded[begin : begin + _MARK_BYTES])]
        return found

    def _may_repeat(self) -> bool:
        """Whether a name may occur twice in a record: false is certain, true is not."""
        last = self._marks(self._middles) & _LAST_OF[np.minimum(self._lengths, _MARK_BYTES)]
        mixed = self._first * _MIX[0] + last * _MIX[1]
        mixed ^= mixed >> np.uint64(29)
        mixed += (self._rows * 65536 + self._lengths).astype(np.uint64) * _MIX[2]
        mixed.sort()
        return bool((mixed[1:] == mixed[:-1]).any())

    def _last_of_names(self) -> Ints:
        """The entries whose name does not come again in their record."""
        coded = self._pieces.take(pa.array(4 * np.arange(len(self._rows)))).dictionary_encode()
        identities = self._rows * len(coded.dictionary) + coded.indices.to_numpy()
        _, from_end = np.unique(identities[::-1], return_index=True)
        return np.sort(len(self._rows) - 1 - from_end)

    def _marks(self, positions: Ints) -> Marks:
        """The eight bytes at each of these positions of the padded text."""
        if not len(positions):
            return np.empty(0, np.uint64)
        windows = np.ndarray((len(self._padded) - _MARK_BYTES + 1,), "<u8", self._padded, strides=(1,))
        return windows[positions]


def _is(begin: bytes, lengths: Ints, first: Marks, length: int) -> npt.NDArray[np.bool_]:
    """Which of the names, of these lengths and with these first bytes, are that long and begin so."""
    found: npt.NDArray[np.bool_] = (first == _mark(begin)) & (lengths == length)
    return found


def _mark(text: bytes) -> np.uint64:
    """Of a text of at most eight bytes."""
    return np.uint64(int.from_bytes(text, "little"))


def _entries(strings: pa.Array) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each entry with a separator: whose it is, and where in the strings' buffer it begins, its name ends, and it ends."""
    offsets = np.frombuffer(strings.buffers()[1], np.int32)[: len(strings) + 1].astype(np.int64)
    text = np.frombuffer(strings.buffers()[2], np.uint8)[: offsets[-1]] if offsets[-1] else np.empty(0, np.uint8)
    ends, begins = _borders(text, offsets)
    middles = np.flatnonzero(text == _NAME_END)
    rows = np.repeat(np.arange(len(strings)), np.diff(np.searchsorted(begins, offsets)))
    if len(middles) == len(begins) and ((begins <= middles) & (middles < ends)).all():
        return rows, begins, middles, ends
    # An entry without a name's end, or with several: the first one counts.
    first = np.append(middles, len(text))[np.searchsorted(middles, begins)]
    paired = first < ends
    return rows[paired], begins[paired], first[paired], ends[paired]


def _borders(text: npt.NDArray[np.uint8], offsets: Ints) -> tuple[Ints, Ints]:
    """Where entries end, and where they begin: behind the entry before, whether it has a separator at its end or its string's."""
    closed = np.flatnonzero(text == _ENTRY_END)
    lasts = offsets[1:][offsets[1:] > offsets[:-1]]
    open_ends = lasts[text[lasts - 1] != _ENTRY_END]
    if not len(open_ends):
        return closed, np.concatenate([[0], closed[:-1] + 1]) if len(closed) else closed
    ends = np.concatenate([open_ends, closed])
    order = np.argsort(
        ends, kind="stable"
    )  # an end without separator is where the next string begins, perhaps with one
    ends = ends[order]
    begins = np.zeros(len(ends), dtype=np.int64)
    begins[1:] = ends[:-1] + (order[:-1] >= len(open_ends))
    return ends, begins
