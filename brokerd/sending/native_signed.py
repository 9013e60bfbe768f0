"""Signed sends in the library in C. `brokerd/native/signed.c` tells what is signed, as `frame.decode_frames` and
`access.signature.covered` do; `brokerd/native/proven.c` checks signatures as `SigningKey` does, as many at once as the
processor is fast at.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from brokerd.native.library import Library
from brokerd.sending.readings import Reading
from remoting import codes, frame
from remoting.access.signature import ACCESS_KEY, SIGNATURE, Credentials, SigningKey, access_key, covered
from remoting.frame import Command

_TEXTS_BYTES: Final = 1 << 18
_SCRATCH_BYTES: Final = 2 * _TEXTS_BYTES
_SENDS: Final = 256
_READINGS: Final = 2048
_SEND: Final = struct.Struct("=6q")
_SENDER: Final = struct.Struct("=3q")
_READING_BYTES: Final = 192
_AREAS: Final = struct.Struct("=13q")
_SENDER_COUNT, _READING_COUNT, _TIMES_BEGUN = 9, 10, 12  # what the library changes of them
_SENDER_HEAD: Final = struct.Struct(">HB")
_KEY_BYTES: Final = 40

# How signatures are checked: as is best for so many, whatever the processor has for that
PLAINLY: Final = 0
ALONE: Final = 1
IN_CROWDS: Final = 1 << 20


class SignedSends:
    """Reads buffers. What is told of the last one is here until the next, `texts` with it. What was read of the headers is here
    for longer: of some thousand sends, or until `forget`."""

    def __init__(self, library: Library) -> None:
        number, place, data = ctypes.c_int64, ctypes.c_void_p, ctypes.c_char_p
        self._read = library.function("native_signed", number, place, data, number, number)
        self._proven = library.function("native_proven", number, place, data, number, data, number)
        self._keyed = library.function("native_keyed", None, data, place)
        sizes = _SCRATCH_BYTES, _TEXTS_BYTES, _SENDS * _SEND.size, _SENDS * _SENDER.size, _READINGS * _READING_BYTES
        areas = [bytearray(size) for size in sizes]
        self.texts, self._sends, self._senders = [memoryview(each) for each in areas[1:4]]
        told = bytearray(_AREAS.size)
        rooms = _SCRATCH_BYTES, _TEXTS_BYTES, _READINGS, frame.MAX_FRAME_BYTES
        _AREAS.pack_into(told, 0, *map(_address_of, areas), *rooms, 0, 0, 0, 0)
        self._areas = *areas, told  # to keep them where they are
        self._areas_at = _address_of(told)
        self._readings_at = _address_of(areas[-1])
        self._readings_room = _READINGS
        numbers = memoryview(told).cast("q")
        self._sender_count, self._reading_count = numbers[_SENDER_COUNT:][:1], numbers[_READING_COUNT:][:1]
        self._times_begun = numbers[_TIMES_BEGUN:]

    def read(self, buffer: bytes, most: int) -> int:
        """How many sends at the beginning of the buffer, at most so many, are ordinary and signed."""
        count: int = self._read(self._areas_at, buffer, len(buffer), most if most < _SENDS else _SENDS)
        return count

    def forget(self) -> None:
        """What was read until now is not needed any more, from the next buffer on."""
        self._reading_count[0] = self._readings_room

    def reading(self, buffer: bytes, count: int) -> Reading:
        """What was read of the sends, of which there were so many at the beginning of that buffer, the last one."""
        at = self._readings_at + (self._reading_count[0] - count) * _READING_BYTES
        return Reading(buffer, at, count, self._times_begun, self._areas)

    def senders(self) -> list[tuple[bytes, int]]:
        """Who sent them, in the order of their first sends: a text (see `read_sender`), and which send is his first. Who is there
        twice had many others between."""
        places = self._senders[: self._sender_count[0] * _SENDER.size]
        return [(bytes(self.texts[at:end]), first) for at, end, first in _SENDER.iter_unpack(places)]

    def places(self, count: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Of so many sends: where the body begins and ends in the buffer; where in the texts signature and covered values begin,
        and the latter end; and which of the senders it is."""
        return _SEND.iter_unpack(self._sends[: count * _SEND.size])

    def last(self, count: int) -> tuple[int, int]:
        """Where the last of so many ends, and which of the senders it is."""
        _, end, _, _, _, sender = _SEND.unpack_from(self._sends, (count - 1) * _SEND.size)
        return end, sender

    def keyed(self, key: SigningKey) -> bytes:
        """What depends on a key alone, for `proven`."""
        made = bytearray(_KEY_BYTES)
        self._keyed(key.first_blocks, _address_of(made))
        return bytes(made)

    def proven(self, buffer: bytes, count: int, keys: Sequence[bytes], as_of: int | None = None) -> int:
        """How many of so many sends, from the first on, are signed. Their senders have a key each, in the same order. `as_of`:
        check them as if there were so many, for tests."""
        proven: int = self._proven(self._areas_at, buffer, count, b"".join(keys), count if as_of is None else as_of)
        return proven


def _address_of(area: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(area))


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
    return count == len(data) + 1 and all(
        sends.proven(buffer, count, [sends.keyed(key)], as_of) == len(data)
        and sends.proven(buffer, count, [sends.keyed(others)], as_of) == 0
        for as_of in (PLAINLY, ALONE, IN_CROWDS)
    )


def tells(sends: SignedSends, buffer: bytes, number: int, request: Command) -> bool:
    """Whether the library told of a send what Python finds in it."""
    body_at, end, signature_at, covered_at, covered_end, sender = list(sends.places(number + 1))[-1]
    name, about = read_sender(sends.senders()[sender][0])
    field = "topic" if request.code == codes.SEND_MESSAGE else "b"
    return (
        (name, about.code, about.ext[field]) == (access_key(request), request.code, request.ext[field])
        and str(sends.texts[signature_at:covered_at], "utf-8") == request.ext[SIGNATURE]
        and str(sends.texts[covered_at:covered_end], "utf-8") == "".join(covered(request.ext, None))
        and buffer[body_at:end] == request.body
    )
