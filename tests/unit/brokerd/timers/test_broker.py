"""Timers in a whole broker: over the real store, through starts, and for those who look at it."""

from __future__ import annotations

import struct

from brokerd.composition.timer_families import timer_families
from brokerd.delay.rules import REAL_QUEUE, REAL_TOPIC
from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.names import METADATA_TOPIC
from brokerd.placement.service import PLACEMENTS_TOPIC
from brokerd.pop.records import POP_TOPIC
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.start.checkpoint_page import PATH as CHECKPOINT
from brokerd.store.start.watermark import TOPIC as WATERMARK_TOPIC
from brokerd.timers.codes import DUE_MS, MESSAGE, SLOT_MS, encode_code, slot_of
from brokerd.timers.cursor import TIMERS_TOPIC
from brokerd.timers.files.page import PATH as TIMER_PAGE
from brokerd.timers.interface import Recalled
from remoting import codes
from remoting.exposition import render
from remoting.names import TIMER_TOPIC, is_journal_topic
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.store.stores import draft


def put(broker: Broker, body: bytes, ahead_ms: int) -> Recalled:
    core = broker.core
    due_ms = max(core.timers.least_due_ms, core.timers.now_ms() + ahead_ms)
    properties = {"UNIQ_KEY": body.decode(), REAL_TOPIC: "T", REAL_QUEUE: "1", DUE_MS: str(due_ms)}
    message = draft(body, topic=TIMER_TOPIC)._replace(properties=encode_properties(properties))
    (place,) = core.record_log.append_placed([message])
    return Recalled("T", body.decode(), place.queue_offset, due_ms)


def bodies(broker: Broker) -> list[bytes]:
    found = broker.core.store.read_messages("T", 1, 0, 100, 1 << 20).records
    return [decode_record(each).body for each in found]


def run(broker: Broker, ms: int) -> None:
    """Time passes, and what is appended is confirmed."""
    for _ in range(ms // 10):
        broker.turns.run(10)
        broker.replica.on_appended(broker.core.store.commitlog.end_offset)
    broker.turns.run(1)


def test_a_timer_waits_in_its_queue_and_is_delivered_over_a_start() -> None:
    broker = Broker()
    timer = put(broker, b"first", 300)
    put(broker, b"second", 600)
    run(broker, 200)
    [(_, _, code)] = broker.core.store.read_units(TIMER_TOPIC, 0, 0, 1)
    assert code == encode_code(timer.due_ms, MESSAGE)
    run(broker, 200)
    assert bodies(broker) == [b"first"]
    broker = broker.restart()
    broker.turns.set_wall_clock(500)
    assert broker.core.timers.state().waiting == 1
    run(broker, 2000)
    assert bodies(broker) == [b"first", b"second"]
    assert broker.core.timers.state().waiting == 0


def test_what_rocketmq_delivered_in_between_does_not_come_again() -> None:
    """It goes on with the log and has no use for our journal; a start finds its files, and a checkpoint that is not ours."""
    broker = Broker()
    timers = [put(broker, body, ahead_ms) for body, ahead_ms in ((b"a", 300), (b"b", 3000), (b"c", 9000))]
    put(broker, b"d", 3000)  # it came to this one last, and had not put it into a slot
    run(broker, 400)
    assert bodies(broker) == [b"a"]
    broker.core.close()
    broker.core.store.close()
    page = broker.disk.read_bytes(TIMER_PAGE)
    assert page is not None
    read_ms = slot_of(timers[1].due_ms) + SLOT_MS
    broker.disk.replace_bytes(TIMER_PAGE, struct.pack(">qqqq", read_ms, 0, 3, 3) + page[32:])
    broker.disk.replace_bytes(CHECKPOINT, bytes(4096))
    broker = Broker(broker.disk)
    run(broker, 100)
    assert bodies(broker) == [b"a", b"d"]
    assert broker.core.timers.state().waiting == 1
    broker = broker.restart()
    run(broker, 9500)
    assert bodies(broker) == [b"a", b"d", b"c"]


def test_a_clock_is_held_against_what_the_log_had_not_what_this_one_stamps() -> None:
    broker = Broker()
    put(broker, b"first", 300)
    run(broker, 400)
    stored_ms = broker.turns.wall_ms()
    broker = broker.restart()
    broker.turns.set_wall_clock(86_400_000)
    store = broker.core.store
    assert store.next_timestamp() > stored_ms + 80_000_000, "as the names of messages begin with at each start"
    assert 0 < store.found_timestamp_ms <= stored_ms


def test_a_recall_holds_over_a_start_too() -> None:
    broker = Broker()
    timer = put(broker, b"first", 300)
    run(broker, 20)
    answers: list[object] = []
    broker.core.timers.recall(timer, answers.append)
    run(broker, 20)
    assert answers == [None]
    broker = broker.restart()
    run(broker, 2000)
    assert bodies(broker) == []
    state = broker.core.timers.state()
    assert (state.recalled, state.waiting) == (1, 0)


def test_nobody_is_given_records_of_the_brokers_journals() -> None:
    """One of them is the key that handles are made with; consumers give back, and tools look up, what they name by its place."""
    broker = Broker()
    store = broker.core.store
    key = broker.core.timers.recall_key()
    put(broker, b"first", 300)
    run(broker, 20)
    (place, size, _), *_ = store.read_units(TIMERS_TOPIC, 0, 0, 1)
    assert key is not None
    assert key.hex().encode() in broker.core.record_log.record_at(place, size)
    for topic in broker.core.timers.own_topics | {METADATA_TOPIC, POP_TOPIC, PLACEMENTS_TOPIC, WATERMARK_TOPIC}:
        units = store.read_units(topic, 0, 0, 100)
        shown = [store.message_at(unit[0]) is not None for unit in units]
        assert shown == [topic == TIMER_TOPIC] * len(units), topic
    assert not is_journal_topic(TIMER_TOPIC)
    assert all(map(is_journal_topic, (METADATA_TOPIC, POP_TOPIC, PLACEMENTS_TOPIC, TIMERS_TOPIC, WATERMARK_TOPIC)))


def test_clients_neither_send_to_the_timer_topic_nor_create_it() -> None:
    broker = Broker()
    outcomes: list[SendOutcome] = []
    broker.core.sender.send([draft(b"x", topic=TIMER_TOPIC)], outcomes.extend)
    assert outcomes[0].error is not None
    assert outcomes[0].error.code == codes.NO_PERMISSION
    answers: list[object] = []
    broker.core.metadata.put_topic(TopicConfig(TIMER_TOPIC, 4, 4), answers.append)
    broker.turns.run(10)
    assert answers != [None]


def test_what_is_delivered_is_counted_and_told() -> None:
    broker = Broker()
    put(broker, b"first", 300)
    put(broker, b"second", 10_000)
    run(broker, 400)
    text = render(timer_families(broker.core.timers)).decode()
    assert "\nlogboom_timers_waiting 1\n" in text
    assert "\nlogboom_timers_near 1\n" in text
    assert "\nlogboom_timers_delivered_total 1\n" in text
    assert "\nlogboom_timers_late_seconds_count 1\n" in text
