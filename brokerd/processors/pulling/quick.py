"""Pulls that say what an earlier one said, but for their offsets: taken from what a connection read without being decoded.

A client pulls a queue with the same words again and again. What a request asks for was decoded and checked once; here it is
looked up by all of these words, and what it was checked against is looked at again (`PullChecks.still_passes`): anything that
changed since has it checked again. What is not of the usual form, and what does not pass, is decoded and goes to the handler,
which says what is wrong with it. This is for connections whose requests nobody signs: signatures differ each time.

Who asks so again and again stays with the thread of the carrier for some milliseconds, where there is one (`native/stays.py`):
what was looked at counts for so long, or until whoever changes it has all come back (`PullProcessor.look_again`).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from brokerd.consuming.read_place import ReadPlace
from brokerd.native.library import Library
from brokerd.processors.pulling.asked import PullReader
from brokerd.processors.pulling.asked_before import AskedBefore, note_asked
from brokerd.processors.pulling.checks import PullChecks
from brokerd.processors.pulling.cold_line import ColdRequests
from brokerd.processors.pulling.laid_out import Asking
from brokerd.processors.pulling.pull import PullProcessor
from brokerd.processors.pulling.standing import Standing
from brokerd.processors.pulling.terms import PullTerms
from brokerd.store.queues.consume_queue import STRETCH_UNITS
from brokerd.store.unit import UNIT_BYTES
from remoting import frame
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection
from remoting.transport.server import each

# How headers of pulls begin where the code is first, as most write it, in JSON or compact; and what they have in them elsewhere
_BEGINNINGS: Final = (b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69")
_ANYWHERE: Final = re.compile(rb'"code"\s*:\s*(?:11|361)\b')
_FAR_UNITS: Final = STRETCH_UNITS  # at least,
_FAR_LOOKS: Final = 32  # and for so many answers of who looks at many for one,
_FARTHEST_UNITS: Final = 8000  # and at most, as much as is read at once
_NEAR_UNITS: Final = 128  # which is a block of a queue's file
_MOST_FAR_UNITS: Final = 512 * STRETCH_UNITS  # of all who look so far ahead: 10 MiB
_MOST_STANDING_BYTES: Final = 32 << 20  # of what stands of all, with what they see
_OWN_BYTES: Final = 1024  # of each, without units
_ONE_OF: Final = 16  # of those for whom there is no room takes the place of another one


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
        self._reader: PullReader[PullTerms] = PullReader(library)
        # Those that have what stands, and those of them that look far ahead; who began first comes first
        self._standing: OrderedDict[PullTerms, None] = OrderedDict()
        self._far: OrderedDict[PullTerms, int] = OrderedDict()  # how far
        self._far_units = 0
        self._standing_bytes = 0
        self._without = 0  # who would, and were told that there is no room
        self._near = 0  # likewise, to look far ahead

    @property
    def known_count(self) -> int:
        """Of how many different requests it is known what they ask for."""
        return self._reader.known_count

    def take(self, connection: RemotingConnection, buffer: bytes, position: int) -> int:
        """Answer or hold the request whose frame begins there: where it ends; the same position for what is left."""
        if not (buffer.startswith(_BEGINNINGS, position + frame.PREFIX_BYTES) or _may_be_pull(buffer, position)):
            return position
        asked = self._reader.recall(buffer, position)
        if asked is None:
            return position
        end, opaque, queue_offset, commit_offset, terms = asked
        is_known = terms is not None and self._checks.still_passes(connection, terms.checked)
        if not is_known:
            if terms is not None:
                self._let_go(terms)
            terms = self._learn(connection, buffer, position)
        if terms is None or self._place.refusal(lite=terms.is_lite) is not None:
            return position
        connection.owe(1)
        asking, cold = Asking(connection, opaque, terms, queue_offset), self._cold
        if cold is not None and cold.is_cold(terms.topic, terms.queue_id, queue_offset):
            head = _head(buffer, position)  # a body, which no client sends, would be kept as long as it waits
            request = partial(frame.decode_head, head)
            cold.enter(connection, len(head), request, partial(self._turn, request, asking, commit_offset))
            return end
        if is_known and terms.standing is None and terms.is_by_units:
            self._let_stand(terms)
        alike = self._reader.alike
        given = self._pulls.take(asking, commit_offset)
        if given is None or alike is None:
            return end
        slots, slot = alike
        last = note_asked(connection.density.kinds, slot, terms)
        last.asked(given.next_offset, given.advance)
        if end == len(buffer) and connection.density.note(connection.last_active):
            self._look_far(terms, last.advance)
            self._pulls.have_stay(connection, slots, last, given, self._others(connection, last))
        return end

    def _others(self, connection: RemotingConnection, last: AskedBefore) -> Iterator[AskedBefore]:
        """What else the connection asked of late, and would pass now; they look as far ahead as this one."""
        kinds = connection.density.kinds
        for other in list(kinds.values()):
            terms = other.terms
            if other is last:
                continue
            if other.is_left or not self._reader.is_in(other.slot, terms):
                del kinds[other.slot]
            elif self._checks.still_passes(connection, terms.checked) and (
                terms.is_lite is last.terms.is_lite or self._place.refusal(lite=terms.is_lite) is None
            ):
                self._look_far(terms, other.advance)
                yield other

    def _let_stand(self, terms: PullTerms) -> None:
        """Keep what the reader wants and sees. Where too many do, one of some takes the place of who began longest ago: if each
        did, nobody who asks after all others would find his."""
        size = _standing_bytes(terms)
        if self._standing_bytes + size > _MOST_STANDING_BYTES:
            self._without += 1
            if self._without % _ONE_OF:
                return
            while self._standing and self._standing_bytes + size > _MOST_STANDING_BYTES:
                self._let_go(next(iter(self._standing)))
        terms.standing = Standing()
        terms.stand(terms.standing)
        terms.standing.sight.ahead_units = _NEAR_UNITS
        self._standing[terms] = None
        self._standing_bytes += size
        if self._far_units + _FAR_UNITS <= _MOST_FAR_UNITS:
            self._look_far(terms)

    def _look_far(self, terms: PullTerms, advance: int = 0) -> None:
        """Keep more of what the reader sees: he asks densely, and goes on by so many units, or there is room. Where there is
        none, one of some takes the place of who began longest ago, who keeps less then."""
        units = max(_FAR_UNITS, min(_FAR_LOOKS * advance, _FARTHEST_UNITS))
        far = self._far.get(terms, 0)
        if terms.standing is None or far >= units:
            return
        more = units - far
        if far and self._far_units + more > _MOST_FAR_UNITS:
            return
        if self._far_units + more > _MOST_FAR_UNITS:
            self._near += 1
            if self._near % _ONE_OF:
                return
            while self._far and self._far_units + more > _MOST_FAR_UNITS:
                self._look_near(next(iter(self._far)))
        self._far[terms] = units
        self._far_units += more
        terms.standing.sight.ahead_units = units

    def _look_near(self, terms: PullTerms) -> None:
        self._far_units -= self._far.pop(terms)
        if terms.standing is not None:
            terms.standing.sight.forget()
            terms.standing.sight.ahead_units = _NEAR_UNITS

    def _let_go(self, terms: PullTerms) -> None:
        """They do not pass any more, or another one has their place."""
        if terms.standing is not None:
            del self._standing[terms]
            if terms in self._far:
                self._look_near(terms)
            self._standing_bytes -= _standing_bytes(terms)
            terms.standing = None

    def _turn(self, request: Callable[[], Command], asking: Asking, commit_offset: int) -> None:
        """Of who stood in line: what it was asked with may not hold any more."""
        connection, terms = asking.connection, asking.terms
        if self._checks.still_passes(connection, terms.checked) and self._place.refusal(lite=terms.is_lite) is None:
            self._pulls.take(asking, commit_offset)
        else:
            self._handle(connection, (request(),))

    def _learn(self, connection: RemotingConnection, buffer: bytes, position: int) -> PullTerms | None:
        """What the request asks for, decoded and checked; None for what does not pass."""
        asked = self._reader.read(buffer, position)
        assert asked is not None  # as it was read before
        request = frame.decode_head(_head(buffer, position))
        try:
            terms = self._pulls.terms_of(connection, request.code, request.ext)
        except LogboomError:  # its handler finds the same, and says it
            return None
        self._reader.learn(asked.key, terms)
        return terms


def _standing_bytes(terms: PullTerms) -> int:
    """How much memory is counted for who does not look far ahead."""
    return _OWN_BYTES + UNIT_BYTES * max(terms.most_units, _NEAR_UNITS)


def _may_be_pull(buffer: bytes, position: int) -> bool:
    """Whether the frame that begins there may be one whose code is not first, or not written as most do."""
    at = position + frame.PREFIX_BYTES
    if buffer[at : at + 1] != b"{" or (buffer.startswith(b'{"code":', at) and buffer[at + 8 : at + 9].isdigit()):
        return False
    end = position + frame.header_end(buffer[position:at])
    return _ANYWHERE.search(buffer, at, end) is not None


def _head(buffer: bytes, position: int) -> bytes:
    """The frame that begins there, without its body."""
    return buffer[position : position + frame.header_end(buffer[position : position + frame.PREFIX_BYTES])]
