"""Running totals of transactions since the start, for rates and metrics."""

from __future__ import annotations


class TransactionCounters:
    """Counted by the transaction service; read by anybody."""

    __slots__ = ("begun", "checks", "committed", "given_up", "refused_ends", "rolled_back", "unasked")

    def __init__(self) -> None:
        self.begun = self.committed = self.rolled_back = 0
        self.checks = 0  # sent to a producer
        self.unasked = 0  # checks that no producer of the group was there for
        self.given_up = 0
        self.refused_ends = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
