"""The table of delay levels, and what the queue of a level holds, however it came to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.composition.settings import StoreSection
from brokerd.delay.levels import DEFAULT_DELAYS, code_rules, parse_level, parse_levels, schedule_code
from brokerd.delay.rules import Target, asks_for_delay, bare, deliver, schedule, target_of
from remoting.errors import RequestError, SettingsError
from remoting.java_hash import java_hash
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import decode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import Clock, draft, log_bytes, make_store, open_store, put, sync

RULES = code_rules(DEFAULT_DELAYS)


def test_the_table_is_the_originals() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert [delay // 1000 for delay in DEFAULT_DELAYS] == seconds
    assert parse_levels(" 1s  2m 3h\t1d ") == (1000, 120_000, 10_800_000, 86_400_000)


@pytest.mark.parametrize(
    "text", ["", "1", "s", "-1s", "0s", "1x", "1.5s", "1s 400d", "99999999999s", "\u0661s", "1s " * 65]
)
def test_a_table_that_makes_no_sense_is_refused_at_the_start(text: str) -> None:
    with pytest.raises(SettingsError, match="delay level"):
        StoreSection(delay_levels=text)


@pytest.mark.parametrize(
    ("text", "level"),
    [("", 0), ("0", 0), ("3", 3), ("+3", 3), ("-1", -1), ("007", 7), ("2147483647", 2147483647), ("2147483648", None)]
    + [(text, None) for text in ("x", "1.0", " 1", "1 ", "--1", "+", "1_0", "\u0661", "9" * 5000)],
)
def test_a_level_is_a_number(text: str, level: int | None) -> None:
    assert parse_level(text) == level


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"DELAY": "1", "TAGS": "a"}, 1_001_000),
        ({"DELAY": "18"}, 1_000_000 + 7_200_000),
        ({"DELAY": "99"}, 1_000_000 + 7_200_000),
        ({"TAGS": "a"}, java_hash("a")),
        ({"DELAY": "0", "TAGS": "a"}, java_hash("a")),
        ({"DELAY": "x", "TAGS": "a"}, java_hash("a")),
    ],
)
def test_an_entry_says_when_its_message_is_due(properties: dict[str, str], expected: int) -> None:
    assert schedule_code(encode_properties(properties), 1_000_000, DEFAULT_DELAYS) == expected


def test_every_replica_and_every_rebuild_derives_the_same_times() -> None:
    clock = Clock()
    disk = MemoryDisk()
    store = open_store(disk, clock, rules=RULES)
    for number in range(40):
        clock.now_ms += 137
        properties = encode_properties({"DELAY": str(1 + number % 3), "REAL_TOPIC": "T", "REAL_QID": "0", "TAGS": "a"})
        put(store, draft(b"%d" % number, topic=SCHEDULE_TOPIC, queue_id=number % 3)._replace(properties=properties))
    expected = [store.read_units(SCHEDULE_TOPIC, queue_id, 0, 100) for queue_id in range(3)]
    for queue_id, units in enumerate(expected):
        for physical_offset, _, due_ms in units:
            stored_ms = store.commitlog.store_timestamp_at(physical_offset)
            assert due_ms == stored_ms + DEFAULT_DELAYS[queue_id]
    replica = make_store(MemoryDisk(), Clock(5), rules=RULES)
    replica.load()
    replica.append_replicated(0, log_bytes(store))
    while replica.dispatch(replica.commitlog.end_offset):
        pass
    assert [replica.read_units(SCHEDULE_TOPIC, queue_id, 0, 100) for queue_id in range(3)] == expected
    sync(store)
    store.close()
    disk.remove("consumequeue")
    again = open_store(disk, clock, rules=RULES)
    assert [again.read_units(SCHEDULE_TOPIC, queue_id, 0, 100) for queue_id in range(3)] == expected


def test_the_table_is_a_setting() -> None:
    store = open_store(MemoryDisk(), Clock(1000), rules=code_rules(StoreSection(delay_levels="7s").delays))
    put(store, draft(topic=SCHEDULE_TOPIC)._replace(properties=encode_properties({"DELAY": "2"})))
    assert store.read_units(SCHEDULE_TOPIC, 0, 0, 1)[0][2] == 8000


names = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\x01\x02"), min_size=1, max_size=30
)


@given(names, st.integers(0, 100), st.integers(1, 40), st.dictionaries(names, names, max_size=5))
def test_what_is_delivered_is_what_was_sent(topic: str, queue_id: int, level: int, others: dict[str, str]) -> None:
    others = {name: value for name, value in others.items() if name not in ("DELAY", "REAL_TOPIC", "REAL_QID")}
    properties = {**others, "DELAY": str(level)}
    message = draft(topic=topic, queue_id=queue_id, reconsume_times=3)._replace(
        properties=encode_properties(properties)
    )
    waiting = schedule(message, DEFAULT_DELAYS)
    if waiting is message:  # a name of the system
        return
    assert (waiting.topic, waiting.queue_id) == (SCHEDULE_TOPIC, min(level, 18) - 1)
    store = open_store(MemoryDisk())
    put(store, waiting)
    record = decode_record(store.read_messages(SCHEDULE_TOPIC, waiting.queue_id, 0, 1, 1 << 20).records[0])
    target = target_of(record.property_map())
    assert target == Target(topic, queue_id)
    delivered = deliver(record, target)
    assert delivered._replace(properties=b"") == message._replace(properties=b"")
    kept = decode_properties(delivered.properties)
    assert {name: kept[name] for name in others} == others
    without = bare(delivered)
    assert decode_properties(without.properties) == decode_properties(encode_properties(others))


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", SCHEDULE_TOPIC, "rmq_sys_anything"])
def test_nothing_of_the_system_is_delayed_or_delivered_to(topic: str) -> None:
    message = draft(topic=topic)._replace(properties=encode_properties({"DELAY": "3"}))
    assert schedule(message, DEFAULT_DELAYS) is message
    store = open_store(MemoryDisk())
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": topic, "REAL_QID": "0"})
    put(store, draft(topic=SCHEDULE_TOPIC)._replace(properties=properties))
    record = decode_record(store.read_messages(SCHEDULE_TOPIC, 0, 0, 1, 1 << 20).records[0])
    assert target_of(record.property_map()) is None


@pytest.mark.parametrize("level", ["0", "-3"])
def test_a_level_of_nothing_delays_nothing(level: str) -> None:
    message = draft()._replace(properties=encode_properties({"DELAY": level}))
    assert schedule(message, DEFAULT_DELAYS) is message
    assert not asks_for_delay(message.properties)


def test_where_there_is_no_room_for_the_target_the_message_is_refused() -> None:
    properties = encode_properties({"DELAY": "3", "K": "v" * (MAX_PROPERTIES_BYTES - 20)})
    with pytest.raises(RequestError, match="at most"):
        schedule(draft()._replace(properties=properties), DEFAULT_DELAYS)
