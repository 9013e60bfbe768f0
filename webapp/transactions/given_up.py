"""The half messages that brokers gave up, as pages and REST ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting.facts.given_up import GivenUp, GivenUpPage
from remoting.names import MAX_TOPIC_LENGTH
from webapp import gateway
from webapp.errors import NotFound
from webapp.rules import MAX_INT64, Rules

MOST: Final = 100


def ask(group: str, query: Mapping[str, str]) -> GivenUpPage:
    """Those of a broker group, the newest first, as the query asks (`before`, `count`). Raises Problem."""
    rules = Rules({**query, "group": group})
    rules.text("group", least=1, most=MAX_TOPIC_LENGTH)
    before = rules.integer("before", least=0, most=MAX_INT64) if rules.has("before") else None
    count = rules.integer("count", least=1, most=MOST, default=MOST)
    rules.finish()
    return gateway.given_up(group, before, count)


def one(group: str, offset: int) -> GivenUp:
    """The one at an offset. Raises Problem."""
    for each in gateway.given_up(group, offset + 1, 1).items:
        if each.offset == offset:
            return each
    raise NotFound(
        f"The broker group {group} gave no half message up at offset {offset}; it may have been removed with its file.",
        code="given-up-not-found",
    )
