"""How many messages consumers gave back."""

from __future__ import annotations


class RetryCounters:
    """Running totals since the start, of both ways."""

    __slots__ = ("dead_lettered", "returned")

    def __init__(self) -> None:
        self.returned = 0  # to a retry topic
        self.dead_lettered = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}
