"""Pulls as they are received, told from one another without being decoded: what of a request is another one each time, and all
else it says, as a key. Requests with one key are checked with one outcome, while nothing changes that they are checked against.

It runs in C (`native/pulls.c`); Python says what is right.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from brokerd.native.library import Library
from remoting import codes, frame
from remoting.frame import Command

_KEY_BYTES: Final = 4096
_SCRATCH_BYTES: Final = 8192
_AREA: Final = struct.Struct("=9q")
_PULLS: Final = (codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE)
_NAME: Final = struct.Struct(">HI")
_MOST_DIGITS: Final = 18


class Asked(NamedTuple):
    """One pull: where its frame ends, what is its own, and the key of all else."""

    end: int
    opaque: int
    queue_offset: int
    commit_offset: int
    key: bytes


class PullReader:
    """Reads requests in C."""

    def __init__(self, library: Library) -> None:
        self._call = library.function(
            "native_pull_asked", ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64
        )
        key, scratch, area = (bytearray(size) for size in (_KEY_BYTES, _SCRATCH_BYTES, _AREA.size))
        sizes = _KEY_BYTES, _SCRATCH_BYTES, frame.MAX_FRAME_BYTES
        _AREA.pack_into(area, 0, _address_of(key), _address_of(scratch), *sizes, 0, 0, 0, 0)
        self._areas = key, scratch, area  # to keep them where they are
        self._area_at = _address_of(area)
        self._key = memoryview(key)
        self._told = memoryview(area)[-32:].cast("q")

    def read(self, buffer: bytes, position: int) -> Asked | None:
        """The pull whose frame begins there; None for what is not there yet, or is left to those who decode it."""
        length: int = self._call(self._area_at, buffer, len(buffer), position)
        if not length:
            return None
        opaque, queue_offset, commit_offset, key_length = self._told
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


def _address_of(area: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


def asked_agrees(library: Library) -> bool:
    """Whether the library reads headers as Python does, in both encodings."""
    read = PullReader(library).read
    fields = {"consumerGroup": "g", "topic": "größe", "queueOffset": "7", "subscription": '"a" || b', "sysFlag": "3"}
    for code in (*_PULLS, codes.SEND_MESSAGE_V2):
        for extra in ({}, {"commitOffset": "-1"}, {"commitOffset": "12", "queueId": "1"}, {"queueOffset": "x"}):
            data = frame.encode_request(code, 5, fields | extra, b"body")
            for buffer in (data, data[:-1], b"x" + data):
                position = 1 if buffer[0] == ord("x") else 0
                if read(buffer, position) != read_asked(buffer, position):
                    return False
    return True
