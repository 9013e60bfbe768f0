"""The line of who reads what only the tier has: its share of the loop's time, and that nobody in it waits for ever."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from brokerd.loop.cold_line import MOST_STANDING, Clocks, ColdLine, Others
from tests.support.turns import Turns

TURN_S = 0.0003


class Broker:
    """A line, and others who are served beside it; all time passes by hand."""

    def __init__(self, share: float = 0.2) -> None:
        self.turns = Turns()
        self.share = share
        self.gave_way = 0
        clocks = Clocks(self.turns.time, self.turns.time)
        self.line = ColdLine(self.turns, clocks, lambda: self.share, give_way=self.give_way)
        self.line.others = Others(lambda: self.done, self.hear)
        self.done = 0
        self.are_gone = False  # the others
        self.hearer: Callable[[], None] | None = None
        self.had: list[tuple[str, float]] = []

    def give_way(self) -> None:
        self.gave_way += 1

    def hear(self, call: Callable[[], None] | None) -> None:
        self.hearer = call

    def serve(self) -> None:
        """One of the others."""
        self.done += 1
        if self.hearer is not None:
            self.hearer()

    def serve_every(self, seconds: float, each_s: float = 0.0, *, tell: bool = True) -> None:
        def serve() -> None:
            if self.are_gone:
                return
            self.turns.pass_s(each_s)
            if tell:
                self.serve()
            else:
                self.done += 1
            self.turns.call_later(seconds, serve)

        serve()

    def read(self, who: str, turn_s: float = TURN_S) -> Callable[[], None]:
        """What is read, and counted as done like all that is given out."""

        def turn() -> None:
            self.had.append((who, self.turns.time()))
            self.turns.pass_s(turn_s)
            self.done += 1

        return turn

    def read_on(self, who: str, turn_s: float = TURN_S) -> None:
        """Ask again whenever something was read."""

        def turn() -> None:
            self.read(who, turn_s)()
            self.turns.call_soon(self.read_on, who, turn_s)

        assert self.line.enter(who, turn)

    def part(self, begin: int = 0) -> float:
        """How much of the time since that turn was theirs."""
        return len(self.had[begin:]) * TURN_S / (self.turns.time() - self.had[begin][1])


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2, 0.5])
@pytest.mark.parametrize("pause_s", [0.0013, 0.004, 0.03])
def test_beside_others_they_get_their_share_and_no_more(share: float, pause_s: float) -> None:
    broker = Broker(share)
    broker.serve_every(pause_s)
    for who in "abcdefgh":
        broker.read_on(who)
    broker.turns.run(100)  # others were not seen before
    before = len(broker.had)
    broker.turns.run(3000)
    assert share * 0.6 < broker.part(before) < share * 1.05


def test_without_others_they_get_all_of_the_time() -> None:
    broker = Broker()
    for who in "abcdefgh":
        broker.read_on(who)
    broker.turns.run(1000)
    assert broker.part() == pytest.approx(1.0, rel=0.01)


def test_when_the_others_have_gone_they_get_all_of_it_soon() -> None:
    broker = Broker(0.01)
    broker.read_on("a")
    broker.serve()
    broker.turns.run(100)
    assert len(broker.had) < 20
    broker.turns.run(100)  # to rest for what was taken before
    before = len(broker.had)
    broker.turns.run(100)
    assert broker.part(before) == pytest.approx(1.0, rel=0.05)


def test_what_was_done_before_anybody_stood_there_holds_him_up_for_a_moment_only() -> None:
    broker = Broker(0.1)
    broker.done = 100_000
    broker.turns.run(60_000)
    broker.read_on("a")
    broker.turns.run(15)
    assert len(broker.had) > 10
    before = len(broker.had)
    broker.turns.run(100)
    assert broker.part(before) == pytest.approx(1.0, rel=0.05)


def test_who_comes_after_a_while_gets_no_more_than_the_share_beside_others() -> None:
    broker = Broker(0.1)
    broker.serve_every(0.004)
    broker.turns.run(60_000)
    for who in "abcdefgh":
        broker.read_on(who)
    broker.turns.run(1000)
    assert broker.part() < 0.12


def test_who_rests_goes_on_when_the_others_have_gone() -> None:
    broker = Broker(0.01)
    broker.serve_every(0.001)
    broker.turns.run(50)
    broker.line.charge(5.0)  # makes him rest for as long as anybody does
    broker.read_on("a")
    broker.are_gone = True
    broker.turns.run(160)
    assert len(broker.had) > 50


def test_what_they_do_themselves_makes_nobody_rest() -> None:
    broker = Broker()
    for number in range(100):
        assert broker.line.enter("a", broker.read("a"))
        broker.turns.run()
        assert len(broker.had) == number + 1


def test_they_have_their_turn_behind_one_of_the_others() -> None:
    broker = Broker(0.5)
    broker.serve()
    assert broker.line.enter("a", broker.read("a"))
    broker.turns.run(5)
    assert not broker.had, "others may ask at any time"
    broker.serve()
    broker.turns.run()
    assert not broker.had, "when the answer has left, and was taken"
    broker.turns.run(2)
    assert [who for who, _ in broker.had] == ["a"]


@pytest.mark.parametrize(("gap_s", "late_s"), [(0.0013, 0.0), (0.0013, 0.0002), (0.004, 0.0005), (0.0005, 0.0)])
def test_they_have_their_turns_early_between_two_answers_of_the_others(gap_s: float, late_s: float) -> None:
    broker, rng = Broker(0.1), Random(1)
    served_s: list[float] = []

    def serve() -> None:
        served_s.append(broker.turns.time())
        broker.serve()
        broker.turns.call_later(gap_s + late_s * rng.random(), serve)

    serve()
    for who in "abcd":
        broker.read_on(who, 0.00005)
    broker.turns.run(100)  # the others' answers were not seen before
    begins_s = [at_s for _, at_s in broker.had]
    broker.turns.run(500)
    first_s: dict[int, float] = {}  # behind each answer
    last_s: dict[int, float] = {}
    for _, at_s in broker.had[len(begins_s) :]:
        answer = bisect_right(served_s, at_s) - 1
        last_s[answer] = at_s - served_s[answer]
        first_s.setdefault(answer, last_s[answer])
    assert len(first_s) > 50
    assert min(first_s.values()) > 0.00007
    assert max(first_s.values()) < max(0.6 * gap_s, 0.0004)
    assert max(last_s.values()) < max(0.8 * (gap_s + late_s), 0.0004), "and not when the next one asks"


@pytest.mark.parametrize("turn_s", [0.00005, 0.0003])
def test_when_one_of_the_others_is_served_nothing_is_asked_of_the_scheduler(turn_s: float) -> None:
    """It would be done before he can take his answer, where he is woken on the processor that the loop has. He who comes when
    nobody thought it is the exception."""
    broker, asked, vain = Broker(0.1), 0, 0

    def later(delay_s: float, callback: Callable[[], None]) -> None:
        nonlocal asked
        asked += 1
        broker.turns.call_later(delay_s, callback)

    clocks = Clocks(broker.turns.time, broker.turns.time)
    broker.line = ColdLine(broker.turns, clocks, lambda: 0.1, later)

    def serve() -> None:
        nonlocal vain
        before = asked
        broker.serve()
        vain += asked > before
        broker.turns.call_later(0.0013, serve)

    broker.line.others = Others(lambda: broker.done, broker.hear)
    serve()
    for who in "abcd":
        broker.read_on(who, turn_s)
    broker.turns.run(1000)
    assert len(broker.had) > 200
    assert vain < 10, "before it was known how far apart they are"


def test_others_who_come_when_they_like_are_not_asked_to_wait_for_turns() -> None:
    """Where it is not known when they come, turns are had behind them."""
    broker, rng, served_s = Broker(0.1), Random(1), list[float]()

    def serve() -> None:
        served_s.append(broker.turns.time())
        broker.serve()
        broker.turns.call_later(rng.choice((0.001, 0.002, 0.004, 0.008)), serve)

    serve()
    for who in "abcd":
        broker.read_on(who)
    broker.turns.run(5000)
    ends_s = [at_s + TURN_S for _, at_s in broker.had]
    held_up = sum(served_s[bisect_right(served_s, end_s - TURN_S) - 1] + 0.001 < end_s for end_s in ends_s)
    assert broker.part() > 0.06
    assert held_up < len(ends_s) / 2, "most are over when the first of them may ask again"


def test_who_has_not_stood_there_for_a_while_hears_of_the_others_no_more() -> None:
    broker = Broker()
    broker.serve_every(0.001)
    broker.line.stand("a", broker.read("a"))
    broker.turns.run(50)
    assert broker.hearer is not None
    broker.turns.run(200)
    assert broker.hearer is None
    broker.line.stand("a", broker.read("a"))
    broker.turns.run(50)
    assert len(broker.had) == 2


def test_others_who_are_never_heard_of_hold_up_nobody_for_long() -> None:
    broker = Broker(0.2)
    broker.serve_every(0.001, tell=False)
    broker.read_on("a")
    broker.turns.run(1000)
    assert broker.part() > 0.02


def test_others_who_take_all_of_the_time_leave_them_their_share() -> None:
    broker = Broker(0.1)
    broker.serve_every(0.0, 0.0005)
    broker.read_on("a")
    broker.turns.run(2000)
    assert broker.part() > 0.08


def test_turns_go_round_so_that_who_asks_for_much_waits_for_himself() -> None:
    broker = Broker()
    broker.serve_every(0.001)
    for _ in range(200):
        broker.line.stand("greedy", broker.read("greedy"))
    for who in ("a", "b"):
        broker.line.stand(who, broker.read(who))
    broker.turns.run(20)
    assert {who for who, _ in broker.had[:3]} == {"greedy", "a", "b"}
    broker.turns.run(5000)
    assert len(broker.had) == 202, "and has all of it"


def test_who_has_gone_takes_nobodys_turn_and_is_asked_once() -> None:
    broker = Broker()
    asked: list[str] = []

    def gone() -> bool:
        asked.append("gone")
        return False

    broker.serve()
    for _ in range(3):
        broker.line.stand("gone", broker.read("gone"), gone)
    broker.line.stand("a", broker.read("a"))
    broker.serve()
    broker.turns.run(1000)
    assert ([who for who, _ in broker.had], asked) == (["a"], ["gone"] * 3)
    assert broker.line.standing == 0


def test_how_many_stand_there_is_bounded() -> None:
    broker = Broker()
    broker.serve()
    for number in range(MOST_STANDING):
        assert broker.line.stand(number, broker.read("a"))
    assert not broker.line.stand("more", broker.read("more"))
    assert not broker.line.enter("more", broker.read("more"))
    broker.turns.run(1000)
    assert broker.line.standing < MOST_STANDING
    assert broker.line.stand("more", broker.read("more"))


def test_what_nobody_stood_there_to_have_is_not_made_up_for() -> None:
    """Who is served each millisecond would wait for the turns of ten."""
    broker = Broker(0.1)
    broker.serve_every(0.001, 0.0001)
    for _ in range(5):
        broker.turns.run(50)
        before, now_s = len(broker.had), broker.turns.time()
        for who in "abcd":
            broker.line.stand(who, broker.read(who, 0.00005))
        broker.turns.run(1.3)
        assert len(broker.had) - before <= 2, "and not all four"
        assert broker.turns.time() - now_s < 0.002
        broker.turns.run(50)
        assert len(broker.had) - before == 4


def test_turns_behind_one_answer_let_a_moment_go_by_between_them() -> None:
    broker = Broker(0.5)
    broker.serve_every(0.005)
    for who in "abcd":
        broker.read_on(who)
    broker.turns.run(200)
    begins_s = [at_s for _, at_s in broker.had]
    pauses_s = [after_s - before_s - TURN_S for before_s, after_s in pairwise(begins_s)]
    assert min(pauses_s) == pytest.approx(0.0001)
    assert broker.part() > 0.3, "and several turns an answer"


def test_it_has_a_timer_of_its_own_for_the_moment_behind_an_answer() -> None:
    turns, asked, had = Turns(), list[tuple[float, Callable[[], None]]](), list[float]()
    line = ColdLine(
        turns, Clocks(turns.time, turns.time), lambda: 0.5, lambda delay_s, call: asked.append((delay_s, call))
    )
    broker = Broker()
    line.others = Others(lambda: broker.done, broker.hear)
    broker.serve()
    line.stand("a", lambda: had.append(turns.time()))
    turns.run(3)
    assert not asked
    broker.serve()
    ((delay_s, call),) = asked
    assert 0 < delay_s <= 0.0001
    turns.run(1)
    assert not had
    call()
    turns.run()
    assert had == [turns.time()]


def test_what_is_done_for_them_elsewhere_is_charged() -> None:
    broker = Broker(0.1)
    broker.serve_every(0.001)
    broker.turns.run(50)
    broker.line.charge(0.01)
    broker.line.stand("a", broker.read("a"))
    began_s = broker.turns.time()
    broker.turns.run(500)
    ((_, at_s),) = broker.had
    assert at_s - began_s > 0.05


def test_the_steps_of_a_fetch_are_charged_and_what_it_waits_for_is_not() -> None:
    broker = Broker(0.1)
    steps: list[str] = []

    class Waits:
        def __await__(self) -> Any:
            received = yield "wanted"
            steps.append(received)

    async def fetch() -> None:
        broker.turns.pass_s(0.002)
        await Waits()
        broker.turns.pass_s(0.003)

    work = broker.line.counted(fetch)
    assert work.send(None) == "wanted"
    broker.turns.pass_s(10)
    with pytest.raises(StopIteration):
        work.send("received")
    assert steps == ["received"]
    assert broker.line.busy_s == pytest.approx(0.005)


def test_a_fetch_that_is_cancelled_or_never_begun_leaves_nothing_behind() -> None:
    broker = Broker()
    ended: list[str] = []

    class Waits:
        def __await__(self) -> Any:
            yield

    async def fetch() -> None:
        try:
            await Waits()
        except RuntimeError:
            ended.append("thrown")
            raise
        finally:
            ended.append("ended")

    broker.line.counted(fetch).close()
    assert not ended
    work = broker.line.counted(fetch)
    work.send(None)
    with pytest.raises(RuntimeError):
        work.throw(RuntimeError("cancelled"))
    assert ended == ["thrown", "ended"]
    work = broker.line.counted(fetch)
    work.send(None)
    work.close()
    assert ended[2:] == ["ended"]


def test_one_turn_that_the_machine_held_up_is_rested_for_a_moment_only() -> None:
    broker = Broker(0.01)
    broker.serve_every(0.001)
    broker.line.stand("a", broker.read("a", 5.0))
    broker.line.stand("b", broker.read("b"))
    broker.turns.run(6000)
    first_s, second_s = (at_s for _, at_s in broker.had)
    assert 5 < second_s - first_s < 5.5


def test_a_turn_that_fails_is_not_the_last_one() -> None:
    broker = Broker()

    def fails() -> None:
        raise OSError("a reader's fault")

    broker.line.stand("a", fails)
    broker.line.stand("b", broker.read("b"))
    with pytest.raises(OSError, match="fault"):
        broker.turns.run()
    broker.turns.run()
    assert [who for who, _ in broker.had] == ["b"]


def test_who_cannot_be_asked_whether_he_is_there_holds_up_nobody() -> None:
    broker = Broker()

    def fails() -> bool:
        raise OSError("a reader's fault")

    broker.line.stand("a", broker.read("a"), fails)
    broker.line.stand("b", broker.read("b"))
    with pytest.raises(OSError, match="fault"):
        broker.turns.run()
    broker.turns.run()
    assert [who for who, _ in broker.had] == ["b"]


def test_others_who_are_served_all_at_one_time_hold_up_nobody() -> None:
    broker = Broker()
    broker.line.stand("a", broker.read("a"))
    broker.turns.run()
    for _ in range(10_000):
        broker.serve()
    broker.line.stand("a", broker.read("a"))
    broker.line.stand("b", broker.read("b"))
    broker.turns.run(1000)
    assert [who for who, _ in broker.had] == ["a", "a", "b"]


class World(Broker):
    """Anything happens in it, at any time."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng.choice((0.01, 0.1, 0.5, 0.9)))
        self.rng = rng
        self.stood = self.went = 0

    def some_s(self) -> float:
        return self.rng.choice((0.0, 0.00001, 0.0002, 0.001, 0.006, 0.02, 0.2)) * self.rng.random()

    def ask(self) -> None:
        """For a turn, of any kind, by anybody."""
        how, who = self.rng.randrange(10), self.rng.choice("abcd")
        enter = self.rng.choice((self.line.enter, self.line.stand))
        takes_s = self.some_s()

        def turn() -> None:
            self.went += 1
            self.read(who, takes_s)()
            if how == 0:
                raise OSError("a turn's fault")
            if how == 1:
                self.line.charge(1.0)
            if how == 2 and self.stood < 2000:
                self.ask()

        def still() -> bool:
            self.went += how in (3, 4)
            if how == 4:
                raise OSError("a reader's fault")
            return how != 3

        self.stood += 1
        before, standing = self.went, self.line.standing
        with suppress(OSError):
            assert enter(who, turn, still)
        assert self.went + self.line.standing > before + standing

    def serve_some(self) -> None:
        for _ in range(self.rng.choice((1, 1, 1, 3, 100))):
            if self.rng.random() < 0.8:
                self.serve()
            else:
                self.done += 1  # nobody is told

    def go_on(self, ms: float) -> None:
        """Whatever fails meanwhile is told to nobody here."""
        end_s = self.turns.time() + ms / 1000
        while self.turns.time() < end_s:
            with suppress(OSError):
                self.turns.run((end_s - self.turns.time()) * 1000)

    def do_something(self) -> None:
        match self.rng.randrange(12):
            case 0 | 1 | 2:
                self.ask()
            case 3:
                if self.line.take():
                    self.turns.pass_s(self.some_s())
                    self.line.charge(self.some_s())
            case 4:
                self.line.charge(self.some_s())
            case 5:
                self.share = self.rng.choice((0.01, 0.1, 0.5, 0.9))
            case 6:
                self.turns.pass_s(self.some_s())  # somebody holds the loop
            case 7 | 8:
                self.go_on(self.some_s() * 1000)
            case _:
                self.serve_some()

    def serve_on(self) -> None:
        if not self.are_gone:
            self.serve_some()
            self.turns.call_later(self.some_s(), self.serve_on)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_all_have_their_turns(seed: int) -> None:
    """As long as others are there and when they are gone: there is no state from which the line does not go on."""
    world = World(Random(seed))
    for _ in range(12):
        world.are_gone = world.rng.random() < 0.3
        world.serve_on()
        for _ in range(world.rng.choice((3, 30, 100))):
            world.do_something()
            assert world.went + world.line.standing == world.stood
        for _ in range(3):
            if world.line.standing:
                before = world.went
                world.go_on(1500)
                assert world.went > before, "the longest rest is shorter"
        world.are_gone = True
        world.go_on(60_000)
        assert world.line.standing == 0
        assert world.went == world.stood


