"""What people want of an appliance's broker groups: a file for each group, DATA/groups/NAME.json.

Workers write them (`tasks.mounting`), the supervisor follows them (`webapp.appliance.group_keeper`), pages show them. A group
without a file runs its own brokers.

    {"version": 1, "cluster": "DefaultCluster", "group": "broker-a", "wish": "mounted", "id": "4f0c99a1", "given_up": true}
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from remoting.disk import sync_path
from remoting.errors import LogboomError
from remoting.names import MAX_BROKER_NAME_LENGTH

VERSION: Final = 1
_MAX_BYTES: Final = 64 * 1024
_SUFFIX: Final = ".json"
_NAME: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_BROKER_NAME_LENGTH}}}")
_ID: Final = re.compile(r"[0-9a-f]{8}")  # a directory's name


class Wish(StrEnum):
    """`down`: no process. `mounted`: served read-only from its tier. `released`: as `down`, after a mount was given back.
    `first`: of its own brokers only the one whose directory has a log, until it leads."""

    DOWN = "down"
    MOUNTED = "mounted"
    RELEASED = "released"
    FIRST = "first"


class GroupWish(NamedTuple):
    """`id` names the directory of its mount, the present or the last one; empty before the first. `given_up`: the controllers
    were told to forget the group's own replicas."""

    cluster: str
    group: str
    wish: Wish
    id: str = ""
    given_up: bool = False


class WishUnreadable(LogboomError):
    """The file cannot be read, or says what nobody wrote."""


class Busy(LogboomError):
    """Somebody else changes what is wanted of this group."""


def mount_process(group: str) -> str:
    """What the supervisor calls the process that serves a group in the place of its own brokers."""
    return f"mount-{group}"


def encode_wish(wish: GroupWish) -> bytes:
    """As it is in the file."""
    return json.dumps({"version": VERSION, **wish._asdict()}).encode() + b"\n"


def decode_wish(content: bytes, group: str) -> GroupWish:
    """What the file of `group` says. Raises ValueError."""
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it has more than {_MAX_BYTES} bytes")
    document = json.loads(content)
    if not isinstance(document, dict) or document.pop("version", None) != VERSION:
        raise ValueError(f"its version is not {VERSION}")
    if document.keys() != set(GroupWish._fields):
        raise ValueError(
            f"it has {', '.join(sorted(map(str, document)))} in the place of {', '.join(GroupWish._fields)}"
        )
    wish = GroupWish(**{**document, "wish": Wish(document["wish"])})
    if wish.group != group or not isinstance(wish.cluster, str) or not _NAME.fullmatch(wish.cluster):
        raise ValueError(f"it is of another group: {wish.group!r} of {wish.cluster!r}")
    if not isinstance(wish.id, str) or not isinstance(wish.given_up, bool) or (wish.id and not _ID.fullmatch(wish.id)):
        raise ValueError(f"id {wish.id!r} or given_up {wish.given_up!r} is nothing that was written")
    if wish.wish is Wish.MOUNTED and not wish.id:
        raise ValueError("it wants a mount, and names none")
    return wish


def read_wish(directory: Path, group: str) -> GroupWish | None:
    """None when the group runs its own brokers. Raises WishUnreadable."""
    path = directory / f"{group}{_SUFFIX}"
    try:
        with open(path, "rb") as file:
            return decode_wish(file.read(_MAX_BYTES + 1), group)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise WishUnreadable(
            f"{path} does not say what is wanted of broker group {group}, so none of its brokers is started: {error}. "
            "Remove the file to have them started"
        ) from error


def read_wishes(directory: Path) -> Mapping[str, GroupWish | WishUnreadable]:
    """Group -> what is wanted of it, or why nobody knows that."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return {}
    found: dict[str, GroupWish | WishUnreadable] = {}
    for group in (name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)):
        if not _NAME.fullmatch(group):
            continue
        try:
            wish = read_wish(directory, group)
        except WishUnreadable as error:
            found[group] = error
        else:
            if wish is not None:
                found[group] = wish
    return found


def write_wish(directory: Path, wish: GroupWish) -> None:
    """Want this from now on; whoever reads finds the old or the new wish, also when the machine fails. Raises OSError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=directory, prefix=f".{wish.group}.")  # its mode is 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(encode_wish(wish))
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, directory / f"{wish.group}{_SUFFIX}")
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft)
    sync_path(directory)


def remove_wish(directory: Path, group: str) -> None:
    """Let the group run its own brokers. Raises OSError."""
    (directory / f"{group}{_SUFFIX}").unlink(missing_ok=True)
    sync_path(directory)


@contextmanager
def alone(directory: Path, group: str) -> Iterator[None]:
    """Nobody else changes what is wanted of the group in this block. Raises Busy."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / f".{group}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                f"somebody else is switching broker group {group} at this moment: wait for the end of that"
            ) from None
        yield
    finally:
        os.close(descriptor)
