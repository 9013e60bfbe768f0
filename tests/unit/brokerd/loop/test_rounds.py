"""When those who wait are served: how long a round may have to wait for the one before, and that none is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from brokerd.loop.cold_line import Clocks
from brokerd.loop.long_polling import LongPolling, Waiter, WaitTable
from brokerd.loop.rounds import MOST_S, Rounds
from tests.support.turns import Turns


class Wants:
    tags_codes = None
    client = ""


class Served:
    """Those who wait, each of whom takes the loop for a while when he is served."""

    def __init__(self, each_s: float = 0.0001) -> None:
        self.turns = turns = Turns()
        self.each_s = each_s
        self.fails = False
        self.at_s: list[float] = []
        rounds = Rounds(turns, Clocks(turns.time, turns.time), turns.call_later)
        self.polling: LongPolling[Wants] = LongPolling(
            turns, WaitTable(1000, 1000), self.try_again, lambda _: None, share=False
        )
        self.polling.serve_in_rounds(rounds)

    def try_again(self, waiters: Sequence[Waiter[Wants]]) -> int:
        self.turns.pass_s(self.each_s)
        if self.fails:
            raise ZeroDivisionError
        self.at_s += [self.turns.time()] * len(waiters)
        return len(waiters)

    def wait(self, count: int = 1, queue_id: int = 0) -> None:
        for _ in range(count):
            assert self.polling.park("t", "g", queue_id, 1_000_000, Wants()) is not None

    def arrive(self, queue_id: int = 0) -> None:
        self.polling.arrived("t", queue_id)


def test_who_comes_alone_does_not_wait() -> None:
    served = Served()
    for number in range(5):
        served.wait()
        served.arrive()
        served.turns.run()
        assert len(served.at_s) == number + 1
        served.turns.run(0.3)  # milliseconds: more than the round took


def test_the_next_round_begins_when_the_loop_had_as_much_time_for_others() -> None:
    served = Served()
    served.wait(4)
    served.arrive()
    served.turns.run()
    assert len(served.at_s) == 4
    ended_s = served.turns.time()
    served.wait(2, queue_id=1)
    served.arrive(queue_id=1)
    served.turns.run()
    assert len(served.at_s) == 4
    served.turns.run(0.2)
    served.wait(queue_id=2)
    served.arrive(queue_id=2)  # is served with those who wait for the round
    served.turns.run(1)
    assert len(served.at_s) == 7
    assert served.at_s[4] == pytest.approx(ended_s + 4 * served.each_s + served.each_s)


def test_what_takes_several_turns_counts_as_one_round() -> None:
    served = Served(each_s=0.00002)
    served.wait(40)
    served.arrive()
    served.turns.run(0.9)
    assert len(served.at_s) == 40
    served.wait()
    served.arrive()
    served.turns.run(5)
    assert served.at_s[40] == pytest.approx(served.at_s[39] + 41 * served.each_s)


def test_a_rest_is_never_long() -> None:
    served = Served(each_s=0.5)
    served.wait()
    served.arrive()
    served.turns.run()
    served.wait()
    served.arrive()
    served.turns.run(1000 * MOST_S)
    assert len(served.at_s) == 2


def test_a_round_that_fails_is_followed_by_others() -> None:
    served = Served()
    served.wait()
    served.arrive()
    served.fails = True
    with pytest.raises(ZeroDivisionError):
        served.turns.run()
    served.fails = False
    served.arrive()
    served.turns.run(1)
    assert len(served.at_s) == 1


@pytest.mark.parametrize("seed", range(20))
def test_everybody_is_served(seed: int) -> None:
    draw = random.Random(seed)
    served = Served(each_s=draw.choice((0.0, 0.00001, 0.0003)))
    waiting = 0
    for _ in range(200):
        queue_id = draw.randrange(4)
        count = draw.randrange(4)
        served.wait(count, queue_id)
        waiting += count
        served.arrive(queue_id)
        served.turns.run(draw.choice((0, 0.05, 0.5, 3)))
    served.turns.run(10)
    assert len(served.at_s) == waiting
    assert not served.polling.table.count
