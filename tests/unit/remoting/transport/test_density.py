"""Who asks densely enough for others to read what he asks; and how long it is not tried again that was of no use."""

from __future__ import annotations

from remoting.transport.taking import WORTH_WHILE, Density


def asked_until_dense(density: Density, now_s: float, step_s: float, most: int = 10_000) -> int:
    """How many requests it took; `most` if that was not enough."""
    return next((n for n in range(most) if density.note(now_s + n * step_s)), most)


def test_a_few_requests_each_soon_after_the_one_before_are_dense() -> None:
    density = Density()
    assert asked_until_dense(density, 100.0, 0.001) == 4
    assert density.note(100.005)
    assert not density.note(100.1), "it begins anew"
    assert asked_until_dense(density, 100.1, 0.001) == 3
    assert asked_until_dense(Density(), 100.0, 0.01) == 10_000


def test_what_was_of_no_use_is_tried_again_later_and_later() -> None:
    density, now_s = Density(), 100.0
    waits = []
    for _ in range(9):
        asked_until_dense(density, now_s, 0.001)
        density.came_back(WORTH_WHILE - 1)
        now_s += 20
        waits.append(asked_until_dense(density, now_s, 0.001))
    assert waits[:3] == [68, 132, 260]
    assert waits[-1] == waits[-2] == 4100
    density.came_back(WORTH_WHILE)
    assert density.note(now_s + 4.1)
    density.came_back(15, worth_while=15)
    assert density.note(now_s + 4.1)
    density.came_back(14, worth_while=15)
    assert asked_until_dense(density, now_s + 4.1, 0.001) == 67
