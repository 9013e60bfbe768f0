"""The rules that input obeys, each with the sentence that tells a person what to change (pure).

`Rules` collects every broken rule of one input, so that a form shows all of them at once.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any

from remoting.names import BUILT_IN_GROUPS, LEGAL_NAME
from webapp.errors import InvalidInput

NAME_RULE = "letters, digits and the characters % | _ - only"
MAX_QUEUES = 1024
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")
TOPIC_TYPES = (*MESSAGE_TYPES, "MIXED")  # a MIXED topic takes the first four
PERMISSION_BITS = {2: "write only", 4: "read only", 6: "read and write"}
MAX_INT64 = 2**63 - 1

RESERVED_GROUPS = {*BUILT_IN_GROUPS, "DEFAULT_CONSUMER", "DEFAULT_PRODUCER"}


def check_confirmation(parameters: Mapping[str, Any], name: str, what: str) -> None:
    """Raise InvalidInput when somebody was asked to confirm by typing the name of the `what` and typed something else."""
    if "confirmation" in parameters and parameters["confirmation"] != name:
        raise InvalidInput(
            f"Type the {what}'s name to confirm.", fields={"confirmation": [f"must be the {what}'s name, {name}"]}
        )


class Rules:
    """Checks the fields of one input and remembers what is wrong with each."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.broken: dict[str, list[str]] = {}

    def finish(self) -> None:
        """Raise InvalidInput if any rule was broken."""
        if not self.broken:
            return
        first = next(iter(self.broken.items()))
        raise InvalidInput(f"{first[0]}: {first[1][0]}", fields=self.broken)

    def refuse(self, name: str, sentence: str) -> None:
        """Remember that a field breaks a rule."""
        self.broken.setdefault(name, []).append(sentence)

    def has(self, name: str) -> bool:
        """Whether the input says anything about a field."""
        value = self._values.get(name)
        return bool(value.strip()) if isinstance(value, str) else value is not None

    def _given(self, name: str, default: Any) -> Any:
        value = self._values.get(name)
        return default if value in (None, "") else value

    def text(self, name: str, *, most: int, least: int = 0, default: str = "") -> str:
        value = self._values.get(name)
        if value is None:
            value = default
        if not isinstance(value, str):
            self.refuse(name, "must be text")
            return default
        value = value.strip()
        if not least <= len(value) <= most:
            self.refuse(name, f"must have {least} to {most} characters; it has {len(value)}")
        elif any(ord(character) < 32 for character in value):
            self.refuse(name, "must not contain control characters")
        return value

    def name(self, name: str, *, most: int, what: str) -> str:
        """A topic's or a group's name."""
        value = self._values.get(name)
        if not isinstance(value, str) or not value.strip():
            self.refuse(name, f"a {what} needs a name of 1 to {most} characters: {NAME_RULE}")
            return ""
        value = value.strip()
        if not LEGAL_NAME.fullmatch(value):
            self.refuse(name, f"a {what} name has {NAME_RULE}")
        elif len(value) > most:
            self.refuse(name, f"a {what} name has 1 to {most} characters; this one has {len(value)}")
        return value

    def integer(self, name: str, *, least: int, most: int, default: int | None = None) -> int:
        value = self._given(name, default)
        if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value.strip()):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, f"must be a whole number from {least} to {most}")
            return least
        if not least <= value <= most:
            self.refuse(name, f"must be from {least} to {most}; it is {value}")
        return value

    def choice(self, name: str, choices: Sequence[Any], *, default: Any = None) -> Any:
        value = self._given(name, default)
        for choice in choices:
            if str(choice) == str(value):
                return choice
        self.refuse(name, f"must be one of {', '.join(str(choice) for choice in choices)}")
        return default

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._values.get(name, default)
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in {"true", "on", "1", "yes"}:
            return True
        if value is None or (isinstance(value, str) and value.lower() in {"false", "off", "0", "no", ""}):
            return False
        self.refuse(name, "must be true or false")
        return default

    def moment(self, name: str, zone: tzinfo) -> datetime | None:
        """A time: RFC 3339, milliseconds since 1970, or what a datetime-local field sends (in the viewer's `zone`)."""
        given = self._given(name, None)
        if given is None:
            return None
        text = str(given)
        if text.isascii() and text.isdigit() and len(text) <= 14:
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.refuse(name, "must be RFC 3339 such as 2026-01-31T12:00:00Z, or milliseconds since 1970")
            return None
        return moment if moment.tzinfo else moment.replace(tzinfo=zone)

    def time_zone(self, name: str, *, default: str = "UTC") -> str:
        value = self._given(name, default)
        if not isinstance(value, str) or value not in known_time_zones():
            self.refuse(name, "must be an IANA time zone such as UTC or Europe/Berlin")
            return default
        return value


@cache
def known_time_zones() -> frozenset[str]:
    """Names that a person may choose from."""
    return frozenset(zoneinfo.available_timezones())
