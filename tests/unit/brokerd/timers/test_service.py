"""Timers of one broker, case by case: batches torn at each record, what cannot be delivered, who waits for whom, and recall."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from brokerd.store.put_status import PutStatus
from brokerd.timers import batch, slots
from brokerd.timers.codes import DUE_MS, LEG_MS, PLACE, ROLL_TIMES, slot_of
from brokerd.timers.interface import Recalled
from brokerd.timers.rolling import Wait
from brokerd.timers.settings import TimerSettings
from remoting import codes
from remoting.errors import InvalidParameter, RequestError, StorageError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record, decode_record
from tests.support.memory_log import MemoryRecordLog, drafts_of
from tests.support.turns import Turns
from tests.unit.brokerd.timers.world import TOPIC, Node


class Alone(Node):
    """A master whose log is dispatched and acknowledged at once, unless a test says otherwise."""

    def __init__(
        self,
        log: MemoryRecordLog | None = None,
        turns: Turns | None = None,
        others_ms: Callable[[], list[int] | None] = lambda: None,
        **settings: Any,
    ) -> None:
        turns = turns or Turns()
        log = log or MemoryRecordLog(turns.wall_ms)
        super().__init__(log, turns, random.Random(3), TimerSettings(**settings), others_ms)
        self.lead()
        turns.run()

    def put_in(self, key: str, ahead_ms: int, **more: str) -> Recalled:
        due_ms = self.service.now_ms() + ahead_ms
        return Recalled(TOPIC, key, self.put(key, due_ms, **more), due_ms)

    @property
    def delivered(self) -> list[str]:
        return [record.body.decode() for record in self.copies()]

    def copies(self) -> list[Record]:
        return [decode_record(each) for each in self.log.bodies(TOPIC, 1)]

    def recall(self, timer: Recalled) -> RequestError | None:
        answers: list[RequestError | None] = []
        self.service.recall(timer, answers.append)
        return answers[0]


def test_a_timer_comes_in_the_millisecond_in_which_it_is_due() -> None:
    broker = Alone()
    broker.put_in("b", 5003, KEYS="x")
    broker.put_in("a", 5000)
    broker.turns.run(4999)
    assert broker.delivered == []
    broker.turns.run(2)
    assert broker.delivered == ["a"]
    broker.turns.run(3)
    assert broker.delivered == ["a", "b"]
    properties = broker.copies()[1].property_map()
    assert (properties["KEYS"], properties[PLACE], properties["UNIQ_KEY"]) == ("x", "0", "b")
    state = broker.service.state()
    assert (state.waiting, state.delivered, state.failures, state.lost) == (0, 2, 0, 0)
    assert 0 <= state.last_late_ms <= 1


def test_late_is_what_is_stored_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look for what is due, and to make it ready, takes a while, too."""
    broker = Alone()
    broker.put_in("a", 5000)
    due = batch.Batches.of_due

    def slow(*given: Any, **more: Any) -> batch.Batch:
        broker.turns.pass_s(0.03)
        return due(*given, **more)

    monkeypatch.setattr(batch.Batches, "of_due", slow)
    broker.turns.run(5001)
    (copy,) = broker.copies()
    assert broker.service.state().last_late_ms == copy.store_timestamp_ms - int(copy.property_map()[DUE_MS])
    assert broker.service.state().last_late_ms >= 30


def test_nothing_waits_in_the_loop_while_no_timer_does() -> None:
    broker = Alone()
    broker.turns.run(1)
    assert broker.turns.waiting == 0
    broker.put_in("a", 5)
    assert broker.turns.waiting == 2, "until it is due, and a look at files that may go"
    broker.turns.run(10)
    assert broker.delivered == ["a"]
    broker.turns.run(1000)
    assert broker.turns.waiting == 0