def test_a_turn_is_short_only_while_others_wait_for_its_end() -> None:
    broker = Broker()
    seen: list[bool] = []
    broker.line.enter("a", lambda: seen.append(broker.line.is_short))
    broker.turns.run()
    broker.serve()
    broker.line.stand("a", lambda: seen.append(broker.line.is_short))
    broker.turns.run(50)
    assert seen == [False, True]
    assert not broker.line.is_short


def test_it_is_counted_how_long_they_wait_and_what_they_take() -> None:
    broker = Broker(0.5)
    broker.line.stand("a", broker.read("a", 0.01))
    broker.line.stand("b", broker.read("b", 0.01))
    broker.turns.run(100)
    assert (broker.line.turns, broker.line.standing) == (2, 0)
    assert broker.line.busy_s == pytest.approx(0.02)
    assert broker.line.waits_s.sum == pytest.approx(0.01)


def test_who_is_answered_beside_the_line_is_given_way_to() -> None:
    broker = Broker()
    broker.serve()
    assert not broker.gave_way, "nobody stands in the line"
    broker.turns.run(1)
    broker.line.stand("a", broker.read("a"))
    before = broker.done
    broker.serve()
    assert (broker.gave_way, broker.done) == (1, before + 1)
    broker.turns.run(1000)
    assert broker.had
    assert broker.gave_way == 1, "not to who has his turn"
