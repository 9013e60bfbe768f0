"""A broker's settings as they are now: those of its start, and the few that an administrator changed since (requests 25 and 26).

What may change is a list of names, each with its type and bounds; no path, address or command is on it. A change counts for this
broker alone and is kept in a small file. What the command line says wins over the file at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

import orjson

from brokerd.read_place import PullSettings
from brokerd.replication.settings import ReplicationSettings
from brokerd.settings import BrokerSettings
from remoting import codes, properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.errors import CorruptedFile, RequestError, SettingsError
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

SETTINGS_FILE: Final = "settings.json"

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
}
_SHOWN: Final = (
    "totalReplicas",
    "enableSlaveActingMaster",
    "asyncLearner",
    "haSendHeartbeatInterval",
    "fileReservedTime",
)


class LiveSettings:
    """Raises CorruptedFile when the file is not what this class wrote."""

    def __init__(self, given: BrokerSettings, disk: Disk) -> None:
        self._given = given
        self._disk = disk
        self._parts: dict[str, Any] = {"replication": given.replication, "pull": given.pull}
        self._changed = self._load()
        self.listeners: list[Callable[[], None]] = []
        kept = [f"{name}={text}" for name, text in self._changed.items() if name not in given.given]
        try:
            self._parts = settings.override(self._parts, kept)
        except SettingsError as error:
            raise CorruptedFile(f"{SETTINGS_FILE} holds what is no setting ({error}); correct or remove it") from error

    @property
    def replication(self) -> ReplicationSettings:
        found: ReplicationSettings = self._parts["replication"]
        return found

    @property
    def pull(self) -> PullSettings:
        found: PullSettings = self._parts["pull"]
        return found

    def as_properties(self) -> dict[str, str]:
        """All settings by our names, and those that the original's tools know by its names; no path."""
        given, replication = self._given, self.replication
        parts = {
            "store": given.store,
            "retention": given.retention,
            "pop": given.pop,
            "grpc": given.grpc,
            "metrics": given.metrics,
            **self._parts,
        }
        shown = {"brokerClusterName": given.cluster, "brokerName": given.name, "brokerAddress": given.listen}
        shown |= {
            "namesrvAddr": ";".join(given.controllers),
            "enableControllerMode": _text(replication.roles == "controllers"),
        }
        shown |= {theirs: self._text(ours) for theirs, ours in CHANGEABLE.items()}
        values = (
            replication.total_replicas,
            replication.acting_master,
            replication.learner,
            replication.heartbeat_ms,
            given.retention.reserved_time_ms // 3_600_000,
        )
        shown |= {name: _text(value) for name, value in zip(_SHOWN, values, strict=True)}
        for part, group in parts.items():
            shown |= {f"{part}.{each.name}": _text(getattr(group, each.name)) for each in fields(group)}
        return shown

    def update(self, body: Bytes, who: str) -> None:
        """Take `key=value` lines; all of them or none.

        Raises RequestError: NO_PERMISSION for a key that may not be changed while the broker runs, SYSTEM_ERROR for what cannot
        be read or is out of bounds.
        """
        changes: dict[str, str] = {}
        for key, text in properties_text.decode(body).items():
            name = CHANGEABLE.get(key, key)
            if name not in CHANGEABLE.values():
                raise RequestError(
                    codes.NO_PERMISSION,
                    f"{key[:80]} cannot be changed while the broker runs, only {', '.join(sorted(CHANGEABLE.values()))}; "
                    "others are given at its start with --set part.key=value",
                )
            changes[name] = text
        try:
            parts = settings.override(self._parts, [f"{name}={text}" for name, text in changes.items()])
        except SettingsError as error:
            raise RequestError(codes.SYSTEM_ERROR, str(error)) from error
        kept = self._changed | changes
        self._disk.replace_bytes(SETTINGS_FILE, orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))
        self._parts, self._changed = parts, kept
        for name in changes:
            again = "; the command line sets it, which wins at the next start" if name in self._given.given else ""
            log.warning("%s sets %s to %s%s", who, name, self._text(name), again)
        for listener in self.listeners:
            listener()

    # Requests

    def handle_get(self, connection: RemotingConnection, request: Command) -> None:
        """Code 26."""
        version = orjson.dumps({"counter": len(self._changed), "stateVersion": 0, "timestamp": 0}).decode()
        connection.respond(request, ext={"version": version}, body=properties_text.encode(self.as_properties()))

    def handle_update(self, connection: RemotingConnection, request: Command) -> None:
        """Code 25."""
        self.update(request.body, connection.peer)
        connection.respond(request)

    def _text(self, name: str) -> str:
        part, _, key = name.partition(".")
        return _text(getattr(self._parts[part], key))

    def _load(self) -> dict[str, str]:
        content = self._disk.read_bytes(SETTINGS_FILE)
        if content is None:
            return {}
        try:
            kept = orjson.loads(content)
        except ValueError as error:
            raise CorruptedFile(f"{SETTINGS_FILE} is not readable ({error}); restore or remove it") from error
        if not isinstance(kept, dict) or not all(isinstance(each, str) for each in kept.values()):
            raise CorruptedFile(f"{SETTINGS_FILE} does not hold settings; restore or remove it")
        return {str(name): text for name, text in kept.items() if name in CHANGEABLE.values()}


_text = settings.as_text