@pytest.mark.parametrize("second", [False, True])
def test_a_batch_that_is_torn_anywhere_is_completed_by_the_next_master(second: bool) -> None:
    """Also when that one's batch is torn, too."""
    keys = [f"k{number}" for number in range(5)]
    first = Alone()
    first.log.dispatches = False
    for key in keys:
        first.put_in(key, 50)
    first.log.dispatch()
    before = first.log.end_offset
    first.turns.run(60)
    cuts = [end for end in first.log.positions if end > before]
    assert len(cuts) == 6
    for cut in cuts:
        heir = Alone(first.log.copy(cut, before), first.turns)
        logs = [heir.log]
        if second:
            logs = [heir.log.copy(end, before) for end in heir.log.positions if end >= cut]
        for log in logs:
            last = Alone(log, first.turns) if second else heir
            last.log.dispatch()
            last.turns.run(20)
            assert last.delivered == keys, (cut, log.end_offset)
            assert last.service.state().waiting == 0


def test_a_timer_further_ahead_than_the_window_is_appended_again_on_its_way() -> None:
    broker = Alone()  # the window is a minute
    timer = broker.put_in("far", 170_000)
    broker.turns.run(169_999)
    assert broker.delivered == []
    broker.turns.run(2)
    (record,) = broker.copies()
    properties = record.property_map()
    assert (properties[ROLL_TIMES], properties[PLACE]) == ("2", str(timer.place))
    assert LEG_MS not in properties
    assert int(properties[DUE_MS]) == timer.due_ms
    waited = [decode_record(each) for each in broker.log.bodies(TIMER_TOPIC)]
    gaps = [b.store_timestamp_ms - a.store_timestamp_ms for a, b in pairwise(waited)]
    assert all(30_000 <= gap <= 60_002 for gap in gaps)
    assert broker.service.state().rolled == 2


def test_a_recalled_timer_never_comes_before_and_after_rolling() -> None:
    broker = Alone()
    near, far = broker.put_in("near", 500), broker.put_in("far", 100_000)
    assert broker.recall(near) is None
    broker.turns.run(80_000)
    assert broker.service.state().rolled == 1
    assert broker.service.is_pending(far.place, far.due_ms)
    assert broker.recall(far) is None
    assert not broker.service.is_pending(far.place, far.due_ms)
    broker.turns.run(30_000)
    assert broker.delivered == []
    state = broker.service.state()
    assert (state.waiting, state.recalled) == (0, 2)
    broker.put_in("another", 60_000)
    broker.turns.run(61_000)
    assert broker.service.table.places == {}, "forgotten when their time has passed"


def test_a_recall_that_comes_too_late_says_so() -> None:
    broker = Alone()
    timer = broker.put_in("a", 10)
    broker.turns.run(20)
    error = broker.recall(timer)
    assert error is not None
    assert (error.code, "was delivered" in str(error)) == (codes.ILLEGAL_OPERATION, True)


def test_recalls_of_what_is_not_there_or_twice_are_refused() -> None:
    broker = Alone()
    timer = broker.put_in("a", 1000)
    for wrong in (timer._replace(unique_key="b"), timer._replace(place=7)):
        error = broker.recall(wrong)
        assert error is not None
        assert (error.code, "no such" in str(error)) == (codes.ILLEGAL_OPERATION, True)
    assert broker.recall(timer) is None
    error = broker.recall(timer)
    assert error is not None
    assert "recalled before" in str(error)
    later = broker.put_in("b", 1000)
    broker.log.refusal = InvalidParameter("the disk is full")
    assert broker.recall(later) is not None
    assert broker.service.is_pending(later.place, later.due_ms)


def test_no_recall_is_taken_by_a_place_that_another_record_of_the_message_has() -> None:
    broker = Alone()
    due_ms = broker.service.now_ms() + 5000
    broker.put_marker("a", due_ms)
    broker.put("a", due_ms, **{PLACE: "7"})
    for place in (0, 1):
        error = broker.recall(Recalled(TOPIC, "a", place, due_ms))
        assert error is not None
        assert (error.code, "no such" in str(error)) == (codes.ILLEGAL_OPERATION, True)
    assert broker.service.table.places == {}


