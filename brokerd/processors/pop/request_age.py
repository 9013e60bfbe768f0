"""How long ago a client sent a request, although its clock is not ours (pure)

Requests carry the client's wall time. The difference to our monotonic time is a constant (the clocks' disagreement) plus what the
request took to come here; the smallest difference of the last minutes is taken for the constant, so that what is beyond it is
age. A difference that no queue explains means that the client's clock was set: the constant is learned anew. Our own wall clock
takes no part, so nobody who sets it makes requests old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_WINDOW_MS: Final = 120_000  # the least difference is forgotten after one to two of these: clocks drift apart
_LONGEST_AGE_MS: Final = 120_000


@dataclass(slots=True, eq=False)
class RequestAges:
    """Of one connection."""

    least: int | None = None
    earlier: int | None = None
    since_ms: int = 0

    def age_ms(self, born_ms: int, now_ms: int) -> int:
        """`born_ms` is the client's wall time, `now_ms` our monotonic time. The first request counts as fresh."""
        difference = now_ms - born_ms
        known = [each for each in (self.least, self.earlier) if each is not None]
        if not known or difference - min(known) > _LONGEST_AGE_MS:
            self.least, self.earlier, self.since_ms = difference, None, now_ms
            return 0
        age_ms = max(0, difference - min(known))
        if now_ms - self.since_ms >= _WINDOW_MS:
            self.least, self.earlier, self.since_ms = None, self.least, now_ms
        if self.least is None or difference < self.least:
            self.least = difference
        return age_ms
