"""How a broker gets its persistent id, once: the two identity files and the steps of the first registration.

    UNKNOWN --next id (1012)--> CHOSEN --applied (1013)--> KNOWN --registered (1003)--> REGISTERED

CHOSEN is on disk (`brokerIdentity-temp`: cluster#brokerName#brokerId#registerCheckCode) before the id is applied for, and the id
is applied for again with the same code until there is a clear answer: whatever crashed or got lost in between, the broker ends
up with one id and no id leaks. KNOWN is `brokerIdentity`: cluster#brokerName#brokerId. Both files are replaced atomically.

Each file ends with a checksum (`remoting.sealed_text`), by which one flipped bit makes no other valid file of it. Files of before
are read, and written again with one.

`Registration` is pure; `IdentityFiles` keeps the files through the disk seam; `controller_session` asks the controllers.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from brokerd.replication.kept_files import damaged
from remoting.disk import SmallFiles
from remoting.errors import CorruptedFile, SettingsError
from remoting.sealed_text import seal, unseal

IDENTITY_FILE = "brokerIdentity"
TEMPORARY_FILE = "brokerIdentity-temp"
INCARNATION_FILE = "incarnation"
LIVES_FILE = "lives"
_CHANCE_BITS: Final = 31
_MOST_LIVES: Final = 8  # of either kind
_MOST_DIGITS: Final = 20
_MAX_STARTS: Final = (1 << 31) - 1
_CHECK_CODE: Final = re.compile(r"[^#;]*;[0-9]+")


class Step(Enum):
    """How far the registration has come; only forward, except that a taken id leads back to UNKNOWN."""

    UNKNOWN = "unknown"
    CHOSEN = "chosen"
    KNOWN = "known"
    REGISTERED = "registered"


@dataclass(frozen=True, slots=True)
class Choice:
    """An id that this broker applies for; the code tells this broker from another one that wants the same id."""

    broker_id: int
    check_code: str


class IdentityFiles:
    """The two files in the root of a broker's data directory."""

    def __init__(self, disk: SmallFiles, cluster: str, broker_name: str) -> None:
        for name in (cluster, broker_name):
            if not name or "#" in name or "\n" in name:
                raise SettingsError(f"the name {name!r} is not usable: it must not be empty and not contain '#'")
        self._disk = disk
        self._cluster = cluster
        self._broker_name = broker_name

    def load(self) -> tuple[int | None, Choice | None]:
        """The id that this broker has, and the one that it was applying for when it stopped.

        Raises SettingsError when the directory belongs to another broker, CorruptedFile when a file cannot be understood.
        """
        known = self._fields(IDENTITY_FILE, 3)
        if known is not None:
            broker_id = _broker_id(IDENTITY_FILE, known[2])
            if not self._is_sealed(IDENTITY_FILE):  # of an earlier version
                self._write(IDENTITY_FILE, str(broker_id))
            return broker_id, None
        chosen = self._fields(TEMPORARY_FILE, 4)
        if chosen is not None:
            if not _CHECK_CODE.fullmatch(chosen[3]):
                raise CorruptedFile(f"{TEMPORARY_FILE}: {chosen[3][:60]!r} is not a check code; remove the file")
            return None, Choice(_broker_id(TEMPORARY_FILE, chosen[2]), chosen[3])
        return None, None

    def save_applied_id(self, choice: Choice) -> None:
        self._write(TEMPORARY_FILE, f"{choice.broker_id}#{choice.check_code}")

    def remove_applied_id(self) -> None:
        self._disk.remove(TEMPORARY_FILE)

    def save_id(self, broker_id: int) -> None:
        self._write(IDENTITY_FILE, str(broker_id))
        self._disk.remove(TEMPORARY_FILE)

    def _write(self, path: str, rest: str) -> None:
        self._disk.replace_bytes(path, seal(f"{self._cluster}#{self._broker_name}#{rest}", "#"))

    def _is_sealed(self, path: str) -> bool:
        return unseal(self._disk.read_bytes(path) or b"", "#", path).is_sealed

    def _fields(self, path: str, count: int) -> list[str] | None:
        content = self._disk.read_bytes(path)
        if content is None:
            return None
        text = unseal(content, "#", path).text
        fields = text.split("#", count - 1)
        if len(fields) != count:
            raise damaged(path, f"it has {len(fields)} of {count} fields")
        if fields[:2] != [self._cluster, self._broker_name]:
            raise SettingsError(
                f"this data directory belongs to broker {fields[1]} of cluster {fields[0]}; "
                f"start that one, or choose another directory for {self._broker_name} of {self._cluster}"
            )
        return fields


