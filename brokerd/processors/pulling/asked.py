"""Pulls as they are received, told from one another without being decoded: what of a request is another one each time, and all
else it says, as a key. Requests with one key are checked with one outcome, while nothing changes that they are checked against.

It runs in C (`native/asked.c`), which remembers requests as they came; Python says what is right.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from mmap import mmap
from typing import Any, Final, Generic, NamedTuple, TypeVar

from brokerd.native.library import Library
from remoting import codes, frame
from remoting.frame import Command

_KEY_BYTES: Final = 4096
_SCRATCH_BYTES: Final = 8192
_SLOTS: Final = 16_384  # asked.h has the same number
_AREA: Final = struct.Struct("=12q")
_TOLD: Final = 5  # numbers before its last one
_NUMBER_BYTES: Final = 8
_PULLS: Final = (codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE)
_NAME: Final = struct.Struct(">HI")
_MOST_DIGITS: Final = 18
MAX_KNOWN: Final = 16_384
MAX_KNOWN_BYTES: Final = 8 << 20  # of keys
_ONE_OF: Final = 16  # of those for which there is no room takes the place of others

_T = TypeVar("_T")


class Asked(NamedTuple):
    """One pull: where its frame ends, what is its own, and the key of all else."""

    end: int
    opaque: int
    queue_offset: int
    commit_offset: int
    key: bytes


class _Known(Generic[_T]):
    """What was found out of requests with one key, also for the slots that have them; None when that is forgotten."""

    __slots__ = ("found",)

    def __init__(self, found: _T) -> None:
        self.found: _T | None = found


class PullReader(Generic[_T]):
    """Reads requests in C, and knows what was found out of them. That is bounded: where there is no more room, one of some that
    come takes the place of what has been known longest. If each did, of more requests that go round than there is room for, none
    would be known when it comes again."""

    def __init__(self, library: Library) -> None:
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._call = library.function("native_pull_asked", number, pointer, ctypes.c_char_p, number, number)
        slots_bytes: int = library.function("native_pull_slots_bytes", number)()
        slots = mmap(-1, slots_bytes)  # of which only what is in use takes memory
        key, scratch, area = (bytearray(size) for size in (_KEY_BYTES, _SCRATCH_BYTES, _AREA.size))
        *places, area_at = [_address_of(each) for each in (key, scratch, slots, area)]
        self._areas = key, scratch, slots, area  # to keep them where they are
        _AREA.pack_into(area, 0, *places, _KEY_BYTES, _SCRATCH_BYTES, frame.MAX_FRAME_BYTES, *[0] * _TOLD, 0)
        self._area = ctypes.c_void_p(area_at)
        self._key = memoryview(key)
        numbers = memoryview(area)[-_NUMBER_BYTES * (_TOLD + 1) :].cast("q")
        self._told, self._in_full = numbers[:_TOLD], numbers[_TOLD:]
        self._in_slots: list[_Known[_T] | None] = [None] * _SLOTS
        self._known: dict[bytes, _Known[_T]] = {}
        self._known_bytes = 0
        self._without = 0  # that were not noted, as there was no room
        self._slot = -1  # in which what was recalled last is

    @property
    def alike(self) -> tuple[ctypes.c_void_p, int] | None:
        """What finds requests like the one that was recalled last, as the library takes it, until the next one is read; None for
        one that no other is like."""
        return None if self._slot < 0 else (self._area, self._slot)

    def is_in(self, slot: int, found: _T) -> bool:
        """Whether requests are in that slot, as of `alike`, of which that was found out, and is not forgotten."""
        known = self._in_slots[slot]
        return known is not None and known.found is found

    @property
    def known_count(self) -> int:
        """Of how many different requests something is known."""
        return len(self._known)

    def recall(self, buffer: bytes, position: int) -> tuple[int, int, int, int, _T | None] | None:
        """The pull whose frame begins there: where it ends, its opaque and its two offsets, and what was found out of an earlier
        one with its key, None when nothing is known. None for what is not there yet, or is left to those who decode it."""
        length: int = self._call(self._area, buffer, len(buffer), position)
        if not length:
            return None
        opaque, queue_offset, commit_offset, key_length, slot = self._told
        self._slot = slot
        known = None if key_length else self._in_slots[slot]
        if known is None or known.found is None:
            known = self._find(buffer, position, key_length, slot)
        return position + length, opaque, queue_offset, commit_offset, None if known is None else known.found

    def _find(self, buffer: bytes, position: int, key_length: int, slot: int) -> _Known[_T] | None:
        """What is known of a request that is in that slot now, if in one; its key was read if it has a length."""
        if key_length:
            key = bytes(self._key[:key_length])
        else:
            asked = self.read(buffer, position)
            assert asked is not None  # as it was read before
            key = asked.key
        known = self._known.get(key)
        if slot >= 0:
            self._in_slots[slot] = known
        return known

    def learn(self, key: bytes, found: _T) -> None:
        """That was found out of a request with this key."""
        known = self._known.get(key)
        if known is not None:
            known.found = found
            return
        if not self._has_room(len(key)):
            self._without += 1
            if self._without % _ONE_OF:
                return
            self._make_room(len(key))
        self._known_bytes += len(key)
        self._known[key] = _Known(found)

    def _has_room(self, key_bytes: int) -> bool:
        return len(self._known) < MAX_KNOWN and self._known_bytes + key_bytes <= MAX_KNOWN_BYTES

    def _make_room(self, key_bytes: int) -> None:
        while self._known and not self._has_room(key_bytes):
            oldest = next(iter(self._known))
            self._known.pop(oldest).found = None
            self._known_bytes -= len(oldest)

    def read(self, buffer: bytes, position: int) -> Asked | None:
        """The request itself, read in full."""
        self._in_full[0] = 1
        length: int = self._call(self._area, buffer, len(buffer), position)
        self._in_full[0] = 0
        if not length:
            return None
        opaque, queue_offset, commit_offset, key_length, _ = self._told
        return Asked(position + length, opaque, queue_offset, commit_offset, bytes(self._key[:key_length]))


def read_asked(buffer: bytes, position: int) -> Asked | None:
    """The same in Python, of every pull that is right; the library leaves those whose header is unusual."""
    requests: list[Command] = []
    end = position + frame.decode_frames(memoryview(buffer)[position:], requests, most=1)
    if not requests or requests[0].code not in _PULLS or requests[0].flag:
        return None
    request = requests[0]
    ext = dict(request.ext)
    queue_offset, commit_offset = ext.pop("queueOffset", ""), ext.pop("commitOffset", "-1")
    if not (_is_number(queue_offset) and _is_number(commit_offset) and int(commit_offset) >= -1):
        return None
    key = request.code.to_bytes(2) + b"".join(_pieces(ext))
    return Asked(end, request.opaque, int(queue_offset), int(commit_offset), key)


def _is_number(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS


def _pieces(ext: dict[str, str]) -> Iterator[bytes]:
    for name, value in ext.items():
        encoded = name.encode(), value.encode()
        yield _NAME.pack(*map(len, encoded))
        yield from encoded


def _address_of(area: bytearray | mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def asked_agrees(library: Library) -> bool:
    """Whether the library reads headers as Python does, in both encodings."""
    reader: PullReader[Any] = PullReader(library)
    fields = {"consumerGroup": "g", "topic": "größe", "queueOffset": "7", "subscription": '"a" || b', "sysFlag": "3"}
    for code in (*_PULLS, codes.SEND_MESSAGE_V2):
        for extra in ({}, {"commitOffset": "-1"}, {"commitOffset": "12", "queueId": "1"}, {"queueOffset": "x"}):
            data = frame.encode_request(code, 5, fields | extra, b"body")
            for buffer in (data, data[:-1], b"x" + data):
                position = 1 if buffer[0] == ord("x") else 0
                asked = read_asked(buffer, position)
                if reader.read(buffer, position) != asked or not _is_recalled(reader, buffer, position, asked):
                    return False
    return True


def _is_recalled(reader: PullReader[bytes], buffer: bytes, position: int, asked: Asked | None) -> bool:
    """Whether the same is recalled of it, the first time and the next one."""
    for number in range(3):
        found = reader.recall(buffer, position)
        if asked is None or found is None:
            return asked is found
        if found[:4] != asked[:4] or found[4] not in ((asked.key,) if number else (asked.key, None)):
            return False
        reader.learn(asked.key, asked.key)
    return True
