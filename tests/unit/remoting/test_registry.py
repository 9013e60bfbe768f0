"""The registry of requests: complete, and what the daemons and the page are made from."""

from __future__ import annotations

import pytest

from remoting import codes
from remoting.registry import BROKERS, CONTROLLERS, ROWS, By, bind
from remoting.transport.connection import Handler
from tests.support.protocol_page import PAGE, page


def handlers(side: By) -> dict[int, Handler]:
    return {code: lambda connection, requests: None for code, row in ROWS.items() if row.by & side}


def test_every_request_code_has_a_row() -> None:
    missing = {name for code, name in codes.REQUESTS.items() if code not in ROWS}
    assert not missing, f"say in remoting/registry.py who answers these and what they need: {sorted(missing)}"
    assert len(codes.REQUESTS) == len(ROWS) > 130
    assert codes.SUCCESS not in codes.REQUESTS


@pytest.mark.parametrize("side", [BROKERS, CONTROLLERS])
def test_handlers_are_exactly_those_of_the_rows(side: By) -> None:
    table = handlers(side)
    assert bind(side, table).keys() == {code for code, row in ROWS.items() if row.by & side}
    code, handler = table.popitem()
    with pytest.raises(AssertionError, match=str(code)):
        bind(side, table)
    assert bind(side, table, {code: handler})
    with pytest.raises(AssertionError, match="two handlers"):
        bind(side, table, {code: handler}, {code: handler})
    with pytest.raises(AssertionError, match="77777"):
        bind(side, table, {code: handler, 77_777: handler})


def test_the_page_is_made_from_the_rows() -> None:
    assert PAGE.read_text() == page(), "run python -m tests.support.protocol_page"
