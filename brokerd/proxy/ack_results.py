"""The results of acks, one for each entry of a request, laid out byte by byte (pure).

Official clients send requests of one entry, or of up to 32; protobuf's library takes three times as long for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from brokerd.proxy.status import encode_length, status_field

_ONE_BYTE: Final = 0x80  # lengths below take one
_LENGTHS: Final = tuple(encode_length(length) for length in range(1024))


def result_status(code: int, text: str) -> bytes:
    """Field 3 of a result: its status."""
    return b"\x1a" + status_field(code, text)[1:]


def encode_results(entries: Iterable[Any], statuses: Iterable[bytes]) -> bytes:
    """Field 2 of an AckMessageResponse for each entry of the request: message id, handle, and status (as `result_status`)."""
    parts: list[bytes] = []
    for entry, status in zip(entries, statuses, strict=True):
        message_id, handle = entry.message_id.encode(), entry.receipt_handle.encode()
        id_length, handle_length = len(message_id), len(handle)
        length = 4 + id_length + handle_length + len(status)
        if id_length < _ONE_BYTE and handle_length < _ONE_BYTE and length < len(_LENGTHS):  # nearly all of them
            ordinary = _LENGTHS[length], id_length, message_id, handle_length, handle, status
            parts.append(b"\x12%b\x0a%c%b\x12%c%b%b" % ordinary)
        else:
            id_field = b"\x0a" + encode_length(id_length) + message_id
            result = id_field + b"\x12" + encode_length(handle_length) + handle + status
            parts.append(b"\x12" + encode_length(len(result)) + result)
    return b"".join(parts)
