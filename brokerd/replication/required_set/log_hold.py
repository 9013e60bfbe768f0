"""For which replicas that are away the master keeps files of its log, and from where on (pure).

A replica whose connection breaks while it copies would otherwise find that what comes next is gone, and begin its copy anew,
under disk pressure again and again. So the log is kept from where it was, for a while and up to a size; and from the log's begin
for a replica that belongs to the group and was not seen in this mastership yet. Who streams is no concern of this: what it lacks
is kept anyway.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

_NEVER_SEEN = -1


class _Away(NamedTuple):
    position: int  # what it had acknowledged; _NEVER_SEEN: nobody knows
    since_ms: int


class LogHold:
    """One mastership's."""

    def __init__(self) -> None:
        self._away: dict[int, _Away] = {}

    def expect(self, broker_ids: Collection[int], now_ms: int) -> None:
        """These replicas belong to the group, and no others."""
        self._away = {each: self._away.get(each, _Away(_NEVER_SEEN, now_ms)) for each in broker_ids}

    def left(self, broker_id: int, position: int, now_ms: int) -> None:
        """A replica that had acknowledged up to the position is not connected any more."""
        self._away[broker_id] = _Away(position, now_ms)

    def offset(
        self,
        here: Collection[int],
        log: range,
        now_ms: int,
        *,
        for_ms: int,
        most_bytes: int,
    ) -> int | None:
        """From where on the log, which holds that range, is kept; None when it is kept for nobody. `here`: who streams."""
        wanted = [
            each.position if each.position != _NEVER_SEEN else log.start
            for broker_id, each in self._away.items()
            if broker_id not in here and now_ms - each.since_ms < for_ms
        ]
        return max(min(wanted), log.stop - most_bytes) if wanted else None
