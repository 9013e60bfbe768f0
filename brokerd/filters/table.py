"""Compiled filters: those who subscribe alike share one, and all together are bounded (pure).

A filter takes up to a hundred times the memory of its expression, and lives as long as a request that waits with it. So what is
counted is the characters of all expressions whose filters somebody holds. The latest ones are kept for whoever asks next. Short
expressions may take as much room again, so that somebody's long ones do not shut everybody out.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from remoting import codes
from remoting.errors import RequestError

MAX_HELD: Final = 1 << 20  # characters, with the following for each filter
FILTER_WEIGHT: Final = 64
MAX_RECENT: Final = 1 << 17
_SHORT_WEIGHT: Final = 2 * FILTER_WEIGHT

F = TypeVar("F")
Key = tuple[str, str]  # type and text of an expression


class FilterTable(Generic[F]):
    """Filters by their expressions; `make` compiles a new one, and raises what is wrong with it."""

    def __init__(self, make: Callable[[str, str], F], max_held: int = MAX_HELD, max_recent: int = MAX_RECENT) -> None:
        self._make = make
        self._max_held = max_held
        self._max_recent = max_recent
        self._held: dict[Key, weakref.ref[F]] = {}
        self._recent: OrderedDict[Key, F] = OrderedDict()
        self._recent_weight = 0
        self.held_weight = 0

    def get(self, expression_type: str, expression: str) -> F:
        """The filter. Raises RequestError SYSTEM_BUSY when those that are held leave no room for it, and what `make` raises."""
        key = expression_type, expression
        found = self._recent.get(key)
        if found is not None:
            self._recent.move_to_end(key)
            return found
        reference = self._held.get(key)
        found = reference() if reference is not None else None
        if found is None:
            found = self._made(key)
        self._keep(key, found)
        return found

    def _made(self, key: Key) -> F:
        weight = _weight(key)
        room = self._max_held * (2 if weight <= _SHORT_WEIGHT else 1)
        while self._recent and self.held_weight + weight > room:
            self._drop_oldest()
        if self.held_weight + weight > room:
            raise RequestError(
                codes.SYSTEM_BUSY,
                f"[OVERLOAD]the filter expressions that consumers wait with have {self.held_weight} characters together, and "
                f"there is room for {room}; use fewer or shorter ones",
            )
        made = self._make(*key)
        self.held_weight += weight

        def gone(reference: weakref.ref[F]) -> None:
            self.held_weight -= weight
            if self._held.get(key) is reference:
                del self._held[key]

        self._held[key] = weakref.ref(made, gone)
        return made

    def _keep(self, key: Key, made: F) -> None:
        self._recent[key] = made
        self._recent_weight += _weight(key)
        while self._recent_weight > self._max_recent:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        key, _ = self._recent.popitem(last=False)
        self._recent_weight -= _weight(key)


def _weight(key: Key) -> int:
    return len(key[1]) + FILTER_WEIGHT
