"""Requests of the console about timers: found by when they are due, in pages, and taken back with an outcome for each."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerd.processors.administration.timers import MAX_RECALLED
from brokerd.store.put_status import PutStatus
from brokerd.timers import finder
from brokerd.timers.finder import LookedIn, Question, TimerFinder
from brokerd.timers.finder_places import Place, read_token
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.facts.codec import decode, encode
from remoting.facts.timers import (
    Recall,
    RecallOutcome,
    RecallRequest,
    RecallRequests,
    Recalls,
    TimerItem,
    TimerPage,
    TimerStanding,
)
from remoting.names import TIMER_TOPIC
from remoting.record.codec import decode_record
from remoting.record.hosts import offset_message_id
from tests.support.remoting_broker import RemotingBroker, remoting_master
from tests.unit.brokerd.timers.test_service import Alone

HOUR_MS = 3_600_000


class Broker:
    """The requests of a master, over timers that a test puts into its log."""

    def __init__(self, broker: RemotingBroker) -> None:
        self.remoting = broker
        self.service = broker.timer_service
        self.node = Alone.__new__(Alone)
        self.node.log, self.node.service = broker.log, self.service
        broker.log.listeners.append(self.service.dispatched)
        broker.topic("orders", 4)
        self.service.lead()

    def put(self, key: str, ahead_ms: int, topic: str = "orders", **more: str) -> int:
        return self.node.put(key, self.service.now_ms() + ahead_ms, REAL_TOPIC=topic, **more)

    def find(self, **ext: Any) -> TimerPage:
        answer = self.remoting.answer(codes.FIND_TIMERS, ext)
        assert answer.code == codes.SUCCESS, answer.remark
        return decode(TimerPage, answer.body)

    def recall(self, *items: TimerItem, by: str = "ann") -> list[Recall]:
        body = encode(RecallRequests(timers=tuple(map(request_of, items))))
        answer = self.remoting.answer(codes.RECALL_TIMERS, {"by": by}, body)
        assert answer.code == codes.SUCCESS, answer.remark
        return list(decode(Recalls, answer.body).timers)


def request_of(item: TimerItem) -> RecallRequest:
    return RecallRequest(topic=item.topic, unique_key=item.unique_key, place=item.place, due_ms=item.due_ms)


@pytest.fixture
def broker() -> Broker:
    return Broker(remoting_master())


def keys(page: TimerPage) -> list[str]:
    return [each.unique_key for each in page.items]


def test_timers_are_found_in_the_order_in_which_they_are_due(broker: Broker) -> None:
    for key, ahead_ms in (("c", 30_000), ("a", 10_000), ("b", 20_000), ("other", 15_000)):
        broker.put(key, ahead_ms, topic="bills" if key == "other" else "orders", KEYS=f"order-{key}")
    page = broker.find(topic="orders")
    assert (keys(page), page.next, page.unread) == (["a", "b", "c"], None, 0)
    item = page.items[0]
    assert (item.topic, item.queue_id, item.keys, item.standing) == ("orders", 1, "order-a", TimerStanding.WAITING)
    assert keys(broker.find()) == ["a", "other", "b", "c"]
    now_ms = broker.service.now_ms()
    assert keys(broker.find(fromMs=now_ms + 15_000, toMs=now_ms + 30_000)) == ["other", "b"]


def test_a_page_goes_on_where_the_one_before_ended(broker: Broker) -> None:
    for number in range(7):
        broker.put(f"k{number}", 10_000 + number)
    found, token = [], ""
    while True:
        page = broker.find(count=3, after=token)
        found += keys(page)
        if page.next is None:
            break
        token = page.next
    assert found == [f"k{number}" for number in range(7)]


def test_one_request_looks_at_a_bounded_number(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "MOST_LOOKED", 5)
    for number in range(12):
        broker.put(f"k{number}", 10_000 + number, topic="rare" if number == 11 else "orders")
    page = broker.find(topic="rare")
    assert (page.items, page.looked, page.next is None) == ((), 5, False)
    page = broker.find(topic="rare", after=page.next)
    page = broker.find(topic="rare", after=page.next)
    assert (keys(page), page.next) == (["k11"], None)


def test_entries_that_are_not_filed_are_bounded_too_and_that_is_said(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "MOST_UNFILED", 4)
    for number in range(6):
        broker.put(f"k{number}", 10_000 + number)
    assert broker.find().unread == 2


@pytest.mark.parametrize(("after", "count"), [("x", "1"), ("1.2.3", "1"), ("", "0"), ("", "101")])
def test_nonsense_is_refused(broker: Broker, after: str, count: str) -> None:
    answer = broker.remoting.answer(codes.FIND_TIMERS, {"after": after, "count": count})
    assert answer.code == codes.INVALID_PARAMETER


def test_some_are_taken_back_and_each_outcome_is_told(broker: Broker) -> None:
    for key, ahead_ms in (("soon", 50), ("later", 60_000), ("far", 72 * HOUR_MS)):
        broker.put(key, ahead_ms)
    items = {each.unique_key: each for each in broker.find().items}
    assert items["far"].leg_ms is not None
    broker.remoting.turns.run(100)
    missing = TimerItem(**{**_fields(items["later"]), "unique_key": "another"})
    outcomes = broker.recall(items["soon"], items["later"], missing, items["far"])
    assert [each.outcome for each in outcomes] == [
        RecallOutcome.DELIVERED,
        RecallOutcome.RECALLED,
        RecallOutcome.RECALLED_BEFORE,  # the place is taken back, whatever it was called by
        RecallOutcome.RECALLED,
    ]
    assert broker.recall(items["far"])[0].outcome is RecallOutcome.RECALLED_BEFORE
    assert keys(broker.find()) == []
    marker = decode_record(broker.remoting.log.bodies(TIMER_TOPIC)[-1]).property_map()
    assert (marker["UNIQ_KEY"], marker["TIMER_RECALLED_BY"]) == ("far", "ann")
    broker.remoting.turns.run(100_000)
    delivered = [decode_record(each).body for each in broker.remoting.log.bodies("orders", 1)]
    assert delivered == [b"soon"]


def test_another_key_at_that_place_is_no_timer(broker: Broker) -> None:
    broker.put("a", 60_000)
    (item,) = broker.find().items
    (outcome,) = broker.recall(TimerItem(**{**_fields(item), "unique_key": "b"}))
    assert outcome.outcome is RecallOutcome.MISSING


def test_a_recall_that_may_be_lost_is_unknown(broker: Broker) -> None:
    broker.put("a", 60_000)
    (item,) = broker.find().items
    broker.remoting.log.status = PutStatus.FLUSH_SLAVE_TIMEOUT
    assert broker.recall(item)[0].outcome is RecallOutcome.UNKNOWN


def test_recalls_are_bounded_and_signed(broker: Broker) -> None:
    broker.put("a", 60_000)
    (item,) = broker.find().items
    body = encode(RecallRequests(timers=(request_of(item),) * (MAX_RECALLED + 1)))
    assert broker.remoting.answer(codes.RECALL_TIMERS, {"by": "ann"}, body).code == codes.INVALID_PARAMETER
    assert broker.remoting.answer(codes.RECALL_TIMERS, {}, body).code == codes.INVALID_PARAMETER
    assert broker.remoting.answer(codes.RECALL_TIMERS, {"by": "a\x01b"}, body).code == codes.INVALID_PARAMETER
    assert broker.recall() == []


def test_a_timer_is_found_by_the_id_that_its_send_was_answered_with(broker: Broker) -> None:
    place = broker.put("a", 60_000)
    record = decode_record(broker.remoting.log.bodies(TIMER_TOPIC)[place])
    page = broker.find(key=offset_message_id(record.store_host, record.physical_offset))
    assert [(each.unique_key, each.place) for each in page.items] == [("a", place)]


def _fields(item: TimerItem) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_in_files_and_queue_is_what_waits(seed: int) -> None:
    """However far the files are: all pages together have each timer once, in order."""
    rng = random.Random(seed)
    node = Alone()
    sent = {}
    for number in range(60):
        due_ms = node.service.now_ms() + rng.choice((500, 9000, 30_000, 70_000, 200_000))
        sent[f"k{number}"] = node.put(f"k{number}", due_ms), due_ms
        if rng.random() < 0.2:
            node.turns.run(rng.choice((1, 300, 4000)))
    assert node.followed is not None
    looks = TimerFinder(
        node.log,
        LookedIn(node.followed.files, node.service.stowed),
        node.service.table,
        lambda: node.service.window_ms,
        node.turns.wall_ms,
        node.turns,
    )
    found: list[TimerItem] = []
    token = ""
    while True:
        answers: list[TimerPage | LogboomError] = []
        looks.find(Question("", 0, 1 << 52, read_token(token), 7), answers.append)
        node.turns.run()
        (page,) = answers
        assert isinstance(page, TimerPage), page
        found += page.items
        if page.next is None:
            break
        token = page.next
    delivered = {decode_record(each).property_map()["UNIQ_KEY"] for each in node.log.bodies("orders", 1)}
    assert sorted(each.unique_key for each in found) == sorted(sent.keys() - delivered)
    legs = [min(each.due_ms, each.leg_ms or each.due_ms) for each in found]
    assert legs == sorted(legs)


def test_too_many_questions_at_once_are_refused(broker: Broker) -> None:
    looks = broker.remoting.processors.timers.finder
    for number in range(5000):
        broker.put(f"k{number}", 60_000)
    question = Question("", 0, 1 << 52, Place(), 10)
    answers: list[TimerPage | LogboomError] = []
    for _ in range(finder.MOST_WAITING + 1):
        looks.find(question, answers.append)
    with pytest.raises(RequestError, match="wait already"):
        looks.find(question, answers.append)
    broker.remoting.turns.run()
    assert len(answers) == finder.MOST_WAITING + 1
