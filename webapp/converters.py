"""Path parts. Topic and group names may hold `%` and `|`; in an address they are percent-encoded (`%25RETRY%25orders`)."""

from __future__ import annotations

from django.urls import register_converter
from django.urls.converters import IntConverter, StringConverter


class NameConverter(StringConverter):
    """A topic's or a group's name. The server has decoded the path already; Django encodes the addresses that it builds."""

    regex = r"[A-Za-z0-9_%|.+-]+"


class Int64Converter(IntConverter):
    """A queue offset."""

    regex = r"[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        number = int(value)
        if number >= 2**63:
            raise ValueError("beyond 64 bits")
        return number


register_converter(NameConverter, "name")
register_converter(Int64Converter, "int64")
