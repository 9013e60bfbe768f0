"""How much one look at stored messages tests behind a filter (pure).

Messages that a filter does not admit are not counted by what a reader asked for, so a look would go on over them for as long as
they come, in one turn of the loop. It ends when its budget is spent, and says which messages it tested: the next one goes on
behind them. What a message costs is the filter's conditions and the length of the properties that are decoded for them.

All looks of a turn of the loop share one such budget, however many connections ask; those that come when it is spent test a
little each, so that everybody goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from brokerd.filters.message_filter import MessageFilter
from remoting.record.fields import properties_of

MAX_TESTS: Final = 8192  # of a look, and of all looks of a turn: a few milliseconds
LEAST_TESTS: Final = 256  # of a look in a turn whose budget is spent: about as much as a request costs anyway
_BYTES_OF_A_TEST: Final = 64  # of properties: decoding them takes as long as a condition


class TurnBudget:
    """Of the looks of one turn. `call_soon` runs something at the beginning of the next one."""

    __slots__ = ("_call_soon", "_left")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._left = MAX_TESTS

    def look(self) -> Budget:
        """That of another look."""
        return Budget(self, max(LEAST_TESTS, self._left))

    def spend(self, tests: int) -> None:
        if self._left == MAX_TESTS:
            self._call_soon(self._begin)
        self._left -= tests

    def _begin(self) -> None:
        self._left = MAX_TESTS


class Budget:
    """Of one look. A new one is enough for a message at least, whatever that costs."""

    __slots__ = ("_left", "_turn")

    def __init__(self, turn: TurnBudget, tests: int) -> None:
        self._turn = turn
        self._left = tests

    def is_spent(self) -> bool:
        """Whether nothing more is tested. Never so where the filter decides without the messages."""
        return self._left <= 0

    def admits(self, message_filter: MessageFilter, record: bytes) -> bool:
        """Whether the filter admits a stored message; spends what that costs, also more than there is."""
        if message_filter.is_exact:
            return True
        properties = properties_of(record)
        tests = message_filter.conditions + len(properties) // _BYTES_OF_A_TEST
        self._left -= tests
        self._turn.spend(tests)
        return message_filter.admits(properties)

    def admitted(self, message_filter: MessageFilter, records: Sequence[bytes]) -> tuple[list[bytes], int]:
        """Those that the filter admits, and how many were tested: all, or the first ones, until the budget was spent."""
        found: list[bytes] = []
        for number, record in enumerate(records):
            if self.is_spent():
                return found, number
            if self.admits(message_filter, record):
                found.append(record)
        return found, len(records)
