"""Messages that consumers could not handle, on a whole core: sent back by their place (code 36) or sent to the retry topic, they
come back at their level's time with their count, and end as dead letters; also through a change of the master."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.consuming.queue_locks import LOCK_MS, QueueLocks
from brokerd.delay.levels import DEFAULT_DELAYS
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.pop import copies
from brokerd.replication.roles.effects import Role
from brokerd.retry.rules import limit_of
from brokerd.retry.service import RetryRules, RetryService, SentBack
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.names import SCHEDULE_TOPIC
from remoting.record.checksum import without
from remoting.record.codec import Record, decode_record, encode_record
from remoting.record.hosts import offset_message_id
from remoting.record.properties import encode_properties
from tests.support.open_guard import anybody_may
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.store.stores import STORE_HOST, draft

NEW_CLIENT, OLD_CLIENT = 121, 120
RETRY, DEAD = "%RETRY%g", "%DLQ%g"


class RetryBroker(Broker):
    """A broker with the service, whose group g wants `retry_max_times`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.locks = QueueLocks()
        self.retry = RetryService(
            self.core.metadata,
            self.core.store,
            self.core.record_log,
            self.core.sender.turn_of,
            RetryRules(
                DEFAULT_DELAYS,
                lambda group: self.locks.is_locked(group, self.turns.monotonic_ms()),
                auto_create_groups=True,
            ),
            self.core.retry_counters,
        )

    def group(self, name: str = "g", **fields: Any) -> None:
        self.change(lambda done: self.core.metadata.put_group(GroupConfig(name, **fields), done))

    def put(self, body: bytes = b"hello", topic: str = "T", reconsume_times: int = 0, **properties: str) -> int:
        """Store a message; where it is."""
        encoded = encode_properties({"UNIQ_KEY": "U", "TAGS": "a", **properties})
        message = draft(body, topic=topic, queue_id=0, flag=7, reconsume_times=reconsume_times)
        (place,) = self.core.store.append_messages([message._replace(properties=encoded)])
        self.core.appends.appended(place.end_offset)
        self.turns.run(1)
        return place.physical_offset

    def back(self, offset: int, level: int = 0, *, group: str = "g", limit: int | None = None, version: int = 479,
             unit_mode: bool = False) -> LogboomError | None:  # fmt: skip
        """Send a message back; why that failed, or None."""
        answers: list[RequestError | None] = []
        try:
            self.retry.send_back(SentBack(group, offset, level, limit, version, unit_mode), answers.append, anybody_may)
        except LogboomError as error:
            return error
        self.turns.run(1)
        (answer,) = answers
        return answer

    def sent_again(self, times: int, limit: int | None = None, version: int = 479, topic: str = RETRY) -> Draft:
        message = draft(topic=topic, reconsume_times=times)
        properties = {
            "UNIQ_KEY": "U",
            "RETRY_TOPIC": "T",
            "DELAY": "5",
            "WAIT": "false",
            "REAL_TOPIC": "T",
            "REAL_QID": "1",
        }
        return self.retry.sent_again(message._replace(properties=encode_properties(properties)), limit, version)

    def stored(self, topic: str, queue_id: int = 0) -> list[Record]:
        found = self.core.store.read_messages(topic, queue_id, 0, 1000, 1 << 24).records
        return [decode_record(each) for each in found]


@pytest.fixture
def broker() -> RetryBroker:
    return RetryBroker()


def test_what_is_sent_back_waits_at_its_level_and_comes_with_a_higher_count(broker: RetryBroker) -> None:
    place = broker.put(KEYS="k")
    assert broker.back(place) is None
    (waiting,) = broker.stored(SCHEDULE_TOPIC, 2)
    assert broker.stored(RETRY) == []
    broker.turns.run(9900)
    assert broker.stored(RETRY) == []
    broker.turns.run(200)
    (copy,) = broker.stored(RETRY)
    (original,) = broker.stored("T")
    same = ("body", "flag", "sys_flag", "born_timestamp_ms", "born_host")
    assert [getattr(copy, name) for name in same] == [getattr(original, name) for name in same]
    assert copy.reconsume_times == waiting.reconsume_times == 1
    assert copy.property_map() == {
        "UNIQ_KEY": "U", "TAGS": "a", "KEYS": "k", "RETRY_TOPIC": "T", "DELAY": "3", "REAL_TOPIC": RETRY, "REAL_QID": "0",
        "ORIGIN_MESSAGE_ID": offset_message_id(STORE_HOST, place),
    }  # fmt: skip


