"""Facts as JSON and back: the one encoder and the one decoder of frozen dataclasses (pure)

A fact's keys are its fields' names, in camelCase in a document whose class derives from `CamelCase`; a field whose key follows
neither rule names it (`key`). What a fact may be made of: int, float, bool, str, a `StrEnum`, another fact, `X | None`,
`tuple[X, ...]`, `tuple[X, Y]` and `Mapping[str, X]`.

The decoder is for documents of peers, which may be newer or broken: keys it does not know are left out, an absent key or a null
takes the field's default, and a value of another type is refused with the path of its field. So what was decoded needs no second
look. Its size is bounded before it is parsed. What the controllers keep was written by themselves, and is read `exactly`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from enum import StrEnum
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import orjson

from remoting.disk import Bytes
from remoting.errors import ProtocolError

Fact = TypeVar("Fact")
Read = Callable[[Any], Any]

MOST_BYTES: Final = 64 * 1024 * 1024
_KEY: Final = "key"


class CamelCase:
    """Base of documents whose keys, at every depth, are fields' names in camelCase."""

    __slots__ = ()


def key(name: str) -> Mapping[str, str]:
    """Metadata of a field that stands under this key."""
    return {_KEY: name}


def encode(fact: object) -> bytes:
    """A fact as a JSON document."""
    return orjson.dumps(fact, partial(_members, isinstance(fact, CamelCase)), orjson.OPT_PASSTHROUGH_DATACLASS)


def encode_item(fact: object) -> bytes:
    """A part of a document whose keys are in camelCase, for `encode_around`."""
    return orjson.dumps(fact, _camel_members, orjson.OPT_PASSTHROUGH_DATACLASS)


def encode_around(fact: object, lists: Mapping[str, Iterable[bytes]], *, camel: bool = True) -> bytes:
    """A document, or a part of one, in which these fields are lists of parts that are encoded. `camel`: whether its keys are in
    camelCase."""
    kind: Any = type(fact)
    members_of = partial(_members, camel)
    members, keys = members_of(fact), _keys(kind, camel)
    for name, items in lists.items():
        members[keys[name]] = [orjson.Fragment(each) for each in items]
    return orjson.dumps(members, members_of, orjson.OPT_PASSTHROUGH_DATACLASS)


def decode(kind: type[Fact], document: Bytes, most_bytes: int = MOST_BYTES, *, exactly: bool = False) -> Fact:
    """The fact that a document tells. Raises ProtocolError when it is none of this kind, or larger than `most_bytes`."""
    if len(document) > most_bytes:
        raise ProtocolError(f"{kind.__name__}: {len(document)} bytes, more than {most_bytes}")
    try:
        value = orjson.loads(document)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{kind.__name__}: not JSON: {error}") from error
    return read(kind, value, exactly=exactly)


def read(kind: type[Fact], value: object, *, exactly: bool = False) -> Fact:
    """The same of a part of a document. `exactly`: every field is there, or has a default, and there is none besides."""
    hint: Any = kind
    try:
        found: Fact = _reader(hint, issubclass(kind, CamelCase), exactly)(value)
    except _OtherType as error:
        raise ProtocolError(f"{'.'.join([kind.__name__, *error.path])} is not {error.wanted}") from None
    return found


class _OtherType(Exception):
    """A value is not what its field takes; `path` grows on the way out."""

    def __init__(self, wanted: str) -> None:
        super().__init__(wanted)
        self.wanted = wanted
        self.path: list[str] = []


class _Field(NamedTuple):
    name: str
    read: Read
    required: bool


def _key(field: Field[Any], camel: bool) -> str:
    if _KEY in field.metadata:
        return str(field.metadata[_KEY])
    if not camel:
        return field.name
    first, *rest = field.name.split("_")
    return first + "".join(each.capitalize() for each in rest)


@cache
def _keys(kind: Any, camel: bool) -> Mapping[str, str]:
    return {each.name: _key(each, camel) for each in fields(kind)}


def _members(camel: bool, fact: Any) -> dict[str, Any]:
    """What orjson asks for what it does not know itself."""
    kind: Any = type(fact)
    return {key: getattr(fact, name) for name, key in _keys(kind, camel).items()}


_camel_members = partial(_members, True)


# ---- reading: one function for each type, made once


@cache
def _reader(kind: Any, camel: bool, exactly: bool) -> Read:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return partial(_plain, *_PLAIN[kind])
    if origin is types.UnionType:
        (inner,) = (each for each in arguments if each is not types.NoneType)
        return partial(_optional, _reader(inner, camel, exactly))
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return partial(_list, _reader(arguments[0], camel, exactly))
        return partial(_row, tuple(_reader(each, camel, exactly) for each in arguments))
    if origin is not None:
        return partial(_mapping, _reader(arguments[1], camel, exactly))
    if issubclass(kind, StrEnum):
        return partial(_word, kind)
    hints = get_type_hints(kind)
    known = {_key(each, camel): _field(each, _reader(hints[each.name], camel, exactly)) for each in fields(kind)}
    return partial(_fact_of_just if exactly else _fact, kind, known)


def _field(field: Field[Any], read: Read) -> _Field:
    return _Field(field.name, read, field.default is MISSING and field.default_factory is MISSING)


_PLAIN: Final[Mapping[Any, tuple[tuple[type, ...], str]]] = {
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    bool: ((bool,), "a boolean"),
    str: ((str,), "a text"),
}


def _plain(types: tuple[type, ...], wanted: str, value: Any) -> Any:
    if type(value) not in types:
        raise _OtherType(wanted)
    return value


def _optional(read: Read, value: Any) -> Any:
    return None if value is None else read(value)


def _list(read: Read, value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise _OtherType("a list")
    return tuple(map(read, value))


def _row(readers: tuple[Read, ...], value: Any) -> tuple[Any, ...]:
    if type(value) is not list or len(value) != len(readers):
        raise _OtherType(f"a list of {len(readers)}")
    return tuple(read(each) for read, each in zip(readers, value, strict=True))


def _mapping(read: Read, value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise _OtherType("an object")
    return {name: read(each) for name, each in value.items()}


def _word(kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise _OtherType(f"one of {', '.join(kind)}") from None


def _fact(kind: type, known: Mapping[str, _Field], value: Any) -> Any:
    """Of a peer's value: what is not known is left out, and null counts as absent."""
    if type(value) is not dict:
        raise _OtherType("an object")
    told = {key: given for key in known if (given := value.get(key)) is not None or known[key].required}
    return _made(kind, known, told)


def _fact_of_just(kind: type, known: Mapping[str, _Field], value: Any) -> Any:
    if type(value) is not dict or not {key for key in known if known[key].required} <= value.keys() <= known.keys():
        raise _OtherType(f"an object of {', '.join(known)}")
    return _made(kind, known, value)


def _made(kind: type, known: Mapping[str, _Field], told: Mapping[str, Any]) -> Any:
    found = {}
    for key, given in told.items():
        try:
            found[known[key].name] = known[key].read(given)
        except _OtherType as error:
            error.path.insert(0, key)
            raise
    return kind(**found)
