"""Settings that an administrator may change while a daemon runs.

What may change is declared at each field (`setting(live=True)`), with its type and bounds; no path, address or command is among
them. A change counts for this daemon alone and is kept in a small file. What the command line says wins over the file at the next
start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from remoting import codes, properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.errors import CorruptedFile, RequestError, SettingsError
from remoting.settings import Live

log = logging.getLogger(__name__)

SETTINGS_FILE: Final = "settings.json"


class ChangedSettings:
    """The settings groups of a daemon as they are now: `live` holds those of which something may change, by name.

    `given` are the names that the command line sets; `count` is how many were changed. Raises CorruptedFile when the file is not
    what this class wrote.
    """

    def __init__(self, groups: Mapping[str, Any], given: Collection[str], disk: Disk) -> None:
        self._groups = groups
        self._given = given
        self._disk = disk
        self._units = {
            name: each.metadata["unit"] for name, _, each in settings.each_of(groups) if each.metadata["live"]
        }
        self._changed = self._load()
        if unknown := self._changed.keys() - self._units.keys():
            raise CorruptedFile(
                f"{SETTINGS_FILE} holds {', '.join(sorted(unknown))}, which may not be changed; correct or remove it"
            )
        kept = [f"{name}={text}" for name, text in self._changed.items() if name not in given]
        try:
            now = settings.override(groups, kept)
        except SettingsError as error:
            raise CorruptedFile(f"{SETTINGS_FILE} holds what is no setting ({error}); correct or remove it") from error
        self.live = {part: Live(now[part]) for part in {name.partition(".")[0] for name in self._units}}

    @property
    def count(self) -> int:
        return len(self._changed)

    def groups(self) -> dict[str, Any]:
        return {**self._groups, **{part: cell.value for part, cell in self.live.items()}}

    def update(self, body: Bytes, who: str, parts: Collection[str]) -> None:
        """Take `key=value` lines for settings of the groups `parts`, under our names or the original's: all of them or none.

        Raises RequestError: NO_PERMISSION for a key that may not be changed while the daemon runs, SYSTEM_ERROR for what cannot
        be read or is out of bounds.
        """
        groups = {part: self.live[part].value for part in parts}
        ours, changes = settings.names_of(groups, live=True), {}
        allowed = {name for name in self._units if name.partition(".")[0] in groups}
        for key, text in properties_text.decode(body).items():
            name = ours.get(key, key)
            if name not in allowed:
                raise RequestError(
                    codes.NO_PERMISSION,
                    f"{key[:80]} cannot be changed while this process runs, only {', '.join(sorted(allowed))}; "
                    "others are given at its start with --set part.key=value",
                )
            changes[name] = text if key == name else _scaled(key, text, self._units[name])
        try:
            changed = settings.override(groups, [f"{name}={text}" for name, text in changes.items()])
        except SettingsError as error:
            raise RequestError(codes.SYSTEM_ERROR, str(error)) from error
        kept = self._changed | changes
        self._disk.replace_bytes(SETTINGS_FILE, orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))
        self._changed = kept
        texts = settings.shown(changed)
        for name in changes:
            again = "; the command line sets it, which wins at the next start" if name in self._given else ""
            log.warning("%s sets %s to %s%s", who, name, texts[name], again)
        for part, group in changed.items():
            if group != groups[part]:
                self.live[part].change(group)

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
        return kept


def _scaled(name: str, text: str, unit: int) -> str:
    if unit == 1:
        return text
    try:
        return str(int(text) * unit)
    except ValueError as error:
        raise RequestError(codes.SYSTEM_ERROR, f"{name} must be a whole number, not {text[:80]!r}") from error