def test_the_key_of_handles_is_drawn_once_and_known_to_every_master() -> None:
    broker = Alone()
    broker.log.refusal = InvalidParameter("the disk is full")
    assert broker.service.recall_key() is None
    broker.log.refusal = None
    key = broker.service.recall_key()
    assert key is not None
    assert len(key) == 32
    heir = Alone(broker.log.copy())
    assert heir.service.recall_key() == broker.service.recall_key() == key


def test_one_that_cannot_be_read_is_set_aside_and_the_others_come(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Alone()
    for key in ("a", "b", "c"):
        broker.put_in(key, 100)
    read = broker.log.record_at
    physical_offset = broker.log.read_units(TIMER_TOPIC, 0, 1, 1)[0][0]

    def damaged(offset: int, size: int) -> bytes:
        if offset == physical_offset:
            raise StorageError("no intact record")
        return read(offset, size)

    monkeypatch.setattr(broker.log, "record_at", damaged)
    broker.turns.run(200)
    assert broker.delivered == ["a", "c"]
    assert broker.service.state().aside == 1
    assert broker.service.held_offset() is not None
    assert (broker.service.held_offset() or 0) <= physical_offset
    heir = Alone(broker.log.copy(), broker.turns)  # whose disk is sound
    heir.turns.run(20)
    assert heir.delivered == ["a", "c", "b"]
    assert heir.service.state().aside == 0
    broker.turns.run(3_700_000)
    assert (broker.service.state().aside, broker.service.state().lost) == (0, 1), "given up in the end"
    assert broker.turns.waiting == 0


def test_one_that_cannot_be_stored_does_not_hold_up_the_others() -> None:
    broker = Alone()
    for key in ("a", "bad", "c"):
        broker.put_in(key, 100)
    broker.log.illegal = b"bad"
    broker.turns.run(300)
    assert broker.delivered == ["a", "c"]
    assert broker.service.state().aside == 1
    broker.log.illegal = None
    broker.turns.run(20_000)
    assert broker.delivered == ["a", "c", "bad"]


def test_promised_ones_that_cannot_be_stored_together_come_one_by_one() -> None:
    first = Alone()
    for key in ("a", "bad", "c"):
        first.put_in(key, 100)
    first.turns.run(50)
    before = first.log.end_offset
    first.log.dispatches = False
    first.turns.run(60)
    cut = next(end for end in first.log.positions if end > before)
    heir = first.log.copy(cut, before)
    heir.illegal = b"bad"
    broker = Alone(heir, first.turns)
    heir.dispatch()
    broker.turns.run(100)
    assert sorted(broker.delivered) == ["a", "c"]
    heir.illegal = None
    broker.turns.run(20_000)
    assert sorted(broker.delivered) == ["a", "bad", "c"]


def test_no_more_are_decoded_in_one_write_than_a_turn_of_the_loop_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_DECODED", 5)
    broker = Alone(batch_messages=100)
    for number in range(24):
        broker.put_in(
            f"k{number}", 1000, KEYS="a\x01b" if number % 2 else "ab"
        )  # a value with the sign that begins one
    written: list[int] = []
    append = broker.log.append_leading

    def watched(topic: str, kind: str, body: bytes, behind: Any, **more: bool) -> tuple[int, int]:
        written.append(len(drafts_of(behind)))
        return append(topic, kind, body, behind, **more)

    broker.log.append_leading = watched  # type: ignore[method-assign]
    broker.turns.run(2000)
    assert written == [10, 10, 4]
    assert broker.delivered == [f"k{number}" for number in range(24)]


def test_one_whose_topic_is_gone_is_dropped() -> None:
    broker = Alone()
    broker.put_in("a", 100)
    broker.topics.gone.add(TOPIC)
    broker.turns.run(200)
    state = broker.service.state()
    assert (state.lost, state.delivered, state.waiting) == (1, 0, 0)


def test_a_topic_that_is_gone_does_not_fill_the_log_with_its_timers(caplog: pytest.LogCaptureFixture) -> None:
    broker = Alone(batch_messages=50)
    for number in range(100):
        broker.put_in(f"k{number}", 1000)
    broker.topics.gone.add(TOPIC)
    broker.turns.run(3000)
    assert broker.service.state().lost == 100
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "50 timers are dropped, the first at queue offset 0",
        "50 timers are dropped, the first at queue offset 50",
    ]


