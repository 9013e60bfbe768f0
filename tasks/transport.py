"""Celery's way to Redis, without scripts there.

What Celery does to its queues are plain commands and transactions. The exception is the lock under which a worker looks for
messages that another one took and never acknowledged; here it is one of ours. (It has scripts for queues that expire, too; nobody
here declares one, as workers are started without those for their gossip.) The seam is the class of connections that an app makes,
which says what its transport is.
"""

from __future__ import annotations

from typing import Any

import redis
from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.transport import redis as by_redis

from tasks.locks import PlainLock


class _Redis(redis.Redis):  # type: ignore[type-arg]
    """A client whose locks are plain ones."""

    def lock(self, name: str, timeout: float) -> _TriedLock:  # type: ignore[override]
        return _TriedLock(self, name, timeout)


class _TriedLock(PlainLock):
    """As the library calls it: it never waits for one."""

    def acquire(self, blocking: bool = False) -> bool:
        if blocking:
            raise NotImplementedError("this lock is tried, and not waited for")
        return super().acquire()


class _Channel(by_redis.Channel):
    def _get_client(self) -> Any:
        super()._get_client()  # type: ignore[no-untyped-call]  # refuses a library that is too old
        return _Redis


class _Transport(by_redis.Transport):
    Channel = _Channel


class _Connection(Connection):
    def get_transport_cls(self) -> type[_Transport]:
        return _Transport


class ScriptlessAmqp(AMQP):  # type: ignore[misc]
    """For `Celery(amqp=...)`: an app whose messages go through Redis, whatever kind of address it has."""

    Connection = _Connection
