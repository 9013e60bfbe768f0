"""Who works on what: a claim in Redis that expires by itself when its holder dies.

A claim is a promise between workers of one installation, not a lock that protects data: the rows' own transitions do that. It
answers two questions: may I start this, and does the one who started it still live.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis

_PREFIX = "logboom:claim:"

# Only the holder may extend or give back: after an expiry the key may belong to somebody else.
_EXTEND = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) else return 0 end"
)
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


class Claim:
    """A claim that is held. `extend` in time, `release` at the end."""

    def __init__(self, store: Any, key: str, token: str, ttl_ms: int) -> None:
        self._store = store
        self._key = key
        self._token = token
        self._ttl_ms = ttl_ms

    def extend(self) -> bool:
        """Hold on for another period; False when it was lost in between."""
        return bool(self._store.eval(_EXTEND, 1, self._key, self._token, self._ttl_ms))

    def release(self) -> None:
        """Give it back."""
        self._store.eval(_RELEASE, 1, self._key, self._token)


class Claims:
    """Claims by name, in a client of Redis."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def take(self, name: str, ttl_s: float) -> Claim | None:
        """Claim the name, or None when somebody holds it."""
        token = secrets.token_hex(16)
        ttl_ms = int(ttl_s * 1000)
        if not self._store.set(_PREFIX + name, token, nx=True, px=ttl_ms):
            return None
        return Claim(self._store, _PREFIX + name, token, ttl_ms)

    def is_held(self, name: str) -> bool:
        """Whether somebody holds the name."""
        return bool(self._store.exists(_PREFIX + name))

    @contextmanager
    def held(self, name: str, ttl_s: float) -> Iterator[Claim | None]:
        """As `take`, given back at the end of the block."""
        claim = self.take(name, ttl_s)
        try:
            yield claim
        finally:
            if claim is not None:
                claim.release()


@cache
def connection() -> Any:
    """This process's connection to Redis. Made on first use, so that a forked worker has its own."""
    from django.conf import settings

    return redis.Redis.from_url(
        settings.REDIS_URL, socket_connect_timeout=2, socket_timeout=5, health_check_interval=30
    )


def claims() -> Claims:
    """The claims of this installation."""
    return Claims(connection())
