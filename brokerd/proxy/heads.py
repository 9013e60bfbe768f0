"""The headers of a call: its method, how long its client waits, what that says of itself; or why it is refused (pure).

`CallHeads` is shared by all connections of an endpoint, so that headers that are alike are read once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final

from brokerd.proxy.calls import GrpcStatus, Method
from brokerd.proxy.http2.blocks import BlockReader, Fields, Own, PlainBlockReader
from brokerd.proxy.http2.headers import ORDINARY_FIELDS, REQUEST_BYTES, Head, HeaderReader, Heads
from brokerd.proxy.http2.limits import Http2Limits

PREFIX_BYTES: Final = 5  # of a message: whether it is compressed, and its length

_CONTENT_TYPES: Final = re.compile(r"application/grpc([+;].*)?", re.DOTALL)
# Of the fields of a call: what is read here and by nobody else, what nobody reads, and what is read of a signed call
_OWN: Final = frozenset((b":method", b":path", b"content-type", b"grpc-timeout"))
_UNREAD: Final = frozenset((b":authority", b"te", b"grpc-accept-encoding", b"accept-encoding", b"x-mq-request-id"))
_SIGNATURE: Final = b"authorization"
_SIGNED: Final = b"x-mq-date-time"
_NAMES: Final = {name: name.decode() for name in (*ORDINARY_FIELDS, b":method", b":path", b":scheme")}
_SHARED_BYTES: Final = 64  # longer values are a call's own
_TIMEOUT: Final = re.compile(r"([0-9]{1,8})([HMSmun])")
_TIMEOUT_UNIT_NS: Final = {
    "H": 3600_000_000_000,
    "M": 60_000_000_000,
    "S": 1_000_000_000,
    "m": 1_000_000,
    "u": 1000,
    "n": 1,
}
_MAX_REFUSED_BODY_BYTES: Final = 64 * 1024


class GrpcHead(Head):
    """The headers of a call: which method, with what metadata; or why it is refused (`refusal`)."""

    __slots__ = ("encoding", "http_status", "metadata", "method", "refusal", "timeout_ms")

    def __init__(self, method: Method | None, metadata: Mapping[str, str], max_message_bytes: int) -> None:
        super().__init__(
            collects=method is None or not method.is_bidirectional,
            max_body_bytes=max_message_bytes + PREFIX_BYTES if method is not None else _MAX_REFUSED_BODY_BYTES,
        )
        self.method = method
        self.metadata = metadata
        self.timeout_ms: int | None = None
        self.encoding = metadata.get("grpc-encoding", "identity")
        self.http_status = 200
        self.refusal: tuple[GrpcStatus, str] | None = None

    def refuse(self, status: GrpcStatus, text: str) -> GrpcHead:
        self.refusal = status, text
        self.collects = True
        return self

    def body_bytes(self, first: bytes) -> int:
        return PREFIX_BYTES + int.from_bytes(first[1:PREFIX_BYTES]) if len(first) == PREFIX_BYTES else 0

    def held_bytes(self) -> int:
        return REQUEST_BYTES + sum(len(name) + len(value) for name, value in self.metadata.items())

    def again(self, own: Own) -> GrpcHead | None:
        _, date_time, signature, client_id, timeout = own
        if self.method is None or self.refusal is not None:
            return None
        timeout_ms = None if timeout is None else timeout_ms_of(timeout)
        if timeout is not None and timeout_ms is None:
            return None
        metadata = self.metadata
        if client_id is not None:
            metadata = {**metadata, "x-mq-client-id": client_id.decode("utf-8", "replace")}
        if signature is not None:
            metadata = {**metadata, "authorization": signature.decode("utf-8", "replace")}
            if date_time is not None:
                metadata["x-mq-date-time"] = date_time.decode("utf-8", "replace")
        head = GrpcHead.__new__(GrpcHead)
        head.collects = self.collects
        head.max_body_bytes = self.max_body_bytes
        head.content_length = self.content_length
        head.method = self.method
        head.metadata = metadata
        head.timeout_ms = timeout_ms
        head.encoding = self.encoding
        head.http_status = self.http_status
        head.refusal = None
        return head


class CallHeads:
    """What the headers of calls mean to an endpoint; `new_block_reader` makes what reads a connection's blocks."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        max_message_bytes: int,
        new_block_reader: Callable[[int], BlockReader] = PlainBlockReader,
    ) -> None:
        self._methods = methods
        self._max_message_bytes = max_message_bytes
        self._new_block_reader = new_block_reader
        self._heads: Heads[GrpcHead] = Heads(self._read)

    def reader(self, limits: Http2Limits) -> HeaderReader[GrpcHead]:
        """For one connection."""
        return HeaderReader(self._heads, self._new_block_reader(limits.max_header_list_bytes))

    def _read(self, fields: Fields) -> GrpcHead:
        metadata: dict[str, str] = {}
        own: dict[str, str] = {}
        is_signed = any(name == _SIGNATURE for name, _ in fields)
        for name, value in fields:
            if name not in _UNREAD and (is_signed or name != _SIGNED):
                key = _NAMES.get(name) or name.decode("ascii")
                text = _text(value) if len(value) <= _SHARED_BYTES else value.decode("utf-8", "replace")
                kept = own if name in _OWN else metadata
                kept[key] = f"{kept[key]},{text}" if key in kept else text
        content_type = own.get("content-type", "")
        if own[":method"] != "POST" or not _CONTENT_TYPES.fullmatch(content_type):
            head = GrpcHead(None, {}, 0)
            head.http_status = 415 if own[":method"] == "POST" else 405
            return head
        path = own[":path"]
        method = self._methods.get(path)
        limit = method.max_message_bytes if method is not None else 0
        head = GrpcHead(method, metadata, min(limit or self._max_message_bytes, self._max_message_bytes))
        if method is None:
            return head.refuse(GrpcStatus.UNIMPLEMENTED, f"unknown method {path[:200]}")
        if head.encoding not in ("identity", "gzip"):
            return head.refuse(GrpcStatus.UNIMPLEMENTED, f"unknown message encoding {head.encoding[:40]}")
        timeout = own.get("grpc-timeout")
        if timeout is not None:
            head.timeout_ms = timeout_ms_of(timeout.encode())
            if head.timeout_ms is None:
                return head.refuse(GrpcStatus.INTERNAL, f"undecodable grpc-timeout {timeout[:40]!r}")
        return head


@lru_cache(maxsize=1024)
def _text(value: bytes) -> str:
    """A field's value: of what most calls have alike, one text for all that wait."""
    return value.decode("utf-8", "replace")


@lru_cache(maxsize=1024)
def timeout_ms_of(timeout: bytes) -> int | None:
    """A grpc-timeout; None for what is none."""
    match = _TIMEOUT.fullmatch(timeout.decode("utf-8", "replace"))
    return None if match is None else int(match[1]) * _TIMEOUT_UNIT_NS[match[2]] // 1_000_000