def test_a_full_disk_makes_it_late_and_nothing_else() -> None:
    broker = Alone(retry_ms=500)
    broker.put_in("a", 100)
    broker.log.refusal = InvalidParameter("the disk is full")
    broker.turns.run(5000)
    state = broker.service.state()
    assert (state.delivered, state.waiting) == (0, 1)
    assert 5 <= state.failures <= 11
    assert state.overdue_ms > 4000
    broker.log.refusal = None
    broker.turns.run(600)
    assert broker.delivered == ["a"]


def test_batches_do_not_wait_for_one_another_but_for_too_many() -> None:
    broker = Alone(batch_messages=2, in_flight_messages=6)
    broker.log.acknowledges = False
    for number in range(20):
        broker.put_in(f"k{number:02}", 100)
    broker.turns.run(200)
    assert len(broker.delivered) == 6
    broker.log.acknowledge()
    broker.turns.run(10)
    assert len(broker.delivered) == 12
    broker.log.acknowledges = True
    broker.log.acknowledge(PutStatus.FLUSH_SLAVE_TIMEOUT)
    broker.turns.run(500)
    assert len(broker.delivered) == 12, "too few replicas answer"
    broker.turns.run(1000)
    assert broker.delivered == [f"k{number:02}" for number in range(20)]


def test_more_than_fits_into_memory_comes_in_order_all_the_same() -> None:
    broker = Alone(near_max=10, batch_messages=4)
    broker.turns.run(1)  # what is due soon is known from here on
    keys = [f"k{number:03}" for number in range(100)]
    most = 0
    for key in keys:
        broker.put_in(key, 500)
        most = max(most, broker.service.state().near)
    assert most == 10
    broker.turns.run(1000)
    assert broker.delivered == keys


def test_what_was_due_while_nobody_led_comes_in_the_order_in_which_it_was_due() -> None:
    turns = Turns()
    broker = Alone(turns=turns)
    dues = random.Random(1).sample(range(1000, 500_000), 40)
    for due_ms in dues:
        broker.put_in(f"{due_ms:06}", due_ms)
    broker.service.step_down()
    turns.run(7 * 86_400_000)
    heir = Alone(broker.log.copy(), turns)
    heir.turns.run(100)
    assert heir.delivered == sorted(heir.delivered)
    assert len(heir.delivered) == 40


def test_a_timer_holds_its_file_only_until_its_leg_ends() -> None:
    broker = Alone()
    broker.put_in("far", 10_000_000)
    held = []
    for _ in range(4):
        held.append(broker.service.held_offset())
        broker.turns.run(61_000)
        broker.service.rolled()
        broker.turns.run(1)
    assert held == sorted(set(held)), "it moves on with each leg"


def test_after_a_time_in_which_nobody_knows_what_was_appended_it_goes_on_at_full_speed() -> None:
    broker = Alone(retry_ms=200, batch_messages=1, in_flight_messages=1)
    known = broker.log.undispatched_codes
    broker.log.undispatched_codes = lambda *_: None  # type: ignore[method-assign,assignment,return-value]
    for number in range(5):
        broker.put_in(f"k{number}", 5)
    broker.turns.run(7)
    broker.log.undispatched_codes = known  # type: ignore[method-assign]
    broker.log.acknowledges = False
    for count in range(1, 6):
        broker.turns.run(200 if count == 1 else 2)
        assert len(broker.delivered) == count
        broker.log.acknowledge()


