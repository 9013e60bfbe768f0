"""A controller's settings as they are now: those of its start, and the few that an administrator changed since.

What may change is a list of names, each with its type and bounds; no path, address or command is on it. A change counts for this
controller alone and is kept in a small file. What the command line says wins over the file at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from controllerd.nameserver.settings import NameServerSettings
from controllerd.settings import ControllerSettings, ElectionSettings, LivenessSettings, RaftSettings
from remoting import codes, properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.errors import CorruptedFile, RequestError, SettingsError

log = logging.getLogger(__name__)

PATH: Final = "settings.json"

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
    """Raises CorruptedFile when the file is not what this class wrote."""

    def __init__(self, given: ControllerSettings, disk: Disk) -> None:
        self.start = given
        self._disk = disk
        self._parts: dict[str, Any] = {"election": given.election, "nameserver": given.nameserver}
        self._changed = self._load()
        kept = [f"{name}={text}" for name, text in self._changed.items() if name not in given.given]
        try:
            self._parts = settings.override(self._parts, kept)
        except SettingsError as error:
            raise CorruptedFile(f"{PATH} holds what is no setting ({error}); correct or remove it") from error
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
        found: ElectionSettings = self._parts["election"]
        return found

    @property
    def nameserver(self) -> NameServerSettings:
        found: NameServerSettings = self._parts["nameserver"]
        return found

    def as_properties(self, names: Mapping[str, str] = CONTROLLER_NAMES | NAME_SERVER_NAMES) -> str:
        """All settings as `key=value` lines, and once more those of `names` under the original's names."""
        lines = self.start.replaced(**self._parts).as_properties()
        return lines + "".join(f"{theirs}={self._text(ours)}\n" for theirs, ours in names.items())

    def update(self, body: Bytes, names: Mapping[str, str], who: str) -> None:
        """Take `key=value` lines; all of them or none.

        Raises RequestError: NO_PERMISSION for a key that may not be changed while the controller runs, SYSTEM_ERROR for what
        cannot be read or is out of bounds.
        """
        changes: dict[str, str] = {}
        for key, text in properties_text.decode(body).items():
            name = names.get(key, key)
            if name not in names.values():
                raise RequestError(
                    codes.NO_PERMISSION,
                    f"{key} cannot be changed while the controller runs, only {', '.join(sorted(names.values()))}; "
                    "others are given at its start with --set part.key=value",
                )
            changes[name] = text
        try:
            parts = settings.override(self._parts, [f"{name}={text}" for name, text in changes.items()])
        except SettingsError as error:
            raise RequestError(codes.SYSTEM_ERROR, str(error)) from error
        kept = self._changed | changes
        self._disk.replace_bytes(PATH, orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))
        self._parts, self._changed = parts, kept
        for name in changes:
            again = "; the command line sets it, which wins at the next start" if name in self.start.given else ""
            log.warning("%s sets %s to %s%s", who, name, self._text(name), again)

    def _text(self, name: str) -> str:
        part, _, key = name.partition(".")
        return settings.as_text(getattr(self._parts[part], key))

    def _load(self) -> dict[str, str]:
        content = self._disk.read_bytes(PATH)
        if content is None:
            return {}
        try:
            kept = orjson.loads(content)
        except ValueError as error:
            raise CorruptedFile(f"{PATH} is not readable ({error}); restore or remove it") from error
        if not isinstance(kept, dict) or not all(isinstance(each, str) for each in kept.values()):
            raise CorruptedFile(f"{PATH} does not hold settings; restore or remove it")
        return kept
