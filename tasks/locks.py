"""Locks in Redis that need no scripts there, which the embedded server refuses.

The Redis client's own lock compares and changes in Lua. What that does at once is a transaction here: the key is watched, read
and changed, the last only if nobody touched it in between.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from redis.exceptions import LockNotOwnedError


class PlainLock:
    """A key that holds our token for a time. Any thread may use it; all raise RedisError when Redis does not answer."""

    def __init__(self, store: Any, name: str, period_s: float) -> None:
        self._store = store
        self._name = name
        self._period_ms = int(period_s * 1000)
        self._token = secrets.token_hex(16).encode()

    def acquire(self) -> bool:
        """Put it there; False while somebody has it."""
        return bool(self._store.set(self._name, self._token, nx=True, px=self._period_ms))

    def reacquire(self) -> None:
        """Have it for another period. Raises LockNotOwnedError when somebody else has it, or nobody."""
        self._if_owned(lambda transaction: transaction.pexpire(self._name, self._period_ms))

    def release(self) -> None:
        """Give it back. Raises LockNotOwnedError when somebody else has it, or nobody."""
        self._if_owned(lambda transaction: transaction.delete(self._name))

    def _if_owned(self, change: Callable[[Any], object]) -> None:
        def change_if_owned(transaction: Any) -> None:
            if transaction.get(self._name) != self._token:
                raise LockNotOwnedError(f"{self._name} is not, or no more, ours")
            transaction.multi()
            change(transaction)

        self._store.transaction(change_if_owned, self._name)
