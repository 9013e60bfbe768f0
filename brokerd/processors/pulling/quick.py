"""Pulls that say what an earlier one said, but for their offsets: taken from what a connection read without being decoded.

A client pulls a queue with the same words again and again. What a request asks for was decoded and checked once; here it is
looked up by all of these words, and what it was checked against is looked at again (`PullChecks.still_passes`): anything that
changed since has it checked again. What is not of the usual form, and what does not pass, is decoded and goes to the handler,
which says what is wrong with it. This is for connections whose requests nobody signs: signatures differ each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.consuming.read_place import ReadPlace
from brokerd.native.library import Library
from brokerd.processors.pulling.asked import Asked, PullReader
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.terms import PullTerms
from remoting import frame
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

# How the headers of clients begin that write the code first, as all that are known do, in JSON or compact
_BEGINNINGS: Final = (b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69")
_MAX_KNOWN: Final = 16_384
_MAX_KNOWN_BYTES: Final = 8 << 20  # of keys


class QuickPulls:
    """What connections show what they read (`transport.connection.RequestTaker`). `is_cold` says whether a queue's message with
    that offset is not in files any more; None without a tier."""

    def __init__(
        self,
        pulls: PullProcessor,
        checks: PullChecks,
        place: ReadPlace,
        is_cold: Callable[[str, int, int], bool] | None,
        library: Library,
    ) -> None:
        self._pulls = pulls
        self._checks = checks
        self._place = place
        self._is_cold = is_cold
        self._reader = PullReader(library)
        self._known: dict[bytes, PullTerms] = {}
        self._known_bytes = 0

    @property
    def known_count(self) -> int:
        """Of how many different requests it is known what they ask for."""
        return len(self._known)

    def take(self, connection: RemotingConnection, buffer: bytes, position: int) -> int:
        """Answer or hold the request whose frame begins there: where it ends; the same position for what is left."""
        if not buffer.startswith(_BEGINNINGS, position + frame.PREFIX_BYTES):
            return position
        asked = self._reader.read(buffer, position)
        if asked is None:
            return position
        terms = self._known.get(asked.key)
        if terms is None or not self._checks.still_passes(connection, terms.checked):
            terms = self._learn(connection, buffer, position, asked)
        if terms is None or not self._is_served_here(terms, asked.queue_offset):
            return position
        connection.owe(1)
        self._pulls.take(connection, asked.opaque, terms, asked.queue_offset, asked.commit_offset)
        return asked.end

    def _is_served_here(self, terms: PullTerms, queue_offset: int) -> bool:
        """Whether this broker answers such pulls at the moment, and this one without a stay in the line of those for old ones."""
        is_cold = self._is_cold
        if is_cold is not None and is_cold(terms.topic, terms.queue_id, queue_offset):
            return False
        return self._place.refusal(lite=terms.is_lite) is None

    def _learn(self, connection: RemotingConnection, buffer: bytes, position: int, asked: Asked) -> PullTerms | None:
        """What the request asks for, decoded and checked; None for what does not pass."""
        requests: list[Command] = []
        frame.decode_frames(memoryview(buffer)[position : asked.end], requests)
        try:
            terms = self._pulls.terms_of(connection, requests[0].code, requests[0].ext)
        except LogboomError:  # its handler finds the same, and says it
            return None
        if asked.key not in self._known:
            if len(self._known) >= _MAX_KNOWN or self._known_bytes + len(asked.key) > _MAX_KNOWN_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known_bytes += len(asked.key)
        self._known[asked.key] = terms
        return terms
