"""The internal request that carries a gRPC call from a replica to its master: bytes both ways (pure).

Request: `ext` has the method, the id of the call on this replica, the time left, who the client is, and its headers (prefixed);
the body is the request message. Answer: the body is the response messages, each after its length (4 bytes, big-endian). An answer
that would be too long for one frame comes in parts: the replica asks for the next part with the call's id while `more` is set.

A client's telemetry stream ends at the replica. What the master wants to say on it goes the other way on the same connection,
one-way: the same code with PUSH, the client's connection and the header with its id; the body is the messages. What the client
answers comes as ANSWER. A replica that finds the stream closed says so with STREAM_CLOSED.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from remoting.errors import ProtocolError
from remoting.frame import MAX_FRAME_BYTES

# operations besides the methods of the service; "$" is in no method's name
CANCEL: Final = "$cancel"
MORE: Final = "$more"
CONNECTION_CLOSED: Final = "$connection_closed"
STREAM_CLOSED: Final = "$stream_closed"
ANSWER: Final = "$answer"  # a client's, to a question that came by PUSH
PUSH: Final = "$push"  # from the master to the replica

MAX_REQUEST_BYTES: Final = MAX_FRAME_BYTES - 1024 * 1024  # the rest is for the header
MAX_PART_BYTES: Final = MAX_FRAME_BYTES // 2

_HEADER_PREFIX: Final = "h."
_FORWARDED_HEADERS: Final = ("x-mq-", "authorization", "user-agent", ":scheme")
_LENGTH: Final = struct.Struct(">I")


class ProxyCall(NamedTuple):
    """A forwarded call's description. `client` names the client's connection on the replica; `timeout_ms` 0 = no deadline."""

    method: str
    call_id: int
    timeout_ms: int = 0
    peer: str = ""
    client: int = 0
    metadata: Mapping[str, str] | None = None

    def to_ext(self) -> dict[str, str]:
        ext = {"callId": str(self.call_id), **self.common_ext()}
        if self.timeout_ms:
            ext["timeoutMs"] = str(self.timeout_ms)
        return ext

    def common_ext(self) -> dict[str, str]:
        """Of `to_ext`, what a client's calls of a method have in common."""
        ext = {"method": self.method, "client": str(self.client)}
        if self.peer:
            ext["peer"] = self.peer
        for name, value in (self.metadata or {}).items():
            field = _field_of(name)
            if field:
                ext[field] = value
        return ext

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> ProxyCall:
        """Raises ProtocolError when a field is missing or no number."""
        try:
            return cls(
                ext["method"],
                int(ext["callId"]),
                min(max(int(ext.get("timeoutMs", "0")), 0), 1 << 40),
                ext.get("peer", ""),
                int(ext["client"]),
                {
                    name.removeprefix(_HEADER_PREFIX): value
                    for name, value in ext.items()
                    if name.startswith(_HEADER_PREFIX)
                },
            )
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"a forwarded call without a proper {error}") from error


@lru_cache(maxsize=256)
def _field_of(header: str) -> str:
    """The field of `ext` that brings a header; "" for one that stays here."""
    return _HEADER_PREFIX + header if header.startswith(_FORWARDED_HEADERS) else ""


def encode_messages(messages: Iterable[bytes]) -> bytes:
    parts = []
    for message in messages:
        parts.append(_LENGTH.pack(len(message)))
        parts.append(message)
    return b"".join(parts)


def decode_messages(body: bytes) -> list[bytes]:
    """Raises ProtocolError when the lengths do not add up."""
    messages = []
    position = 0
    while position < len(body):
        if position + _LENGTH.size > len(body):
            raise ProtocolError("an answer to a forwarded call is cut off")
        (length,) = _LENGTH.unpack_from(body, position)
        start = position + _LENGTH.size
        position = start + length
        if position > len(body):
            raise ProtocolError("an answer to a forwarded call is cut off")
        messages.append(body[start:position])
    return messages


def take_part(messages: Sequence[bytes]) -> int:
    """How many of the messages go into the next part: at least one, and as many as fit."""
    size = 0
    for count, message in enumerate(messages):
        size += len(message) + _LENGTH.size
        if size > MAX_PART_BYTES and count:
            return count
    return len(messages)
