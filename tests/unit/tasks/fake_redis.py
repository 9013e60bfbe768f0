"""The few commands of Redis that tasks use, on a dictionary and a clock that a test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from redis.lock import Lock


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

    def lock(self, name: str, *, timeout: float, thread_local: bool) -> Lock:
        return _Lock(cast(Any, self), name, timeout=timeout, thread_local=thread_local)

    def get_encoder(self) -> Any:
        return SimpleNamespace(encode=str.encode)

    def register_script(self, script: str) -> _Script:
        return _Script(script)

    def restart(self) -> None:
        """What the embedded Redis keeps over a restart: nothing."""
        self.values.clear()

    def publish(self, channel: str, message: str) -> int:
        self.published.append((channel, message))
        return 0


class _Script:
    """One of the lock's scripts, told apart by what they call."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __call__(self, keys: list[str], args: list[Any], client: FakeRedis) -> int:
        if client.get(keys[0]) != args[0]:
            return 0
        if "del" in self._text:
            return client.delete(keys[0])
        client.values[keys[0]] = (args[0], client.now_ms + int(args[1]))
        return 1


class _Lock(Lock):
    """The library's lock with its scripts registered here, and not on the class that real clients use."""

    lua_release = lua_extend = lua_reacquire = None
