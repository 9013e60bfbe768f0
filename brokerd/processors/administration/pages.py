"""Pages of a table that is too long for one answer (codes 21 and 201, pure).

A reader asks for so many entries from a number on, and says which version of the table it reads; when that is not the present
one, it gets the first page. The original's client stops when it has all but one: so no page leaves a single entry behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import orjson

from brokerd.metadata.service import DataVersion
from brokerd.processors import fields

PAGE: Final = 2000

T = TypeVar("T")


def page(
    table: Mapping[str, T], version: DataVersion, ext: Mapping[str, str], sequence_field: str, count_field: str
) -> tuple[dict[str, T], bool]:
    """The entries that the request asks for, by name, and whether there are others. Everything, when it asks for no page."""
    if not any(ext.get(name) for name in (sequence_field, count_field, "dataVersion")):
        return dict(table), False
    size = fields.integer(ext, count_field, PAGE, low=1, high=fields.MAX_INT)
    size = min(size, PAGE)
    first = fields.integer(ext, sequence_field, 0, high=fields.MAX_INT)
    if _decode(ext.get("dataVersion", "")) != version.as_json():
        first = 0
    names = sorted(table)
    end = first + size
    if end == len(names) - 1:
        end += 1
    return {name: table[name] for name in names[first:end]}, len(names) > size


def _decode(text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None
