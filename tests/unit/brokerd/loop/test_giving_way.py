"""When the event loop stands aside for who was answered."""

from __future__ import annotations

import time

import pytest

from brokerd.loop.giving_way import GivingWay


class Processor:
    """That of the loop. Who else is ready there takes so much of it when the loop stands aside."""

    def __init__(self, taken_s: float) -> None:
        self.taken_s = taken_s
        self.now_s = 100.0
        self.times = 0
        self.aside_s = 0.0

    def stand_aside(self) -> None:
        self.times += 1
        self.now_s += self.taken_s
        self.aside_s += self.taken_s

    def answer_for(self, seconds: float, each_s: float) -> None:
        give_way = GivingWay(lambda: self.now_s, self.stand_aside)
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += each_s
            give_way()


def test_behind_each_answer_of_one_who_takes_it_and_sleeps() -> None:
    processor = Processor(taken_s=0.00005)
    processor.answer_for(1.0, each_s=0.001)
    assert processor.times == pytest.approx(1.0 / 0.00105, abs=1)


def test_not_behind_each_of_many() -> None:
    processor = Processor(taken_s=0.0)
    processor.answer_for(1.0, each_s=0.00002)
    assert 3000 < processor.times < 3500


@pytest.mark.parametrize("taken_s", [0.0001, 0.0015, 0.004, 0.3])
def test_whoever_else_is_ready_there_gets_a_fifth_at_most(taken_s: float) -> None:
    processor = Processor(taken_s)
    processor.answer_for(10.0, each_s=0.00002)
    assert processor.times > 5
    assert processor.aside_s < 10.0 / 5 + taken_s


def test_the_systems_own_way() -> None:
    GivingWay(time.perf_counter)()
