"""Reads the secret that the brokers of one cluster share: a file that only its owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from brokerd.replication.proof import LEAST_SECRET_BYTES
from remoting.errors import SettingsError

_MOST_BYTES: Final = 4096


def load_secret(path: Path) -> bytes:
    """The file's content without blanks around it. Raises SettingsError with what to do when it is not fit to be a secret."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES + 1).strip()
    except OSError as error:
        raise SettingsError(f"cannot read the replication secret {path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"the replication secret {path} is not a file")
    if status.st_mode & 0o077:
        raise SettingsError(f"others may read the replication secret {path}: run chmod 600 on it, and make a new one")
    if not LEAST_SECRET_BYTES <= len(content) <= _MOST_BYTES:
        raise SettingsError(
            f"the replication secret {path} has {len(content)} bytes: {LEAST_SECRET_BYTES} to {_MOST_BYTES} are needed, "
            "for example of: openssl rand -hex 32"
        )
    return content
