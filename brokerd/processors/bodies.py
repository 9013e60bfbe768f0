"""JSON bodies as the protocol's clients write and expect them (pure).

Some bodies are no JSON: their maps have objects as keys (`{{"topic":"t",...}:{...}}`), which readers of the reference's library
expect. Those are put together here. Incoming bodies may hold anything: unknown members, nulls, enums by name or by ordinal,
numbers as strings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

import orjson

from remoting.disk import Bytes
from remoting.errors import InvalidParameter

T = TypeVar("T")

_MAX_NAME: Final = 512


def encode(body: Any) -> bytes:
    """Strict JSON, without blanks, members sorted."""
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def encode_object_map(entries: Iterable[tuple[Any, Any]]) -> bytes:
    """A map whose keys are objects, written raw."""
    return b"{" + b",".join(encode_object_entry(key, value) for key, value in entries) + b"}"


def encode_object_entry(key: Any, value: Any) -> bytes:
    """One entry of such a map."""
    return encode(key) + b":" + encode(value)


def message_queue(topic: str, broker_name: str, queue_id: int) -> dict[str, Any]:
    """The key of the maps by queue."""
    return {"brokerName": broker_name, "queueId": queue_id, "topic": topic}


def decode_object(body: Bytes, what: str) -> dict[str, Any]:
    """A request's body, which must be a JSON object."""
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise InvalidParameter(f"the body is not {what} as JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidParameter(f"the body is not {what}: it must be a JSON object")
    return document


def objects(document: dict[str, Any], name: str, limit: int) -> list[dict[str, Any]]:
    """A list of objects in a document; empty when it is missing or null."""
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(each, dict) for each in value):
        raise InvalidParameter(f"{name} must be a list of at most {limit} objects")
    return value


def text(document: dict[str, Any], name: str, default: str = "") -> str:
    value = _of_kind(document, name, str, "a text")
    return default if value is None else value


def name(document: dict[str, Any], member: str) -> str:
    """A text that must be there, no longer than the names of groups, topics and clients may be."""
    found = text(document, member)
    if not 0 < len(found) <= _MAX_NAME:
        raise InvalidParameter(f"{member} is needed, with at most {_MAX_NAME} characters")
    return found


def integer(document: dict[str, Any], name: str, default: int = 0) -> int:
    """A number, also one written as a string."""
    value = document.get(name)
    if value is None or value == "":
        return default
    try:
        if isinstance(value, bool | float) or (isinstance(value, str) and len(value) > 20):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError) as error:
        raise InvalidParameter(f"{name} must be a number, not {str(value)[:32]!r}") from error
    if not -(1 << 63) <= number < 1 << 63:
        raise InvalidParameter(f"{name} is out of range")
    return number


def boolean(document: dict[str, Any], name: str, default: bool) -> bool:
    value = _of_kind(document, name, bool, "true or false")
    return default if value is None else value


def member(document: dict[str, Any], name: str) -> dict[str, Any] | None:
    return _of_kind(document, name, dict, "an object")


def _of_kind(document: dict[str, Any], name: str, kind: type[T], what: str) -> T | None:
    """A member; None when it is missing or null."""
    value = document.get(name)
    if value is not None and not isinstance(value, kind):
        raise InvalidParameter(f"{name} must be {what}")
    return value


def enumeration(document: dict[str, Any], name: str, names: Sequence[str], default: str) -> str:
    """One of the names, given by name (in any case) or by ordinal."""
    value = document.get(name)
    if value is None:
        return default
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(names):
        return names[value]
    if isinstance(value, str) and value.upper() in names:
        return value.upper()
    raise InvalidParameter(f"{name} must be one of {', '.join(names)}")
