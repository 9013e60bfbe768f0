"""How long messages of a receive are hidden: the words of the client, its group and the broker (pure).

A group's attributes bound it (`metadata/invisible_times.py`), within what the broker's settings allow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.metadata.invisible_times import InvisibleTimes, invisible_times
from brokerd.pop.settings import PopSettings
from brokerd.proxy.methods.asked import Asked
from brokerd.proxy.methods.groups import Groups
from brokerd.proxy.status import Code, Refusal

RENEWED_INVISIBLE_MS: Final = 60_000

_NONE: Final[Mapping[str, str]] = {}


def with_invisible_time(asked: Asked, groups: Groups, settings: PopSettings) -> Asked:
    """The request with the time for which it hides messages. A push consumer leaves that to the broker, which renews while the
    client lives; others may leave it to their group. Raises Refusal."""
    if asked.auto_renew:
        return asked._replace(invisible_time_ms=RENEWED_INVISIBLE_MS)
    times = _times_of(asked.group, groups, settings)
    asked_ms = asked.invisible_time_ms
    if not asked_ms and times.default_ms:
        return asked._replace(invisible_time_ms=times.default_ms)
    _check(asked_ms, times.least_ms, times.longest_ms)
    return asked


def check_change(group: str, asked_ms: int, groups: Groups, settings: PopSettings) -> None:
    """Refuse a change of that time that is too long; a short one lets the message come again soon. Raises Refusal."""
    _check(asked_ms, 0, _times_of(group, groups, settings).longest_ms)


def _times_of(group: str, groups: Groups, settings: PopSettings) -> InvisibleTimes:
    found = groups.get(group)
    attributes = _NONE if found is None else found.attributes
    return invisible_times(attributes, settings.min_invisible_time_ms, settings.max_invisible_time_ms)


def _check(asked_ms: int, least_ms: int, longest_ms: int) -> None:
    """Raises Refusal with the words that suites of clients look for."""
    if not least_ms <= asked_ms <= longest_ms:
        size = "small" if asked_ms < least_ms else "large"
        raise Refusal(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too {size}: {asked_ms} ms; it may be from {least_ms} to {longest_ms} ms",
        )
