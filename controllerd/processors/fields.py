"""Header fields of controller requests: present, of their type, within bounds, or refused with the field's name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from remoting.errors import InvalidParameter
from remoting.frame import Command

_NAME = re.compile(r"[^\x00-\x20#;,\x7f]{1,127}")
_MAX_TEXT: Final = 512
_INT_LIMIT: Final = 2**63


def name(request: Command, key: str) -> str:
    """A cluster or broker name: printable, without blanks and separators."""
    value = request.ext.get(key, "")
    if not _NAME.fullmatch(value):
        raise InvalidParameter(f"{key} must have 1 to 127 characters without blanks, commas, semicolons and #")
    return value


def text(request: Command, key: str, default: str | None = None) -> str:
    """A text of bounded length; an empty one counts as absent."""
    value = request.ext.get(key) or default
    if value is None:
        raise InvalidParameter(f"request {request.code} needs the field {key}")
    if len(value) > _MAX_TEXT:
        raise InvalidParameter(f"{key} may have {_MAX_TEXT} characters")
    return value


def number(request: Command, key: str, default: int | None = None) -> int:
    """A whole number of 64 bits; an empty one counts as absent."""
    value = request.ext.get(key)
    if not value:
        if default is None:
            raise InvalidParameter(f"request {request.code} needs the field {key}")
        return default
    return _number(key, value)


def _number(key: str, text: str) -> int:
    try:
        found = int(text)
    except ValueError:
        found = _INT_LIMIT
    if not -_INT_LIMIT <= found < _INT_LIMIT:
        raise InvalidParameter(f"{key} must be a whole number, not {text[:40]!r}")
    return found


def numbers(request: Command, key: str, most: int) -> tuple[int, ...] | None:
    """Up to `most` whole numbers of 64 bits with blanks between them; None when the field is absent, or empty."""
    value = request.ext.get(key)
    if not value:
        return None
    texts = value.split(maxsplit=most)
    if len(texts) > most:
        raise InvalidParameter(f"{key} may have {most} numbers")
    return tuple(_number(key, each) for each in texts)


def flag(request: Command, key: str) -> bool:
    """A boolean; absent is false."""
    return request.ext.get(key, "").lower() == "true"


def optional(fields: Mapping[str, object | None]) -> dict[str, str]:
    """Answer fields as texts, without those that are None."""
    return {key: str(value) for key, value in fields.items() if value is not None}