def test_who_counts_hears_of_the_topic_that_was_consumed(broker: RetryBroker) -> None:
    heard: list[tuple[str, str]] = []
    broker.retry.listeners.append(lambda topic, group: heard.append((topic, group)))
    assert broker.back(broker.put()) is None
    assert broker.back(broker.put(topic=RETRY, RETRY_TOPIC="T")) is None
    assert heard == [("T", "g")] * 2


def test_a_message_fails_until_it_is_a_dead_letter(broker: RetryBroker) -> None:
    broker.group(retry_max_times=3)
    first = place = broker.put()
    for times in range(3):
        assert broker.back(place) is None
        broker.turns.run(DEFAULT_DELAYS[2 + times] - 100)
        assert len(broker.stored(RETRY)) == times, "the wait grows with the count"
        broker.turns.run(200)
        latest = broker.stored(RETRY)[-1]
        assert (latest.reconsume_times, latest.property_map()["RETRY_TOPIC"]) == (times + 1, "T")
        place = latest.physical_offset
    assert broker.back(place) is None
    broker.turns.run(10_000_000)
    assert len(broker.stored(RETRY)) == 3
    (dead,) = broker.stored(DEAD)
    assert (dead.body, dead.reconsume_times) == (b"hello", 4)
    assert dead.property_map() == {
        "UNIQ_KEY": "U", "TAGS": "a", "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": offset_message_id(STORE_HOST, first),
        "DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "U",
    }  # fmt: skip
    assert broker.core.metadata.topic(DEAD) == TopicConfig(DEAD, 1, 1, 6)
    assert (broker.retry.counters.returned, broker.retry.counters.dead_lettered) == (3, 1)
    counted = {topic: figure.value for topic, figure in broker.core.counters.statistics.topic_put.items()}
    assert counted == {RETRY: 3, DEAD: 1}, "what the broker made itself, without its own records"


def test_a_message_goes_through_a_change_of_the_master_until_it_is_a_dead_letter() -> None:
    broker = RetryBroker()
    broker.group(retry_max_times=2)
    place = broker.put()
    for times in range(2):
        assert broker.back(place) is None
        broker.turns.run(3000)
        then_ms = broker.turns.wall_ms()
        broker.core.close()
        broker.core.store.close()
        broker = RetryBroker(broker.disk)
        broker.group(retry_max_times=2)
        broker.replica.become(Role.REPLICA, 2)
        broker.turns.set_wall_clock(then_ms - broker.turns.wall_ms())
        broker.replica.become(Role.MASTER, 3)
        broker.turns.run(DEFAULT_DELAYS[2 + times] - 3100)
        assert len(broker.stored(RETRY)) == times
        broker.turns.run(200)
        place = broker.stored(RETRY)[-1].physical_offset
    assert broker.stored(RETRY)[-1].reconsume_times == 2
    assert broker.back(place) is None
    assert [record.reconsume_times for record in broker.stored(DEAD)] == [3]


def test_dead_letters_look_alike_whichever_way_a_message_was_consumed(broker: RetryBroker) -> None:
    broker.group(retry_max_times=0)
    place = broker.put(DELAY="4", REAL_TOPIC="T", REAL_QID="0")
    assert broker.back(place) is None
    encoded = broker.core.store.message_at(place)
    assert encoded is not None
    popped = copies.dead_letter("g", "T", encoded, 1)
    broker.core.appends.appended(broker.core.store.append_messages([popped])[-1].end_offset)
    broker.turns.run(1)
    one, other = broker.stored(DEAD)
    neither = dict.fromkeys(("queue_offset", "physical_offset", "store_timestamp_ms"), 0)
    one, other = (each._replace(**neither, properties=without(each.properties)) for each in (one, other))
    assert one == other
    assert "DELAY" not in one.property_map()


@pytest.mark.parametrize(("times", "ends"), [(1, False), (2, True), (3, True)])
def test_the_limit_is_reached_when_it_was_delivered_again_so_often(broker: RetryBroker, times: int, ends: bool) -> None:
    broker.group(retry_max_times=2)
    assert broker.back(broker.put(reconsume_times=times, topic=RETRY)) is None
    assert bool(broker.stored(DEAD)) is ends


@pytest.mark.parametrize(("times", "ends"), [(2, False), (3, True)])
def test_a_message_that_is_sent_again_is_over_the_limit_only_above_it(
    broker: RetryBroker, times: int, ends: bool
) -> None:
    broker.group(retry_max_times=2)
    assert (broker.sent_again(times).topic == DEAD) is ends


