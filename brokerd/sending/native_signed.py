"""What the library in C tells of signed sends: `brokerd/native/signed.c` beside `frame.decode_frames` and `access.signature`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Final

from brokerd.native.library import Library
from remoting import codes, frame
from remoting.access.signature import ACCESS_KEY, SIGNATURE, access_key, covered
from remoting.frame import Command

_TEXTS_BYTES: Final = 1 << 18
_SENDS: Final = 256
_SEND: Final = struct.Struct("=6q")
_SENDER_HEAD: Final = struct.Struct(">HB")

# Where the body begins and ends in the buffer; where in the texts sender, signature and covered values begin, and the latter end
Places = tuple[int, int, int, int, int, int]


class SignedSends:
    """Reads buffers. `texts` has what the places of the last one point to."""

    def __init__(self, library: Library) -> None:
        number, place = ctypes.c_int64, ctypes.c_void_p
        self._native = library.function(
            "native_signed", number, ctypes.c_char_p, number, number, number, place, place, number, place
        )
        self._areas = [bytearray(_TEXTS_BYTES), bytearray(_TEXTS_BYTES), bytearray(_SENDS * _SEND.size)]
        self._scratch_at, self._texts_at, self._sends_at = (
            ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in self._areas
        )
        self.texts, self._sends = memoryview(self._areas[1]), memoryview(self._areas[2])

    def read(self, buffer: bytes, most: int) -> Iterator[Places]:
        """The sends at the beginning of the buffer, at most so many, as far as they are ordinary and signed."""
        most = min(most, _SENDS)
        limit = frame.MAX_FRAME_BYTES
        count = self._native(
            buffer, len(buffer), most, limit, self._scratch_at, self._texts_at, _TEXTS_BYTES, self._sends_at
        )
        return _SEND.iter_unpack(self._sends[: count * _SEND.size])


def read_sender(sender: bytes) -> tuple[str, Command]:
    """Who a sender's text names, and a request with what the right to send goes by: its code and its topic."""
    code, length = _SENDER_HEAD.unpack_from(sender)
    name_end = _SENDER_HEAD.size + length
    name, topic = sender[_SENDER_HEAD.size : name_end].decode(), sender[name_end:].decode()
    field = "topic" if code == codes.SEND_MESSAGE else "b"
    return name, Command(code, ext={ACCESS_KEY: name, field: topic})


def signed_agrees(library: Library) -> bool:
    """Whether the library tells of sends with short and long names what Python finds in them, and leaves what is not signed."""
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
    found = list(sends.read(buffer, 9))
    return len(found) == len(data) and all(
        tells(sends.texts, buffer, each, request) for each, request in zip(found, requests, strict=False)
    )


def tells(texts: memoryview, buffer: bytes, places: Places, request: Command) -> bool:
    """Whether the library told of a send what Python finds in it."""
    body_at, end, sender_at, signature_at, covered_at, covered_end = places
    name, about = read_sender(bytes(texts[sender_at:signature_at]))
    field = "topic" if request.code == codes.SEND_MESSAGE else "b"
    return (
        (name, about.code, about.ext[field]) == (access_key(request), request.code, request.ext[field])
        and str(texts[signature_at:covered_at], "utf-8") == request.ext[SIGNATURE]
        and str(texts[covered_at:covered_end], "utf-8") == "".join(covered(request.ext, None))
        and buffer[body_at:end] == request.body
    )