@pytest.mark.parametrize("is_new", [True, False])
def test_a_new_master_takes_no_more_than_the_limit_of_a_second(monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
    """After a start it takes nothing until it has counted what waits; a replica has counted. What is not dispatched counts."""
    monkeypatch.setattr(slots, "_SCANNED_AT_ONCE", 2)
    first = Alone()
    due_ms = first.put_in("k0", 30_000).due_ms
    for number in range(1, 6):
        first.put_in(f"k{number}", 30_000)
    first.log.dispatches = False
    first.put_in("k6", 30_000)
    heir = Node(first.log.copy(), first.turns, random.Random(3), TimerSettings())
    heir.most = 7
    if not is_new:
        assert heir.service.slot_limit() is not None
        heir.turns.run()
    heir.lead()
    limit = heir.service.slot_limit()
    assert limit is not None
    assert limit.is_behind == is_new
    heir.turns.run()
    assert not limit.is_behind
    assert limit.count(slot_of(due_ms)) == 7
    assert not limit.take(7, Wait(due_ms, None))
    heir.log.dispatch()
    assert limit.count(slot_of(due_ms)) == 7
    assert not limit.take(7, Wait(due_ms, None))
    heir.most = 8
    assert limit.take(7, Wait(due_ms, None))


def test_a_limit_of_a_second_counts_what_waited_before_it_was_set() -> None:
    broker = Alone()
    service = broker.service
    due_ms = broker.put_in("k0", 30_000).due_ms
    for number in range(1, 4):
        broker.put_in(f"k{number}", 30_000)
    assert service.slot_limit() is None
    broker.most = 5
    limit = service.slot_limit()
    assert limit is not None
    assert limit.take(4, Wait(due_ms, None)), "so few are counted at once"
    assert service.slot_limit() is limit
    assert limit.count(slot_of(due_ms)) == 5
    assert not limit.take(5, Wait(due_ms, None))
    assert limit.take(5, Wait(due_ms + 1000, None))
    broker.put_in("one that nobody took", 30_000)
    assert limit.count(slot_of(due_ms)) == 5, "in the place of what was never appended"
    service.step_down()
    broker.lead()
    assert limit.count(slot_of(due_ms)) == 5
    assert limit.count(slot_of(due_ms + 1000)) == 0, "what was laid out and not appended before is not there"
    broker.most = 0
    assert service.slot_limit() is None


def test_what_is_unusual_in_a_batch_keeps_its_place_and_the_rest_is_stored_as_it_is() -> None:
    broker = Alone()
    keys = [f"k{number:02}" for number in range(24)]
    odd: dict[str, dict[str, str]] = {"k03": {"REAL_QID": "77"}, "k09": {PLACE: "9"}, "k10": {"REAL_TOPIC": "gone"}}
    broker.topics.gone.add("gone")
    timers = {key: broker.put_in(key, 5000, **odd.get(key, {})) for key in keys}
    assert broker.recall(timers["k15"]) is None
    broker.put_marker("k20", timers["k20"].due_ms)
    broker.turns.run(5001)
    copies = [decode_record(each) for queue in range(4) for each in broker.log.bodies(TOPIC, queue)]
    copies.sort(key=lambda record: record.physical_offset)
    assert [record.body.decode() for record in copies] == [each for each in keys if each not in ("k10", "k15", "k20")]
    assert [record.property_map()[PLACE] for record in copies if record.body != b"k09"] == [
        str(timers[record.body.decode()].place) for record in copies if record.body != b"k09"
    ]
    counters = broker.service.counters
    assert (counters.delivered, counters.recalled, counters.lost) == (21, 2, 1)


def test_a_millisecond_that_passes_while_clocks_are_read_is_no_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is sent in that moment is decoded, a hundred of them for a few milliseconds."""
    broker = Alone()
    began_ms, reads = broker.turns.wall_ms(), itertools.count()
    surroundings = broker.service._around._replace(wall_ms=lambda: began_ms + next(reads))
    monkeypatch.setattr(broker.service, "_around", surroundings)
    assert broker.service.is_settled
    assert broker.service.is_settled
