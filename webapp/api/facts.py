"""Frozen dataclasses over REST, facts of the snapshot first: a serializer follows from the fields, so that none is spelled twice.

A `FactSerializer` names its `fact`, says what readers need to know about fields (`help_texts`), and which are not shown. A field
that it declares itself takes the place of the derived one. A fact inside of another is shown by the class that names it, or field
by field when none does.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, ClassVar, Final, get_args, get_origin, get_type_hints

from rest_framework import serializers

from webapp.api.base import Int64Field

# Whole numbers that are small whatever happens; a JSON reader may round any other.
_SMALL: Final = frozenset(
    {
        *("id", "broker_id", "master_id", "sync_state_set", "queue_id", "queue_ids"),
        *("copies", "wanted_copies", "min_copies", "pid", "restarts", "percent"),
    }
)
_FIELDS: Final = {int: serializers.IntegerField, float: serializers.FloatField, bool: serializers.BooleanField}


class FactSerializer(serializers.Serializer):  # its docstring would be that of every schema
    fact: ClassVar[type]
    help_texts: ClassVar[Mapping[str, str]] = {}
    hidden: ClassVar[Container[str]] = ()
    by_fact: ClassVar[dict[type, type[FactSerializer]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.by_fact[cls.fact] = cls

    def get_fields(self) -> dict[str, serializers.Field]:
        declared = super().get_fields()
        derived = {
            name: declared.pop(name) if name in declared else _field(name, hint, help_text=self.help_texts.get(name))
            for name, hint in _hints(self.fact).items()
            if name not in self.hidden
        }
        return {**derived, **declared}


def told(**texts: str) -> Mapping[str, str]:
    """What readers need to know about fields, by their names."""
    return texts


_hints = cache(get_type_hints)


def _field(name: str, hint: Any, **options: Any) -> serializers.Field:
    arguments = get_args(hint)
    if get_origin(hint) is UnionType:
        (inner,) = (each for each in arguments if each is not NoneType)
        return _field(name, inner, allow_null=True, **options)
    if get_origin(hint) is tuple:
        inner = arguments[0]
        if is_dataclass(inner):
            return _serializer_of(inner)(many=True, **options)
        return serializers.ListField(child=_field(name, inner), **options)
    if is_dataclass(hint):
        return _serializer_of(hint)(**options)
    if hint is int and name not in _SMALL:
        return Int64Field(**{"allow_null": False, **options})
    return _FIELDS.get(hint, serializers.CharField)(**options)


def _serializer_of(fact: Any) -> type[FactSerializer]:
    found = FactSerializer.by_fact.get(fact)
    name = fact.__name__.removesuffix("State")  # what a broker says of itself, the API says of the broker's
    return found or type(f"{name}Serializer", (FactSerializer,), {"fact": fact})
