"""A broker's settings as they are now: those of its start, and the few that an administrator changed since (codes 25 and 26)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Final

import orjson

from brokerd.composition.settings import BrokerSettings
from brokerd.consuming.read_place import PullSettings
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.settings import RetentionSettings
from brokerd.store.unit import UNIT_BYTES
from brokerd.transactions.settings import TransactionSettings
from remoting import properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.frame import Command
from remoting.live_settings import ChangedSettings
from remoting.record.layout import MAX_BODY_BYTES
from remoting.transport.connection import RemotingConnection

# The name in the original -> ours, of what may be changed. Either may be written; both are shown.
CHANGEABLE: Final = {
    "allAckInSyncStateSet": "replication.all_ack_in_sync_state_set",
    "inSyncReplicas": "replication.in_sync_replicas",
    "minInSyncReplicas": "replication.min_in_sync_replicas",
    "enableAutoInSyncReplicas": "replication.auto_in_sync_replicas",
    "haMaxGapNotInSync": "replication.max_gap_not_in_sync_bytes",
    "haMaxTimeSlaveNotCatchup": "replication.not_caught_up_ms",
    "slaveTimeout": "replication.ack_timeout_ms",
    "syncFlushTimeout": "replication.flush_timeout_ms",
    "brokerElectionPriority": "replication.election_priority",
    "slaveReadEnable": "pull.slave_read",
    "accessMessageInMemoryMaxRatio": "pull.memory_percent",
    "litePullMessageEnable": "pull.lite_pull",
    "fileReservedTime": "retention.reserved_time_ms",
    "diskMaxUsedSpaceRatio": "retention.force_percent",
    "useServerSideResetOffset": "pull.reset_at_broker",
    "notifyConsumerIdsChangedEnable": "pull.notify_ids_changed",
    "transactionTimeOut": "transactions.timeout_ms",
    "transactionCheckInterval": "transactions.check_interval_ms",
    "transactionCheckMax": "transactions.check_max",
    "rejectTransactionMessage": "transactions.reject",
}
_HOURS: Final = {"fileReservedTime": 3_600_000}  # what is written in hours there and in milliseconds here


class LiveSettings:
    """Raises CorruptedFile when what is kept of earlier changes cannot be read."""

    def __init__(self, given: BrokerSettings, disk: Disk) -> None:
        self._given = given
        names = ("replication", "pull", "retention", "transactions")
        parts = {name: getattr(given, name) for name in names}
        self._changed = ChangedSettings(parts, given.given, disk, CHANGEABLE.values())
        self.listeners: list[Callable[[], None]] = []

    @property
    def replication(self) -> ReplicationSettings:
        found: ReplicationSettings = self._changed.parts["replication"]
        return found

    @property
    def pull(self) -> PullSettings:
        found: PullSettings = self._changed.parts["pull"]
        return found

    @property
    def retention(self) -> RetentionSettings:
        found: RetentionSettings = self._changed.parts["retention"]
        return found

    @property
    def transactions(self) -> TransactionSettings:
        found: TransactionSettings = self._changed.parts["transactions"]
        return found

    def as_properties(self) -> dict[str, str]:
        """All settings by our names, and those that the original's tools know by its names; no path."""
        given, replication = self._given, self.replication
        parts = {
            "store": given.store,
            "pop": given.pop,
            "delay": given.delay,
            "send": given.send,
            "grpc": given.grpc,
            "metrics": given.metrics,
            "access": given.access,
            **self._changed.parts,
        }
        shown = {"brokerClusterName": given.cluster, "brokerName": given.name, "brokerAddress": given.listen}
        shown |= {
            "namesrvAddr": ";".join(given.controllers),
            "enableControllerMode": _text(replication.roles == "controllers"),
        }
        shown |= {theirs: self._changed.text(ours) for theirs, ours in CHANGEABLE.items()}
        shown |= {name: f"{int(shown[name]) / factor:g}" for name, factor in _HOURS.items()}
        as_there = {
            "totalReplicas": replication.total_replicas,
            "enableSlaveActingMaster": replication.acting_master,
            "asyncLearner": replication.learner,
            "haSendHeartbeatInterval": replication.heartbeat_ms,
            "registerNameServerPeriod": replication.name_server_register_ms,
            "flushDiskType": "SYNC_FLUSH" if replication.ack_after_flush else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": given.store.segment_size_bytes,
            "mappedFileSizeConsumeQueue": given.store.queue_file_units * UNIT_BYTES,
            "maxMessageSize": MAX_BODY_BYTES,
            "messageDelayLevel": given.store.delay_levels,
            "popPollingSize": given.pop.max_waiting_per_queue,
            "maxPopPollingSize": given.pop.max_waiting,
            "popFromRetryProbability": given.pop.retry_share_percent,
            "autoCreateSubscriptionGroup": given.pop.auto_create_groups,
            "autoCreateTopicEnable": given.send.auto_create_topics,
            "storeReplyMessageEnable": given.send.store_replies,
            "traceOn": True,
            "longPollingEnable": True,
        }
        shown |= {name: _text(value) for name, value in as_there.items()}
        for part, group in parts.items():
            shown |= {f"{part}.{each.name}": _text(getattr(group, each.name)) for each in fields(group)}
        return shown

    def update(self, body: Bytes, who: str) -> None:
        """Take `key=value` lines; see `ChangedSettings.update`."""
        self._changed.update(body, CHANGEABLE, who, _HOURS)
        for listener in self.listeners:
            listener()

    # Requests

    def handle_get(self, connection: RemotingConnection, request: Command) -> None:
        """Code 26."""
        version = orjson.dumps({"counter": self._changed.count, "stateVersion": 0, "timestamp": 0}).decode()
        connection.respond(request, ext={"version": version}, body=properties_text.encode(self.as_properties()))

    def handle_update(self, connection: RemotingConnection, request: Command) -> None:
        """Code 25."""
        self.update(request.body, connection.peer)
        connection.respond(request)


_text = settings.as_text
