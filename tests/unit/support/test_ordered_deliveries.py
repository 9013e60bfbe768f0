"""The verdict on messages in order finds what it is there to find."""

from __future__ import annotations

import json

import pytest

from tests.support.ordered_deliveries import Deliveries, come_back, out_of_order

A0, A1, A2 = "customer 1/a/0", "customer 1/a/1", "customer 1/a/2"
OTHER = "customer 1/b/0"

IN_ORDER = [
    ["sent", 0, 1, [A0]],
    ["sent", 1, 2, [A1]],
    ["got", 2, 3, [A0, OTHER, A1]],
    ["acked", 4, 5, [A0]],
    ["failed", 5, 5, [A1]],
    ["got", 6, 15, [A1]],
    ["acked", 16, 17, [A1]],
    ["got", 10, 18, [A2]],
]


def found(*more: list[object], lines: list[list[object]] = IN_ORDER) -> Deliveries:
    deliveries = Deliveries()
    deliveries.take("python", '"ready"')
    for line in (*lines, *more):
        deliveries.take("python", json.dumps(line))
    return deliveries


def test_order_is_no_violation() -> None:
    deliveries = found()
    assert not list(out_of_order(deliveries))
    assert not list(come_back(deliveries, {}))
    assert deliveries.is_all_handled
    assert deliveries.counts["python", "got"] == 5
    assert deliveries.failed == {A1}


@pytest.mark.parametrize(
    "deliveries",
    [
        found(lines=[["got", 2, 3, [A1]], ["got", 3, 4, [A0]], ["acked", 5, 6, [A0]]]),
        found(lines=[["got", 2, 3, [A0]], ["got", 3, 4, [A1]], ["acked", 5, 6, [A0]]]),  # at another client still
        found(lines=[["got", 2, 3, [A1, A0]]]),
        found(lines=[["got", 2, 3, [A0, A1]], ["failed", 4, 4, [A0]], ["got", 6, 9, [A1]]]),  # again, before it
    ],
)
def test_what_comes_too_early_is_named(deliveries: Deliveries) -> None:
    assert list(out_of_order(deliveries)) == [f"{A1} came before {A0} was handled"]


def test_what_comes_after_its_ack_is_named() -> None:
    deliveries = found(["got", 18, 19, [A1]])
    assert f"{A1} was acked and came again" in list(come_back(deliveries, {A1: 1}))
    assert not list(come_back(deliveries, {A1: 2}))
    assert not list(come_back(found(["got", 16, 19, [A1]]), {A1: 1}))  # asked for before the answer to the ack


def test_what_comes_after_what_is_behind_it_is_named() -> None:
    unanswered = [["got", 2, 3, [A0]], ["unacked", 4, 5, [A0]], ["got", 6, 7, [A1]], ["got", 8, 9, [A0]]]
    assert list(come_back(found(lines=unanswered), {})) == [f"{A0} came again after what is behind it"]
    together = [["got", 2, 3, [A0, A1]], ["failed", 4, 4, [A0]], ["got", 8, 9, [A0]]]
    assert not list(come_back(found(lines=together), {}))


def test_what_nobody_handled_is_missing() -> None:
    assert not found(["sent", 20, 21, [A2]]).is_all_handled
    assert found(["sent", 20, 21, [A2]], ["unacked", 22, 23, [A2]]).is_all_handled
