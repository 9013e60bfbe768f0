"""What a JVM learned about Spark's classes, kept in a file, so that the next one need not learn it again (class-data sharing).

A start spends most of its time with reading some 20,000 classes. The first server that runs here writes them down as it ends,
parsed and checked; the following ones map that file. It lies in the user's cache directory, since it belongs to this Java and
these jars and not to one appliance: its name is made of both, and Java itself refuses one that does not fit.

It is a help and never a reason to fail: without it Spark starts more slowly. A draft gets the archive's name only after the JVM
that wrote it has ended as it was asked to; one with which a server did not start, or crashed, is removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

KEPT: Final = 3
# how a JVM ends that was asked to: by itself, or through its handler of SIGTERM
_ENDED_WELL: Final = (0, 143)
# how one ends that trusted what is damaged: Java looks at the head of an archive only
_CRASHED: Final = (-signal.SIGABRT, -signal.SIGBUS, -signal.SIGSEGV)
# nobody writes a draft for so long: its JVM was killed
_LEFT_AFTER_S: Final = 3600


def cache_dir(variables: Mapping[str, str]) -> Path | None:
    """Where programs of this user keep what they can make again (XDG_CACHE_HOME); None when nobody says where he is at home."""
    named, home = Path(variables.get("XDG_CACHE_HOME", "")), Path(variables.get("HOME", ""))
    # the rule for the variable: what is not absolute counts as absent
    if named.is_absolute():
        return named / "logboom"
    return home / ".cache" / "logboom" if home.is_absolute() else None


class Archive:
    """The archive of one Java and these jars."""

    def __init__(self, directory: Path, java_home: str, jars: Sequence[Path]) -> None:
        self.path = directory / f"spark-{_key(java_home, jars)}.jsa"
        self._draft = directory / f".{self.path.name}.{secrets.token_hex(4)}"
        self._is_refused = False
        self._is_used = False
        self._is_drafting = False

    @property
    def is_drafting(self) -> bool:
        """Whether the JVM that runs writes a draft when it ends, which takes some seconds."""
        return self._is_drafting

    def options(self) -> list[str]:
        """The JVM options of the next start: use the archive, or make it while there is none."""
        self._is_drafting = self._is_used = False
        try:
            _remove_left(self.path.parent)
            if self.path.is_file():
                os.utime(self.path)
                self._is_used = True
                return [f"-XX:SharedArchiveFile={self.path}", "-Xshare:auto"]
            if self._is_refused:
                return []
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._draft.unlink(missing_ok=True)
        except OSError as error:
            log.warning("Spark starts without a class-data archive: %s", error)
            return []
        self._is_drafting = True
        return [f"-XX:ArchiveClassesAtExit={self._draft}"]

    def ended(self, exit_code: int, *, came_up: bool, did_work: bool) -> bool:
        """The JVM of the last start ended: keep what holds the classes of a report; drop what was of no use.

        True when it did not come up with the archive, which is gone now: without it the next start may succeed.
        """
        is_to_blame = self._is_used and not came_up
        try:
            if self._is_drafting and exit_code in _ENDED_WELL and did_work:
                self._keep()
            elif is_to_blame or (self._is_used and exit_code in _CRASHED):
                log.warning("Spark did not start with %s, or crashed: removing it", self.path)
                self.path.unlink(missing_ok=True)
            self._draft.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the class-data archive was not kept: %s", error)
        self._is_drafting = self._is_used = False
        return is_to_blame

    def _keep(self) -> None:
        if not self._draft.is_file():
            log.warning("this Java makes no class-data archive: it is not asked again")
            self._is_refused = True
            return
        with open(self._draft, "rb") as draft:
            os.fsync(draft.fileno())
        os.replace(self._draft, self.path)
        log.info("the next start of Spark uses %s", self.path)
        known = sorted(self.path.parent.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in known[KEPT:]:
            path.unlink(missing_ok=True)


def _remove_left(directory: Path) -> None:
    """Drafts of those that were killed while they wrote."""
    for path in directory.glob(".spark-*.jsa.*"):
        with suppress(FileNotFoundError):  # others tidy up as well
            if time.time() - path.stat().st_mtime > _LEFT_AFTER_S:
                path.unlink()


def _key(java_home: str, jars: Sequence[Path]) -> str:
    """Names this Java and these jars."""
    found = hashlib.sha256()
    for path in (Path(java_home) / "release", Path(java_home) / "lib" / "modules", *jars):
        try:
            status = path.stat()
        except OSError:
            continue
        found.update(f"{path}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return found.hexdigest()[:20]
