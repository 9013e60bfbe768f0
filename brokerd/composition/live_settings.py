"""A broker's settings as they are now: those of its start, and the few that an administrator changed since (codes 25 and 26)."""

from __future__ import annotations

import orjson

from brokerd.composition.settings import BrokerSettings
from brokerd.consuming.read_place import PullSettings
from brokerd.repair.settings import ScrubSettings
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.settings import RetentionSettings
from brokerd.store.unit import UNIT_BYTES
from brokerd.tiers.settings import TierSettings
from brokerd.timers.settings import TimerSettings
from brokerd.transactions.settings import TransactionSettings
from remoting import properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.frame import Command
from remoting.live_settings import ChangedSettings
from remoting.record.layout import MAX_BODY_BYTES
from remoting.settings import Live
from remoting.transport.connection import RemotingConnection


class LiveSettings:
    """Raises CorruptedFile when what is kept of earlier changes cannot be read."""

    def __init__(self, given: BrokerSettings, disk: Disk) -> None:
        self._given = given
        self._changed = ChangedSettings(settings.groups_of(given), given.given, disk)
        live = self._changed.live
        self.replication: Live[ReplicationSettings] = live["replication"]
        self.pull: Live[PullSettings] = live["pull"]
        self.retention: Live[RetentionSettings] = live["retention"]
        self.scrub: Live[ScrubSettings] = live["scrub"]
        self.tiers: Live[TierSettings] = live["tiers"]
        self.timers: Live[TimerSettings] = live["timers"]
        self.transactions: Live[TransactionSettings] = live["transactions"]

    def as_properties(self) -> dict[str, str]:
        """All settings by our names, and what the original's tools know by its names; no path."""
        given, replication = self._given, self.replication.value
        there = {
            "brokerClusterName": given.cluster,
            "brokerName": given.name,
            "brokerAddress": given.listen,
            "namesrvAddr": ";".join(given.controllers),
            "enableControllerMode": replication.roles == "controllers",
            "flushDiskType": "SYNC_FLUSH" if replication.ack_after_flush else "ASYNC_FLUSH",
            "mappedFileSizeConsumeQueue": given.store.queue_file_units * UNIT_BYTES,
            "maxMessageSize": MAX_BODY_BYTES,
            "traceOn": True,
            "longPollingEnable": True,
        }
        texts = {name: settings.as_text(value) for name, value in there.items()}
        return texts | settings.shown(self._changed.groups())

    def update(self, body: Bytes, who: str) -> None:
        """Take `key=value` lines; see `ChangedSettings.update`."""
        self._changed.update(body, who, self._changed.live)

    # Requests

    def handle_get(self, connection: RemotingConnection, request: Command) -> None:
        """Code 26."""
        version = orjson.dumps({"counter": self._changed.count, "stateVersion": 0, "timestamp": 0}).decode()
        connection.respond(request, ext={"version": version}, body=properties_text.encode(self.as_properties()))

    def handle_update(self, connection: RemotingConnection, request: Command) -> None:
        """Code 25."""
        self.update(request.body, connection.peer)
        connection.respond(request)
