"""What is to be sent on a connection, and its socket, which somebody beside the loop may have for a piece (`carrying.py`)."""

from __future__ import annotations

import asyncio
from typing import Final

from remoting.disk import Bytes
from remoting.transport.carrying import Carrier, Lender

_LONG_PARTS_BYTES: Final = 2048  # of parts on average: from here on they are not copied into one


class Outgoing:
    """Of one connection. `parts` are to be sent, `size` bytes in all; the socket is lent for the piece with the `ticket`, 0 for
    none."""

    __slots__ = ("_carrier", "_descriptor", "_given_back", "_transport", "parts", "size", "ticket")

    def __init__(self, carrier: Carrier | None) -> None:
        """Without a carrier nobody has the socket but the transport."""
        self._carrier = carrier
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        self.parts: list[Bytes] = []
        self.size = self.ticket = 0
        self._given_back = 0  # so many of the parts, by somebody to whom the socket was lent

    def open(self, transport: asyncio.Transport) -> None:
        """Until it is closed."""
        self._transport = transport
        if self._carrier is not None and (own_socket := transport.get_extra_info("socket")) is not None:
            self._descriptor = own_socket.fileno()

    def close(self) -> None:
        """The descriptor is closed behind this."""
        self.get_back()
        self._transport = None

    def add(self, part: Bytes) -> None:
        self.parts.append(part)
        self.size += len(part)

    def give_back(self, part: Bytes) -> None:
        """The socket did not take this from somebody else: it is before all but what was given back before."""
        self.parts.insert(self._given_back, part)
        self._given_back += 1
        self.size += len(part)

    def take(self) -> list[Bytes]:
        parts, self.parts, self.size, self._given_back = self.parts, [], 0, 0
        return parts

    def write_to(self, transport: asyncio.Transport) -> None:
        """Everything."""
        size, parts = self.size, self.take()
        if len(parts) == 1:
            transport.write(parts[0])
        elif size < _LONG_PARTS_BYTES * len(parts):
            transport.write(b"".join(parts))
        else:
            transport.writelines(parts)

    # ---- the socket

    @property
    def socket_to_lend(self) -> int:
        """Its descriptor; -1 when something is to be written before what somebody else writes, or nobody else may."""
        transport = self._transport
        if transport is None or self.parts or transport.get_write_buffer_size() or transport.is_closing():
            return -1
        return self._descriptor

    def lend(self, ticket: int, seen: int) -> int:
        """For the piece with that ticket, or for now, when all pieces up to `seen` are through: the descriptor, or -1."""
        if self.ticket > seen or (descriptor := self.socket_to_lend) < 0:
            return -1
        self.ticket = ticket
        return descriptor

    def lend_more(self) -> tuple[int, int]:
        """For what is behind the piece that is under way, and with it: the descriptor, and the ticket of that; or -1."""
        if not self.ticket or (descriptor := self.socket_to_lend) < 0:
            return -1, 0
        return descriptor, self.ticket

    @property
    def is_lent(self) -> bool:
        """As far as is known here: `stays_lent` asks."""
        return self.ticket != 0

    def stays_lent(self, lender: Lender) -> bool:
        """Whether what is to be sent waits for who has it, or leaves with him."""
        if self._carrier is not None and self._carrier.keeps(lender, self.ticket):
            return True
        self.ticket = 0
        return False

    def get_back(self) -> None:
        """Wait until nobody else writes to it."""
        if self.ticket and self._carrier is not None:
            self._carrier.finish(self.ticket)
            self.ticket = 0
