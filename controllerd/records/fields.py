"""Values from JSON, as the annotations of a dataclass say (pure)

Every field is there, or has a default, and is of its type; there is none besides. Anything else is a ProtocolError that names
the field: what is read comes from disks and peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from remoting.errors import ProtocolError

T = TypeVar("T")


def read_fields(kind: Callable[..., T], content: object) -> T:
    """One dataclass `kind` from a JSON object. Raises ProtocolError."""
    hints, needed = _fields(kind)
    if not isinstance(content, dict) or not needed <= content.keys() <= hints.keys():
        raise ProtocolError(f"{kind.__name__} has the fields {', '.join(hints)}, and is not {_shown(content)}")
    return kind(**{name: _read(hints[name], value, f"{kind.__name__}.{name}") for name, value in content.items()})


@cache
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    assert is_dataclass(kind)
    needed = [each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING]
    return {each.name: get_type_hints(kind)[each.name] for each in fields(kind)}, frozenset(needed)


def _read(kind: Any, value: object, what: str) -> Any:
    if isinstance(kind, UnionType):
        if value is None:
            return None
        (kind,) = (each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(get_args(kind)[0], each, what) for each in value)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_fields(kind, value)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(value, str) and value in list(kind):
        return kind(value)
    if type(value) is not kind:
        raise ProtocolError(f"{what} cannot be {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return repr(value)[:80]
