"""The few commands of Redis that tasks use, on a dictionary and a clock that a test moves."""

from __future__ import annotations

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

    def eval(self, script: str, numkeys: int, key: str, token: str, ttl_ms: int = 0) -> int:
        """The two scripts of `tasks.claims`, told apart by what they call."""
        if self.get(key) != token:
            return 0
        if "pexpire" in script:
            self.values[key] = (token, self.now_ms + ttl_ms)
        else:
            del self.values[key]
        return 1

    def publish(self, channel: str, message: str) -> int:
        self.published.append((channel, message))
        return 0
