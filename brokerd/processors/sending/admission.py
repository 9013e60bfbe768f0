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
from brokerd.sending.native_signed import Keys, SignedSends, name_of, read_sender
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
        self._remembered: dict[tuple[str, bytes], Keys] = {}  # by host and sender
        self._keys: dict[str, Keys] = {}

    def let_in(self, connection: RemotingConnection, buffer: bytes, most: int) -> tuple[int, bool]:
        """How many frames at the beginning of the buffer, at most so many, are sends that may be carried out; and whether
        something else follows that is there."""
        if self._revision != self._guard.revision:
            self._revision = self._guard.revision
            self._remembered.clear()
            self._keys.clear()
        count, end = self._let_in_undecoded(connection, buffer, most)
        if count == most or len(buffer) - end < frame.PREFIX_BYTES:
            return count, False
        others, is_other_next = self._let_in_decoded(connection, memoryview(buffer)[end:], most - count)
        return count + others, is_other_next

    def _let_in_undecoded(self, connection: RemotingConnection, buffer: bytes, most: int) -> tuple[int, int]:
        """Of those of which the library tells: how many, and where the last ends."""
        count = self._sends.read(buffer, most)
        if count < self._sends.least_at_once:
            return self._let_in_few(connection, buffer, count)
        host, senders, keys = connection.peer_host, self._sends.senders(), []
        for sender in senders:
            key = self._remembered.get((host, sender.text)) or self._keys_of(sender.text)
            if key is None:
                count = sender.first
                break
            keys.append(key)
        count = self._sends.proven(buffer, count, keys)
        for sender, key in zip(senders, keys, strict=False):
            if sender.first >= count:
                break
            who = host, sender.text
            if who not in self._remembered and not self._remember(who, key):
                count = sender.first
                break
        if count == 0:
            return 0, 0
        end, number = self._sends.last(count)
        self._prove(connection, senders[number].text)
        return count, end

    def _let_in_few(self, connection: RemotingConnection, buffer: bytes, most: int) -> tuple[int, int]:
        """The same one by one."""
        count = end = 0
        sends = self._sends
        host, view, texts, remembered = connection.peer_host, memoryview(buffer), sends.texts, self._remembered
        for body_at, send_end, signature_at, covered_at, covered_end, number in sends.places(most):
            who = host, sends.sender(number)
            known = remembered.get(who)
            keys = known or self._keys_of(who[1])
            signature, covered = texts[signature_at:covered_at], texts[covered_at:covered_end]
            if keys is None or not keys.key.gives(signature, covered, view[body_at:send_end]):
                break
            if known is None and not self._remember(who, keys):
                break
            self._prove(connection, who[1])
            count += 1
            end = send_end
        return count, end

    def _prove(self, connection: RemotingConnection, sender: bytes) -> None:
        name = name_of(sender)
        if name != connection.user:
            connection.prove(name)

    def _keys_of(self, sender: bytes) -> Keys | None:
        name = name_of(sender)
        keys = self._keys.get(name)
        if keys is None and (key := self._guard.key_of(name)) is not None:
            keys = self._keys[name] = self._sends.keyed(key)
        return keys

    def _remember(self, who: tuple[str, bytes], keys: Keys) -> bool:
        """Whether somebody may send that, who signed it, from that host."""
        host, sender = who
        name, about = read_sender(sender)
        if not self._guard.may_ask(name, about, host):
            return False
        if len(self._remembered) >= _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[who] = keys
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
