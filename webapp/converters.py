"""Path parts. Topic and group names may hold `%` and `|`; in an address they are percent-encoded (`%25RETRY%25orders`)."""

from __future__ import annotations

from django.urls import register_converter


class NameConverter:
    """A topic's or a group's name. The server has decoded the path already; building an address encodes it again."""

    regex = r"[A-Za-z0-9_%|.+-]+"

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value  # Django quotes the whole path after this


class Int64Converter:
    """A queue offset."""

    regex = r"[0-9]{1,19}"

    def to_python(self, value: str) -> int:
        number = int(value)
        if number >= 2**63:
            raise ValueError("beyond 64 bits")
        return number

    def to_url(self, value: int) -> str:
        return str(value)


register_converter(NameConverter, "name")
register_converter(Int64Converter, "int64")
