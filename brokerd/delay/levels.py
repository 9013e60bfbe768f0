"""The fixed delay levels: the table, the topic in which delayed messages wait, and when one of them is due (pure).

A message of level n waits in queue n - 1 of the schedule topic. Its consume-queue entry carries, in place of the tags code, the
time at which it is due: store time + the level's delay. So whoever looks for due messages reads no record, and every replica, and
every rebuilding of the queues, derives the same from the log.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final

from brokerd.store.derived.derive import CodeRules
from remoting.errors import SettingsError
from remoting.names import SCHEDULE_TOPIC
from remoting.record.properties import decode_properties, tags_code

DELAY: Final = "DELAY"
# How far the levels are delivered is kept like the offsets of a consumer group of this name.
SCHEDULE_GROUP: Final = "CID_RMQ_SYS_LOGBOOM_SCHEDULE"
DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS: Final = 64
MAX_DELAY_MS: Final = 366 * 24 * 3_600_000

Delays = tuple[int, ...]  # milliseconds of level 1, 2, ...

_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MAX_DIGITS: Final = 10


@lru_cache(maxsize=16)
def parse_levels(text: str) -> Delays:
    """The delays of a table such as `1s 5s 1m 2h 1d`. Raises SettingsError that names the entry and the rule."""
    delays = []
    for entry in text.split():
        number, unit = entry[:-1], entry[-1]
        if unit not in _UNITS_MS or not number.isdecimal() or not number.isascii() or len(number) > _MAX_DIGITS:
            raise SettingsError(f"the delay level {entry!r} must be a number followed by s, m, h or d, such as 30s")
        delay_ms = int(number) * _UNITS_MS[unit]
        if not 0 < delay_ms <= MAX_DELAY_MS:
            raise SettingsError(f"the delay level {entry!r} must be longer than nothing and at most 366d")
        delays.append(delay_ms)
    if not 1 <= len(delays) <= MAX_LEVELS:
        raise SettingsError(f"there must be from 1 to {MAX_LEVELS} delay levels, not {len(delays)}")
    return tuple(delays)


DEFAULT_DELAYS: Final = parse_levels(DEFAULT_LEVELS)


def parse_level(value: str) -> int | None:
    """The level that a DELAY property asks for, 0 when it is empty; None when it is no number that fits 32 bits."""
    if not value:
        return 0
    digits = value[1:] if value[0] in "+-" else value
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > _MAX_DIGITS:
        return None
    level = int(value)
    return level if -(1 << 31) <= level < 1 << 31 else None


def schedule_code(properties: bytes, store_timestamp_ms: int, delays: Delays) -> int:
    """What the consume-queue entry of a message in the schedule topic carries: when it is due, if it names a level."""
    level = parse_level(decode_properties(properties).get(DELAY, ""))
    if level is None or level <= 0:
        return tags_code(properties)
    return store_timestamp_ms + delays[min(level, len(delays)) - 1]


def code_rules(delays: Delays) -> CodeRules:
    """For the store, which knows no levels: what makes the codes of waiting messages' entries."""
    return {SCHEDULE_TOPIC: partial(schedule_code, delays=delays)}
