"""What the objects of a tier are called (pure).

    <prefix>/<h8(cluster)>_<cluster>/<broker group>/<topic>/<queue id>/<kind>/<h8(base)><base, 20 digits>-<epoch>-<number>
    <prefix>/<h8(cluster)>_<cluster>/<broker group>/manifest/<epoch, 20 digits>-<number, 20 digits>
    <prefix>/<h8(cluster)>_<cluster>/<broker group>/clock/<epoch, hex>-<number, hex>
    <prefix>/<h8(cluster)>_<cluster>/<broker group>/lease/<token, 20 digits>
    <prefix>/<h8(cluster)>_<cluster>/<broker group>/state/<epoch, 20 digits>-<number, 20 digits>
    <prefix>/<h8(cluster)>_<cluster>/<broker group>/timers/<hour since 1970, 10 digits>-<epoch, hex>-<number, hex>

`h8` is the first eight hex digits of an MD5, which spreads names over the partitions of an object store (storage.md 4.2). The
base is where the object begins in its queue: bytes for messages, 20 per offset for entries. Epoch and number make the name one
that nobody used before, so that nothing is ever replaced.
"""

from __future__ import annotations

import hashlib
import re
from enum import Enum
from typing import Final, NamedTuple

ENTRY_BYTES: Final = 20
_DIGITS: Final = 20
_OBJECT: Final = re.compile(
    r"(.+)/(\d{1,10})/(COMMIT_LOG|CONSUME_QUEUE)/[0-9a-f]{8}\d{20}-([0-9a-f]{1,16})-([0-9a-f]{1,16})"
)


_INDEX: Final = re.compile(r"rmq_sys_INDEX/0/INDEX/[0-9a-f]{8}\d{20}-([0-9a-f]{1,16})-([0-9a-f]{1,16})")
_TWO_NUMBERS: Final = re.compile(r"([0-9]{20})-([0-9]{20})")
_TOKEN: Final = re.compile(r"[0-9]{20}")


class Kind(Enum):
    """What an object of a queue holds; the value is its directory."""

    MESSAGES = "COMMIT_LOG"
    ENTRIES = "CONSUME_QUEUE"
    INDEX = "INDEX"


_CLOCK: Final = "clock/"
STOWED: Final = "timers/"
_STOWED: Final = re.compile(r"timers/\d{10}-([0-9a-f]{1,16})-([0-9a-f]{1,16})")
MANIFEST: Final = "manifest/"
LEASES: Final = "lease/"
STATES: Final = "state/"
EXPORTS: Final = "export"  # what `tasks.tier.exports` calls is below it
INDEX_TOPIC: Final = "rmq_sys_INDEX"  # whose queue 0 has the index of the whole broker group


def h8(text: str) -> str:
    """The first eight hex digits of its MD5; it spreads names and protects nothing."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def cluster_directory(cluster: str) -> str:
    """`<h8>_<cluster>`."""
    return f"{h8(cluster)}_{cluster}"


def group_directory(prefix: str, cluster: str, broker_name: str) -> str:
    """Where everything of a broker group is; without a slash at its end."""
    return "/".join(part for part in (prefix.strip("/"), cluster_directory(cluster), broker_name) if part)


def segment_name(base: int) -> str:
    """As the original calls what begins there: `<h8(base)><base, 20 digits>`."""
    return f"{h8(str(base))}{base:0{_DIGITS}}"


def object_name(topic: str, queue_id: int, kind: Kind, base: int, epoch: int, number: int) -> str:
    """Below the group's directory."""
    return f"{topic}/{queue_id}/{kind.value}/{segment_name(base)}-{epoch:x}-{number:x}"


class ObjectName(NamedTuple):
    """Of messages or entries."""

    topic: str
    queue_id: int
    epoch: int
    number: int


def parse_object_name(name: str) -> ObjectName | None:
    """What `object_name` made of messages and entries; None for all else."""
    found = _OBJECT.fullmatch(name)
    if found is None:
        return None
    return ObjectName(found[1], int(found[2]), int(found[4], 16), int(found[5], 16))


def parse_index_name(name: str) -> tuple[int, int] | None:
    """Epoch and number of an object of the index of keys; None for all else."""
    found = _INDEX.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def stowed_name(hour: int, epoch: int, number: int) -> str:
    """Below the group's directory: timers, of which the first is due in that hour."""
    return f"{STOWED}{hour:010}-{epoch:x}-{number:x}"


def parse_stowed_name(name: str) -> tuple[int, int] | None:
    """Epoch and number of an object of timers; None for all else."""
    found = _STOWED.fullmatch(name)
    return None if found is None else (int(found[1], 16), int(found[2], 16))


def clock_name(epoch: int, number: int) -> str:
    """Below the group's directory: an object without content, whose time is wanted, and which is removed then."""
    return f"{_CLOCK}{epoch:x}-{number:x}"


def is_clock_name(name: str) -> bool:
    """Whether it is one of those."""
    return name.startswith(_CLOCK)


def manifest_name(epoch: int, number: int) -> str:
    """Below the group's directory; in the order of names they are in the order of epoch and number."""
    return f"{MANIFEST}{epoch:0{_DIGITS}}-{number:0{_DIGITS}}"


def parse_manifest_name(name: str) -> tuple[int, int] | None:
    """Epoch and number of an object of the manifest; None for all else."""
    return _two_numbers(name, MANIFEST)


def lease_name(token: int) -> str:
    """Below the group's directory."""
    return f"{LEASES}{token:0{_DIGITS}}"


def lease_token(name: str) -> int | None:
    """What `lease_name` made the name of; None for all else."""
    digits = name.removeprefix(LEASES)
    return int(digits) if _TOKEN.fullmatch(digits) else None


def state_name(epoch: int, number: int) -> str:
    """Below the group's directory; in the order of names they are in the order of epoch and number."""
    return f"{STATES}{epoch:0{_DIGITS}}-{number:0{_DIGITS}}"


def parse_state_name(name: str) -> tuple[int, int] | None:
    """Epoch and number of a state object; None for all else."""
    return _two_numbers(name, STATES)


def _two_numbers(name: str, directory: str) -> tuple[int, int] | None:
    found = _TWO_NUMBERS.fullmatch(name.removeprefix(directory)) if name.startswith(directory) else None
    return None if found is None else (int(found[1]), int(found[2]))
