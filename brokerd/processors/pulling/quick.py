"""Pulls that say what an earlier one said, but for their offsets: taken from what a connection read without being decoded.

A client pulls a queue with the same words again and again. What a request asks for was decoded and checked once; here it is
looked up by all of these words, and what it was checked against is looked at again (`PullChecks.still_passes`): anything that
changed since has it checked again. What is not of the usual form, and what does not pass, is decoded and goes to the handler,
which says what is wrong with it. This is for connections whose requests nobody signs: signatures differ each time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from brokerd.consuming.read_place import ReadPlace
from brokerd.native.library import Library
from brokerd.processors.pulling.asked import Asked, PullReader
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.cold_line import ColdRequests
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.terms import PullTerms
from remoting import frame
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import each

# How the headers of clients begin that write the code first, as all that are known do, in JSON or compact
_BEGINNINGS: Final = (b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69")
_MAX_KNOWN: Final = 16_384
_MAX_KNOWN_BYTES: Final = 8 << 20  # of keys


class QuickPulls:
    """What connections show what they read (`transport.connection.RequestTaker`). Who asks for what only the tier has stands in
    the line of `cold`; None without a tier."""

    def __init__(
        self,
        pulls: PullProcessor,
        checks: PullChecks,
        place: ReadPlace,
        cold: ColdRequests | None,
        library: Library,
    ) -> None:
        self._pulls = pulls
        self._checks = checks
        self._place = place
        self._cold = cold if cold is not None and cold.line is not None else None
        self._handle = each(pulls.handle)
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
        if terms is None or self._place.refusal(lite=terms.is_lite) is not None:
            return position
        connection.owe(1)
        cold = self._cold
        if cold is not None and cold.is_cold(terms.topic, terms.queue_id, asked.queue_offset):
            request = partial(_decoded, buffer[position : asked.end])
            cold.enter(connection, request, partial(self._turn, connection, request, terms, asked))
        else:
            self._pulls.take(connection, asked.opaque, terms, asked.queue_offset, asked.commit_offset)
        return asked.end

    def _turn(
        self, connection: RemotingConnection, request: Callable[[], Command], terms: PullTerms, asked: Asked
    ) -> None:
        """Of who stood in line: what it was asked with may not hold any more."""
        is_right = self._checks.still_passes(connection, terms.checked)
        if is_right and self._place.refusal(lite=terms.is_lite) is None:
            self._pulls.take(connection, asked.opaque, terms, asked.queue_offset, asked.commit_offset)
        else:
            self._handle(connection, (request(),))

    def _learn(self, connection: RemotingConnection, buffer: bytes, position: int, asked: Asked) -> PullTerms | None:
        """What the request asks for, decoded and checked; None for what does not pass."""
        request = _decoded(buffer[position : asked.end])
        try:
            terms = self._pulls.terms_of(connection, request.code, request.ext)
        except LogboomError:  # its handler finds the same, and says it
            return None
        if asked.key not in self._known:
            if len(self._known) >= _MAX_KNOWN or self._known_bytes + len(asked.key) > _MAX_KNOWN_BYTES:
                self._known.clear()
                self._known_bytes = 0
            self._known_bytes += len(asked.key)
        self._known[asked.key] = terms
        return terms


def _decoded(whole: bytes) -> Command:
    """The one request whose frame this is."""
    requests: list[Command] = []
    frame.decode_frames(whole, requests)
    return requests[0]
