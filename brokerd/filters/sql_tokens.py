"""The words and signs of an SQL expression (pure)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MAX_DIGITS: Final = 40

_KEYWORDS = frozenset(
    ["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"]
)
_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?\*/)
      | (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<integer>\d+)[lL]?
      | '(?P<text>(?:[^']|'')*)'
      | (?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<symbol><>|<=|>=|[=<>()+,-])""",
    re.VERBOSE | re.DOTALL,
)


class SqlError(ValueError):
    """The expression is not of the subset; the message says where and what was expected."""


class Token(NamedTuple):
    kind: str  # float, integer, text, word (a property), keyword, symbol, end
    value: str
    position: int


def tokens_of(text: str) -> list[Token]:
    """In their order, and the end. Raises SqlError."""
    tokens = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise SqlError(f"unexpected {text[position : position + 10]!r} at character {position + 1}")
        kind = found.lastgroup or ""
        value = found[kind]
        if kind == "word" and value.upper() in _KEYWORDS:
            kind, value = "keyword", value.upper()
        elif kind == "text":
            value = value.replace("''", "'")
        elif kind == "integer" and len(value) > MAX_DIGITS:
            raise SqlError(f"the number at character {position + 1} has more than {MAX_DIGITS} digits")
        if kind != "blank":
            tokens.append(Token(kind, value, position + 1))
        position = found.end()
    tokens.append(Token("end", "the end", len(text) + 1))
    return tokens
