"""Fetches that wait for others to end: bounded, queues by turns, and forsaken when nobody asks for them any more."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.processors.pulling.terms import MAX_SUSPEND_MS
from brokerd.tiers.reading import fetch_line
from brokerd.tiers.reading.fetch_line import ASKED_S, FetchLine, Wanted
from remoting import codes
from remoting.errors import RequestError
from remoting.tier.contents import Queue

SEGMENT: Any = object()


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_line, "MOST", 6)
    monkeypatch.setattr(fetch_line, "MOST_OF_QUEUE", 4)


def wanted(queue_id: int, first: int) -> Wanted:
    return Wanted(Queue("Orders", queue_id), first)


def line_of(*every: Wanted) -> FetchLine:
    line = FetchLine()
    for each in every:
        line.add(each, each.first + 32, SEGMENT, 0.0)
    return line


def all_of(line: FetchLine) -> list[Wanted]:
    taken = []
    while line:
        each, end, segment, _ = line.take()
        assert (end, segment) == (each.first + 32, SEGMENT)
        taken.append(each)
    return taken


def test_of_a_queue_the_first_comes_first_and_queues_take_turns() -> None:
    line = line_of(wanted(0, 9), wanted(0, 3), wanted(0, 6), wanted(1, 5), wanted(2, 1), wanted(1, 4))
    assert all_of(line) == [wanted(0, 9), wanted(1, 5), wanted(2, 1), wanted(0, 3), wanted(1, 4), wanted(0, 6)]


def test_what_stands_there_is_known_until_it_is_taken_or_begun_otherwise() -> None:
    line = line_of(wanted(0, 9), wanted(0, 3), wanted(1, 3))
    assert (line.ask(wanted(0, 3), 0.0), line.ask(wanted(1, 9), 0.0), len(line)) == (35, None, 3)
    line.remove(wanted(0, 3))
    line.remove(wanted(0, 3))
    line.remove(wanted(7, 3))
    assert (line.ask(wanted(0, 3), 0.0), len(line)) == (None, 2)
    assert all_of(line) == [wanted(0, 9), wanted(1, 3)]
    assert line.ask(wanted(0, 9), 0.0) is None


def test_who_asks_again_keeps_his_place_and_what_nobody_asks_for_is_forsaken() -> None:
    line = line_of(wanted(0, 9), wanted(0, 3), wanted(0, 6))
    assert line.ask(wanted(0, 3), 20.0) == 35
    now_s = ASKED_S + 0.1
    assert [(each.wanted.first, each.is_forsaken(now_s)) for each in (line.take(), line.take(), line.take())] == [
        (9, True),
        (3, False),
        (6, True),
    ]


def test_nothing_is_forsaken_while_a_pull_waits_for_it() -> None:
    line = line_of(wanted(0, 9))
    assert not line.take().is_forsaken(MAX_SUSPEND_MS / 1000)


def test_who_wants_more_than_has_room_is_told_to_come_again() -> None:
    line = line_of(*(wanted(0, number) for number in range(4)))
    with pytest.raises(RequestError, match="try again later") as caught:
        line.add(wanted(0, 4), 5, SEGMENT, 0.0)
    assert caught.value.code == codes.SYSTEM_BUSY
    line.add(wanted(1, 0), 32, SEGMENT, 0.0)
    line.add(wanted(2, 0), 32, SEGMENT, 0.0)
    with pytest.raises(RequestError):
        line.add(wanted(3, 0), 32, SEGMENT, 0.0)
    line.take()
    line.add(wanted(3, 0), 32, SEGMENT, 0.0)
    assert len(line) == 6
