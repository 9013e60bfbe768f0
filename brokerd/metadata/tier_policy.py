"""Which topics are kept in the tier, and for how long, as their attributes say (pure).

`tier.enable` is `true` or `false`; without it a topic is kept when the broker has a tier. `tier.reserve.time` is hours, -1 for
the broker's own `tiers.reserved_time_ms`. `tier.export` is `parquet` or `none`, whether workers write what is in the tier as
columns, too. `tier.archive` is `true` or `false`, whether merged messages are compressed; without it the broker's own
`tiers.archive` counts. Topics of the system are not kept: they are the broker's state, which it keeps itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting.names import is_system_topic

ENABLE: Final = "tier.enable"
RESERVE_TIME: Final = "tier.reserve.time"
EXPORT: Final = "tier.export"
ARCHIVE: Final = "tier.archive"
_HOUR_MS: Final = 3_600_000
_LONGEST_HOURS: Final = 876_000
_MOST_DIGITS: Final = 16


def is_kept(topic: str, attributes: Mapping[str, str]) -> bool:
    """Whether messages of the topic are uploaded."""
    return not is_system_topic(topic) and attributes.get(ENABLE, "true") == "true"


def reserved_time_ms(attributes: Mapping[str, str], otherwise_ms: int) -> int:
    """How long messages stay in the tier; 0 = for ever."""
    hours = reserved_hours(attributes)
    return otherwise_ms if hours < 0 else hours * _HOUR_MS


def reserved_hours(attributes: Mapping[str, str]) -> int:
    """The same in hours; -1 = as the broker says."""
    return hours_of(attributes, RESERVE_TIME)


def is_archived(attributes: Mapping[str, str], otherwise: bool) -> bool:
    """Whether merged messages are stored as compressed blocks."""
    says = says_archived(attributes)
    return otherwise if says is None else says


def says_archived(attributes: Mapping[str, str]) -> bool | None:
    """What the topic itself says of that; None = as the broker says."""
    return None if ARCHIVE not in attributes else attributes[ARCHIVE] == "true"


def is_exported(attributes: Mapping[str, str]) -> bool:
    """Whether workers write what is in the tier as columns, too."""
    return attributes.get(EXPORT) == "parquet"


def problem_of(key: str, value: str) -> str | None:
    """What a value of one of these attributes must be, when it is not that; None when it is right, or the key is another one."""
    if key in (ENABLE, ARCHIVE) and value not in ("true", "false"):
        return "true or false"
    if key == RESERVE_TIME:
        return problem_of_hours(value)
    if key == EXPORT and value not in ("parquet", "none"):
        return "parquet or none"
    return None


def hours_of(attributes: Mapping[str, str], key: str) -> int:
    """An attribute that is a number of hours; -1 = as the broker says, also where it is no such number: what was taken over from
    RocketMQ was not checked."""
    value = attributes.get(key, "-1")
    return int(value) if problem_of_hours(value) is None else -1


def problem_of_hours(value: str) -> str | None:
    """What a number of hours must be, when the value is not that."""
    is_number = value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS
    if value == "-1" or (is_number and 0 < int(value) <= _LONGEST_HOURS):
        return None
    return f"-1 or a number of hours up to {_LONGEST_HOURS}"