def test_a_client_says_how_often_if_it_is_not_too_old() -> None:
    group = GroupConfig("g", retry_max_times=16)
    assert limit_of(group, 5, NEW_CLIENT) == 5
    assert limit_of(group, 0, NEW_CLIENT) == 0
    assert limit_of(group, 5, OLD_CLIENT) == 16
    assert limit_of(group, None, NEW_CLIENT) == 16


@pytest.mark.parametrize(("version", "ends"), [(NEW_CLIENT, True), (OLD_CLIENT, False)])
def test_the_clients_limit_counts_both_ways(broker: RetryBroker, version: int, ends: bool) -> None:
    assert broker.back(broker.put(), limit=0, version=version) is None
    assert bool(broker.stored(DEAD)) is ends
    assert (broker.sent_again(1, limit=0, version=version).topic == DEAD) is ends


def test_a_consumer_may_ask_for_the_dead_letter_or_for_a_level(broker: RetryBroker) -> None:
    assert broker.back(broker.put(b"1"), -1) is None
    assert [record.body for record in broker.stored(DEAD)] == [b"1"]
    assert broker.back(broker.put(b"2"), 1) is None
    assert broker.back(broker.put(b"3"), 99) is None
    assert [record.body for record in broker.stored(SCHEDULE_TOPIC, 0)] == [b"2"]
    assert [record.body for record in broker.stored(SCHEDULE_TOPIC, 17)] == [b"3"]


def test_groups_are_made_if_they_may_be(broker: RetryBroker) -> None:
    assert broker.back(broker.put(), group="new") is None
    assert broker.core.metadata.group("new") == GroupConfig("new")
    broker.retry._rules = broker.retry._rules._replace(auto_create_groups=False)
    error = broker.back(broker.put(), group="another")
    assert error is not None
    assert error.code == codes.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_group_without_retry_queues_gets_nothing_back(broker: RetryBroker) -> None:
    broker.group(retry_queue_nums=0)
    end = broker.core.store.commitlog.end_offset
    assert broker.back(12345) is None
    assert broker.core.store.commitlog.end_offset == end


def test_the_retry_topic_has_the_groups_queues_and_all_are_used(broker: RetryBroker) -> None:
    broker.group(retry_queue_nums=3)
    for _ in range(3):
        assert broker.back(broker.put(), 1, unit_mode=True) is None
    broker.turns.run(1100)
    assert broker.core.metadata.topic(RETRY) == TopicConfig(RETRY, 3, 3, 6, 2)
    assert [len(broker.stored(RETRY, queue_id)) for queue_id in range(3)] == [1, 1, 1]


def test_more_queues_of_the_group_than_of_its_topic_lose_nothing(broker: RetryBroker) -> None:
    assert broker.sent_again(1).topic == RETRY
    broker.group(retry_queue_nums=4)
    for _ in range(4):
        assert broker.back(broker.put(), 1) is None
    broker.turns.run(1100)
    assert len(broker.stored(RETRY)) == 4


def test_a_retry_topic_that_takes_nothing_says_so(broker: RetryBroker) -> None:
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig(RETRY, 1, 1, 4), done))
    error = broker.back(broker.put())
    assert error is not None
    assert (error.code, "no write" in str(error)) == (codes.NO_PERMISSION, True)


def test_only_the_place_of_a_message_is_one(broker: RetryBroker) -> None:
    """Also when the bytes inside of a body look like a record that belongs exactly there."""
    start = broker.core.store.commitlog.end_offset
    inside = start + 88
    forged = encode_record(
        topic=b"T", queue_id=1, queue_offset=0, physical_offset=inside, body=b"forged",
        properties=b"", born_timestamp_ms=1, born_host=bytes(8), store_timestamp_ms=1, store_host=STORE_HOST,
    )  # fmt: skip
    place = broker.put(forged)
    assert broker.core.store.read_physical(inside) == forged, (
        "which is what such a body does to a look at the log alone"
    )
    for offset in (inside, place + 1, place + 4, 1 << 62, broker.core.store.commitlog.end_offset):
        error = broker.back(offset)
        assert error is not None
        assert error.code == codes.SYSTEM_ERROR
    assert broker.back(place) is None


def test_a_message_that_is_not_confirmed_yet_cannot_be_sent_back(broker: RetryBroker) -> None:
    broker.replica.on_appended = lambda end_offset: None  # type: ignore[method-assign]
    error = broker.back(broker.put())
    assert error is not None
    assert error.code == codes.SYSTEM_ERROR


