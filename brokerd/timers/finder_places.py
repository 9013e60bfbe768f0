"""Where a search for timers goes on, as text for who asks (pure).

A search goes through the log, in the order of keys; through the tier, object by object; and then through what the log got since
it began, for what came back from the tier behind its back. So whatever moves meanwhile is come to, perhaps twice.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

from brokerd.timers.codes import Key
from brokerd.timers.stowed_search import StowedPlace
from remoting import codes
from remoting.errors import RequestError


class Part(StrEnum):
    """What it goes through; see the module."""

    LOG = "log"
    TIER = "tier"
    BACK = "back"


class Place(NamedTuple):
    """Behind the key `after` of the LOG, None: from its beginning; at `stowed` of the TIER; or of the queue at the offset
    `since`, BACK. `since` is where the queue ended when the search began, None: then nothing was in the tier."""

    part: Part = Part.LOG
    after: Key | None = None
    stowed: StowedPlace = StowedPlace()
    since: int | None = None

    @property
    def token(self) -> str:
        """For `read_token`."""
        since = "" if self.since is None else f"~{self.since}"
        if self.part is Part.LOG:
            assert self.after is not None
            return f"{self.after.due_ms}.{self.after.offset}{since}"
        if self.part is Part.TIER:
            return f"t{self.stowed.epoch}.{self.stowed.number}.{self.stowed.first}{since}"
        return since


_TOKEN: Final = re.compile(
    r"(?:([0-9]{1,16})\.([0-9]{1,18})|t([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18}))?(?:~([0-9]{1,18}))?"
)


def read_token(token: str) -> Place:
    """The place that a page's `next` names. Raises RequestError for another text."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise RequestError(codes.INVALID_PARAMETER, "after: pass `next` of the answer before, as it was")
    due_ms, offset, epoch, number, first, since = (None if each is None else int(each) for each in found.groups())
    if due_ms is not None and offset is not None:
        return Place(Part.LOG, Key(due_ms, offset), since=since)
    if epoch is not None and number is not None and first is not None:
        return Place(Part.TIER, stowed=StowedPlace(epoch, number, first), since=since)
    return Place(since=since) if since is None else Place(Part.BACK, since=since)
