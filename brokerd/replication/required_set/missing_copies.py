"""Which copies a group lacks at the moment, why, and since when: what makes a downgrade visible (pure).

A replica is missing while an acknowledgement does not mean that it has the message (it left the set, or never joined), or while
sends wait for it in vain (it is still in the set and does not answer). It is missing no more as soon as it is back in the set and
keeps up: nothing has to be reset by hand.

Owned by `mastership`, which looks at every tick.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Finding(NamedTuple):
    """What is wrong with a replica now. `stalls`: it is required, so sends wait for it."""

    reason: str
    stalls: bool


class MissingCopy(NamedTuple):
    """A finding and since when the replica has been missing (whatever the reason was in between)."""

    broker_id: int
    reason: str
    stalls: bool
    since_ms: int


class MissingCopies:
    """The replicas that are missing in one mastership."""

    def __init__(self) -> None:
        self._found: dict[int, MissingCopy] = {}

    @property
    def all(self) -> tuple[MissingCopy, ...]:
        return tuple(self._found[broker_id] for broker_id in sorted(self._found))

    def look(self, found: Mapping[int, Finding], now_ms: int) -> None:
        """Take over what is found now; who is not in it is back."""
        known = self._found
        self._found = {
            broker_id: MissingCopy(
                broker_id, finding.reason, finding.stalls, known[broker_id].since_ms if broker_id in known else now_ms
            )
            for broker_id, finding in found.items()
        }
