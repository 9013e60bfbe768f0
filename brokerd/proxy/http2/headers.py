"""Header blocks in: HPACK, the rules of RFC 9113 section 8.2 and 8.3, and what is remembered of the blocks before (pure).

A peer repeats itself. Where its block changes nothing in the table and is equal to an earlier one, it means the same until some
other block changes the table: a connection maps such bytes to the finished head. Where only those fields are new that are each
call's own, which is what official clients send, the block's key is one that was seen before, of this client or of one that is
like it: its fields were checked then, and its head is made of that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, Generic, Self, TypeVar

from brokerd.proxy.http2.blocks import Block, BlockReader, Fields, Own, fields_of
from brokerd.proxy.http2.frames import ConnectionFault, ErrorCode
from brokerd.proxy.http2.hpack import HeaderListTooLarge, HpackError

_MAX_CACHED_HEADS: Final = 32
_MAX_CACHED_BLOCK_BYTES: Final = 512
_MAX_KEYS: Final = 1024  # of all connections
_MAX_KEY_BYTES: Final = 1024
REQUEST_BYTES: Final = 512  # what a request holds, without its fields

_FIELD_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# looked for in all values at once, each between two 0x01
_BAD_IN_VALUES: Final = (b"\0", b"\r", b"\n", b"\x01 ", b"\x01\t", b" \x01", b"\t\x01")
# what every RocketMQ client sends: known to be fine
ORDINARY_FIELDS: Final = frozenset(
    b"te content-type user-agent grpc-timeout grpc-accept-encoding authorization x-mq-language x-mq-protocol x-mq-client-id "
    b"x-mq-client-version x-mq-date-time x-mq-request-id x-mq-namespace x-mq-session-token accept-encoding".split()
)
_CONNECTION_FIELDS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_REQUEST_PSEUDO_FIELDS: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED_PSEUDO_FIELDS: Final = frozenset({b":method", b":scheme", b":path"})


class MalformedHeaders(Exception):
    """The headers decode but break the rules of a request; its stream is reset."""


class Head:
    """What the layer above made of a request's headers; shared by all requests that have the same ones, so never changed.

    `collects`: the body is wanted in one piece when it ended (else piece by piece). `max_body_bytes` bounds that piece.
    """

    __slots__ = ("collects", "content_length", "max_body_bytes")

    def __init__(self, *, collects: bool, max_body_bytes: int) -> None:
        self.collects = collects
        self.max_body_bytes = max_body_bytes
        self.content_length: int | None = None

    def body_bytes(self, first: bytes) -> int:
        """How long a body will be that begins with these bytes, five if there are as many; 0 = not known yet."""
        return self.content_length or 0

    def held_bytes(self) -> int:
        """About how much a request with these headers holds while nothing of its body is there."""
        return REQUEST_BYTES

    def again(self, own: Own) -> Self | None:
        """What the same headers mean with other values of the fields that are each call's own, which are well-formed; None where
        all of them have to be read."""
        return self


H = TypeVar("H", bound=Head)


class Heads(Generic[H]):
    """The heads of all connections' requests, by the keys of their blocks. `read` makes one of checked fields."""

    def __init__(self, read: Callable[[Fields], H]) -> None:
        self._read = read
        self._known: dict[bytes, H] = {}

    def head_of(self, block: Block) -> H:
        """Raises MalformedHeaders."""
        key, own = block
        known = self._known.get(key) if own is not None else None
        head = known.again(own) if known is not None and own is not None else None
        return self._read_whole(block) if head is None else head

    def _read_whole(self, block: Block) -> H:
        fields = fields_of(block)
        content_length = check_request(fields)
        head = self._read(fields)
        head.content_length = content_length
        if block.own is not None and len(block.key) <= _MAX_KEY_BYTES:
            if len(self._known) >= _MAX_KEYS:
                self._known.clear()
            self._known[block.key] = head
        return head


class HeaderReader(Generic[H]):
    """Reads the header blocks of one connection, in the order they came (HPACK is stateful: none may be left out)."""

    __slots__ = ("_blocks", "_heads", "cached")

    def __init__(self, heads: Heads[H], blocks: BlockReader) -> None:
        self._heads = heads
        self._blocks = blocks
        self.cached: dict[bytes, H] = {}

    def read_request(self, block: bytes) -> H:
        """The head of a request. Raises ConnectionFault (undecodable) or MalformedHeaders."""
        head = self.cached.get(block)
        if head is not None:
            return head
        changes = self._blocks.changes
        head = self._heads.head_of(self._read(block))
        if self._blocks.changes == changes and len(block) <= _MAX_CACHED_BLOCK_BYTES:
            if len(self.cached) >= _MAX_CACHED_HEADS:
                self.cached.clear()
            self.cached[block] = head
        return head

    def decode(self, block: bytes) -> Fields:
        """The fields of any header block, unchecked. Raises ConnectionFault when the table is no longer the peer's."""
        return fields_of(self._read(block))

    def _read(self, block: bytes) -> Block:
        changes = self._blocks.changes
        try:
            found = self._blocks.read(block)
        except HeaderListTooLarge as error:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, f"headers too large: {error}") from error
        except HpackError as error:
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, f"undecodable header block: {error}") from error
        if self._blocks.changes != changes and self.cached:
            self.cached.clear()
        return found


def check_request(fields: Fields) -> int | None:
    """Refuse headers that are no well-formed request; answers the content-length, None without one."""
    seen: set[bytes] = set()
    content_length: int | None = None
    regular = False
    for name, value in fields:
        if name in _REQUEST_PSEUDO_FIELDS:
            if regular:
                raise MalformedHeaders("a pseudo-header field after a regular one")
            if name in seen:
                raise MalformedHeaders(f"{name!r} occurs twice")
            seen.add(name)
            if name == b":path" and not value:
                raise MalformedHeaders("an empty :path")
            continue
        regular = True
        if name not in ORDINARY_FIELDS:
            _check_name(name)
        if name == b"te" and value != b"trailers":
            raise MalformedHeaders("te may only be trailers")
        if name == b"content-length":
            content_length = _read_content_length(value, content_length)
    if not seen >= _NEEDED_PSEUDO_FIELDS:
        raise MalformedHeaders(":method, :scheme and :path are needed")
    _check_values(fields)
    return content_length


def check_trailers(fields: Fields) -> None:
    """Refuse trailers with pseudo-header fields or illegal fields."""
    for name, _ in fields:
        _check_name(name)
    _check_values(fields)


def _check_name(name: bytes) -> None:
    if not _FIELD_NAME.fullmatch(name):
        raise MalformedHeaders(f"{name!r} is not a field name here")
    if name in _CONNECTION_FIELDS:
        raise MalformedHeaders(f"{name!r} has no place in HTTP/2")


def _check_values(fields: Fields) -> None:
    """One search over all values: none may have a NUL or a line break, or begin or end with a blank."""
    values = b"\x01".join((b"", *[value for _, value in fields], b""))
    for bad in _BAD_IN_VALUES:
        if bad in values:
            raise MalformedHeaders("a field value has characters, or blanks at its ends, that it must not have")


def _read_content_length(value: bytes, earlier: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or (earlier is not None and earlier != int(value)):
        raise MalformedHeaders("content-length is not one number")
    return int(value)
