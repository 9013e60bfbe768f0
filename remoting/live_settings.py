"""Settings that an administrator may change while a daemon runs.

What may change is a list of names, each with its type and bounds; no path, address or command is on it. A change counts for this
daemon alone and is kept in a small file. What the command line says wins over the file at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

import orjson

from remoting import codes, properties_text, settings
from remoting.disk import Bytes, Disk
from remoting.errors import CorruptedFile, RequestError, SettingsError

log = logging.getLogger(__name__)

SETTINGS_FILE: Final = "settings.json"


class ChangedSettings:
    """`parts` are the groups of settings as they are now, by name; `count` is how many of them were changed.

    `given` are the names that the command line sets. Raises CorruptedFile when the file is not what this class wrote.
    """

    def __init__(
        self, parts: Mapping[str, Any], given: Collection[str], disk: Disk, changeable: Collection[str]
    ) -> None:
        self._given = given
        self._disk = disk
        self._changed = self._load()
        if unknown := self._changed.keys() - set(changeable):
            raise CorruptedFile(
                f"{SETTINGS_FILE} holds {', '.join(sorted(unknown))}, which may not be changed; correct or remove it"
            )
        kept = [f"{name}={text}" for name, text in self._changed.items() if name not in given]
        try:
            self.parts: dict[str, Any] = settings.override(dict(parts), kept)
        except SettingsError as error:
            raise CorruptedFile(f"{SETTINGS_FILE} holds what is no setting ({error}); correct or remove it") from error

    @property
    def count(self) -> int:
        return len(self._changed)

    def text(self, name: str) -> str:
        """The present value of `part.key`."""
        part, _, key = name.partition(".")
        return settings.as_text(getattr(self.parts[part], key))

    def update(self, body: Bytes, names: Mapping[str, str], who: str, factors: Mapping[str, int] | None = None) -> None:
        """Take `key=value` lines, all of them or none; `names` are the original's names of what may be changed, with ours.

        `factors` are, by the original's name, how many of our units one of its units is.

        Raises RequestError: NO_PERMISSION for a key that may not be changed while the daemon runs, SYSTEM_ERROR for what cannot
        be read or is out of bounds.
        """
        changes: dict[str, str] = {}
        for key, text in properties_text.decode(body).items():
            name = names.get(key, key)
            if name not in names.values():
                raise RequestError(
                    codes.NO_PERMISSION,
                    f"{key[:80]} cannot be changed while this process runs, only {', '.join(sorted(names.values()))}; "
                    "others are given at its start with --set part.key=value",
                )
            changes[name] = _scaled(key, text, (factors or {}).get(key, 1))
        try:
            parts = settings.override(self.parts, [f"{name}={text}" for name, text in changes.items()])
        except SettingsError as error:
            raise RequestError(codes.SYSTEM_ERROR, str(error)) from error
        kept = self._changed | changes
        self._disk.replace_bytes(SETTINGS_FILE, orjson.dumps(kept, option=orjson.OPT_SORT_KEYS))
        self.parts, self._changed = parts, kept
        for name in changes:
            again = "; the command line sets it, which wins at the next start" if name in self._given else ""
            log.warning("%s sets %s to %s%s", who, name, self.text(name), again)

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


def _scaled(name: str, text: str, factor: int) -> str:
    if factor == 1:
        return text
    try:
        return str(int(text) * factor)
    except ValueError as error:
        raise RequestError(codes.SYSTEM_ERROR, f"{name} must be a whole number, not {text[:80]!r}") from error
