"""What waits is counted beside the queue as a slow look at all records counts it, whatever the pace of the two."""

from __future__ import annotations

import random
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.store.draft import Draft, encode_draft
from brokerd.timers import counting as counting_module
from brokerd.timers.codes import DELETE_KEY, PLACE, added_of, slot_of
from brokerd.timers.counting import TimerCounting
from brokerd.timers.counts import MAX_TOPICS, OTHERS, WaitingCounts, minute_of
from brokerd.timers.files import source as source_module
from brokerd.timers.files.source import StoreSource
from brokerd.timers.interface import Recalled
from brokerd.timers.rules import Clock, added_for, wait_until
from remoting.errors import StorageError
from remoting.facts.timers import HORIZON_MINUTES, MINUTE_MS, AsideTimer
from remoting.java_hash import java_hash
from remoting.names import TIMER_TOPIC
from remoting.record import checksum
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.support.memory_log import HOST
from tests.unit.brokerd.timers.test_service import Alone

NOW_MS = 1_700_000_040_000  # a whole minute begins
TOPICS = ("orders", "bills")


class Counted(Alone):
    """A broker with some topics, whose counting is as fast as a test says."""

    def __init__(self) -> None:
        super().__init__(batch_messages=5)
        self.rng = random.Random(7)
        self.sent: list[Recalled] = []
        self.recalled: set[int] = set()

    def send(self) -> None:
        for _ in range(self.rng.choice((1, 6))):
            due_ms = self.service.now_ms() + self.rng.choice((3, 40, 900, 20_000, 70_000, 200_000, 400_000))
            topic, key = self.rng.choice(TOPICS), f"k{len(self.sent)}"
            due_ms = max(due_ms, self.service.least_due_ms)
            self.sent.append(Recalled(topic, key, self.put(key, due_ms, REAL_TOPIC=topic), due_ms))

    def recall_one(self) -> None:
        if self.sent:
            timer = self.rng.choice(self.sent)
            if self.recall(timer) is None:
                self.recalled.add(timer.place)

    def pass_time(self) -> None:
        self.turns.run(self.rng.choice((1, 50, 900)))

    def pass_long(self) -> None:
        """Not behind: a leg is never over before it is counted, since it takes half a window at least."""
        self.count_all(self.service.counting)
        self.turns.run(self.rng.choice((3000, 25_000)))

    def count_some(self, counting: TimerCounting) -> None:
        counting.take(self.log.end_offset, 512 * self.rng.choice((1, 1, 4)))

    def count_all(self, counting: TimerCounting) -> None:
        while counting.take(self.log.end_offset, 512 * 64):
            pass

    def waiting(self) -> Counter[tuple[str, int]]:
        """By topic and minute, from all records."""
        delivered = {
            int(decode_record(each).property_map()[PLACE])
            for topic in TOPICS
            for each in self.log.bodies(topic, 1)
        }  # fmt: skip
        return Counter(
            (timer.topic, minute_of(timer.due_ms))
            for timer in self.sent
            if timer.place not in delivered | self.recalled
        )

    def check(self, counting: TimerCounting) -> None:
        wanted = self.waiting()
        of_topic = {topic: sum(count for (name, _), count in wanted.items() if name == topic) for topic in TOPICS}
        assert {topic: counting.counts.of_topic(topic) for topic in TOPICS} == of_topic


@pytest.mark.parametrize("seed", range(6))
def test_counts_are_those_of_the_records(seed: int) -> None:
    broker = Counted()
    broker.rng.seed(seed)
    steady = broker.service.counting
    for step in range(160):
        broker.rng.choice((broker.send, broker.send, broker.recall_one, broker.pass_time, broker.pass_long))()
        broker.count_some(steady)
        if step % 40 == 39:
            broker.count_all(steady)
            broker.check(steady)
            began = TimerCounting(broker.log, broker.service._known)  # as after a start: slowly, while all goes on
            broker.service._delivery.listeners[:] = [steady.delivered, began.delivered]
            for _ in range(20):
                broker.rng.choice((broker.send, broker.recall_one, broker.pass_time))()
                broker.count_some(steady)
                broker.count_some(began)
            broker.count_all(began)
            broker.check(began)
    broker.turns.run(1_000_000)
    broker.count_all(steady)
    assert steady.counts.waiting == 0
    assert steady.counts.topics() == []


