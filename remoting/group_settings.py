"""Settings of a consumer group that brokers keep as its attributes, by the names that facts and REST have for them (pure).

A change names some of them; the rest stays as it is. None takes one away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

INVISIBLE_MIN: Final = "invisible.min.ms"
INVISIBLE_MAX: Final = "invisible.max.ms"
INVISIBLE_DEFAULT: Final = "invisible.default.ms"
MOST_INVISIBLE_MS: Final = 8760 * 3_600_000
ORDER_SCOPES: Final = (
    "MESSAGE_GROUP",
    "QUEUE",
)  # the first one for groups that are made here, the last one where nothing is said

Setting = str | int | None

_ORDER_SCOPE: Final = "order.scope"
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "order_scope": _ORDER_SCOPE,
    "invisible_min_ms": INVISIBLE_MIN,
    "invisible_max_ms": INVISIBLE_MAX,
    "invisible_default_ms": INVISIBLE_DEFAULT,
}
NAMES: Final = tuple(_ATTRIBUTES)
_MAX_DIGITS: Final = 12


class GroupSettings(TypedDict):
    """What an ordered group keeps the order of, and its bounds of the time for which messages are hidden; None = it has none."""

    order_scope: str
    invisible_min_ms: int | None
    invisible_max_ms: int | None
    invisible_default_ms: int | None


def settings_of(attributes: Mapping[str, str]) -> GroupSettings:
    """What a group's attributes say. A bound that is no number is none."""
    scope = attributes.get(_ORDER_SCOPE)
    return GroupSettings(
        order_scope=scope if scope in ORDER_SCOPES else ORDER_SCOPES[-1],
        invisible_min_ms=_number(attributes.get(INVISIBLE_MIN)),
        invisible_max_ms=_number(attributes.get(INVISIBLE_MAX)),
        invisible_default_ms=_number(attributes.get(INVISIBLE_DEFAULT)),
    )


def named_settings(values: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the values that are settings of a group."""
    return {name: values[name] for name in NAMES if name in values}


def attribute_changes(settings: Mapping[str, Setting]) -> dict[str, str]:
    """The settings as a broker is told to change attributes: `+name` sets one, `-name` takes it away."""
    return {
        f"-{_ATTRIBUTES[name]}" if value is None else f"+{_ATTRIBUTES[name]}": "" if value is None else str(value)
        for name, value in settings.items()
    }


def _number(text: str | None) -> int | None:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if text is not None and is_number else None
