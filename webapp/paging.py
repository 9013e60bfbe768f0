"""One page of a list, and its order, as the query string of a page asks for them (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

Item = TypeVar("Item")

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class Paged(Generic[Item]):
    """One page of a list."""

    items: Sequence[Item]
    number: int
    pages: int
    total: int

    @property
    def previous(self) -> int | None:
        return self.number - 1 if self.number > 1 else None

    @property
    def following(self) -> int | None:
        return self.number + 1 if self.number < self.pages else None


def paged(items: Sequence[Item], query: Mapping[str, str], size: int = PAGE_SIZE) -> Paged[Item]:
    """The page that the query string asks for; beyond the end it is the last one."""
    pages = max(1, -(-len(items) // size))
    asked = query.get("page", "1")
    number = min(max(1, int(asked)), pages) if asked.isdecimal() and len(asked) < 9 else 1
    return Paged(items[(number - 1) * size : number * size], number, pages, len(items))


def sorted_by(items: Sequence[Item], query: Mapping[str, str], columns: Sequence[str], default: str) -> list[Item]:
    """Sorted as the query string asks (`sort=lag`, `sort=-lag`); what is not known comes last either way."""
    asked = query.get("sort", default)
    column, falling = asked.lstrip("-"), asked.startswith("-")
    if column not in columns:
        column, falling = default.lstrip("-"), default.startswith("-")
    known = [item for item in items if getattr(item, column) is not None]
    unknown = [item for item in items if getattr(item, column) is None]
    return [*sorted(known, key=attrgetter(column, "name"), reverse=falling), *unknown]
