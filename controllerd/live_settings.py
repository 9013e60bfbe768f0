"""A controller's settings as they are now: those of its start, and the few that an administrator changed since."""

from __future__ import annotations

import logging

from controllerd.nameserver.settings import NameServerSettings
from controllerd.settings import ControllerSettings, ElectionSettings
from remoting import settings
from remoting.disk import Bytes, Disk
from remoting.live_settings import ChangedSettings
from remoting.settings import Live

log = logging.getLogger(__name__)


class LiveSettings:
    """`start` are those of the start. Raises CorruptedFile when what is kept of earlier changes cannot be read."""

    def __init__(self, start: ControllerSettings, disk: Disk) -> None:
        self.start = start
        self._changed = ChangedSettings(settings.groups_of(start), start.given, disk)
        self.election: Live[ElectionSettings] = self._changed.live["election"]
        self.nameserver: Live[NameServerSettings] = self._changed.live["nameserver"]
        if self.election.value.unclean:
            log.warning("unclean election is on: a replica that lacks acknowledged messages may become master")

    def as_properties(self) -> str:
        """All settings as `key=value` lines, some once more under the original's names."""
        peers = ",".join(f"{node}={address}" for node, address in self.start.peers.items())
        shown = {"id": self.start.node_id, "peers": peers} | settings.shown(self._changed.groups())
        return "".join(f"{key}={value}\n" for key, value in shown.items())

    def update(self, part: str, body: Bytes, who: str) -> None:
        """Take `key=value` lines for a group; see `ChangedSettings.update`."""
        self._changed.update(body, who, (part,))
