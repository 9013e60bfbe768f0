"""A controller's settings as they are now: those of its start, and the few that an administrator changed since."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from controllerd.nameserver.settings import NameServerSettings
from controllerd.settings import ControllerSettings, ElectionSettings, LivenessSettings, RaftSettings
from remoting.disk import Bytes, Disk
from remoting.live_settings import ChangedSettings

log = logging.getLogger(__name__)

# The name in the original -> ours. Either may be written; both are shown.
CONTROLLER_NAMES: Final = {
    "enableElectUncleanMaster": "election.unclean",
    "notifyBrokerRoleChanged": "election.notify",
}
NAME_SERVER_NAMES: Final = {
    "supportActingMaster": "nameserver.acting_master",
    "notifyMinBrokerIdChanged": "nameserver.notify_min_broker_id",
    "orderMessageEnable": "nameserver.order_topics",
}


class LiveSettings:
    """Raises CorruptedFile when what is kept of earlier changes cannot be read."""

    def __init__(self, given: ControllerSettings, disk: Disk) -> None:
        self.start = given
        parts = {"election": given.election, "nameserver": given.nameserver}
        names = CONTROLLER_NAMES | NAME_SERVER_NAMES
        self._changed = ChangedSettings(parts, given.given, disk, names.values())
        if self.election.unclean:
            log.warning("unclean election is on: a replica that lacks acknowledged messages may become master")

    @property
    def raft(self) -> RaftSettings:
        return self.start.raft

    @property
    def liveness(self) -> LivenessSettings:
        return self.start.liveness

    @property
    def election(self) -> ElectionSettings:
        found: ElectionSettings = self._changed.parts["election"]
        return found

    @property
    def nameserver(self) -> NameServerSettings:
        found: NameServerSettings = self._changed.parts["nameserver"]
        return found

    def as_properties(self, names: Mapping[str, str] = CONTROLLER_NAMES | NAME_SERVER_NAMES) -> str:
        """All settings as `key=value` lines, and once more those of `names` under the original's names."""
        lines = self.start.replaced(**self._changed.parts).as_properties()
        return lines + "".join(f"{theirs}={self._changed.text(ours)}\n" for theirs, ours in names.items())

    def update(self, body: Bytes, names: Mapping[str, str], who: str) -> None:
        """Take `key=value` lines for settings of `names`; see `ChangedSettings.update`."""
        self._changed.update(body, names, who)