def _broker_id(path: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise damaged(path, f"{text[:40]!r} is not a broker id")
    return int(text)


def next_incarnation(disk: SmallFiles, chance: Callable[[int], int] = secrets.randbits) -> int:
    """A number that tells this start from all others, also from those of a process that runs on a copy of the directory.

    Its upper bits count the starts: what an earlier life said counts for less. Its lower bits are drawn (`chance` gives so many
    random bits), as two copies of one directory count alike. Raises CorruptedFile.
    """
    content = disk.read_bytes(INCARNATION_FILE)
    text = "0" if content is None else unseal(content, " ", INCARNATION_FILE).text
    if not (text.isascii() and text.isdigit()) or int(text) >= _MAX_STARTS:
        raise CorruptedFile(f"{INCARNATION_FILE} does not hold a number; write one that is larger than it ever was")
    starts = int(text) + 1
    disk.replace_bytes(INCARNATION_FILE, seal(str(starts), " "))
    return starts << _CHANCE_BITS | chance(_CHANCE_BITS)


class Lives:
    """Which lives of this broker ran on its directory, as far as the controllers may have counted one of them as the member that
    the broker is: the last ones that were told that they are registered, and the last ones since, which may have missed that.

    A copy of the directory in which another process lived meanwhile does not know that one. Kept in one small file, incarnations
    with blanks between them and a dash before those since, before anybody hears of a life. Of the registered ones the newest
    would do, but controllers may have been put back, too.
    """

    def __init__(self, disk: SmallFiles, incarnation: int) -> None:
        """`incarnation` begins. Raises CorruptedFile."""
        self._disk = disk
        self._incarnation = incarnation
        self._is_registered = False
        self._registered, since = self._read()
        since = (*since, incarnation)[-_MOST_LIVES:]
        self.all = (*self._registered, *since)
        self._write(self._registered, since)

    def registered(self) -> None:
        """Whatever was counted of this directory before, this life takes its place."""
        if not self._is_registered:
            self._write((*self._registered, self._incarnation)[-_MOST_LIVES:], ())
            self._is_registered = True

    def _read(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        content = self._disk.read_bytes(LIVES_FILE)
        if content is None:
            return (), ()
        parts = [each.split() for each in unseal(content, " ", LIVES_FILE).text.split("-")]
        if len(parts) != 2 or not all(len(each) <= _MOST_LIVES and all(map(_is_number, each)) for each in parts):
            raise damaged(LIVES_FILE, "it does not hold the last lives of this broker")
        registered, since = (tuple(map(int, each)) for each in parts)
        return registered, since

    def _write(self, registered: tuple[int, ...], since: tuple[int, ...]) -> None:
        self._disk.replace_bytes(LIVES_FILE, seal(" ".join(map(str, (*registered, "-", *since))), " "))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS


class Registration:
    """Where this broker's registration stands. The caller asks the controllers what `step` calls for, and reports."""

    def __init__(self, files: IdentityFiles, address: str, now_wall_ms: int) -> None:
        self._files = files
        self._check_code = f"{address};{now_wall_ms}"
        self.broker_id, self.choice = files.load()
        self.step = (
            Step.KNOWN if self.broker_id is not None else Step.CHOSEN if self.choice is not None else Step.UNKNOWN
        )

    def next_id(self, broker_id: int) -> None:
        """The controllers offered an id: remember it, then apply for it."""
        if self.step is Step.UNKNOWN:
            self.choice = Choice(broker_id, self._check_code)
            self._files.save_applied_id(self.choice)
            self.step = Step.CHOSEN

    def applied(self) -> None:
        """The id is ours for good."""
        if self.step is Step.CHOSEN:
            assert self.choice is not None
            self._files.save_id(self.choice.broker_id)
            self.broker_id = self.choice.broker_id
            self.step = Step.KNOWN

    def taken(self) -> None:
        """Another broker has the id that was applied for."""
        if self.step is Step.CHOSEN and self.broker_id is None:
            self._files.remove_applied_id()
            self.choice = None
            self.step = Step.UNKNOWN
        elif self.step is Step.CHOSEN:
            self.step = Step.KNOWN  # ours by our own file: keep asking to be registered under it

    def registered(self) -> None:
        if self.step is Step.KNOWN:
            self.step = Step.REGISTERED

    def forgotten(self) -> None:
        """The controllers do not know this broker (their data is gone, or this broker was cleaned away): apply again."""
        if self.step in (Step.KNOWN, Step.REGISTERED):
            assert self.broker_id is not None
            self.choice = Choice(self.broker_id, self._check_code)
            self._files.save_applied_id(self.choice)
            self.step = Step.CHOSEN

    def unregistered(self) -> None:
        """The controllers know no such broker set any more: register again first."""
        if self.step is Step.REGISTERED:
            self.step = Step.KNOWN
