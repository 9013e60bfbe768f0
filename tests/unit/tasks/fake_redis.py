"""The few commands of Redis that tasks use, on a dictionary and a clock that a test moves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class FakeRedis:
    def __init__(self) -> None:
        self.now_ms = 0
        self.values: dict[str, tuple[Any, int | None]] = {}
        self.published: list[tuple[str, str]] = []

    def get(self, name: str) -> Any:
        value, until = self.values.get(name, (None, None))
        if until is not None and until <= self.now_ms:
            del self.values[name]
            return None
        return value

    def set(
        self, name: str, value: Any, *, nx: bool = False, px: int | None = None, ex: int | None = None
    ) -> bool | None:
        if nx and self.get(name) is not None:
            return None
        ttl = px if px is not None else ex * 1000 if ex is not None else None
        self.values[name] = (value, None if ttl is None else self.now_ms + ttl)
        return True

    def exists(self, *names: str) -> int:
        return sum(self.get(name) is not None for name in names)

    def delete(self, *names: str) -> int:
        return sum(self.values.pop(name, None) is not None for name in names)

    def pttl(self, name: str) -> int:
        """Milliseconds; -2 for what is not there, -1 for what stays."""
        self.get(name)
        if name not in self.values:
            return -2
        until = self.values[name][1]
        return -1 if until is None else until - self.now_ms

    def transaction(self, function: Callable[[FakeRedis], None], *watches: str) -> None:
        """Nobody comes in between here."""
        function(self)

    def multi(self) -> None:
        pass

    def pexpire(self, name: str, period_ms: int) -> bool:
        if self.get(name) is None:
            return False
        self.values[name] = (self.values[name][0], self.now_ms + period_ms)
        return True

    def restart(self) -> None:
        """What the embedded Redis keeps over a restart: nothing."""
        self.values.clear()

    def publish(self, channel: str, message: str) -> int:
        self.published.append((channel, message))
        return 0
