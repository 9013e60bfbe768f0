"""Who may serve a broker group's tier in the group's place: one object for each token, the highest one counts (pure).

    {"v": 1, "holder": "3f0c...", "nonce": "91ab...", "who": "10.0.0.7:10911", "at": 1764000000000, "state": "held"}

`nonce` makes the bytes of each object others than those of all other objects, so whoever finds them knows that he wrote them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import orjson

VERSION: Final = 1
MAX_BYTES: Final = 64 * 1024
LEASE_S: Final = 30.0  # after the last renewal


class LeaseState(StrEnum):
    """`held`: until its holder stays away. `resting`: another mount may have it at once; the group's own brokers may not lead.
    `released`: they may."""

    HELD = "held"
    RESTING = "resting"
    RELEASED = "released"


class Lease(NamedTuple):
    """One of them. `who` is an address for people, `at_ms` when it was written by that machine's clock, for people too."""

    token: int
    holder: str
    nonce: str
    who: str
    at_ms: int
    state: LeaseState

    @property
    def keeps_group_from_leading(self) -> bool:
        """Whether the group's own brokers must not lead."""
        return self.state is not LeaseState.RELEASED


def encode_lease(lease: Lease) -> bytes:
    return orjson.dumps(
        {
            "v": VERSION,
            "holder": lease.holder,
            "nonce": lease.nonce,
            "who": lease.who,
            "at": lease.at_ms,
            "state": lease.state.value,
        }
    )


def decode_lease(content: bytes, token: int, name: str) -> Lease:
    """Raises ValueError, whose text names the object."""
    try:
        document = orjson.loads(content)
        version = document["v"]
        if version != VERSION:
            raise ValueError(
                f"its layout is {version}, and this version knows {VERSION}: start the version that wrote it"
            )
        return Lease(
            token,
            str(document["holder"]),
            str(document["nonce"]),
            str(document["who"]),
            int(document["at"]),
            LeaseState(document["state"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is no lease that can be read: {error}") from error


def sentence_of(lease: Lease, broker_name: str) -> str:
    """Why the group's own brokers do not lead, and what to do."""
    verb = "is mounted read-only by" if lease.state is LeaseState.HELD else "was mounted read-only, last by"
    return (
        f"broker group {broker_name} {verb} {lease.who} (lease {lease.token} in its tier), and its consumers went on there: this "
        "broker leads again when the mount was stopped and given back, with "
        f"`manage.py group unmount {broker_name}` or `python -m brokerd --name {broker_name} --release-mount`"
    )
