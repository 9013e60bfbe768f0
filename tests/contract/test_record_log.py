"""What every `RecordLog` does: the one over a store, and the one in memory that tests of tables and services use."""

from __future__ import annotations

import pytest

from brokerd.composition.log_access import Appends, StoreRecordLog, StoreReplicatedLog
from brokerd.delay.levels import DEFAULT_DELAYS, code_rules
from brokerd.statistics.figures import Statistics
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.transactions.topics import TransactionLog
from remoting.errors import NotMaster, RequestError, StorageError
from remoting.java_hash import java_hash
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import Record, decode_record
from remoting.record.layout import MAX_PROPERTIES_BYTES, SYS_TRANSACTION_PREPARED
from tests.support.alone import AloneReplica
from tests.support.disks import MemoryDisk
from tests.support.memory_log import MemoryRecordLog, draft
from tests.unit.brokerd.store.stores import STORE_HOST, Clock, dispatch_all, open_store

TOPIC = "rmq_sys_table"


class OverMemory:
    """The twin."""

    def __init__(self) -> None:
        memory = MemoryRecordLog()
        memory.dispatches = False
        self.memory = memory
        self.log: TransactionLog = memory

    def dispatch(self) -> None:
        self.memory.dispatch()

    def cut(self, end_offset: int) -> None:
        self.memory.cut(end_offset)

    def resign(self) -> None:
        self.memory.is_master = False


class OverStore:
    """The real one; its store is on a disk in memory, in small files."""

    def __init__(self) -> None:
        clock = Clock()
        self.store = store = open_store(MemoryDisk(), clock, rules=code_rules(DEFAULT_DELAYS))
        self.replica = AloneReplica(StoreReplicatedLog(store, lambda: None), 0)
        self.replica.is_master = True
        appends = Appends(store, self.replica, lambda: None)
        self.log: TransactionLog = StoreRecordLog(store, appends, clock, STORE_HOST, Statistics(0))

    def dispatch(self) -> None:
        dispatch_all(self.store)

    def cut(self, end_offset: int) -> None:
        self.store.truncate(end_offset)

    def resign(self) -> None:
        self.replica.is_master = False
        self.store.set_appendable(False)


Subject = OverMemory | OverStore


@pytest.fixture(params=[OverMemory, OverStore], ids=["memory", "store"])
def subject(request: pytest.FixtureRequest) -> Subject:
    made: Subject = request.param()
    return made


def records(log: TransactionLog, topic: str = TOPIC, queue_id: int = 0) -> list[Record]:
    """What can be read of a queue."""
    low, high = log.queue_range(topic, queue_id)
    return [decode_record(log.record_at(unit[0], unit[1])) for unit in log.read_units(topic, queue_id, low, high - low)]


def test_a_record_is_appended_at_once_and_read_when_it_was_dispatched(subject: Subject) -> None:
    log = subject.log
    assert (log.end_offset, log.queue_range(TOPIC, 0), log.read_units(TOPIC, 0, 0, 9)) == (0, (0, 0), [])
    end_offset = log.append(TOPIC, "add", b"{}")
    assert log.end_offset == end_offset > 0
    assert log.queue_range(TOPIC, 0) == (0, 0)
    unit = (0, end_offset, java_hash("add"))
    assert list(log.undispatched_units(TOPIC)) == [unit]
    assert log.dispatch_offset == 0
    subject.dispatch()
    assert log.dispatch_offset == end_offset
    assert log.queue_range(TOPIC, 0) == (0, 1)
    assert list(log.read_units(TOPIC, 0, 0, 9)) == [unit]
    assert list(log.undispatched_units(TOPIC)) == []
    (record,) = records(log)
    assert (record.topic, record.queue_id, record.queue_offset, record.physical_offset) == (TOPIC, 0, 0, 0)
    assert (record.body, record.property_map()) == (b"{}", {"TAGS": "add"})


def test_entries_are_read_from_where_and_as_many_as_was_asked(subject: Subject) -> None:
    ends = [subject.log.append(TOPIC, f"k{n}", b"%d" % n) for n in range(200)]
    subject.dispatch()
    units = subject.log.read_units(TOPIC, 0, 0, 1000)
    assert [physical_offset + size for physical_offset, size, _ in units] == ends, (
        "records in order, some behind a filler"
    )
    assert list(subject.log.read_units(TOPIC, 0, 150, 3)) == list(units[150:153])
    assert list(subject.log.read_units(TOPIC, 0, 198, 5)) == list(units[198:])
    assert list(subject.log.read_units(TOPIC, 0, 200, 5)) == []
    assert list(subject.log.units_at(TOPIC, 0, [150, 3, 4, 199, 0])) == [units[n] for n in (150, 3, 4, 199, 0)]
    assert list(subject.log.units_at(TOPIC, 0, [198, 199, 200, 3])) == list(units[198:])
    assert list(subject.log.units_at(TOPIC, 0, [])) == list(subject.log.units_at("another", 0, [0])) == []
    assert [record.body for record in records(subject.log)] == [b"%d" % n for n in range(200)]


