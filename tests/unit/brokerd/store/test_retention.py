from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.log.retention import (
    FileAge,
    RetentionDecision,
    believe_ages,
    claims_the_future,
    decide_going,
    decide_retention,
    describe_doubt,
    used_percent,
)
from brokerd.store.settings import HOUR_MS, RetentionSettings
from brokerd.store.store import MessageStore
from remoting.disk import DiskUsage
from remoting.errors import NotMaster, RequestError, StorageError
from remoting.record.layout import Field
from tests.support.disks import FaultyDisk, MemoryDisk, MemorySegment
from tests.unit.brokerd.store.stores import (
    SEGMENT_BYTES,
    Clock,
    bodies,
    dispatch_all,
    draft,
    log_bytes,
    log_entries,
    make_store,
    open_store,
    payloads,
    put,
    queue_contents,
    sync,
)

NOW = 1_000 * HOUR_MS
SIZE = 1000
SETTINGS = RetentionSettings()


def files(*ages_h: int) -> list[FileAge]:
    """Files whose newest messages are that many hours old; -1 = the last one, still written."""
    return [FileAge(n * SIZE, (n + 1) * SIZE, -1 if age < 0 else NOW - age * HOUR_MS) for n, age in enumerate(ages_h)]


def decide(
    found: list[FileAge],
    percent: int = 50,
    *,
    held: int = 1 << 40,
    refusing: bool = False,
    settings: RetentionSettings = SETTINGS,
) -> RetentionDecision:
    total = 100 * SIZE
    return decide_retention(found, DiskUsage(total, total - percent * SIZE), held, NOW, refusing, settings)


def test_expired_files_go_and_younger_ones_stay() -> None:
    assert decide(files(100, 80, 72, 71, 1, -1)).remove == 3


def test_files_are_going_for_a_while_before_they_go() -> None:
    """By age: an hour, or a tenth of the time that they stay. By room: two files' worth."""

    def going(found: list[FileAge], percent: int = 50, settings: RetentionSettings = SETTINGS) -> int:
        return decide_going(found, DiskUsage(100 * SIZE, (100 - percent) * SIZE), NOW, settings)

    assert going(files(100, 71, 70, -1)) == 2 * SIZE
    assert going(files(70, 1, -1)) == 0
    assert going(files(100, 100)) == SIZE, "the last one stays"
    assert going([]) == 0
    roomless = RetentionSettings(enough_free_bytes=0)
    assert going(files(1, 1, 1, -1), 83, roomless) == 0
    assert going(files(1, 1, 1, -1), 84, roomless) == SIZE
    short = RetentionSettings(reserved_time_ms=10 * 60_000)
    assert going([FileAge(0, SIZE, NOW - 9 * 60_000), FileAge(SIZE, 2 * SIZE, -1)], settings=short) == SIZE
    assert going([FileAge(0, SIZE, NOW - 8 * 60_000), FileAge(SIZE, 2 * SIZE, -1)], settings=short) == 0


def test_the_last_file_never_goes() -> None:
    assert decide(files(100, 100)).remove == 1
    assert decide(files(100)).remove == 0
    assert decide(files(100), 99).remove == 0
    assert decide([]).remove == 0


def test_a_file_of_unknown_age_is_not_expired_and_keeps_those_behind_it() -> None:
    assert decide(files(-1, 100, 100)).remove == 0


def test_nothing_goes_that_somebody_needs() -> None:
    old = files(100, 100, 100, -1)
    assert [decide(old, held=held).remove for held in (0, 999, 1000, 1999, 2000, 9999)] == [0, 0, 1, 1, 2, 3]
    assert decide(old, 95, held=1000) == RetentionDecision(1, True)


def test_a_round_has_a_bound() -> None:
    assert decide(files(*[100] * 30, -1)).remove == 10


def test_86_percent_deletes_the_oldest_unexpired_and_only_as_many_as_needed() -> None:
    young = files(*[1] * 9, -1)
    assert decide(young, 85) == RetentionDecision(0, False)
    assert decide(young, 86) == RetentionDecision(1, False)
    assert decide(young, 89) == RetentionDecision(4, False)


def test_91_percent_refuses_and_85_accepts_again() -> None:
    young = files(*[1] * 9, -1)
    story = [(90, False), (91, True), (90, True), (86, True), (85, False), (90, False)]
    refusing = False
    for percent, expected in story:
        refusing = decide(young, percent, refusing=refusing).refuse
        assert refusing is expected, percent


def test_what_waits_goes_on_half_way_from_where_sends_are_refused() -> None:
    young = files(*[1] * 9, -1)
    story = [(89, False, False), (91, True, False), (95, True, False), (96, True, True), (95, True, False)]
    for percent, refuse, refuse_own in story:
        assert decide(young, percent)[1:3] == (refuse, refuse_own), percent
    narrow = RetentionSettings(refuse_percent=99, enough_free_bytes=0)
    assert decide(young, 100, settings=narrow)[1:4] == (True, True, True)


