"""The collector's snapshot of the cluster: the one source of what pages and REST show about it.

The collector writes it about once a second to Redis. Nobody here asks a broker; a page costs one Redis read, and requests within
`KEPT_S` of each other share it. Unknown values are None and stay None. A snapshot that is old says so: see `Freshness`.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any, Protocol

import orjson
import redis
from django.conf import settings
from django.utils.module_loading import import_string

from webapp.errors import NotFound
from webapp.rules import is_system_group

log = logging.getLogger(__name__)

KEY = "logboom:snapshot"
VERSION = 1
GROUP = "snapshot"  # channels group that hears {"type": "snapshot.changed", "seq": n}
KEPT_S = 0.2
STALE_AFTER_MS = 5_000
MAX_BYTES = 64 * 1024 * 1024


class Freshness(enum.StrEnum):
    FRESH = "fresh"
    STALE = "stale"  # there is one, but the collector has not written for a while
    UNAVAILABLE = "unavailable"  # there is none, or it cannot be read


class SnapshotSource(Protocol):
    """Where the snapshot's bytes come from."""

    def get(self) -> bytes | None:
        """The newest bytes, or None when nothing was written yet. Raises OSError when the place cannot be reached."""


class RedisSource:
    """The real one."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=2)

    def get(self) -> bytes | None:
        try:
            value = self._redis.get(KEY)
        except redis.RedisError as error:
            raise OSError(f"Redis does not answer: {error}") from error
        assert value is None or isinstance(value, bytes)
        return value


@dataclass(frozen=True)
class Snapshot:
    """One snapshot, or the reason why there is none. Treat what it returns as read-only: it is shared."""

    data: dict[str, Any] | None
    age_ms: int | None
    problem: str = ""

    @property
    def freshness(self) -> Freshness:
        if self.data is None:
            return Freshness.UNAVAILABLE
        assert self.age_ms is not None
        return Freshness.STALE if self.age_ms > STALE_AFTER_MS else Freshness.FRESH

    @property
    def seq(self) -> int:
        return int(self.data["seq"]) if self.data else 0

    @property
    def as_of(self) -> str | None:
        return str(self.data["as_of"]) if self.data else None

    @cached_property
    def verdict(self) -> dict[str, Any]:
        """Status and reasons; when the snapshot is old or absent, that comes first and the status is no better than degraded."""
        if self.data is None:
            reason = {"code": "no-snapshot", "severity": "critical", "text": self.problem, "link": None}
            return {"status": "down", "reasons": [reason]}
        verdict = self.data.get("verdict") or {"status": "degraded", "reasons": []}
        if self.freshness is not Freshness.STALE:
            return dict(verdict)
        assert self.age_ms is not None
        reason = {
            "code": "stale-snapshot",
            "severity": "warning",
            "text": f"The collector has not reported for {self.age_ms // 1000} s; what follows is what it saw last.",
            "link": None,
        }
        status = "down" if verdict["status"] == "down" else "degraded"
        return {"status": status, "reasons": [reason, *verdict["reasons"]]}

    def list(self, name: str) -> list[dict[str, Any]]:
        """A top-level list of the snapshot; empty when there is none."""
        return (self.data or {}).get(name) or []

    def dict(self, name: str) -> dict[str, Any]:
        """A top-level object of the snapshot; empty when there is none."""
        return (self.data or {}).get(name) or {}

    @cached_property
    def topics(self) -> dict[str, dict[str, Any]]:
        return {topic["name"]: topic for topic in self.list("topics")}

    @cached_property
    def consumer_groups(self) -> dict[str, dict[str, Any]]:
        return {group["name"]: group for group in self.list("consumer_groups")}

    def topic(self, name: object) -> dict[str, Any]:
        """One topic, or NotFound."""
        found = self.topics.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no topic {name}.", code="topic-not-found")
        return found

    def consumer_group(self, name: object) -> dict[str, Any]:
        """One consumer group, or NotFound."""
        found = self.consumer_groups.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no consumer group {name}.", code="group-not-found")
        return found

    def group(self, cluster: str, name: str) -> dict[str, Any]:
        """One broker group, or NotFound."""
        for group in self.list("groups"):
            if (group["cluster"], group["name"]) == (cluster, name):
                return group
        raise NotFound(f"There is no group {name} in the cluster {cluster}.", code="group-not-found")

    def find_topics(self, part: str = "", *, with_system: bool = False) -> list[dict[str, Any]]:
        """Those with the part in their name, in upper or lower case."""
        wanted = part.lower()
        return [
            topic
            for topic in self.list("topics")
            if wanted in topic["name"].lower() and (with_system or not topic.get("system"))
        ]

    def find_consumer_groups(self, part: str = "", *, with_system: bool = False) -> list[dict[str, Any]]:
        """Those with the part in their name, in upper or lower case."""
        wanted = part.lower()
        return [
            group
            for group in self.list("consumer_groups")
            if wanted in group["name"].lower() and (with_system or not is_system_group(group["name"]))
        ]

    def consumers_of(self, topic: str) -> list[dict[str, Any]]:
        """Who consumes a topic: each consumer `group`, and what it says of the `topic`."""
        return [
            {"group": group, "topic": each}
            for group in self.list("consumer_groups")
            for each in group.get("topics") or []
            if each["topic"] == topic
        ]


class SnapshotReader:
    """Reads a source at most every `KEPT_S` seconds, from whichever thread asks first."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._raw: bytes | None = None
        self._data: dict[str, Any] | None = None
        self._problem = ""
        self._silent = False

    def read(self, *, fresh: bool = False) -> Snapshot:
        """The present snapshot; `fresh` reads a source that answers in any case (somebody said that there is a newer one)."""
        with self._lock:
            if (fresh and not self._silent) or time.monotonic() - self._read_at > KEPT_S:
                self._refresh()
                self._read_at = time.monotonic()
            return Snapshot(self._data, _age_ms(self._data), self._problem)

    def _refresh(self) -> None:
        try:
            raw = self._source.get()
        except OSError as error:
            self._raw, self._data, self._problem = None, None, f"The snapshot cannot be read: {error}"
            self._silent = True
            return
        self._silent = False
        if raw is not None and raw == self._raw:
            return  # many viewers hear of the same one: it is decoded once
        self._raw = raw
        if raw is None:
            self._data, self._problem = (
                None,
                "The collector has not reported yet; it does so within a few seconds of its start.",
            )
            return
        try:
            self._data, self._problem = _decode(raw), ""
        except ValueError as error:
            log.warning("unusable snapshot: %s", error)
            self._data, self._problem = None, f"The collector's snapshot cannot be used: {error}"


def _decode(raw: bytes) -> dict[str, Any]:
    if len(raw) > MAX_BYTES:
        raise ValueError(f"it has {len(raw)} bytes, more than {MAX_BYTES}")
    data = orjson.loads(raw)
    if not isinstance(data, dict) or data.get("version") != VERSION:
        found = data.get("version") if isinstance(data, dict) else None
        raise ValueError(f"its version is {found}, this console reads {VERSION}")
    if not isinstance(data.get("seq"), int) or not isinstance(data.get("as_of"), str):
        raise ValueError("it has no sequence number or time")
    return data


def _age_ms(data: dict[str, Any] | None) -> int | None:
    if data is None:
        return None
    written = datetime.fromisoformat(data["as_of"])
    return max(0, int((datetime.now(UTC) - written).total_seconds() * 1000))


@cache
def reader() -> SnapshotReader:
    """The reader of this process."""
    return SnapshotReader(import_string(settings.SNAPSHOT_SOURCE)())


def current(*, fresh: bool = False) -> Snapshot:
    """The present snapshot."""
    return reader().read(fresh=fresh)
