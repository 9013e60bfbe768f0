"""Who serves which topic: the tables that brokers' registrations fill and clients' route requests read (pure).

All of it is soft: brokers register every few seconds, and a name server that restarts learns it anew. A master is known by role
id 0 and by the master epoch in its data version: a registration as id 0 with an older epoch than one seen for the group, or than
the one the controllers committed, is refused, so a stale master cannot take its place in the routes back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from remoting import codes
from remoting.errors import RequestError

PERM_READ: Final = 4
PERM_WRITE: Final = 2
MASTER_ID: Final = 0
DEFAULT_TIMEOUT_MS: Final = 120_000
MAX_TOPICS: Final = 200_000
MAX_GROUPS: Final = 10_000
_PAUSE_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class DataVersion:
    """The version of a broker's topic table; equal when all three are."""

    counter: int = 0
    state_version: int = 0
    timestamp_ms: int = 0

    def as_json(self) -> dict[str, int]:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp_ms}


@dataclass(frozen=True, slots=True)
class QueueData:
    """A topic's queues on one broker group."""

    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_sys_flag: int = 0
    message_type: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. `is_complete`: topics that it does not name are gone."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    grpc_address: str = ""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    data_version: DataVersion = DataVersion()
    topics: Mapping[str, QueueData] = field(default_factory=dict)
    is_complete: bool = False


@dataclass(slots=True)
class _Broker:
    """One registered broker; `connection` is what it registered over."""

    registration: Registration
    last_update_ms: int
    connection: Hashable


