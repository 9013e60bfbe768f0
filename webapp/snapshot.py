"""The collector's snapshot of the cluster: the one source of what pages and REST show about it.

The collector writes it about once a second to Redis. Nobody here asks a broker; a page costs one Redis read, and requests within
`KEPT_S` of each other share it. Unknown values are None and stay None. A snapshot that is old says so: see `Freshness`.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import NamedTuple

import redis
from django.conf import settings
from django.utils.module_loading import import_string

from remoting.errors import ProtocolError
from remoting.facts.codec import decode
from remoting.facts.snapshot import (
    KEY,
    VERSION,
    ClientTimes,
    ClusterSnapshot,
    ConsumedTopic,
    ConsumerGroup,
    Group,
    Reason,
    Topic,
    Verdict,
)
from remoting.facts.words import BrokerRole, Health, Severity, TopicKind
from webapp.errors import NotFound
from webapp.rules import RESERVED_GROUPS

log = logging.getLogger(__name__)

KEPT_S = 0.2
STALE_AFTER_MS = 8_000  # the collector writes every four seconds while nothing moves


class Freshness(enum.StrEnum):
    FRESH = "fresh"
    STALE = "stale"  # there is one, but the collector has not written for a while
    UNAVAILABLE = "unavailable"  # there is none, or it cannot be read


class RedisSource:
    """Where the snapshot's bytes come from."""

    def __init__(self) -> None:
        self._redis = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=2)

    def get(self) -> bytes | None:
        """The newest bytes, or None when nothing was written yet. Raises OSError when Redis cannot be reached."""
        try:
            value = self._redis.get(KEY)
        except redis.RedisError as error:
            raise OSError(f"Redis does not answer: {error}") from error
        assert value is None or isinstance(value, bytes)
        return value


_NOTHING = ClusterSnapshot(version=VERSION, seq=0, as_of="")


class Consumption(NamedTuple):
    """A consumer group that consumes a topic, and what it says of it."""

    group: ConsumerGroup
    topic: ConsumedTopic


@dataclass(frozen=True)
class Snapshot:
    """One snapshot, or the reason why there is none. It is shared among all who look."""

    data: ClusterSnapshot | None
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
        return self.facts.seq

    @property
    def as_of(self) -> str | None:
        return self.data.as_of if self.data is not None else None

    @property
    def facts(self) -> ClusterSnapshot:
        """What is known of the cluster; empty lists when there is no snapshot."""
        return self.data if self.data is not None else _NOTHING

    @cached_property
    def verdict(self) -> Verdict:
        """Status and reasons; when the snapshot is old or absent, that comes first and the status is no better than degraded."""
        if self.data is None:
            reason = Reason(code="no-snapshot", severity=Severity.CRITICAL, text=self.problem)
            return Verdict(status=Health.DOWN, reasons=(reason,))
        verdict = self.data.verdict
        if self.freshness is not Freshness.STALE:
            return verdict
        assert self.age_ms is not None
        text = f"The collector has not reported for {self.age_ms // 1000} s; what follows is what it saw last."
        if self.problem:
            text = f"{self.problem}; what follows is what it said {self.age_ms // 1000} s ago."
        reason = Reason(code="stale-snapshot", severity=Severity.WARNING, text=text)
        status = Health.DOWN if verdict.status is Health.DOWN else Health.DEGRADED
        return Verdict(status=status, reasons=(reason, *verdict.reasons))

    @cached_property
    def topics(self) -> Mapping[str, Topic]:
        return {topic.name: topic for topic in self.facts.topics}

    @cached_property
    def lists_all_topics(self) -> bool:
        """Whether every group's master told its topics just now, so that a topic that is not listed does not exist."""
        groups = self.facts.groups
        return self.freshness is Freshness.FRESH and bool(groups) and all(_master_answers(group) for group in groups)

    @cached_property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        return {group.name: group for group in self.facts.consumer_groups}

    def client_times_of(self, *, topic: str | None = None, group: str | None = None) -> list[ClientTimes]:
        """What clients measured of a topic, or of a consumer group."""
        return [each for each in self.facts.client_times if topic in (None, each.topic) and group in (None, each.group)]

    def topic(self, name: object) -> Topic:
        """One topic, or NotFound."""
        found = self.topics.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no topic {name}.", code="topic-not-found")
        return found

    def consumer_group(self, name: object) -> ConsumerGroup:
        """One consumer group, or NotFound."""
        found = self.consumer_groups.get(name) if isinstance(name, str) else None
        if found is None:
            raise NotFound(f"There is no consumer group {name}.", code="group-not-found")
        return found

    def group(self, cluster: str, name: str) -> Group:
        """One broker group, or NotFound."""
        for group in self.facts.groups:
            if (group.cluster, group.name) == (cluster, name):
                return group
        raise NotFound(f"There is no group {name} in the cluster {cluster}.", code="group-not-found")

    def find_topics(self, part: str = "", *, with_system: bool = False, kind: TopicKind | None = None) -> list[Topic]:
        """Those with the part in their name, in upper or lower case; of one kind, or of all but the system's (or really all)."""
        wanted = part.lower()
        return [
            topic
            for topic in self.facts.topics
            if wanted in topic.name.lower() and (topic.kind is kind if kind else with_system or not topic.system)
        ]

    def find_consumer_groups(self, part: str = "", *, with_system: bool = False) -> list[ConsumerGroup]:
        """Those with the part in their name, in upper or lower case."""
        wanted = part.lower()
        return [
            group
            for group in self.facts.consumer_groups
            if wanted in group.name.lower() and (with_system or group.name not in RESERVED_GROUPS)
        ]

    def consumers_of(self, topic: str) -> list[Consumption]:
        """Who consumes a topic."""
        return [
            Consumption(group, each)
            for group in self.facts.consumer_groups
            for each in group.topics
            if each.topic == topic
        ]


