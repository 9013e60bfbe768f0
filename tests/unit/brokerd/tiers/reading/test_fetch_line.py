"""Fetches that wait for others to end: bounded, and queues by turns."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.tiers.reading import fetch_line
from brokerd.tiers.reading.fetch_line import FetchLine, Wanted
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
        line.add(each, each.first + 32, SEGMENT)
    return line


def all_of(line: FetchLine) -> list[Wanted]:
    taken = []
    while line:
        each, end, segment = line.take()
        assert (end, segment) == (each.first + 32, SEGMENT)
        taken.append(each)
    return taken


def test_of_a_queue_the_first_comes_first_and_queues_take_turns() -> None:
    line = line_of(wanted(0, 9), wanted(0, 3), wanted(0, 6), wanted(1, 5), wanted(2, 1), wanted(1, 4))
    assert all_of(line) == [wanted(0, 9), wanted(1, 5), wanted(2, 1), wanted(0, 3), wanted(1, 4), wanted(0, 6)]


def test_what_stands_there_is_known_until_it_is_taken_or_begun_otherwise() -> None:
    line = line_of(wanted(0, 9), wanted(0, 3), wanted(1, 3))
    assert (line.end_of(wanted(0, 3)), line.end_of(wanted(1, 9)), len(line)) == (35, None, 3)
    line.remove(wanted(0, 3))
    line.remove(wanted(0, 3))
    line.remove(wanted(7, 3))
    assert (line.end_of(wanted(0, 3)), len(line)) == (None, 2)
    assert all_of(line) == [wanted(0, 9), wanted(1, 3)]
    assert line.end_of(wanted(0, 9)) is None


def test_who_wants_more_than_has_room_is_told_to_come_again() -> None:
    line = line_of(*(wanted(0, number) for number in range(4)))
    with pytest.raises(RequestError, match="try again later") as caught:
        line.add(wanted(0, 4), 5, SEGMENT)
    assert caught.value.code == codes.SYSTEM_BUSY
    line.add(wanted(1, 0), 32, SEGMENT)
    line.add(wanted(2, 0), 32, SEGMENT)
    with pytest.raises(RequestError):
        line.add(wanted(3, 0), 32, SEGMENT)
    line.take()
    line.add(wanted(3, 0), 32, SEGMENT)
    assert len(line) == 6
