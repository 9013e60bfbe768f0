"""The first user: made once, by the leader, when authentication is on and there was never a user.

Its name and password come from a file that somebody wrote, or are drawn and written to one that only its owner may read: never to
a log. A file that was drawn for nothing, because another controller was faster, is removed. Either file is for once: who has
noted what it says removes it, and the controllers start without it.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from remoting.access.model import user_name
from remoting.disk import Disk
from remoting.errors import LogboomError, SettingsError

log = logging.getLogger(__name__)

FILE: Final = "first-user"
_NAME: Final = "admin"
_MAX_BYTES: Final = 1024


def load_first_user(path: Path) -> tuple[str, str]:
    """Name and password of a file with NAME:PASSWORD. Raises SettingsError with what to do."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read --first-user {path}: {error.strerror}") from error
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"others may read --first-user {path}: run chmod 600 on it, and choose a new password")
    return _parse(content, str(path))


def check_first_user(path: Path) -> None:
    """Raises SettingsError for a file that no first user can be made of. That there is none is no fault where there is a user."""
    if path.exists():
        load_first_user(path)


class FirstUser:
    """What the first user is called, and where its password is: in the file that is given, else `draw` makes one."""

    def __init__(self, given: Path | None, disk: Disk, place: Path, draw: Callable[[], str]) -> None:
        self._given = given
        self._disk = disk
        self._place = place
        self._draw = draw

    def get(self) -> tuple[str, str]:
        """Name and password; what is drawn is on disk before it is used. Raises LogboomError."""
        if self._given is not None:
            return load_first_user(self._given)
        kept = self._disk.read_bytes(FILE)
        if kept is not None:
            return _parse(kept, FILE)
        password = self._draw()
        self._disk.replace_bytes(FILE, f"{_NAME}:{password}\n".encode())
        return _NAME, password

    def made(self, name: str) -> None:
        """The user was created."""
        where = self._given if self._given is not None else self._place / FILE
        log.warning("the first super user is %s; its password is in %s: note it and remove the file", name, where)

    def not_needed(self) -> None:
        """There is a user already."""
        if self._given is None:
            try:
                self._disk.remove(FILE)
            except LogboomError as error:
                log.warning("%s", error)


def _parse(content: bytes, where: str) -> tuple[str, str]:
    name, colon, password = content.decode("utf-8", "replace").strip().partition(":")
    if not colon or len(password) < 8 or len(content) > _MAX_BYTES or "\n" in password:
        raise SettingsError(f"{where} must hold one line NAME:PASSWORD, with at least 8 characters of password")
    return user_name(name), password