class SnapshotReader:
    """Reads a source at most every `KEPT_S` seconds, from whichever thread asks first.

    While the source does not answer, what was read last is shown: it grows old, and says so.
    """

    def __init__(self, source: RedisSource) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._raw: bytes | None = None
        self._data: ClusterSnapshot | None = None
        self._problem = ""
        self._silence = ""  # why the source does not answer

    def read(self, *, fresh: bool = False) -> Snapshot:
        """The present snapshot; `fresh` reads a source that answers in any case (somebody said that there is a newer one)."""
        with self._lock:
            if (fresh and not self._silence) or time.monotonic() - self._read_at > KEPT_S:
                self._refresh()
                self._read_at = time.monotonic()
            return Snapshot(self._data, _age_ms(self._data), self._silence or self._problem)

    def _refresh(self) -> None:
        try:
            raw = self._source.get()
        except OSError as error:
            self._silence = f"The snapshot cannot be read: {error}"
            return
        self._silence = ""
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
        except ProtocolError as error:
            log.warning("unusable snapshot: %s", error)
            self._data, self._problem = None, f"The collector's snapshot cannot be used: {error}"


def _decode(raw: bytes) -> ClusterSnapshot:
    """Raises ProtocolError when it is not one that this console reads."""
    data = decode(ClusterSnapshot, raw)
    if data.version != VERSION:
        raise ProtocolError(f"its version is {data.version}, this console reads {VERSION}")
    try:
        datetime.fromisoformat(data.as_of)
    except ValueError as error:
        raise ProtocolError(f"it has no time: {error}") from error
    return data


def _master_answers(group: Group) -> bool:
    """Whether the elected master said itself that it serves; only a broker that answers has a flushed position."""
    master = group.replica(group.master_id)
    return master is not None and master.role is BrokerRole.MASTER and master.flushed_offset is not None


def _age_ms(data: ClusterSnapshot | None) -> int | None:
    if data is None:
        return None
    written = datetime.fromisoformat(data.as_of)
    return max(0, int((datetime.now(UTC) - written).total_seconds() * 1000))


@cache
def reader() -> SnapshotReader:
    """The reader of this process."""
    return SnapshotReader(import_string(settings.SNAPSHOT_SOURCE)())


def current(*, fresh: bool = False) -> Snapshot:
    """The present snapshot."""
    return reader().read(fresh=fresh)