def test_what_lets_files_go_goes_on_while_there_is_room_for_two_more() -> None:
    young = files(*[1] * 9, -1)
    for free_files, refuse_moves in ((3, False), (2, False), (1, True), (0, True)):
        usage = DiskUsage(100 * SIZE, free_files * SIZE)
        decision = decide_retention(young, usage, 0, NOW, True, RetentionSettings(enough_free_bytes=0))
        assert decision == RetentionDecision(0, True, True, refuse_moves), free_files
    assert not decide(young, 95).refuse_moves, "all that the broker appends is taken"


def test_while_enough_is_free_no_percentage_counts() -> None:
    settings = RetentionSettings(enough_free_bytes=5 * SIZE)
    young = files(*[1] * 9, -1)
    assert decide(young, 95, refusing=True, settings=settings) == RetentionDecision(0, False)
    assert decide(young, 96, settings=settings) == RetentionDecision(10 - 1, True, True)


def test_with_none_called_enough_the_percentages_always_count() -> None:
    settings = RetentionSettings(enough_free_bytes=0)
    assert decide(files(*[1] * 9, -1), 91, settings=settings).refuse
    assert decide(files(*[1] * 9, -1), 86, settings=settings).remove == 1


def test_usage_is_rounded_up() -> None:
    assert used_percent(DiskUsage(1000, 500)) == 50
    assert used_percent(DiskUsage(1000, 499)) == 51
    assert used_percent(DiskUsage(1000, 1000)) == 0
    assert used_percent(DiskUsage(0, 0)) == 100


@given(
    st.lists(st.integers(-1, 200), max_size=20),
    st.integers(0, 100),
    st.integers(0, 25_000),
    st.booleans(),
)
def test_no_decision_removes_the_last_file_or_a_held_one(ages: list[int], percent: int, held: int, full: bool) -> None:
    found = files(*ages)
    decision = decide(found, percent, held=held, refusing=full)
    assert 0 <= decision.remove <= max(0, min(len(found) - 1, 10))
    assert all(file.end <= held for file in found[: decision.remove])


# -- store times of the future ---------------------------------------------------------------------------------------------------

FUTURE = -10 * 365 * 24  # hours of age


