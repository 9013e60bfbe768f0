"""Header fields of requests: typed, bounded, with an error that names the field and the rule (pure).

An empty field and a missing one are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting.errors import InvalidParameter

MAX_INT: Final = (1 << 31) - 1
MIN_INT: Final = -(1 << 31)
MAX_LONG: Final = (1 << 63) - 1
MIN_LONG: Final = -(1 << 63)
_MAX_TEXT: Final = 32 * 1024
# What numbers from 0 on are written as: of fields that are read with every request most are among them.
SMALL: Final = {str(number): number for number in range(1024)}


def text(ext: Mapping[str, str], name: str) -> str:
    """A required text."""
    value = ext.get(name)
    if not value:
        raise InvalidParameter(f"the field {name} is required")
    if len(value) > _MAX_TEXT:
        raise InvalidParameter(f"the field {name} is longer than {_MAX_TEXT} characters")
    return value


def integer(
    ext: Mapping[str, str], name: str, default: int | None = None, *, low: int = 0, high: int = MAX_LONG
) -> int:
    """A decimal number between `low` and `high`; required unless there is a default."""
    value = ext.get(name)
    if not value:
        if default is None:
            raise InvalidParameter(f"the field {name} is required")
        return default
    try:
        number = int(value) if len(value) <= 20 else None
    except ValueError:
        number = None
    if number is None or not low <= number <= high:
        raise InvalidParameter(f"the field {name} must be a number from {low} to {high}, not {value[:32]!r}")
    return number


def flag(ext: Mapping[str, str], name: str, default: bool = False) -> bool:
    """`true` in any case is true, everything else is false."""
    value = ext.get(name)
    return value.lower() == "true" if value else default
