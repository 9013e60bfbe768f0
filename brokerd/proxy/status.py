"""The status that a response carries: codes, refusals, and what an error of the broker becomes (pure).

A client looks at this code, not at the transport's; 0 means nothing to it and some of them fail on it, so every answer has one.
In every response message `status` is field 1, which is why one encoder serves all of them.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Final

from remoting import codes
from remoting.errors import RequestError


class Code(IntEnum):
    """The protocol's codes that we give."""

    OK = 20000
    MULTIPLE_RESULTS = 30000
    BAD_REQUEST = 40000
    ILLEGAL_TOPIC = 40002
    ILLEGAL_CONSUMER_GROUP = 40003
    ILLEGAL_MESSAGE_TAG = 40004
    ILLEGAL_MESSAGE_KEY = 40005
    ILLEGAL_MESSAGE_GROUP = 40006
    ILLEGAL_MESSAGE_PROPERTY_KEY = 40007
    INVALID_TRANSACTION_ID = 40008
    ILLEGAL_MESSAGE_ID = 40009
    ILLEGAL_FILTER_EXPRESSION = 40010
    ILLEGAL_INVISIBLE_TIME = 40011
    ILLEGAL_DELIVERY_TIME = 40012
    INVALID_RECEIPT_HANDLE = 40013
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = 40014
    MESSAGE_CORRUPTED = 40016
    CLIENT_ID_REQUIRED = 40017
    ILLEGAL_POLLING_TIME = 40018
    ILLEGAL_OFFSET = 40019
    ILLEGAL_LITE_TOPIC = 40020
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    MESSAGE_NOT_FOUND = 40401
    TOPIC_NOT_FOUND = 40402
    CONSUMER_GROUP_NOT_FOUND = 40403
    OFFSET_NOT_FOUND = 40404
    MESSAGE_BODY_TOO_LARGE = 41301
    MESSAGE_BODY_EMPTY = 41302
    TOO_MANY_REQUESTS = 42900
    MESSAGE_PROPERTIES_TOO_LARGE = 43101
    INTERNAL_SERVER_ERROR = 50001
    HA_NOT_AVAILABLE = 50002
    NOT_IMPLEMENTED = 50100
    MASTER_PERSISTENCE_TIMEOUT = 50401
    SLAVE_PERSISTENCE_TIMEOUT = 50402
    UNSUPPORTED = 50500


def code_name(code: int) -> str:
    """What a code is called; its number when that is all that is known."""
    return Code(code).name if code in _NAMED else str(code)


_NAMED: Final = frozenset(Code)


class Refusal(Exception):
    """A request is refused with a code and a sentence."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def status(self) -> bytes:
        """The field of a response that says it."""
        return status_field(self.code, self.text)


_CODES: Final = {
    codes.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    codes.POLLING_FULL: Code.TOO_MANY_REQUESTS,
    codes.FLOW_CONTROL: Code.TOO_MANY_REQUESTS,
    codes.REQUEST_CODE_NOT_SUPPORTED: Code.NOT_IMPLEMENTED,
    codes.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    codes.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    codes.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    codes.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    codes.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    codes.NO_PERMISSION: Code.FORBIDDEN,
    codes.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    codes.SUBSCRIPTION_PARSE_FAILED: Code.ILLEGAL_FILTER_EXPRESSION,
    codes.SUBSCRIPTION_GROUP_NOT_EXIST: Code.CONSUMER_GROUP_NOT_FOUND,
    codes.INVALID_PARAMETER: Code.BAD_REQUEST,
    codes.ILLEGAL_OPERATION: Code.BAD_REQUEST,
}


def refusal_of(error: RequestError) -> Refusal:
    """What a refusal of the broker's services is to a gRPC client."""
    return Refusal(_CODES.get(error.code, Code.INTERNAL_SERVER_ERROR), error.message)


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
_MORE_FOLLOW: Final = tuple(bytes((value | 0x80,)) for value in range(0x80))


def encode_length(value: int) -> bytes:
    """A protobuf varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return _MORE_FOLLOW[value & 0x7F] + _ONE_BYTE[value >> 7]
    if value < 0x10000000:
        spread = value & 0x7F | (value & 0x3F80) << 1 | (value & 0x1FC000) << 2 | (value & 0xFE00000) << 3
        return (
            (spread | 0x8080).to_bytes(3, "little") if value < 0x200000 else (spread | 0x808080).to_bytes(4, "little")
        )
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


@lru_cache(maxsize=1024)
def status_field(code: int, text: str = "") -> bytes:
    """Field 1 of any response: Status{code 1, message 2}."""
    message = text.encode("utf-8", "replace")[:4096].decode("utf-8", "ignore").encode()
    status = b"\x08" + encode_length(code)
    if message:
        status += b"\x12" + encode_length(len(message)) + message
    return b"\x0a" + encode_length(len(status)) + status


OK: Final = status_field(Code.OK, "OK")
