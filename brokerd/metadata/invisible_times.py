"""For how long a consumer group's messages may be hidden from its others, as its attributes say (pure).

`mqadmin updateSubGroup --attributes +invisible.min.ms=30000` sets one. What a broker's settings allow bounds them in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from remoting.errors import InvalidParameter
from remoting.group_settings import INVISIBLE_DEFAULT, INVISIBLE_MAX, INVISIBLE_MIN, MOST_INVISIBLE_MS

INVISIBLE_TIMES: Final = (INVISIBLE_MIN, INVISIBLE_MAX, INVISIBLE_DEFAULT)
_MAX_DIGITS: Final = 12


class InvisibleTimes(NamedTuple):
    """A group's bounds, in milliseconds; `default_ms` is for receives that name no time, 0 = they are refused."""

    least_ms: int = 0
    longest_ms: int = MOST_INVISIBLE_MS
    default_ms: int = 0


_UNBOUNDED: Final = InvisibleTimes()


def invisible_times(attributes: Mapping[str, str], least_ms: int, longest_ms: int) -> InvisibleTimes:
    """What a group's attributes say, within a broker's own bounds. What cannot be meant is as if it were not there: it was stored
    before there were rules."""
    get = attributes.get
    return _within((get(INVISIBLE_MIN), get(INVISIBLE_MAX), get(INVISIBLE_DEFAULT)), least_ms, longest_ms)


def check_invisible_times(attributes: Mapping[str, str]) -> None:
    """Raises InvalidParameter for bounds that cannot be meant."""
    _read(tuple(map(attributes.get, INVISIBLE_TIMES)))


def _read(texts: tuple[str | None, ...]) -> InvisibleTimes:
    numbers = []
    for name, text, otherwise in zip(INVISIBLE_TIMES, texts, _UNBOUNDED, strict=True):
        is_number = text is None or (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS)
        number = int(text) if text is not None and is_number else otherwise
        if not is_number or number > MOST_INVISIBLE_MS:
            raise InvalidParameter(
                f"{name} is a number of milliseconds, at most {MOST_INVISIBLE_MS}, not {str(text)[:32]!r}"
            )
        numbers.append(number)
    found = InvisibleTimes(*numbers)
    if found.least_ms > found.longest_ms:
        raise InvalidParameter(
            f"{INVISIBLE_MIN} is {found.least_ms} and must not be more than {INVISIBLE_MAX}, {found.longest_ms}"
        )
    if found.default_ms and not found.least_ms <= found.default_ms <= found.longest_ms:
        raise InvalidParameter(
            f"{INVISIBLE_DEFAULT} is {found.default_ms} and must be from {found.least_ms} to {found.longest_ms} "
            f"({INVISIBLE_MIN}, {INVISIBLE_MAX})"
        )
    return found


@lru_cache(maxsize=1024)
def _within(texts: tuple[str | None, ...], least_ms: int, longest_ms: int) -> InvisibleTimes:
    try:
        found = _read(texts)
    except InvalidParameter:
        found = _UNBOUNDED
    least, longest = (min(max(each, least_ms), longest_ms) for each in (found.least_ms, found.longest_ms))
    return InvisibleTimes(least, longest, min(max(found.default_ms, least), longest) if found.default_ms else 0)