def test_the_answer_waits_until_the_copy_is_acknowledged(broker: RetryBroker) -> None:
    place = broker.put()
    waits: list[Any] = []
    broker.core.appends.wait = lambda position, callback: waits.append(callback)
    answers: list[RequestError | None] = []
    for level in (1, -1):
        broker.retry.send_back(SentBack("g", place, level, None, 479), answers.append, anybody_may)
    assert (answers, len(waits)) == ([], 2)
    waits[0](PutStatus.PUT_OK)
    waits[1](PutStatus.FLUSH_SLAVE_TIMEOUT)
    assert answers[0] is None
    assert answers[1] is not None
    assert "FLUSH_SLAVE_TIMEOUT" in str(answers[1])


def test_a_replica_takes_nothing_back(broker: RetryBroker) -> None:
    place = broker.put()
    assert broker.back(place) is None
    broker.replica.become(Role.REPLICA, 2)
    error = broker.back(place)
    assert error is not None
    assert error.code == codes.SERVICE_NOT_AVAILABLE


def test_a_send_to_the_retry_topic_of_a_group_makes_the_topic_and_waits_for_storage(broker: RetryBroker) -> None:
    found = broker.sent_again(1)
    assert (found.topic, found.queue_id) == (RETRY, 0)
    assert broker.core.metadata.topic(RETRY) == TopicConfig(RETRY, 1, 1, 6)
    outcomes: list[Any] = []
    broker.core.sender.send([found], outcomes.extend)
    broker.turns.run(1)
    (waiting,) = broker.stored(SCHEDULE_TOPIC, 4)
    properties = waiting.property_map()
    assert (properties["REAL_TOPIC"], properties["DELAY"], waiting.reconsume_times) == (RETRY, "5", 1)
    assert "WAIT" not in properties


@pytest.mark.parametrize("topic", ["%RETRY%nobody", "%RETRY%", "%RETRY%nobody+T"])
def test_a_send_to_the_retry_topic_of_nobody_is_refused(broker: RetryBroker, topic: str) -> None:
    with pytest.raises(RequestError) as refusal:
        broker.sent_again(1, topic=topic)
    assert refusal.value.code == codes.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.core.metadata.topic(topic) is None


def test_what_an_ordered_consumer_gives_up_is_a_dead_letter_at_once(broker: RetryBroker) -> None:
    broker.locks.lock("other", "c", [("T", 0)], broker.turns.monotonic_ms())
    assert broker.sent_again(1).topic == RETRY
    broker.locks.lock("g", "c", [("T", 0)], broker.turns.monotonic_ms())
    dead = broker.sent_again(1)
    assert (dead.topic, dead.queue_id) == (DEAD, 0)
    outcomes: list[Any] = []
    broker.core.sender.send([dead], outcomes.extend)
    broker.turns.run(1)
    (record,) = broker.stored(DEAD)
    properties = record.property_map()
    assert {name: properties[name] for name in ("DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "RETRY_TOPIC")} == {
        "DLQ_ORIGIN_TOPIC": "T",
        "DLQ_ORIGIN_MESSAGE_ID": "U",
        "RETRY_TOPIC": "T",
    }
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID", "WAIT"} & properties.keys()
    broker.turns.run(LOCK_MS)
    assert broker.sent_again(1).topic == RETRY, "the lock has expired"


def test_a_dead_letter_that_fails_again_counts_anew_and_keeps_its_place(broker: RetryBroker) -> None:
    broker.group(retry_max_times=1)
    assert broker.back(broker.put(), -1) is None
    (dead,) = broker.stored(DEAD)
    assert broker.back(dead.physical_offset, 1) is None
    broker.turns.run(1100)
    (copy,) = broker.stored(RETRY)
    assert (copy.reconsume_times, copy.property_map()["RETRY_TOPIC"]) == (1, DEAD)
    assert broker.back(copy.physical_offset) is None
    assert len(broker.stored(DEAD)) == 1


def test_deleting_a_group_takes_its_retry_topic_with_it(broker: RetryBroker) -> None:
    assert broker.back(broker.put(), 2) is None
    broker.change(lambda done: broker.core.metadata.delete_group("g", done))
    assert broker.core.metadata.topic(RETRY) is None
    broker.group()
    broker.turns.run(6000)
    assert broker.stored(RETRY) == [], "a later group of the name does not get them"
