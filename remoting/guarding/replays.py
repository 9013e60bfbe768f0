"""Which requests of components were carried out, so that nobody has one carried out again (pure)

A connection's requests are numbered and arrive in order, so of each connection only its last number is kept, and forgotten when
requests of that age are refused for their age.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from remoting.access.component import WINDOW_MS, Claims

MOST: Final = 65_536  # connections of components within the time in which their requests count


class Replays:
    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, int]] = OrderedDict()  # nonce -> number, when it is forgotten

    @property
    def count(self) -> int:
        """Connections that are remembered."""
        return len(self._last)

    def is_new(self, claims: Claims, now_ms: int) -> bool:
        """Whether a request was not seen before; it is, from now on. The claims are proven and their age counts."""
        self._forget(now_ms)
        known = self._last.get(claims.nonce)
        if known is not None and claims.number <= known[0]:
            return False
        if known is None and len(self._last) >= MOST:
            return False
        until_ms = max(now_ms, claims.sent_at_ms) + WINDOW_MS
        self._last[claims.nonce] = claims.number, until_ms
        self._last.move_to_end(claims.nonce)
        return True

    def _forget(self, now_ms: int) -> None:
        """Those whose time is over, at the front; one that a clock ahead keeps longer lets those behind it wait."""
        while self._last:
            nonce, (_number, until_ms) = next(iter(self._last.items()))
            if until_ms >= now_ms:
                return
            del self._last[nonce]
