"""Which sends of a read buffer may be laid out where requests are signed.

The loops that lay out sends know neither users nor signatures. So what is at the beginning of a buffer is checked in the turn
in which it is laid out: a user, a secret or a permission that changed counts for the next frame. As many as are let in, one
behind the other, are the kernel's; the first that is not, and what is behind it, is decoded and handled like any other request,
which refuses and counts it. Of what most clients write the library tells what is signed and whether it is; what it leaves is
decoded and goes through the guard as it would before a handler.

Who may send to a topic is remembered until a user or a permission changes, once a signature has proven who asks. The library
leaves names that are longer than any there is, so what is remembered has a bound.
"""

from __future__ import annotations

from typing import Final

from brokerd.native.library import Library
from brokerd.sending.native_signed import SignedSends, name_of, read_sender
from brokerd.sending.readings import Reading
from remoting import codes, frame
from remoting.errors import ProtocolError
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.transport.connection import RemotingConnection

_SENDS: Final = frozenset({codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE})
_MAX_REMEMBERED: Final = 16_384


class Admission:
    """What the sends of connections pass before they are laid out."""

    def __init__(self, guard: Guard, library: Library) -> None:
        self._guard = guard
        self._sends = SignedSends(library)
        self._revision = guard.revision
        self._remembered: dict[tuple[str, bytes], tuple[str, bytes]] = {}  # name and key, by host and sender
        self._keys: dict[str, bytes] = {}

    def begin_turn(self) -> None:
        """What was let in before is laid out, or never will be."""
        self._sends.forget()

    def let_in(self, connection: RemotingConnection, buffer: bytes, most: int) -> tuple[int, bool, Reading | None]:
        """How many frames at the beginning of the buffer, at most so many, are sends that may be carried out in this turn;
        whether something else follows that is there; and what the library read of the first of them."""
        if self._revision != self._guard.revision:
            self._revision = self._guard.revision
            self._remembered.clear()
            self._keys.clear()
        read = self._sends.read(buffer, most)
        count, end = self._let_in_undecoded(connection, buffer, read) if read else (0, 0)
        reading = self._sends.reading(buffer, read) if count > 1 else None  # of one it would take what it saves
        if count == most or len(buffer) - end < frame.PREFIX_BYTES:
            return count, False, reading
        others, is_other_next = self._let_in_decoded(connection, memoryview(buffer)[end:], most - count)
        return count + others, is_other_next, reading

    def _let_in_undecoded(self, connection: RemotingConnection, buffer: bytes, count: int) -> tuple[int, int]:
        """Of the so many of which the library tells: how many, and where the last ends."""
        sends, host, remembered = self._sends, connection.peer_host, self._remembered
        names, keys, new = [], [], []
        for sender, first in sends.senders():
            known = remembered.get((host, sender))
            if known is None:
                known = self._named(sender)
                if known is None:
                    count = first
                    break
                new.append((first, sender, known))
            names.append(known[0])
            keys.append(known[1])
        count = sends.proven(buffer, count, keys)
        for first, sender, known in new:
            if first < count and not self._remember(host, sender, known):
                count = first
        if not count:
            return 0, 0
        end, number = sends.last(count)
        if names[number] != connection.user:
            connection.prove(names[number])
        return count, end

    def _named(self, sender: bytes) -> tuple[str, bytes] | None:
        """Whom a sender's text names, and his key; None when that is nobody."""
        name = name_of(sender)
        known = self._keys.get(name)
        if known is None and (key := self._guard.key_of(name)) is not None:
            known = self._keys[name] = self._sends.keyed(key)
        return None if known is None else (name, known)

    def _remember(self, host: str, sender: bytes, known: tuple[str, bytes]) -> bool:
        """Whether somebody may send that, who signed it, from that host."""
        name, about = read_sender(sender)
        if not self._guard.may_ask(name, about, host):
            return False
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[host, sender] = known
        return True

    def _let_in_decoded(self, connection: RemotingConnection, buffer: memoryview, most: int) -> tuple[int, bool]:
        """Of those behind that."""
        requests: list[Command] = []
        try:
            frame.decode_frames(buffer, requests, most=most)
            is_other_next = False
        except ProtocolError:  # decoded again, the connection is closed for it
            is_other_next = True
        sends = next((index for index, each in enumerate(requests) if each.code not in _SENDS), len(requests))
        let_in = self._guard.let_in(connection, requests[:sends])
        return let_in, is_other_next or let_in < len(requests)
