"""Pulls that say what an earlier one said, but for their offsets: taken from what a connection read without being decoded.

A client pulls a queue with the same words again and again. What a request asks for was decoded and checked once; here it is
looked up by all of these words, and what it was checked against is looked at again (`PullChecks.still_passes`): anything that
changed since has it checked again. What is not of the usual form, and what does not pass, is decoded and goes to the handler,
which says what is wrong with it. This is for connections whose requests nobody signs: signatures differ each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from brokerd.consuming.read_place import ReadPlace
from brokerd.native.library import Library
from brokerd.processors.pulling.asked import PullReader
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.laid_out import Asking
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.standing import Standing
from brokerd.processors.pulling.terms import PullTerms
from remoting import frame
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

# How the headers of clients begin that write the code first, as all that are known do, in JSON or compact
_BEGINNINGS: Final = (b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69")
_MAX_STANDING: Final = 512  # each holds 20 KiB of units at most


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
        self._reader: PullReader[PullTerms] = PullReader(library)
        self._standing: deque[PullTerms] = deque()  # those that have what stands

    @property
    def known_count(self) -> int:
        """Of how many different requests it is known what they ask for."""
        return self._reader.known_count

    def take(self, connection: RemotingConnection, buffer: bytes, position: int) -> int:
        """Answer or hold the request whose frame begins there: where it ends; the same position for what is left."""
        if not buffer.startswith(_BEGINNINGS, position + frame.PREFIX_BYTES):
            return position
        asked = self._reader.recall(buffer, position)
        if asked is None:
            return position
        end, opaque, queue_offset, commit_offset, terms = asked
        if terms is None or not self._checks.still_passes(connection, terms.checked):
            terms = self._learn(connection, buffer, position)
        if terms is None or not self._is_served_here(terms, queue_offset):
            return position
        if terms.standing is None:
            self._let_stand(terms)
        self._pulls.take(Asking(connection, opaque, terms, queue_offset), commit_offset)
        return end

    def _let_stand(self, terms: PullTerms) -> None:
        """Keep what the reader wants and sees, in place of that of who began longest ago where too many do."""
        if len(self._standing) >= _MAX_STANDING:
            self._standing.popleft().standing = None
        terms.standing = Standing()
        terms.stand(terms.standing)
        self._standing.append(terms)

    def _is_served_here(self, terms: PullTerms, queue_offset: int) -> bool:
        """Whether this broker answers such pulls at the moment, and this one without a stay in the line of those for old ones."""
        is_cold = self._is_cold
        if is_cold is not None and is_cold(terms.topic, terms.queue_id, queue_offset):
            return False
        return self._place.refusal(lite=terms.is_lite) is None

    def _learn(self, connection: RemotingConnection, buffer: bytes, position: int) -> PullTerms | None:
        """What the request asks for, decoded and checked; None for what does not pass."""
        requests: list[Command] = []
        asked = self._reader.read(buffer, position)
        assert asked is not None  # as it was read before
        frame.decode_frames(memoryview(buffer)[position : asked.end], requests)
        try:
            terms = self._pulls.terms_of(connection, requests[0].code, requests[0].ext)
        except LogboomError:  # its handler finds the same, and says it
            return None
        self._reader.learn(asked.key, terms)
        return terms
