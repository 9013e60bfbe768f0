"""Which messages a subscription admits: by tags, or by an SQL expression over properties (pure).

The consume queue holds a hash of each message's tag, so a tag filter gives the set of hashes to compare first; two tags can share
a hash, so `admits` compares the tag itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from brokerd.filters import sql
from brokerd.filters.sql_tokens import SqlError
from brokerd.filters.table import FilterTable
from remoting import codes
from remoting.errors import RequestError
from remoting.java_hash import java_hash
from remoting.record.properties import decode_properties

ALL: Final = "*"
TAG: Final = "TAG"
SQL92: Final = "SQL92"
MAX_EXPRESSION_LENGTH: Final = 16 * 1024

_TAG_IN_PROPERTIES = re.compile(rb"(?:^|\x02)TAGS\x01([^\x02]*)")


@dataclass(frozen=True)
class MessageFilter:
    """A compiled subscription. `admits` says whether a message with a property string is wanted. `tags_codes` are the hashes that
    can match, None when any can; `is_exact`: they decide alone. `conditions` are what it tests of one message at most."""

    admits: Callable[[bytes], bool]
    tags_codes: frozenset[int] | None = None
    is_exact: bool = False
    conditions: int = 1


def _everything() -> MessageFilter:
    return MessageFilter(lambda _: True, is_exact=True)


def _one_of(tags: frozenset[str]) -> MessageFilter:
    encoded = {tag.encode() for tag in tags}

    def admits(properties: bytes) -> bool:
        found = _TAG_IN_PROPERTIES.findall(properties)
        return bool(found) and found[-1] in encoded

    return MessageFilter(admits, frozenset(map(java_hash, tags)))


_EVERYTHING: Final = _everything()


def split_tags(expression: str) -> frozenset[str]:
    """The tags of an expression; empty when it admits everything."""
    if expression == ALL:
        return frozenset()
    return frozenset(filter(None, map(str.strip, expression.split("||"))))


def compile_filter(expression_type: str, expression: str) -> MessageFilter:
    """The filter of a subscription; an empty type is TAG, an empty tag expression admits everything.

    Raises RequestError SUBSCRIPTION_PARSE_FAILED with the place and the rule, SYSTEM_BUSY when too much is compiled already.
    """
    if len(expression) > MAX_EXPRESSION_LENGTH:
        raise RequestError(
            codes.SUBSCRIPTION_PARSE_FAILED,
            f"a filter expression has at most {MAX_EXPRESSION_LENGTH} characters, not {len(expression)}",
        )
    if expression == ALL and expression_type in ("", TAG):
        return _EVERYTHING
    return _compiled.get(expression_type, expression)


def _compile(expression_type: str, expression: str) -> MessageFilter:
    if expression_type in ("", TAG):
        tags = split_tags(expression)
        return _one_of(tags) if tags else _everything()
    if expression_type != SQL92:
        raise RequestError(
            codes.SUBSCRIPTION_PARSE_FAILED,
            f"filter expressions are of type TAG or SQL92, not {expression_type[:64]!r}",
        )
    try:
        matches, conditions = sql.parse(expression)
        return MessageFilter(lambda properties: matches(decode_properties(properties)), conditions=max(conditions, 1))
    except SqlError as error:
        raise RequestError(codes.SUBSCRIPTION_PARSE_FAILED, f"the SQL92 expression is not valid: {error}") from error


_compiled: Final = FilterTable(_compile)
