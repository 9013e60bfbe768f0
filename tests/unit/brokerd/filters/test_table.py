"""Compiled filters: shared while somebody holds one, bounded together, and gone when nobody does."""

from __future__ import annotations

import pytest

from brokerd.filters.table import FILTER_WEIGHT, FilterTable
from remoting import codes
from remoting.errors import RequestError

LENGTH = 100


class Compiled:
    def __init__(self, expression_type: str, expression: str) -> None:
        if expression == "wrong":
            raise RequestError(codes.SUBSCRIPTION_PARSE_FAILED, "wrong")
        self.text = f"{expression_type} {expression}"


def table(filters_held: int, filters_recent: int) -> FilterTable[Compiled]:
    """A table with room for so many filters of LENGTH characters."""
    weight = FILTER_WEIGHT + LENGTH
    return FilterTable(Compiled, filters_held * weight, filters_recent * weight)


def expression(number: int) -> str:
    return f"{number:0{LENGTH}d}"


def test_those_who_subscribe_alike_share_a_filter() -> None:
    filters = table(100, 3)
    first = filters.get("TAG", expression(0))
    assert first.text == f"TAG {0:0{LENGTH}d}"
    for number in range(50):
        filters.get("TAG", expression(number))
    assert filters.get("TAG", expression(0)) is first, "it is held, though many were asked for since"
    assert filters.get("SQL92", expression(0)) is not first


def test_the_latest_are_kept_and_no_others() -> None:
    filters = table(100, 3)
    for number in range(50):
        filters.get("TAG", expression(number))
        filters.get("TAG", expression(0))
    assert filters.held_weight == 3 * (FILTER_WEIGHT + LENGTH)
    kept = id(filters.get("TAG", expression(0)))
    assert id(filters.get("TAG", expression(0))) == kept


def test_there_is_no_room_for_more_than_are_held() -> None:
    filters = table(5, 3)
    held = [filters.get("TAG", expression(number)) for number in range(5)]
    with pytest.raises(RequestError, match=r"^\[OVERLOAD\]") as caught:
        filters.get("TAG", expression(5))
    assert caught.value.code == codes.SYSTEM_BUSY
    assert filters.get("TAG", expression(4)) is held[4], "what is there already needs no room"
    del held[0]
    assert filters.get("TAG", expression(5)).text == f"TAG {5:0{LENGTH}d}"


def test_what_is_only_remembered_makes_room() -> None:
    filters = table(3, 3)
    for number in range(10):
        filters.get("TAG", expression(number))
    filters.get("TAG", "x" * (LENGTH + 2 * (FILTER_WEIGHT + LENGTH)))
    assert filters.held_weight <= 3 * (FILTER_WEIGHT + LENGTH)


def test_what_cannot_be_compiled_takes_no_room() -> None:
    filters = table(3, 3)
    for _ in range(10):
        with pytest.raises(RequestError, match="wrong"):
            filters.get("TAG", "wrong")
    assert filters.held_weight == 0


def test_short_expressions_have_as_much_room_again() -> None:
    filters = table(5, 0)
    held = [filters.get("TAG", expression(number)) for number in range(5)]
    while True:
        try:
            held.append(filters.get("TAG", str(len(held))))
        except RequestError:
            break
    assert 9 * (FILTER_WEIGHT + LENGTH) < filters.held_weight <= 10 * (FILTER_WEIGHT + LENGTH)