def test_messages_go_together_and_each_is_told_where_it_went(subject: Subject) -> None:
    log = subject.log
    log.append_messages([draft("T", b"0", 1)])
    drafts = [draft("T", b"a", 1), draft("T", b"b", 0), draft("U", b"c", 2), draft("T", b"d", 1)]
    places = log.append_placed(drafts)
    assert [place.queue_offset for place in places] == [1, 0, 0, 2]
    assert [place.end_offset for place in places] == [place.physical_offset + place.size for place in places]
    assert [place.physical_offset for place in places[1:]] == [place.end_offset for place in places[:-1]]
    assert log.end_offset == places[-1].end_offset
    for each, place in zip(drafts, places, strict=True):
        record = decode_record(log.record_at(place.physical_offset, place.size))
        assert (record.topic, record.body, record.queue_id) == (each.topic, each.body, each.queue_id)
        assert record.queue_offset == place.queue_offset
    subject.dispatch()
    assert [record.body for record in records(log, "T", 1)] == [b"0", b"a", b"d"]


def test_what_is_not_dispatched_is_told_of_queue_0_of_a_topic(subject: Subject) -> None:
    subject.log.append(TOPIC, "add", b"1")
    subject.dispatch()
    subject.log.append_messages([draft(TOPIC, b"2", tag="b"), draft(TOPIC, b"x", 1), draft("T", b"y")])
    subject.log.append(TOPIC, "add", b"3")
    units = subject.log.undispatched_units(TOPIC)
    assert [decode_record(subject.log.record_at(unit[0], unit[1])).body for unit in units] == [b"2", b"3"]
    assert [unit[2] for unit in units] == [java_hash("b"), java_hash("add")]


def test_a_record_follows_messages_with_nothing_between(subject: Subject) -> None:
    log = subject.log
    for number in range(40):  # also where a file of the store ends
        end_offset = log.append_trailing([draft("T", b"a"), draft("T", b"b")], TOPIC, "end", b"%d" % number)
        assert log.end_offset == end_offset
    assert log.append_trailing([], TOPIC, "end", b"40") == log.end_offset
    subject.dispatch()
    ends = [record.physical_offset for record in records(log)]
    assert [record.body for record in records(log)] == [b"%d" % number for number in range(41)]
    for end, (first, second) in zip(ends[:-1], zip(*[iter(records(log, "T"))] * 2, strict=True), strict=True):
        assert first.physical_offset + first.size == second.physical_offset
        assert second.physical_offset + second.size == end
    before = log.end_offset
    with pytest.raises(RequestError):
        log.append_trailing([draft("T", b"x", -1)], TOPIC, "end", b"41")
    assert log.end_offset == before


def test_a_record_leads_messages_with_nothing_between(subject: Subject) -> None:
    log = subject.log
    for number in range(40):  # also where a file of the store ends
        record_end, end_offset = log.append_leading(
            TOPIC, "begin", b"%d" % number, [draft("T", b"a"), draft("T", b"b")]
        )
        assert log.end_offset == end_offset
        at = record_end
        for body in (b"a", b"b"):
            encoded = log.find_record(at)
            assert encoded is not None
            assert decode_record(encoded).body == body
            at += len(encoded)
        assert at == end_offset
    record_end, end_offset = log.append_leading(TOPIC, "begin", b"40", [])
    assert record_end == end_offset
    subject.dispatch()
    assert [record.body for record in records(log)] == [b"%d" % number for number in range(41)]
    with pytest.raises(RequestError):
        log.append_leading(TOPIC, "begin", b"41", [draft("T", b"x", -1)])
    assert log.end_offset == end_offset


def test_codes_of_what_was_appended_and_is_not_dispatched(subject: Subject) -> None:
    log = subject.log
    log.append(TOPIC, "old", b"1")
    subject.dispatch()
    start = log.append(TOPIC, "before", b"2")
    log.append_messages([draft(TOPIC, b"x", 1, tag="no"), draft("T", b"y", tag="no")])
    for _ in range(3):
        log.append(TOPIC, "same", b"3")
    log.append(TOPIC, "last", b"4")
    codes = [java_hash(kind) for kind in ("same", "same", "same", "last")]
    assert log.undispatched_codes(TOPIC, start) == codes
    assert log.undispatched_codes(TOPIC, log.end_offset) == []
    subject.dispatch()
    assert log.undispatched_codes(TOPIC, start) == []


