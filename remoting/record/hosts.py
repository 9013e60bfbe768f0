"""The host fields of a record, and the message id that is made of one (pure)."""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache
from typing import Final

from remoting.errors import ProtocolError
from remoting.record.layout import HOST_BYTES, HOST_V6_BYTES

_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")


def pack_host(host: str, port: int) -> bytes:
    """A record's host field: packed IPv4 or IPv6 address and a 4-byte port. An IPv4 address mapped into IPv6 is unmapped."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.packed + _INT.pack(port)


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """The address and port of a record's host field."""
    return str(ipaddress.ip_address(packed[: -_INT.size])), _INT.unpack_from(packed, len(packed) - _INT.size)[0]


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The server's message id: hex of the store host and the physical offset."""
    return (store_host + _LONG.pack(physical_offset)).hex().upper()


def decode_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """(host, port, physical offset) of a server message id; raises ProtocolError when it is none."""
    try:
        packed = bytes.fromhex(message_id)
        if len(packed) - _LONG.size not in (HOST_BYTES, HOST_V6_BYTES):
            raise ProtocolError(f"{message_id!r} is not an offset message id: it has 32 or 56 hexadecimal digits")
        host, port = unpack_host(packed[: -_LONG.size])
    except ValueError as error:
        raise ProtocolError(f"{message_id!r} is not an offset message id: {error}") from error
    return host, port, _LONG.unpack_from(packed, len(packed) - _LONG.size)[0]