def test_a_cut_log_is_counted_again() -> None:
    broker = Counted()
    broker.send()
    counting = broker.service.counting
    broker.count_all(counting)
    broker.service.truncated(broker.log.end_offset)
    assert counting.uncounted == broker.log.queue_range(TIMER_TOPIC, 0)[1]
    broker.count_all(counting)
    broker.check(counting)
    assert counting.uncounted == 0


def test_a_clients_marker_takes_nothing_from_the_counts() -> None:
    broker = Counted()
    due_ms = broker.service.now_ms() + 20_000
    broker.put("a", due_ms, REAL_TOPIC="orders")
    broker.put_marker("a", due_ms)
    broker.count_all(broker.service.counting)
    assert broker.service.counting.counts.of_topic("orders") == 1
    assert DELETE_KEY in decode_record(broker.log.bodies(TIMER_TOPIC)[1]).property_map()


def test_columns_grow_from_a_minute_to_months() -> None:
    counts = WaitingCounts()
    counts.add("t", NOW_MS - MINUTE_MS, is_on_the_way=False)
    for minutes in (0, *HORIZON_MINUTES):
        counts.add("t", NOW_MS + minutes * MINUTE_MS + 1, is_on_the_way=False)
    found = counts.show("t", NOW_MS + 59_000)
    assert (found.waiting, found.overdue, found.since_ms) == (len(HORIZON_MINUTES) + 2, 1, NOW_MS)
    assert found.ahead == (1,) * (len(HORIZON_MINUTES) + 1)
    counts.forget_before(NOW_MS + 5 * MINUTE_MS + 1)
    assert counts.show("t", NOW_MS).ahead[:3] == (0, 0, 1)


def test_what_is_on_the_way_counts_by_its_day() -> None:
    counts = WaitingCounts()
    due_ms = NOW_MS + 20 * 86_400_000
    counts.add("t", due_ms, is_on_the_way=True)
    assert counts.show("t", NOW_MS).ahead[HORIZON_MINUTES.index(30 * 1440)] == 1
    counts.arrive("t", due_ms)
    assert counts.of_topic("t") == 0
    counts.add("t", due_ms, is_on_the_way=False)
    counts.remove("t", due_ms, 2)
    assert counts.topics() == []


def test_topics_beyond_the_bound_are_counted_together() -> None:
    counts = WaitingCounts()
    for number in range(MAX_TOPICS + 5):
        counts.add(f"t{number}", NOW_MS, is_on_the_way=False)
    assert counts.of_topic(OTHERS) == 5
    assert counts.waiting == MAX_TOPICS + 5
    counts.remove(f"t{MAX_TOPICS + 1}", NOW_MS)
    assert counts.of_topic(OTHERS) == 4


def test_the_state_tells_how_many_wait_and_how_late_they_came() -> None:
    broker = Counted()
    broker.put("a", broker.service.now_ms() + 200, REAL_TOPIC="orders")
    broker.count_all(broker.service.counting)
    assert [(each.topic, each.waiting) for each in broker.service.waiting_by_topic()] == [("orders", 1)]
    assert broker.service.state().uncounted == 0
    broker.turns.run(300)
    state = broker.service.state()
    assert list(broker.service.waiting_by_topic()) == []
    assert (sum(state.late_counts), len(state.late_counts)) == (1, len(state.late_bounds_ms) + 1)


def test_what_is_set_aside_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Counted()
    place = broker.put("a", broker.service.now_ms() + 200)

    def damaged(offset: int, size: int) -> bytes:
        raise StorageError("no intact record")

    monkeypatch.setattr(broker.log, "record_at", damaged)
    broker.turns.run(300)
    assert broker.service.state().set_aside == (AsideTimer(offset=place, reason="no intact record"),)