def test_codes_that_would_have_to_be_read_are_not_told() -> None:
    over = OverStore()
    over.log.append(TOPIC, "add", b"1")
    over.store.dispatcher.restart(0)  # as where many entries waited
    start = over.log.append(TOPIC, "add", b"2")
    assert over.log.undispatched_codes(TOPIC, 0) is None
    assert over.log.undispatched_codes(TOPIC, start) == []


def test_who_is_not_the_master_appends_nothing(subject: Subject) -> None:
    end_offset = subject.log.append(TOPIC, "add", b"1")
    subject.resign()
    with pytest.raises(NotMaster):
        subject.log.append(TOPIC, "add", b"2")
    with pytest.raises(NotMaster):
        subject.log.append_messages([draft("T", b"3")])
    assert subject.log.end_offset == end_offset
    subject.dispatch()
    assert [record.body for record in records(subject.log)] == [b"1"]


@pytest.mark.parametrize(
    "illegal",
    [
        draft("T", b"x", properties={"p": "x" * MAX_PROPERTIES_BYTES}),
        draft("T/U", b"x"),
        draft("T", b"x", -1),
        draft("T", bytes(5 << 20)),
    ],
    ids=["properties", "topic", "queue", "body"],
)
def test_with_one_that_breaks_a_rule_none_is_appended(subject: Subject, illegal: Draft) -> None:
    with pytest.raises(RequestError):
        subject.log.append_messages([draft("T", b"before"), illegal])
    assert subject.log.end_offset == 0
    assert list(subject.log.undispatched_units("T")) == []


def test_a_record_is_read_from_its_start_only(subject: Subject) -> None:
    log = subject.log
    (first, second) = log.append_placed([draft("T", b"1"), draft("T", b"2")])
    encoded = log.find_record(second.physical_offset)
    assert encoded is not None
    assert decode_record(encoded).body == b"2"
    assert log.record_at(second.physical_offset, second.size) == encoded
    for nowhere in (second.physical_offset + 4, log.end_offset):
        assert log.find_record(nowhere) is None
        with pytest.raises(StorageError):
            log.record_at(nowhere, second.size)
    with pytest.raises(StorageError):
        log.record_at(first.physical_offset, first.size + second.size)


def test_who_waits_for_a_position_is_told_once(subject: Subject) -> None:
    told: list[PutStatus] = []
    subject.log.when_acknowledged(subject.log.append(TOPIC, "add", b"1"), told.append)
    assert told == [PutStatus.PUT_OK]


def test_after_a_cut_the_log_goes_on_with_other_records_and_the_same_numbers(subject: Subject) -> None:
    log = subject.log
    ends = [log.append(TOPIC, "add", b"%d" % n) for n in range(6)]
    subject.dispatch()
    ends += [log.append(TOPIC, "add", b"%d" % n) for n in range(6, 9)]
    subject.cut(ends[7])
    assert (log.end_offset, log.queue_range(TOPIC, 0), len(log.undispatched_units(TOPIC))) == (ends[7], (0, 6), 2)
    assert log.find_record(ends[7]) is None
    subject.cut(ends[3])
    assert (log.end_offset, log.queue_range(TOPIC, 0), len(log.undispatched_units(TOPIC))) == (ends[3], (0, 4), 0)
    log.append(TOPIC, "other", b"other")
    subject.dispatch()
    assert [record.body for record in records(log)] == [b"0", b"1", b"2", b"3", b"other"]
    assert [record.queue_offset for record in records(log)] == list(range(5))
    subject.cut(0)
    assert (log.end_offset, log.queue_range(TOPIC, 0)) == (0, (0, 0))


def test_what_waits_says_when_it_is_due_in_place_of_its_tag(subject: Subject) -> None:
    log = subject.log
    (place,) = log.append_placed([draft(SCHEDULE_TOPIC, b"later", 2, properties={"DELAY": "3"})])
    subject.dispatch()
    record = decode_record(log.record_at(place.physical_offset, place.size))
    ((_, _, due_ms),) = log.read_units(SCHEDULE_TOPIC, 2, 0, 9)
    assert due_ms == record.store_timestamp_ms + DEFAULT_DELAYS[2]


def test_what_is_prepared_enters_no_queue(subject: Subject) -> None:
    log = subject.log
    prepared = draft("T", b"prepared")._replace(sys_flag=SYS_TRANSACTION_PREPARED)
    places = log.append_placed([prepared, draft("T", b"plain")])
    assert [place.queue_offset for place in places] == [-1, 0]
    subject.dispatch()
    assert [record.body for record in records(log, "T")] == [b"plain"]
