"""Who works on what: a claim in Redis that expires by itself when its holder dies.

A claim is a promise between workers of one installation, not a lock that protects data: the rows' own transitions do that. It
answers two questions: may I start this, and does the one who started it still live.

Redis may forget: the embedded one keeps nothing over a restart. So a holder takes its claim again when it is gone, and a missing
claim means a dead holder only after it was missing for a while (`Claims.missing_for_s`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import redis
from redis.exceptions import LockNotOwnedError

from tasks.locks import PlainLock

log = logging.getLogger(__name__)

_PREFIX = "logboom:claim:"
_MISSED_PREFIX = "logboom:unclaimed:"
# Longer than any look at a missing claim is apart from the next; what is older was about another loss.
_MISSED_KEPT_MS = 600_000


class Claim:
    """A claim that is held. `keep` it in time, `release` it at the end; any thread may."""

    def __init__(self, lock: PlainLock) -> None:
        self._lock = lock

    def keep(self) -> bool:
        """Hold on for another period, also when Redis forgot it. False while somebody else has it. Raises RedisError."""
        try:
            self._lock.reacquire()
        except LockNotOwnedError:
            return self._lock.acquire()
        return True

    def release(self) -> None:
        """Give it back. What cannot be given back expires by itself, so that fails nobody's work."""
        try:
            self._lock.release()
        except redis.RedisError as error:
            log.warning("a claim was not given back: %s", error)


class Claims:
    """Claims by name, in a client of Redis. All raise RedisError when it does not answer."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def take(self, name: str, ttl_s: float) -> Claim | None:
        """Claim the name, or None when somebody holds it."""
        lock = PlainLock(self._store, _PREFIX + name, ttl_s)
        return Claim(lock) if lock.acquire() else None

    def is_held(self, name: str) -> bool:
        """Whether somebody holds the name."""
        return bool(self._store.exists(_PREFIX + name))

    def missing_for_s(self, name: str) -> float:
        """For how many seconds at least nobody has held the name: 0 while somebody does, and at the first look.

        This is kept in Redis beside the claims, so a Redis that forgot them begins anew.
        """
        missed = _MISSED_PREFIX + name
        if self.is_held(name):
            self._store.delete(missed)
            return 0.0
        if self._store.set(missed, "1", nx=True, px=_MISSED_KEPT_MS):
            return 0.0
        left_ms: int = self._store.pttl(missed)
        return (_MISSED_KEPT_MS - left_ms) / 1000 if left_ms > 0 else 0.0

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