def believed_ages(ages: list[int], written: list[int | None]) -> list[int]:
    """In hours, -1 = not known."""
    said = {n * SIZE: None if age is None else NOW - age * HOUR_MS for n, age in enumerate(written)}
    found = believe_ages(stamped(ages), said, NOW)
    return [-1 if file.newest_timestamp_ms < 0 else (NOW - file.newest_timestamp_ms) // HOUR_MS for file in found]


def stamped(ages: list[int]) -> list[FileAge]:
    return [FileAge(n * SIZE, (n + 1) * SIZE, -1 if age == -1 else NOW - age * HOUR_MS) for n, age in enumerate(ages)]


def test_what_no_message_contradicts_is_believed_whatever_the_file_system_says() -> None:
    assert not claims_the_future(stamped([100, 80, 3, -1]), NOW)
    assert believed_ages([100, 80, 3, -1], [1, 500, None, 0]) == [100, 80, 3, -1]


def test_files_stamped_in_the_future_are_as_old_as_the_file_system_says() -> None:
    assert claims_the_future(stamped([100, FUTURE, -1]), NOW)
    assert believed_ages([100, FUTURE, FUTURE, FUTURE, -1], [100, 90, 60, 2, 0]) == [100, 90, 60, 2, -1]


def test_the_file_system_is_not_believed_beyond_what_other_times_allow() -> None:
    assert believed_ages([100, FUTURE, -1], [100, 400, 0]) == [100, 0, -1], "older than the message before it"
    assert believed_ages([100, FUTURE, FUTURE, -1], [100, FUTURE, 60, 0]) == [100, 60, 60, -1], "younger than the next"
    assert believed_ages([100, FUTURE, FUTURE, -1], [100, None, 60, 0]) == [100, 60, 60, -1]
    assert believed_ages([100, FUTURE, -1], [None, None, None]) == [100, 0, -1]
    assert believed_ages([FUTURE, FUTURE, -1], [900, 90, 0]) == [900, 90, -1]


def test_who_reads_of_a_doubt_learns_both_times_and_what_it_is_about() -> None:
    assert describe_doubt(NOW, NOW + 96 * HOUR_MS, 0) == ""
    assert describe_doubt(NOW, NOW + 3000, 1) == ""
    text = describe_doubt(1_700_000_000_000, 1_700_000_000_000 + 96 * HOUR_MS, 7)
    assert "which says 2023-11-18 22:13 UTC" in text
    assert "it is 2023-11-14 22:13 UTC" in text
    assert "7 files" in text
    assert "9999-12-31" in describe_doubt(NOW, 1 << 62, 1)


# -- on a store ----------------------------------------------------------------------------------------------------------------


def test_the_log_and_its_queues_begin_later_and_never_earlier_again() -> None:
    disk, clock = MemoryDisk(), Clock()
    store = open_store(disk, clock)
    bodies_put = payloads(120, 300)
    for n, body in enumerate(bodies_put):
        clock.now_ms += HOUR_MS
        put(store, draft(body, queue_id=n % 2))
    sync(store)
    store.checkpoint()
    mins = [store.commitlog.min_offset]
    while (decision := decide_retention(*round_of(store, clock))).remove:
        for removal in store.apply_retention(decision):
            removal()
        mins.append(store.commitlog.min_offset)
        assert disk.names("commitlog")[0] == f"{mins[-1]:020d}"
    assert mins == sorted(mins)
    assert len(mins) > 1
    first_kept = len(bodies_put) - 72
    kept = [bodies(store, queue_id=queue_id) for queue_id in (0, 1)]
    assert 72 <= sum(map(len, kept)) <= 72 + SEGMENT_BYTES // 300
    for queue_id in (0, 1):
        assert kept[queue_id] == list(bodies_put[queue_id::2])[-len(kept[queue_id]) :]
        assert store.min_offset("TopicA", queue_id) == store.max_offset("TopicA", queue_id) - len(kept[queue_id])
    assert first_kept > 0
    # Queue files in front of it are gone as well, and a start finds the same.
    assert disk.names("consumequeue/TopicA/0")[0] != "0" * 20
    before = [store.min_offset("TopicA", 0), store.max_offset("TopicA", 0), store.commitlog.min_offset]
    store.close()
    again = open_store(disk, clock)
    assert [again.min_offset("TopicA", 0), again.max_offset("TopicA", 0), again.commitlog.min_offset] == before
    assert [bodies(again, queue_id=queue_id) for queue_id in (0, 1)] == kept


def round_of(store: object, clock: Clock) -> tuple[object, ...]:
    usage = DiskUsage(1000, 900)
    return (store.file_ages(), usage, store.held_offset(), clock(), store.is_full, SETTINGS)  # type: ignore[attr-defined]


def test_what_is_not_dispatched_not_synced_or_held_by_anybody_keeps_its_file() -> None:
    store = open_store(MemoryDisk())
    put(store, *(draft(body) for body in payloads(60, 300)), visible=False)
    assert store.held_offset() == 0
    store.dispatch(3 * SEGMENT_BYTES)
    assert store.held_offset() == 0  # nothing is synced
    sync(store)
    assert store.held_offset() == store.dispatch_offset > 0
    store.position_holders.append(lambda: None)
    store.position_holders.append(lambda: 77)
    assert store.held_offset() == 77
    store.expected_holders.append(lambda: 33)
    assert store.held_offset() == 33
    store.set_full(True)
    assert store.held_offset() == 77, "new messages come before a replica that may come back"


def test_a_full_store_refuses_and_goes_on_when_there_is_room() -> None:
    store = open_store(MemoryDisk())
    store.apply_retention(RetentionDecision(0, True))
    assert store.refusal is not None
    assert "disk is full" in str(store.refusal)
    with pytest.raises(type(store.refusal), match="disk is full"):
        put(store, draft())
    store.append_messages([draft(b"due")], own=True)
    store.append_messages([draft(b"due"), draft(b"due")], together=True, own=True)
    store.apply_retention(RetentionDecision(0, True, True))
    with pytest.raises(type(store.refusal), match="disk is full"):
        store.append_messages([draft(b"due")], own=True)
    with store.making_room():
        store.append_messages([draft(b"moved")], own=True)
        with pytest.raises(type(store.refusal), match="disk is full"):
            store.append_messages([draft()])
    with pytest.raises(type(store.refusal), match="disk is full"):
        store.append_messages([draft(b"due")], own=True)
    store.apply_retention(RetentionDecision(0, True, True, True))
    with store.making_room(), pytest.raises(type(store.refusal), match="disk is full"):
        store.append_messages([draft(b"moved")], own=True)
    store.apply_retention(RetentionDecision(0, False))
    put(store, draft())
    assert bodies(store)[:-1] == [*[b"due"] * 3, b"moved"]


def test_what_stops_all_stops_what_the_broker_appends_too() -> None:
    store = open_store(MemoryDisk())
    store.set_full(True, takes_own=True, takes_moves=True)
    store.set_appendable(False)
    with pytest.raises(NotMaster):
        store.append_messages([draft()], own=True)
    with store.making_room(), pytest.raises(NotMaster):
        store.append_messages([draft()], own=True)
    store.set_appendable(True)
    store.append_messages([draft()], own=True)
    store.set_full(True)
    with pytest.raises(RequestError, match="disk is full"):
        store.append_messages([draft()], own=True)
    store.set_full(True, takes_own=True)
    store.fail(StorageError("it broke"))
    with pytest.raises(RequestError, match="disk failed"):
        store.append_messages([draft()], own=True)


def test_ages_come_from_store_times_not_from_files() -> None:
    clock = Clock(5_000)
    store = open_store(MemoryDisk(), clock)
    while store.commitlog.end_offset < 2 * SEGMENT_BYTES:
        clock.now_ms += 1
        put(store, draft(bytes(800)))
    ages = store.file_ages()
    assert [file.start for file in ages] == [0, SEGMENT_BYTES, 2 * SEGMENT_BYTES]
    firsts = [store.commitlog.store_timestamp_at(start) for start in (SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    assert [file.newest_timestamp_ms for file in ages] == [*firsts, -1]


def grown(disk: MemoryDisk, files: int) -> MessageStore:
    """A store of so many files, in which time passes."""
    clock = Clock(5_000)
    store = open_store(disk, clock)
    while store.commitlog.end_offset < (files - 1) * SEGMENT_BYTES:
        clock.now_ms += 1
        put(store, draft(bytes(800)))
    return store


def known_ages(store: MessageStore) -> list[int]:
    return [file.newest_timestamp_ms for file in store.file_ages()]


@pytest.mark.parametrize("bit", [0, 3, 7])
def test_a_bit_that_flips_where_a_file_begins_makes_no_file_older(bit: int) -> None:
    disk = FaultyDisk(Random(1))
    store = grown(disk, 5)
    sound = known_ages(grown(MemoryDisk(), 5))
    for at in range(Field.STORE_TIMESTAMP.at, Field.STORE_TIMESTAMP.at + 8):
        disk.flip_bit(f"commitlog/{SEGMENT_BYTES:020d}", at, bit)
        assert store.file_ages()[0].newest_timestamp_ms == sound[1], "the file behind tells how old it can be"
        disk.flip_bit(f"commitlog/{SEGMENT_BYTES:020d}", at, bit)
        store.begin_times.of([])
    assert known_ages(store) == sound


def test_what_the_disk_does_not_read_has_the_age_of_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    store = grown(MemoryDisk(), 5)
    sound = known_ages(grown(MemoryDisk(), 5))

    read = MemorySegment.read

    def refuse(segment: MemorySegment, position: int, length: int) -> bytes:
        if segment.path.rpartition("/")[2] < f"{3 * SEGMENT_BYTES:020d}":
            raise StorageError(f"cannot read {segment.path}")
        return read(segment, position, length)

    with monkeypatch.context() as refused:
        refused.setattr(MemorySegment, "read", refuse)
        ages = known_ages(store)
        assert ages == [sound[2], sound[2], sound[2], sound[3], -1]
        assert store.begin_times.at(0) == -1
    assert known_ages(store) == sound, "it is asked for again"


def test_ages_are_those_of_the_log_that_is_there() -> None:
    store = grown(MemoryDisk(), 3)
    assert known_ages(store)[0] > 0
    store.set_appendable(False)
    store.truncate(0)
    assert known_ages(store)[:1] == [-1]


def test_a_new_master_knows_where_queues_begin_of_which_nothing_was_dispatched() -> None:
    """It copied the log from its second file on, and leads before its followers know how far that is confirmed. Of one queue it
    has what was dispatched long ago, of the other nothing."""
    master, replica = open_store(MemoryDisk()), make_store(MemoryDisk())
    put(master, *(draft(body, queue_id=n % 2) for n, body in enumerate(payloads(40, 300))))
    ends = [master.max_offset("TopicA", queue_id) for queue_id in (0, 1)]
    log, begin = log_bytes(master), SEGMENT_BYTES
    firsts = [
        next(entry[2] for entry in log_entries(master) if entry[1] == queue_id and entry[3] >= begin)
        for queue_id in (0, 1)
    ]
    assert all(0 < first < end for first, end in zip(firsts, ends, strict=True))
    replica.load()
    replica.append_replicated(begin, log[begin:])
    assert [replica.max_offset("TopicA", queue_id) for queue_id in (0, 1)] == [0, 0], "nobody told it yet"
    replica.begin_queues()
    for queue_id, first in enumerate(firsts):
        assert (replica.min_offset("TopicA", queue_id), replica.max_offset("TopicA", queue_id)) == (first, first)
    dispatch_all(replica)
    assert [replica.max_offset("TopicA", queue_id) for queue_id in (0, 1)] == ends
    assert queue_contents(replica)["TopicA", 0][0] == firsts[0]
    whole = open_store(MemoryDisk())
    put(whole, draft(), visible=False)
    whole.begin_queues()
    assert not whole.queues.table, "a log that has its first file says by itself that queues begin at 0"
