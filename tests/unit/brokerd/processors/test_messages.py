"""Queries by key (code 12) and by place (33), over a store on a memory disk."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.consuming.key_queries import Found, KeyQueries
from brokerd.processors.administration.messages import MessageProcessor
from brokerd.store.derived.background import Background
from brokerd.store.index.search import Question
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.run import AppendResult
from brokerd.store.store import MessageStore
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from remoting.record.codec import decode_record, decode_records, encode_record
from remoting.record.properties import encode_properties
from tests.support.disks import MemoryDisk
from tests.support.open_guard import OPEN
from tests.support.remoting_broker import Peer
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import BORN_HOST, STORE_HOST, Clock, draft, make_store, put, sync


class Broker:
    """A store, its index, and the processor."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.clock = Clock()
        self.store: MessageStore = make_store(MemoryDisk(), self.clock)
        self.store.load()
        self.store.set_appendable(True)
        self.failures: list[LogboomError] = []
        self.background = Background(
            self.store.followers, lambda: self.store.dispatch_offset, self.turns, lambda: 0.0, self.failures.append
        )
        self.queries = KeyQueries(self.store, self.background, self.turns)
        self.processor = MessageProcessor(self.store, self.queries, OPEN)
        self.peer = Peer()
        self._opaque = 0

    def send(self, body: bytes, *, visible: bool = True, **properties: str) -> AppendResult:
        self.clock.now_ms += 10
        [result] = put(self.store, draft(body, properties=encode_properties(properties)), visible=visible)
        return result

    def ask(self, topic: str = "TopicA", key: str = "k", most: int = 32, **ext: Any) -> Command:
        fields = {"topic": topic, "key": key, "maxNum": most, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
        return self.answer(codes.QUERY_MESSAGE, {**fields, **ext})

    def answer(self, code: int, ext: dict[str, Any]) -> Command:
        self._opaque += 1
        request = Command(code, self._opaque, {name: str(value) for name, value in ext.items()}, b"")
        handler = self.processor.query if code == codes.QUERY_MESSAGE else self.processor.view
        try:
            handler(self.peer, request)  # type: ignore[arg-type]
        except LogboomError as error:
            self.peer.respond_error(request, error)
        self.turns.run(2500)
        return self.peer.answers[self._opaque]

    def bodies(self, **question: Any) -> list[bytes]:
        answer = self.ask(**question)
        assert answer.code == codes.SUCCESS
        return [record.body for record in decode_records(answer.body)]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_by_unique_id_and_by_each_word_of_the_keys(broker: Broker) -> None:
    broker.send(b"a", UNIQ_KEY="U1", KEYS="k order1")
    broker.send(b"b", UNIQ_KEY="U2", KEYS="order2")
    broker.send(b"c", UNIQ_KEY="U3", KEYS="x k  y")
    assert broker.bodies(key="k") == [b"a", b"c"]
    assert broker.bodies(key="y") == [b"c"]
    assert broker.bodies(key="U2", _UNIQUE_KEY_QUERY="true") == [b"b"]
    assert broker.ask(key="order").code == codes.QUERY_NOT_FOUND
    assert broker.ask(topic="TopicB").code == codes.QUERY_NOT_FOUND


def test_the_newest_come_when_there_are_more_than_wanted_and_a_query_by_unique_id_wants_32(broker: Broker) -> None:
    for n in range(100):
        broker.send(b"%d" % n, UNIQ_KEY=f"U{n}", KEYS="k")
    assert broker.bodies(most=2) == [b"98", b"99"]
    assert len(broker.bodies(most=2, _UNIQUE_KEY_QUERY="true")) == 32
    assert len(broker.bodies(most=1000)) == 64
    assert broker.ask(most=0).code == codes.QUERY_NOT_FOUND


def test_the_range_of_time_is_exact_to_the_millisecond(broker: Broker) -> None:
    times = {}
    for n in range(60):
        broker.clock.now_ms += n * 37
        times[
            decode_record(
                broker.store.commitlog.record_at(broker.send(b"%d" % n, KEYS="k").physical_offset) or b""
            ).store_timestamp_ms
        ] = n
    for begin, n in times.items():
        assert broker.bodies(beginTimestamp=begin, endTimestamp=begin) == [b"%d" % n]
    [first, *_, last] = times
    assert broker.ask(beginTimestamp=last + 1).code == codes.QUERY_NOT_FOUND
    assert broker.ask(endTimestamp=first - 1).code == codes.QUERY_NOT_FOUND
    assert broker.ask(beginTimestamp=-5, endTimestamp=-1).code == codes.QUERY_NOT_FOUND


def test_every_answer_says_how_far_the_index_is(broker: Broker) -> None:
    nothing = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
    assert broker.ask().ext == nothing
    place = broker.send(b"a", KEYS="k")
    expected = {
        "indexLastUpdateTimestamp": str(broker.clock.now_ms),
        "indexLastUpdatePhyoffset": str(place.physical_offset),
    }
    assert broker.ask().ext == expected
    missing = broker.ask(key="other")
    assert (missing.code, missing.ext) == (codes.QUERY_NOT_FOUND, expected)
    assert missing.remark


def test_what_consumers_cannot_see_is_not_found(broker: Broker) -> None:
    broker.send(b"a", KEYS="k")
    hidden = broker.send(b"b", visible=False, KEYS="k")
    assert broker.bodies() == [b"a"]
    assert broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": hidden.physical_offset}).code == codes.SYSTEM_ERROR


def test_keys_that_only_share_a_hash_are_told_apart(broker: Broker) -> None:
    broker.send(b"a", KEYS="Aa")
    broker.send(b"b", KEYS="BB")
    assert broker.bodies(key="Aa") == [b"a"]
    assert broker.bodies(key="BB") == [b"b"]


def test_words_beyond_ascii(broker: Broker) -> None:
    broker.send(b"a", KEYS="schlüssel 名 😀")
    assert [broker.bodies(key=key) for key in ("schlüssel", "名", "😀")] == [[b"a"]] * 3


def test_records_larger_than_one_piece_of_the_log(broker: Broker) -> None:
    broker.send(b"x" * 3000, KEYS="k")
    broker.send(b"y" * 3000, KEYS="k")
    assert broker.bodies() == [b"x" * 3000, b"y" * 3000]


@pytest.mark.parametrize(
    "ext",
    [{"topic": ""}, {"key": ""}, {"maxNum": "x"}, {"maxNum": "-1"}, {"beginTimestamp": ""}, {"endTimestamp": 1 << 63}],
)
def test_garbled_questions_are_refused(broker: Broker, ext: dict[str, Any]) -> None:
    assert broker.ask(**ext).code == codes.INVALID_PARAMETER


def test_queries_are_bounded_in_number(broker: Broker) -> None:
    broker.send(b"a", KEYS="k")
    found: list[Found | LogboomError] = []
    question = Question("TopicA", "k", 32, 0, 1 << 62)
    for _ in range(64):
        broker.queries.find(question, found.append)
    with pytest.raises(RequestError, match="running"):
        broker.queries.find(question, found.append)
    broker.turns.run(2500)
    assert len(found) == 64
    assert broker.bodies() == [b"a"]


def test_a_query_answers_when_the_broker_stops(broker: Broker) -> None:
    broker.send(b"a", KEYS="k")
    found: list[Found | LogboomError] = []
    broker.queries.find(Question("TopicA", "k", 32, 0, 1 << 62), found.append)
    broker.background.close()
    broker.turns.run(10)
    assert [type(each) for each in found] == [RequestError]


def test_a_message_by_its_place(broker: Broker) -> None:
    places = [broker.send(b"%d" % n, UNIQ_KEY=f"U{n}") for n in range(40)]
    for n, place in enumerate(places):
        answer = broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": place.physical_offset})
        assert decode_record(answer.body).body == b"%d" % n
    for offset in (
        places[3].physical_offset + 1,
        places[3].end_offset - 8,
        places[-1].end_offset,
        1 << 40,
        (1 << 63) - 1,
    ):
        assert broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": offset}).code == codes.SYSTEM_ERROR


def test_a_body_that_looks_like_a_record_at_its_place_is_no_message(broker: Broker) -> None:
    at = broker.store.commitlog.end_offset + 88
    forged = forge(at)
    assert broker.store.commitlog.record_at(broker.send(forged, KEYS="k").physical_offset + 88) == forged
    assert broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": at}).code == codes.SYSTEM_ERROR
    assert broker.bodies() == [forged]


def forge(at: int) -> bytes:
    return encode_record(
        topic=b"TopicA", queue_id=0, queue_offset=0, physical_offset=at, body=b"forged", properties=b"KEYS\x01k\x02",
        born_timestamp_ms=0, born_host=BORN_HOST, store_timestamp_ms=0, store_host=STORE_HOST,
    )  # fmt: skip


def test_a_message_whose_file_is_gone(broker: Broker) -> None:
    places = [broker.send(b"x" * 900, UNIQ_KEY=f"U{n}", KEYS="k") for n in range(20)]
    assert len(broker.bodies()) == 20
    sync(broker.store)
    broker.store.checkpoint()
    for removal in broker.store.apply_retention(RetentionDecision(2, False)):
        removal()
    gone = [place for place in places if place.physical_offset < broker.store.commitlog.min_offset]
    assert gone
    for place in gone:
        assert broker.answer(codes.VIEW_MESSAGE_BY_ID, {"offset": place.physical_offset}).code == codes.SYSTEM_ERROR
    assert len(broker.bodies()) == 20 - len(gone)


def test_a_damaged_log_stops_the_store(broker: Broker) -> None:
    place = broker.send(b"a", KEYS="k")
    segment = next(iter(broker.store.commitlog._segments.values()))
    segment.file.write(place.physical_offset + 4, (b"\0\0\0\0",))
    assert broker.ask().code == codes.SERVICE_NOT_AVAILABLE
    assert len(broker.failures) == 1
