"""PullMessage of messages that only the tier has: in the line of all who read there."""

from __future__ import annotations

import pytest

from brokerd.loop.cold_line import MOST_STANDING, SHORT_BYTES, Clocks, ColdLine, Others
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.proxy.test_pull_message import Pulling, outcome

COLD = 10


class Cold(Pulling):
    """The first messages of queue 0 are cold."""

    def __init__(self) -> None:
        super().__init__()
        clock = self.turns.time
        self.line = self.broker.cold_line = ColdLine(self.turns, Clocks(clock, clock), lambda: 0.01)
        self.others_done = 0
        self.line.others = Others(lambda: self.others_done, lambda _: None)
        self.make_methods()
        self.store(*(b"%d" % number for number in range(COLD + 5)))
        self.log.cold_ends["T", 0] = COLD

    def serve_others(self) -> None:
        """All the time from now on; the line rests for a tenth of a second."""
        self._serve()
        self.line.charge(0.001)

    def _serve(self) -> None:
        self.others_done += 1
        self.turns.call_later(0.002, self._serve)


@pytest.fixture
def cold() -> Cold:
    return Cold()


def test_without_others_it_is_answered_at_once(cold: Cold) -> None:
    code, bodies, following = cold.pull(0)
    assert (code, len(bodies), following) == (Code.OK, COLD + 5, COLD + 5)


def test_beside_others_it_is_answered_in_its_turn_and_what_is_in_files_at_once(cold: Cold) -> None:
    cold.serve_others()
    call = cold.begin(0)
    assert outcome(cold.begin(COLD))[1] == [b"%d" % number for number in range(COLD, COLD + 5)]
    cold.turns.run(20)
    assert not call.finished
    cold.turns.run(200)
    assert outcome(call)[0] == Code.OK


def test_who_went_away_takes_nobodys_turn_and_who_has_no_time_left_goes_on_later(cold: Cold) -> None:
    cold.serve_others()
    gone, late, other = cold.begin(0), cold.begin(3, deadline_ms=cold.turns.monotonic_ms() + 50), cold.begin(0)
    turns = cold.line.turns
    gone.live = False
    cold.turns.run(500)
    assert not gone.answers
    assert outcome(late) == (Code.MESSAGE_NOT_FOUND, [], 3)
    assert outcome(other)[0] == Code.OK
    assert cold.line.turns == turns + 1


def test_what_is_fetched_is_waited_for_also_by_who_would_not_wait_for_new_messages(cold: Cold) -> None:
    cold.log.coming.add(("T", 0))
    call, other = cold.begin(0), cold.begin(0)
    cold.turns.run(100)
    assert cold.methods.pull.waiting_count == 2
    cold.serve_others()
    cold.log.coming.clear()
    cold.methods.pull.fetched("T", 0)
    cold.turns.run(20)
    assert not call.finished
    cold.turns.run(500)
    assert (outcome(call)[0], outcome(other)[0]) == (Code.OK, Code.OK)


def test_what_does_not_come_ends_in_time_with_where_to_go_on(cold: Cold) -> None:
    cold.log.coming.add(("T", 0))
    call = cold.begin(4)
    cold.turns.run(11_000)
    assert outcome(call) == (Code.MESSAGE_NOT_FOUND, [], 4)


def test_who_is_past_the_tier_waits_for_new_messages(cold: Cold) -> None:
    cold.log.coming.add(("T", 0))
    call = cold.begin(0, wait_ms=15_000, expression="wanted")
    cold.turns.run(10)
    cold.log.coming.clear()
    cold.methods.pull.fetched("T", 0)
    cold.turns.run(10)
    assert not call.finished
    cold.store(b"new", tag="wanted")
    cold.turns.run(10)
    assert outcome(call)[1] == [b"new"]


def test_turns_are_short_beside_others(cold: Cold) -> None:
    cold.store(*(bytes(100_000) for _ in range(10)), queue_id=1)
    cold.log.cold_ends["T", 1] = 10
    alone = outcome(cold.begin(0, id=1))[1]
    cold.turns.run(10)
    cold.serve_others()
    call = cold.begin(0, id=1)
    cold.turns.run(500)
    assert len(alone) > 2 * len(outcome(call)[1])
    assert 0 < len(outcome(call)[1]) * 100_000 <= SHORT_BYTES


def test_when_too_many_stand_there_it_is_refused(cold: Cold) -> None:
    cold.serve_others()
    for number in range(MOST_STANDING):
        assert cold.line.stand(number, lambda: None)
    call: FakeCall = cold.begin(0)
    assert call.finished
    status = service.PullMessageResponse.FromString(call.answers[0]).status
    assert status.code == definition.TOO_MANY_REQUESTS