class RouteTable:
    """See the module. Times are milliseconds on one monotonic clock."""

    def __init__(self, committed_epoch: Callable[[str], int] | None = None) -> None:
        """`committed_epoch(broker_name)`: the master epoch that the controllers committed for a group, 0 when unknown."""
        self._committed_epoch = committed_epoch or (lambda _: 0)
        self._groups: dict[str, dict[int, _Broker]] = {}
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._highest_epoch: dict[str, int] = {}
        self._last_expiry_ms: int | None = None

    # ---- changes

    def register(self, registration: Registration, connection: Hashable, now_ms: int) -> Registration | None:
        """Take a broker's word; returns its group's master (None while there is none).

        Raises RequestError when another live broker holds the role with a newer epoch, or a table is full.
        """
        name, broker_id = registration.broker_name, registration.broker_id
        self._check_epoch(registration)
        if name not in self._groups and len(self._groups) >= MAX_GROUPS:
            raise RequestError(codes.SYSTEM_BUSY, f"there are {MAX_GROUPS} broker groups already")
        members = self._groups.setdefault(name, {})
        present = members.get(broker_id)
        if present is not None and present.registration.address != registration.address:
            self._check_conflict(present.registration, registration)
        for other_id in [
            each for each, broker in members.items() if broker.registration.address == registration.address
        ]:
            if other_id != broker_id:
                del members[other_id]
        if broker_id == MASTER_ID:
            self._highest_epoch[name] = max(self._highest_epoch.get(name, 0), registration.data_version.state_version)
        members[broker_id] = _Broker(replace(registration, topics={}), now_ms, connection)
        if broker_id == MASTER_ID:
            self._take_topics(registration)
        master = members.get(MASTER_ID)
        return master.registration if master is not None else None

    def unregister(self, broker_name: str, broker_id: int, address: str) -> bool:
        """A broker stops; False when somebody else is registered under that id."""
        broker = self._groups.get(broker_name, {}).get(broker_id)
        if broker is None or broker.registration.address != address:
            return False
        self._remove(broker_name, broker_id)
        return True

    def heard_from(self, broker_name: str, address: str, now_ms: int) -> None:
        """A light heartbeat: the broker with that address lives."""
        for broker in self._groups.get(broker_name, {}).values():
            if broker.registration.address == address:
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
        members = self._groups.get(broker_name, {})
        holder = members.get(MASTER_ID)
        if holder is not None and holder.registration.address != master_address:
            self._remove(broker_name, MASTER_ID)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic's route, everywhere or on the brokers of one cluster."""
        queues = self._topics.get(topic, {})
        for name in [name for name in queues if cluster is None or self._cluster_of(name) == cluster]:
            del queues[name]
        if not queues:
            self._topics.pop(topic, None)

    def set_write_permission(self, broker_name: str, writable: bool) -> int:
        """Take the write permission off, or give it to, all topics of a broker group; returns how many changed."""
        changed = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                perm = PERM_READ | PERM_WRITE if writable else data.perm & ~PERM_WRITE
                changed += perm != data.perm
                queues[broker_name] = replace(data, perm=perm)
        return changed

    # ---- reading

    def route(self, topic: str) -> dict[str, Any] | None:
        """The route document of a topic; None when no live broker has it."""
        queues = self._topics.get(topic)
        brokers = [name for name in queues or () if self._groups.get(name)]
        if queues is None or not brokers:
            return None
        return {
            "brokerDatas": [self._broker_data(name) for name in brokers],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": queues[name].perm,
                    "readQueueNums": queues[name].read_queue_nums,
                    "topicSysFlag": queues[name].topic_sys_flag,
                    "writeQueueNums": queues[name].write_queue_nums,
                    "messageType": queues[name].message_type,
                }
                for name in brokers
            ],
        }

    def cluster_info(self) -> dict[str, Any]:
        """Every broker group and its addresses, and which cluster it is in."""
        clusters: dict[str, list[str]] = {}
        for name in sorted(self._groups):
            clusters.setdefault(self._cluster_of(name), []).append(name)
        return {
            "brokerAddrTable": {name: self._broker_data(name) for name in sorted(self._groups)},
            "clusterAddrTable": clusters,
        }

    def topics(self, cluster: str | None = None) -> list[str]:
        """The names of all topics, or of those that a cluster's brokers have."""
        if cluster is None:
            return sorted(self._topics)
        return sorted(
            topic for topic, queues in self._topics.items() if any(self._cluster_of(name) == cluster for name in queues)
        )

    def members(self, broker_name: str) -> dict[int, str]:
        """Role id -> address of the live brokers of a group."""
        return {each: broker.registration.address for each, broker in sorted(self._groups.get(broker_name, {}).items())}

    def registered(self) -> Iterator[Registration]:
        """All live registrations (without their topics)."""
        for members in self._groups.values():
            for broker in members.values():
                yield broker.registration

    def data_version(self, broker_name: str, address: str) -> DataVersion | None:
        """The version that the broker with that address registered last."""
        for broker in self._groups.get(broker_name, {}).values():
            if broker.registration.address == address:
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

    def _take_topics(self, registration: Registration) -> None:
        name = registration.broker_name
        if registration.is_complete:
            for topic in [each for each, queues in self._topics.items() if name in queues]:
                if topic not in registration.topics:
                    self.delete_topic_of(topic, name)
        for topic, data in registration.topics.items():
            if topic not in self._topics and len(self._topics) >= MAX_TOPICS:
                raise RequestError(codes.SYSTEM_BUSY, f"there are {MAX_TOPICS} topics already")
            self._topics.setdefault(topic, {})[name] = data

    def delete_topic_of(self, topic: str, broker_name: str) -> None:
        """One broker group no longer has the topic."""
        queues = self._topics.get(topic, {})
        queues.pop(broker_name, None)
        if not queues:
            self._topics.pop(topic, None)

    def _remove_where(self, gone: Callable[[_Broker], bool]) -> list[Registration]:
        found: Sequence[tuple[str, int, Registration]] = [
            (name, broker_id, broker.registration)
            for name, members in self._groups.items()
            for broker_id, broker in members.items()
            if gone(broker)
        ]
        for name, broker_id, _ in found:
            self._remove(name, broker_id)
        return [registration for _, _, registration in found]

    def _remove(self, broker_name: str, broker_id: int) -> None:
        members = self._groups[broker_name]
        del members[broker_id]
        if not members:
            del self._groups[broker_name]
            for topic in [each for each, queues in self._topics.items() if broker_name in queues]:
                self.delete_topic_of(topic, broker_name)

    def _cluster_of(self, broker_name: str) -> str:
        members = self._groups.get(broker_name)
        return next(iter(members.values())).registration.cluster if members else ""

    def _broker_data(self, broker_name: str) -> dict[str, Any]:
        members = self._groups[broker_name]
        return {
            "brokerAddrs": {str(each): members[each].registration.address for each in sorted(members)},
            "brokerName": broker_name,
            "cluster": self._cluster_of(broker_name),
            "enableActingMaster": False,
            "grpcAddrs": {
                str(each): members[each].registration.grpc_address
                for each in sorted(members)
                if members[each].registration.grpc_address
            },
        }
