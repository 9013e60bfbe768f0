"""How far is read ahead: by whole answers, further while all is read, and not so far when something was dropped."""

from __future__ import annotations

import pytest

from brokerd.tiers.reading.windows import LEAST, MOST, Windows
from remoting.tier.contents import Queue

QUEUE = Queue("T", 0)


@pytest.mark.parametrize(
    ("asked", "longest"), [(1, MOST), (32, MOST), (1024, MOST), (1780, 4 * 1780), (5000, 5000), (9000, MOST)]
)
def test_a_window_is_whole_answers(asked: int, longest: int) -> None:
    windows = Windows()
    found = []
    for number in range(300):
        windows.read(QUEUE, number, number + 1, asked, was_last=True)
        found.append(windows.at(QUEUE, number + 1))
    assert found == sorted(found)
    assert found[-1] == longest
    assert all(each % max(asked, LEAST) == 0 for each in found if each < MOST)


def test_it_is_half_as_long_when_something_was_dropped() -> None:
    windows = Windows()
    windows.read(QUEUE, 0, 1, 1000, was_last=False)
    assert windows.at(QUEUE, 1) == 1000
    windows.dropped(QUEUE, 1)
    assert windows.at(QUEUE, 1) == 500
    for _ in range(9):
        windows.dropped(QUEUE, 1)
    assert windows.at(QUEUE, 1) == LEAST
