"""How long ago a client sent a request, although its clock is not ours (pure)

Requests carry the client's wall time. The difference to our monotonic time is a constant (the clocks' disagreement) plus what the
request took to come here; the smallest difference of the last minutes is taken for the constant, so that what is beyond it is
age. A difference that no queue explains means that the client's clock was set: the constant is learned anew. Our own wall clock
takes no part, so nobody who sets it makes requests old.
"""

from __future__ import annotations

from typing import Final

_WINDOW_MS: Final = 120_000  # the least difference is forgotten after one to two of these: clocks drift apart
_LONGEST_AGE_MS: Final = 120_000


class RequestAges:
    """Of one connection."""

    __slots__ = ("_earlier", "_least", "_since_ms")

    def __init__(self) -> None:
        self._least: int | None = None
        self._earlier: int | None = None
        self._since_ms = 0

    def age_ms(self, born_ms: int, now_ms: int) -> int:
        """`born_ms` is the client's wall time, `now_ms` our monotonic time. The first request counts as fresh."""
        difference = now_ms - born_ms
        known = [each for each in (self._least, self._earlier) if each is not None]
        if not known or difference - min(known) > _LONGEST_AGE_MS:
            self._least, self._earlier, self._since_ms = difference, None, now_ms
            return 0
        age_ms = max(0, difference - min(known))
        if now_ms - self._since_ms >= _WINDOW_MS:
            self._least, self._earlier, self._since_ms = None, self._least, now_ms
        if self._least is None or difference < self._least:
            self._least = difference
        return age_ms
