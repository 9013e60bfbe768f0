"""Who serves which topic: the tables that brokers' registrations fill and clients' requests are answered from (pure).

All of it is soft: brokers register every few seconds, and a name server that restarts learns it anew. A master is known by role
id 0 and by the master epoch in its data version: a registration as id 0 with an older epoch than one seen for the group, or than
the one the controllers committed, is refused, so a stale master cannot take its place in the routes back.

Topics come from the master. While there is none, brokers of the original that say how they stand to acting masters let the one
with the smallest id speak. What an administrator changed here (a permission taken) stays until the broker's own table changes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from controllerd.nameserver.records import (
    MASTER_ID,
    MAX_GROUPS,
    MAX_TOPICS,
    PERM_READ,
    PERM_WRITE,
    DataVersion,
    MinIdChange,
    QueueData,
    Registration,
)
from remoting import codes
from remoting.errors import RequestError

_PAUSE_MS: Final = 3_000
# So long a broker whose connection stands keeps its id against another process without a word; it registers every 10 s
_LEASE_MS: Final = 45_000


@dataclass(slots=True)
class _Broker:
    """One registered broker; `connection` is what it registered over."""

    registration: Registration
    last_update_ms: int
    connection: Hashable


class RouteTable:
    """Which broker has which topic, as the brokers last said. Times are milliseconds on one monotonic clock."""

    def __init__(self, committed_epoch: Callable[[str], int] | None = None) -> None:
        """`committed_epoch(broker_name)`: the master epoch that the controllers committed for a group, 0 when unknown."""
        self._committed_epoch = committed_epoch or (lambda _: 0)
        self._groups: dict[str, dict[int, _Broker]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._highest_epoch: dict[str, int] = {}
        self._last_expiry_ms: int | None = None
        self._min_id_changes: list[MinIdChange] = []

    # ---- changes

    def register(self, registration: Registration, connection: Hashable, now_ms: int) -> Registration | None:
        """Take a broker's word; returns its group's master (None while there is none).

        Raises RequestError when another live broker holds the role with a newer epoch, when a broker that is not known here
        names a single topic, or when a table is full.
        """
        name, broker_id = registration.broker_name, registration.broker_id
        self._check_epoch(registration)
        members = self._groups.get(name, {})
        present = members.get(broker_id)
        self._check_room(registration, known=present is not None)
        if present is not None and present.registration.address != registration.address:
            self._check_conflict(present.registration, registration)
        before = min(members, default=None)
        self._groups[name] = members
        for other_id in [each for each, broker in members.items() if _is_at(broker, registration.address)]:
            if other_id != broker_id:
                del members[other_id]
        if broker_id == MASTER_ID:
            self._highest_epoch[name] = max(self._highest_epoch.get(name, 0), registration.data_version.state_version)
        members[broker_id] = _Broker(replace(registration, topics={}), now_ms, connection)
        if before is not None and broker_id < before and registration.acting_master:
            self._min_id_changed(name, ha_address=registration.ha_address)
        if broker_id == MASTER_ID or (registration.acting_master is not None and broker_id == min(members)):
            is_same = present is not None and _says_the_same(present.registration, registration)
            self._take_topics(registration, only_missing=is_same)
        master = members.get(MASTER_ID)
        return master.registration if master is not None else None

    def twin_of(self, registration: Registration, now_ms: int) -> Registration | None:
        """Another living process that is registered under the same id of a group whose roles are fixed; the first one stays.

        Where controllers know the group, they decide. A newer epoch proves nothing here: each start of a copy has one.
        """
        broker = self._groups.get(registration.broker_name, {}).get(registration.broker_id)
        if broker is None or self._committed_epoch(registration.broker_name):
            return None
        other = broker.registration
        is_twin = other.address != registration.address and bool(other.incarnation and registration.incarnation)
        return other if is_twin and now_ms - broker.last_update_ms <= _LEASE_MS else None

    def unregister(self, broker_name: str, broker_id: int, address: str) -> bool:
        """A broker stops; False when somebody else is registered under that id."""
        broker = self._groups.get(broker_name, {}).get(broker_id)
        if broker is None or not _is_at(broker, address):
            return False
        self._remove(broker_name, broker_id)
        return True

    def heard_from(self, broker_name: str, address: str, now_ms: int) -> None:
        """A light heartbeat: the broker with that address lives."""
        for broker in self._groups.get(broker_name, {}).values():
            if _is_at(broker, address):
                broker.last_update_ms = now_ms

    def connection_closed(self, connection: Hashable) -> list[Registration]:
        """Forget the brokers that registered over it; returns them."""
        return self._remove_where(lambda broker: broker.connection == connection)

    def expire(self, now_ms: int) -> list[Registration]:
        """Forget the brokers that were silent for longer than they said; returns them. To be called every second or so.

        When the calls themselves stopped, this process slept: that time is not the brokers' silence.
        """
        slept_ms = now_ms - self._last_expiry_ms if self._last_expiry_ms is not None else 0
        self._last_expiry_ms = now_ms
        if slept_ms > _PAUSE_MS:
            for members in self._groups.values():
                for broker in members.values():
                    broker.last_update_ms = min(now_ms, broker.last_update_ms + slept_ms)
        return self._remove_where(lambda broker: broker.last_update_ms + broker.registration.timeout_ms < now_ms)

    def fence(self, broker_name: str, master_address: str | None) -> None:
        """The controllers decided who leads a group: another broker under id 0 is nobody's write target any more.

        The new master takes its place when it registers. Queues stay known as long as any replica is there.
        """
        holder = self._groups.get(broker_name, {}).get(MASTER_ID)
        if holder is not None and not _is_at(holder, master_address):
            self._remove(broker_name, MASTER_ID)

    def register_topic(self, topic: str, queues: Mapping[str, QueueData]) -> None:
        """Somebody else than its broker names a topic's queues, by broker name; groups that are not known here are left out."""
        for name, data in queues.items():
            if name in self._groups:
                self._put_queues(topic, name, data)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic's route, everywhere or on the brokers of one cluster."""
        queues = self._topics.get(topic, {})
        for name in [name for name in queues if cluster is None or self._cluster_of(name) == cluster]:
            self._delete_topic_of(topic, name)

    def set_write_permission(self, broker_name: str, writable: bool) -> int:
        """Take the write permission off, or give it to, all topics of a broker group; returns how many it has."""
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                count += 1
                perm = data.perm | PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                queues[broker_name] = replace(data, perm=perm)
        return count

    def take_min_id_changes(self) -> list[MinIdChange]:
        """Who has to be told of another smallest id, since the last call."""
        changes, self._min_id_changes = self._min_id_changes, []
        return changes

    # ---- reading

    def queues(self, topic: str) -> dict[str, QueueData]:
        """Broker name -> the topic's queues there, for groups with a live broker."""
        return {name: data for name, data in self._topics.get(topic, {}).items() if self._groups.get(name)}

    def topics(self) -> Iterator[tuple[str, Mapping[str, QueueData]]]:
        """All topics by name, each with its queues by broker name."""
        for topic in sorted(self._topics):
            yield topic, self._topics[topic]

    def groups(self) -> list[str]:
        """The names of all groups with a live broker."""
        return sorted(self._groups)

    def members(self, broker_name: str) -> dict[int, Registration]:
        """Role id -> registration (without its topics) of the live brokers of a group, by id."""
        return {each: broker.registration for each, broker in sorted(self._groups.get(broker_name, {}).items())}

    def data_version(self, broker_name: str, address: str) -> DataVersion | None:
        """The version that the broker with that address registered last."""
        for broker in self._groups.get(broker_name, {}).values():
            if _is_at(broker, address):
                return broker.registration.data_version
        return None

    # ---- inside

    def _check_epoch(self, registration: Registration) -> None:
        if registration.broker_id != MASTER_ID:
            return
        name = registration.broker_name
        newest = max(self._highest_epoch.get(name, 0), self._committed_epoch(name))
        if registration.data_version.state_version < newest:
            raise RequestError(
                codes.NO_PERMISSION,
                f"{registration.address} registers as master of {name} with epoch {registration.data_version.state_version}, "
                f"but epoch {newest} is known; ask the controller for the present role",
            )

    def _check_room(self, registration: Registration, *, known: bool) -> None:
        if registration.broker_name not in self._groups and len(self._groups) >= MAX_GROUPS:
            raise RequestError(codes.SYSTEM_BUSY, f"there are {MAX_GROUPS} broker groups already")
        if not known and not registration.is_complete and len(registration.topics) == 1:
            raise RequestError(
                codes.SYSTEM_ERROR,
                f"{registration.address} names a single topic, but is not known here; register with the whole table first",
            )

    @staticmethod
    def _check_conflict(present: Registration, incoming: Registration) -> None:
        if present.broker_id == MASTER_ID:
            stale = incoming.data_version.state_version <= present.data_version.state_version
        else:
            stale = incoming.data_version.state_version < present.data_version.state_version
        if stale:
            raise RequestError(
                codes.NO_PERMISSION,
                f"{present.address} is registered as id {present.broker_id} of {present.broker_name} and alive; "
                f"{incoming.address} must have another id or a newer epoch",
            )

    def _take_topics(self, registration: Registration, *, only_missing: bool) -> None:
        name = registration.broker_name
        if registration.is_complete and not only_missing:
            for topic in [each for each, queues in self._topics.items() if name in queues]:
                if topic not in registration.topics:
                    self._delete_topic_of(topic, name)
        stands_in = registration.broker_id != MASTER_ID and registration.acting_master
        for topic, data in registration.topics.items():
            if only_missing and name in self._topics.get(topic, {}):
                continue
            self._put_queues(topic, name, replace(data, perm=data.perm & ~PERM_WRITE) if stands_in else data)

    def _put_queues(self, topic: str, broker_name: str, data: QueueData) -> None:
        if topic not in self._topics and len(self._topics) >= MAX_TOPICS:
            raise RequestError(codes.SYSTEM_BUSY, f"there are {MAX_TOPICS} topics already")
        self._topics.setdefault(topic, {})[broker_name] = data

    def _delete_topic_of(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic, {})
        queues.pop(broker_name, None)
        if not queues:
            self._topics.pop(topic, None)

    def _remove_where(self, gone: Callable[[_Broker], bool]) -> list[Registration]:
        found = [
            broker.registration for members in self._groups.values() for broker in members.values() if gone(broker)
        ]
        for registration in found:
            self._remove(registration.broker_name, registration.broker_id)
        return found

    def _remove(self, broker_name: str, broker_id: int) -> None:
        members = self._groups[broker_name]
        gone = members.pop(broker_id).registration
        if not members:
            del self._groups[broker_name]
            for topic in [each for each, queues in self._topics.items() if broker_name in queues]:
                self._delete_topic_of(topic, broker_name)
        elif gone.acting_master and broker_id < min(members):
            if (
                broker_id == MASTER_ID
            ):  # who stands in can be read from only; the master brings its table when it is back
                self.set_write_permission(broker_name, writable=False)
            self._min_id_changed(broker_name, offline_address=gone.address)

    def _min_id_changed(self, broker_name: str, *, offline_address: str = "", ha_address: str = "") -> None:
        members = self.members(broker_name)
        smallest = min(members)
        told = [
            each.address
            for each in members.values()
            if offline_address or len(members) == 1 or each.broker_id > smallest
        ]
        self._min_id_changes.append(
            MinIdChange(broker_name, smallest, members[smallest].address, tuple(told), offline_address, ha_address)
        )

    def _cluster_of(self, broker_name: str) -> str:
        members = self._groups.get(broker_name)
        return next(iter(members.values())).registration.cluster if members else ""


def _is_at(broker: _Broker, address: str | None) -> bool:
    return broker.registration.address == address


def _says_the_same(present: Registration, incoming: Registration) -> bool:
    return present.address == incoming.address and present.data_version == incoming.data_version
