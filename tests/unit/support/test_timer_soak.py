"""The verdict of the timer soak finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.bench.timer_soak import Delivered, Known, changed, violations

KEPT, BACK, UNKNOWN = "SoakNear/grpc/1", "SoakNear/grpc/2", "SoakFar/remoting/3"
HALF, LATE = "SoakCommitted/remoting/4", "SoakFar/grpc/5"


def known() -> Known:
    return Known(
        due_ms=dict.fromkeys((KEPT, BACK, UNKNOWN, HALF, LATE), 1000),
        stored={KEPT, BACK, LATE},
        hidden={HALF},
        perhaps_recalled={BACK, LATE},
        recalled={BACK},
        seen={("SoakNear", 0, 7): KEPT},
    )


ONCE = Delivered(KEPT, 3, 1000, 0)


def test_what_was_kept_is_no_violation() -> None:
    """The one that nobody was answered for is stored twice; a recall that nobody was answered for may have had its effect."""
    twice = [Delivered(UNKNOWN, place, 1200, 1) for place in (5, 6)]
    assert not list(violations(known(), [ONCE, *twice]))
    assert not list(changed(known(), {("SoakNear", 0): {6: UNKNOWN, 7: KEPT}}))


@pytest.mark.parametrize(
    ("delivered", "said"),
    [
        ([], f"{KEPT} is lost"),
        ([ONCE, Delivered(BACK, 4, 1000, 0)], f"{BACK} was taken back, and delivered"),
        ([ONCE, Delivered(HALF, 4, 1000, 0)], f"{HALF} was rolled back, and delivered"),
        ([ONCE, *[Delivered(UNKNOWN, 4, 1000, 0)] * 2], f"{UNKNOWN}, which waited at 4, was delivered 2 times"),
        ([ONCE, Delivered(KEPT, 4, 1000, 0)], f"{KEPT} was sent once, and delivered 2 times"),
        ([Delivered(KEPT, 3, 999, 0)], f"{KEPT} came 1 ms early"),
        ([ONCE, Delivered("SoakNear/grpc/9", None, 1000, 0)], "SoakNear/grpc/9 was delivered, and nobody sent it"),
    ],
)
def test_what_was_not_kept_is_found(delivered: list[Delivered], said: str) -> None:
    assert list(violations(known(), delivered)) == [said]


def test_what_was_read_and_is_another_one_now_is_found() -> None:
    for there, now in (({7: BACK}, BACK), ({}, "nothing")):
        said = f"{KEPT} was read at 7 of queue 0 of SoakNear, where {now} is now"
        assert list(changed(known(), {("SoakNear", 0): there})) == [said]
