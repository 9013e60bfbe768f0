"""Signed sends in the library in C. `brokerd/native/signed.c` tells what is signed, as `frame.decode_frames` and
`access.signature.covered` do; `brokerd/native/proven.c` checks signatures as `SigningKey` does, many at once where the processor
is fast at that.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from brokerd.native.library import Library
from remoting import codes, frame
from remoting.access.signature import ACCESS_KEY, SIGNATURE, Credentials, SigningKey, access_key, covered
from remoting.frame import Command

_TEXTS_BYTES: Final = 1 << 18
_SENDS: Final = 256
_SEND: Final = struct.Struct("=6q")
_SENDER: Final = struct.Struct("=3q")
_SENDER_HEAD: Final = struct.Struct(">HB")
_KEY_BYTES: Final = 40
_LEAST_AT_ONCE: Final = 3


class Keys(NamedTuple):
    """A sender's key, and what the library made of it (`SignedSends.keyed`)."""

    key: SigningKey
    made: bytes


class Sender(NamedTuple):
    """Somebody who sends to a topic with a code: see `read_sender`; and which send is his first."""

    text: bytes
    first: int


class SignedSends:
    """Reads buffers. What is told of the last one is here until the next, `texts` with it. Signatures of `least_at_once` sends
    and more are checked together: of fewer, or where the processor is not fast at that, they take less one by one."""

    def __init__(self, library: Library) -> None:
        number, place, texts = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
        self._read = library.function(
            "native_signed", number, texts, number, number, number, place, place, number, place, place, place
        )
        self._proven = library.function("native_proven", number, texts, place, place, number, texts)
        self._keyed = library.function("native_keyed", None, texts, place)
        self.least_at_once = _LEAST_AT_ONCE if library.function("native_proves", ctypes.c_int32)() else _SENDS + 1
        self._areas = [
            bytearray(size) for size in (_TEXTS_BYTES, _TEXTS_BYTES, _SENDS * _SEND.size, _SENDS * _SENDER.size, 8)
        ]
        self._scratch_at, self._texts_at, self._sends_at, self._senders_at, self._sender_count_at = (
            ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._areas
        )
        self.texts, self._sends, self._senders, self._sender_count = [memoryview(each) for each in self._areas[1:]]

    def read(self, buffer: bytes, most: int) -> int:
        """How many sends at the beginning of the buffer, at most so many, are ordinary and signed."""
        count: int = self._read(
            buffer,
            len(buffer),
            min(most, _SENDS),
            frame.MAX_FRAME_BYTES,
            self._scratch_at,
            self._texts_at,
            _TEXTS_BYTES,
            self._sends_at,
            self._senders_at,
            self._sender_count_at,
        )
        return count

    def senders(self) -> list[Sender]:
        """Who sent them, in the order of their first sends. Who is there twice had many others between."""
        end = int.from_bytes(self._sender_count, sys.byteorder) * _SENDER.size
        return [Sender(bytes(self.texts[at:end]), first) for at, end, first in _SENDER.iter_unpack(self._senders[:end])]

    def places(self, count: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Of so many sends: where the body begins and ends in the buffer; where in the texts signature and covered values begin,
        and the latter end; and which of the senders it is."""
        return _SEND.iter_unpack(self._sends[: count * _SEND.size])

    def sender(self, number: int) -> bytes:
        """The text of one of the senders."""
        at, end, _ = _SENDER.unpack_from(self._senders, number * _SENDER.size)
        return bytes(self.texts[at:end])

    def last(self, count: int) -> tuple[int, int]:
        """Where the last of so many ends, and which of the senders it is."""
        _, end, _, _, _, sender = _SEND.unpack_from(self._sends, (count - 1) * _SEND.size)
        return end, sender

    def keyed(self, key: SigningKey) -> Keys:
        """The key, and what depends on it alone."""
        made = bytearray(_KEY_BYTES)
        if self.least_at_once <= _SENDS:
            self._keyed(key.first_blocks, ctypes.addressof(ctypes.c_char.from_buffer(made)))
        return Keys(key, bytes(made))

    def proven(self, buffer: bytes, count: int, keys: Sequence[Keys]) -> int:
        """How many of so many sends, from the first on, are signed. Their senders have a key each, in the same order. Not to be
        asked of fewer than `least_at_once`."""
        proven: int = self._proven(
            buffer, self._texts_at, self._sends_at, count, b"".join([each.made for each in keys])
        )
        return proven


def name_of(sender: bytes) -> str:
    """Who a sender's text names."""
    return sender[_SENDER_HEAD.size : _SENDER_HEAD.size + sender[_SENDER_HEAD.size - 1]].decode()


def read_sender(sender: bytes) -> tuple[str, Command]:
    """Who a sender's text names, and a request with what the right to send goes by: its code and its topic."""
    code, length = _SENDER_HEAD.unpack_from(sender)
    name_end = _SENDER_HEAD.size + length
    name, topic = sender[_SENDER_HEAD.size : name_end].decode(), sender[name_end:].decode()
    field = "topic" if code == codes.SEND_MESSAGE else "b"
    return name, Command(code, ext={ACCESS_KEY: name, field: topic})


def signed_agrees(library: Library) -> bool:
    """Whether the library tells of sends with short and long names what Python finds in them, leaves what is not signed, and
    takes the signatures that Python makes, and no others."""
    sends = SignedSends(library)
    signed = {ACCESS_KEY: "größe", SIGNATURE: "A" * 28, "": "2", "zz": "", "\u20ac": "e\n", "\U0001f600": '"'}
    short, long = {"b": "T", "i": "p\x01q\x02"}, {"topic": "Ü", "queueId": "1"}
    data = [
        frame.encode_request(code, number, {**ext, **signed}, b"body" * number)
        for number, (code, ext) in enumerate(
            ((codes.SEND_MESSAGE_V2, short), (codes.SEND_MESSAGE, long), (codes.SEND_BATCH_MESSAGE, short))
        )
    ]
    unsigned = frame.encode_request(codes.SEND_MESSAGE_V2, 9, short)
    buffer = b"".join((*data, unsigned, data[0]))
    requests: list[Command] = []
    frame.decode_frames(buffer, requests)
    count = sends.read(buffer, 9)
    return (
        count == len(data)
        and all(tells(sends, buffer, number, requests[number]) for number in range(count))
        and _proves(sends)
    )


def _proves(sends: SignedSends) -> bool:
    """Bodies of all lengths around the digests' blocks, of which the last is not signed."""
    key, others = SigningKey(b"secret"), SigningKey(b"s" * 65)
    signer = Credentials("u", b"secret")
    bodies = [bytes(length % 251 for length in range(count)) for count in range(0, 200, 3)]
    data = [
        frame.encode_request(codes.SEND_MESSAGE_V2, 1, signer.sign({"b": "T", "i": "p" * (number % 70)}, body), body)
        for number, body in enumerate(bodies)
    ]
    buffer = b"".join((*data, data[-1][:-1] + b"\xff"))
    count = sends.read(buffer, _SENDS)
    if count < sends.least_at_once:
        return count == len(data) + 1
    return (
        count == len(data) + 1
        and sends.proven(buffer, count, [sends.keyed(key)]) == len(data)
        and sends.proven(buffer, count, [sends.keyed(others)]) == 0
    )


def tells(sends: SignedSends, buffer: bytes, number: int, request: Command) -> bool:
    """Whether the library told of a send what Python finds in it."""
    body_at, end, signature_at, covered_at, covered_end, sender = list(sends.places(number + 1))[-1]
    name, about = read_sender(sends.sender(sender))
    field = "topic" if request.code == codes.SEND_MESSAGE else "b"
    return (
        (name, about.code, about.ext[field]) == (access_key(request), request.code, request.ext[field])
        and str(sends.texts[signature_at:covered_at], "utf-8") == request.ext[SIGNATURE]
        and str(sends.texts[covered_at:covered_end], "utf-8") == "".join(covered(request.ext, None))
        and buffer[body_at:end] == request.body
    )
