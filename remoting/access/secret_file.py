"""Reads the secrets that the components of one cluster share: a file that only its owner may read, mostly with one line.

To change the secret without a stop: add the new one as a second line everywhere and restart the daemons one after the other;
swap the lines, and restart them again, whereupon the controllers seal the secrets of all users anew; remove the old line. A
component proves itself with the first and believes all.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from remoting.access.sealing import LEAST_SECRET_BYTES
from remoting.errors import SettingsError

_MOST_BYTES: Final = 4096


def load_secrets(path: Path) -> tuple[bytes, ...]:
    """The file's lines, without blanks around them. Raises SettingsError with what to do when they are not fit to be secrets."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise SettingsError(f"cannot read the cluster's secret {path}: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(f"the cluster's secret {path} is not a file")
    if status.st_mode & 0o077:
        raise SettingsError(f"others may read the cluster's secret {path}: run chmod 600 on it, and make a new one")
    secrets = tuple(filter(None, (line.strip() for line in content.splitlines())))
    lengths = [len(secret) for secret in secrets]
    if len(content) > _MOST_BYTES or not secrets or min(lengths) < LEAST_SECRET_BYTES:
        raise SettingsError(
            f"the cluster's secret {path} has lines of {lengths} bytes: at least {LEAST_SECRET_BYTES} are needed in each, "
            f"{_MOST_BYTES} at most in all; make one with: openssl rand -hex 32"
        )
    return secrets