def test_what_waits_is_counted_again_when_the_cursor_went_back() -> None:
    broker = Counted()
    counting = broker.service.counting
    for ahead_ms in (1000, 10 * MINUTE_MS):
        due_ms = broker.service.now_ms() + ahead_ms
        broker.sent.append(Recalled("orders", "k", broker.put("k", due_ms, REAL_TOPIC="orders"), due_ms))
    broker.turns.run(1001)
    broker.count_all(counting)
    broker.turns.set_wall_clock(-5 * MINUTE_MS)
    due_ms = broker.service.now_ms() + MINUTE_MS
    broker.sent.append(Recalled("bills", "k", broker.put("k", due_ms, REAL_TOPIC="bills"), due_ms))
    assert broker.service.state().fences == 1
    broker.count_all(counting)
    broker.check(counting)
    broker.turns.run(MINUTE_MS + 1)
    broker.count_all(counting)
    broker.check(counting)
    assert counting.counts.of_topic("orders") == 1


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("ahead_ms", [1, 40_000, 3 * 86_400_000])  # the last one has a leg
@pytest.mark.parametrize(
    "own", [{}, {"REAL_TOPIC": "mine", "TIMER_OUT_MS": "7"}, {"KEYS": "größe"}, {"a": "TIMER_DUE_MS\x015"}]
)
def test_what_was_sent_is_found_at_once_and_is_what_a_whole_look_finds(
    own: dict[str, str], ahead_ms: int, is_sealed: bool
) -> None:
    clock = Clock(NOW_MS, NOW_MS - 1, 2 * 86_400_000)
    asks = encode_properties({"UNIQ_KEY": "K", "TIMER_DELIVER_MS": str(NOW_MS + ahead_ms)} | own)
    draft = Draft("orders", 1, b"body", asks, NOW_MS, HOST)
    wait = wait_until(NOW_MS + ahead_ms, clock)
    waiting = draft._replace(properties=asks + encode_properties(added_for(wait, draft.topic, draft.queue_id)))
    sealed = waiting._replace(properties=checksum.reserve(waiting.properties)) if is_sealed else waiting
    encoded = encode_draft(sealed, 0, 0, NOW_MS, HOST)
    encoded = checksum.seal(encoded) if is_sealed else encoded
    log: Any = SimpleNamespace(record_at=lambda *_: encoded)
    counting = TimerCounting(log, lambda: None)
    found = counting._said(0, len(encoded))
    assert found is not None
    assert (found.topic, found.due_ms) == ("orders", NOW_MS + ahead_ms)
    assert counting._said(0, len(encoded), is_sent=True) == found
    store: Any = SimpleNamespace(commitlog=SimpleNamespace(read=lambda *_: encoded))
    source = StoreSource(store, lambda: None)
    quick = source.origin(0, len(encoded))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting_module, "_SAID", re.compile(rb"(?!)"))
        assert counting._said(0, len(encoded), is_sent=True) == found, "it is found at once"
        patch.setattr(source_module, "decode_properties", lambda _: {})
        assert source.origin(0, len(encoded)) == quick, "and here"
        patch.undo()
        patch.setattr(source_module, "added_of", lambda _: None)
        assert source.origin(0, len(encoded)) == quick
    assert quick == (java_hash("orders"), NOW_MS, wait.leg_ms is not None, slot_of(wait.due_ms))


@pytest.mark.parametrize(
    "behind", ["", "TIMER_PLACE\x013\x02", "TIMER_LEG_MS\x01x\x02", "TIMER_DUE_MS\x01-1\x02", "\x02"]
)
@pytest.mark.parametrize("before", ["TIMER_LEG_MS\x017\x02", "TIMER_DEQUEUE_MS\x017\x02", "x"])
def test_what_is_not_as_it_was_sent_is_looked_through(before: str, behind: str) -> None:
    added = "\x02REAL_TOPIC\x01orders\x02REAL_QID\x011\x02TIMER_OUT_MS\x0117\x02TIMER_DUE_MS\x0118\x02"
    found = added_of(f"{before}{added}{behind}".encode())
    assert (found is not None) == (before == "x" and not behind)
