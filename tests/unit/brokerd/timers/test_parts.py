"""The pure parts: codes, legs, the clock, what is near, and what the queue finds; the last two against a sorted list."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.store.unit import UNIT, UNIT_BYTES
from brokerd.timers import queue_far
from brokerd.timers.clock import AGREES_MS, DISPUTE_MS, PATIENCE_MS, SLACK_MS, TimerClock
from brokerd.timers.codes import (
    DELETE_KEY,
    DEQUEUE_MS,
    DUE_MS,
    LEG_MS,
    MAX_DUE_MS,
    MESSAGE,
    OUT_MS,
    PLACE,
    RECALL,
    ROLLED,
    START,
    Key,
    due_of,
    encode_code,
    key_of,
    kind_of,
    slot_of,
    timer_code,
)
from brokerd.timers.cursor import RETURNED, STOWED, Begin, TimerTable, begin_of, set_back
from brokerd.timers.done import Done, Fence
from brokerd.timers.far import Found
from brokerd.timers.native_due_entries import NativeDueEntries
from brokerd.timers.near import Near
from brokerd.timers.queue_far import QueueFar
from brokerd.timers.rolling import leg_before
from remoting.errors import CorruptedFile
from remoting.record.properties import decode_properties, encode_properties
from remoting.tier.stowed import StowedObject
from tests.support.native_library import native_library

STORED_MS = 1_700_000_000_123


@pytest.mark.parametrize(
    ("properties", "due_ms", "kind"),
    [
        ({DUE_MS: "5001", OUT_MS: "5000"}, 5001, MESSAGE),
        ({OUT_MS: "5000"}, 6000, MESSAGE),  # stored by the original: somewhere in that second
        ({DUE_MS: "5001", LEG_MS: "3000"}, 3000, MESSAGE),
        ({DUE_MS: "5001", LEG_MS: "3000", DEQUEUE_MS: "3100"}, 5001, MESSAGE),  # the original ended the leg
        ({DUE_MS: "5001", LEG_MS: "3000", DEQUEUE_MS: "3100", PLACE: "7"}, 5001, ROLLED),
        ({DUE_MS: "5001", PLACE: "7"}, 5001, ROLLED),
        ({OUT_MS: "5000", DELETE_KEY: "t+k"}, 5000, RECALL),
        ({OUT_MS: "5000", DELETE_KEY: "t+k", PLACE: "7"}, 5000, RECALL),
        ({}, STORED_MS, MESSAGE),
        ({DUE_MS: "soon"}, STORED_MS, MESSAGE),
        ({DUE_MS: "-1"}, STORED_MS, MESSAGE),
        ({DUE_MS: "9" * 16}, MAX_DUE_MS, MESSAGE),
        ({DUE_MS: "9" * 17}, STORED_MS, MESSAGE),
    ],
)
def test_an_entry_says_when_a_timer_is_due_and_what_it_is(properties: dict[str, str], due_ms: int, kind: int) -> None:
    code = timer_code(encode_properties(properties), STORED_MS)
    assert (due_of(code), kind_of(code)) == (due_ms, kind)
    assert -(1 << 63) <= code < 1 << 63


@given(
    st.lists(
        st.tuples(
            st.sampled_from([DUE_MS, LEG_MS, OUT_MS, PLACE, DELETE_KEY, DEQUEUE_MS, "KEYS"]),
            st.text("019\x01\x02é", max_size=4),
        )
    )
)
def test_an_entry_is_made_of_the_properties_as_they_are_read(pairs: list[tuple[str, str]]) -> None:
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    as_read = encode_properties(decode_properties(encoded))
    assert timer_code(encoded, STORED_MS) == timer_code(as_read, STORED_MS)
    decoded = decode_properties(encoded)
    assert (kind_of(timer_code(encoded, STORED_MS)) == RECALL) == (DELETE_KEY in decoded)


def test_slots_are_those_of_the_original() -> None:
    assert [slot_of(due_ms) for due_ms in (4001, 4999, 5000, 5001)] == [4000, 4000, 4000, 5000]


@given(st.integers(0, 10**9), st.integers(1, 10**6))
def test_legs_are_at_most_a_window_and_the_last_is_no_short_one(ahead_ms: int, window_ms: int) -> None:
    at_ms, legs = 0, []
    while (leg_ms := leg_before(ahead_ms, at_ms, at_ms, window_ms)) is not None:
        legs.append(leg_ms - at_ms)
        at_ms = leg_ms
        if len(legs) > 50:
            return
    assert all(0 < leg <= window_ms for leg in [*legs, ahead_ms - at_ms] if ahead_ms)
    assert not legs or ahead_ms - at_ms >= window_ms // 2


def test_a_leg_is_behind_the_cursor_though_the_clock_is_not() -> None:
    assert leg_before(1000, 10, 500, 100) == 600
    assert leg_before(1000, 10, 950, 100) is None


# ---- the clock


def test_a_clock_that_is_set_forward_is_believed_when_it_stays_so() -> None:
    clock = TimerClock(1_000_000, 0)
    assert clock.now_ms(1_000_500, 500) == 1_000_500
    assert clock.now_ms(1_003_000 + SLACK_MS, 1000) == 1_001_000 + SLACK_MS
    assert clock.now_ms(1_003_500 + SLACK_MS, 999 + PATIENCE_MS) == 1_003_500 + SLACK_MS, "it fell behind meanwhile"
    jumped_ms = 10_000_000
    assert clock.now_ms(jumped_ms, 100_000) == 1_100_000 + SLACK_MS
    assert clock.now_ms(jumped_ms + PATIENCE_MS - 1, 99_999 + PATIENCE_MS) == 1_099_999 + PATIENCE_MS + SLACK_MS
    assert clock.now_ms(jumped_ms + PATIENCE_MS, 100_000 + PATIENCE_MS) == jumped_ms + PATIENCE_MS
    assert clock.now_ms(jumped_ms + PATIENCE_MS + 1, 100_001 + PATIENCE_MS) == jumped_ms + PATIENCE_MS + 1


def test_a_clock_that_is_set_forward_twice_has_to_stay_so_again() -> None:
    clock = TimerClock(0, 0)
    assert clock.now_ms(5000, 0) == SLACK_MS
    assert clock.now_ms(90_000, PATIENCE_MS - 1000) == PATIENCE_MS - 1000 + SLACK_MS
    assert clock.now_ms(95_000, PATIENCE_MS + 4000) == PATIENCE_MS + 4000 + SLACK_MS
    assert clock.now_ms(150_000, 2 * PATIENCE_MS - 1000) == 150_000


def test_a_clock_that_is_set_back_is_late_by_that_step() -> None:
    clock = TimerClock(1_000_000, 0)
    assert clock.now_ms(900_000, 1000) == 900_000
    assert clock.now_ms(1_002_000, 2000) == 1_002_000, "and set right again"


def test_a_clock_that_was_set_back_is_believed_when_it_stays_so() -> None:
    clock = TimerClock(1_000_000, 0)
    assert clock.now_ms(900_000, 0) == 900_000
    assert clock.later_ms(900_000, 0) == 1_000_000
    assert clock.now_ms(900_000 + PATIENCE_MS, PATIENCE_MS) == 900_000 + PATIENCE_MS
    assert clock.later_ms(900_000 + PATIENCE_MS, PATIENCE_MS) == 900_000 + PATIENCE_MS
    assert clock.now_ms(1_000_000 + PATIENCE_MS, PATIENCE_MS) == 900_000 + PATIENCE_MS + SLACK_MS, "set forward"


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("others_ms", "patience_ms"),
    [
        (None, 0),  # all share one clock
        ([10 * DAY_MS], 0),
        ([DAY_MS, 10 * DAY_MS - SLACK_MS], 0),
        ([], PATIENCE_MS),
        ([10 * DAY_MS - AGREES_MS], 0),
        ([9 * DAY_MS], DISPUTE_MS),
    ],
)
def test_a_new_master_after_a_long_pause_believes_its_clock_as_others_do(
    others_ms: list[int] | None, patience_ms: int
) -> None:
    clock = TimerClock(10 * DAY_MS, 0)
    clock.begin(10 * DAY_MS, 0, others_ms, stored_ms=3 * DAY_MS)
    said_ms = max(others_ms or (), default=3 * DAY_MS) + SLACK_MS
    for steady_ms in sorted({0, patience_ms - 1, patience_ms} - {-1}):
        others_now_ms = [each + steady_ms for each in others_ms or ()]
        now_ms = clock.now_ms(10 * DAY_MS + steady_ms, steady_ms, lambda: others_now_ms)  # noqa: B023
        believes = steady_ms >= patience_ms
        assert now_ms == (10 * DAY_MS if believes else said_ms) + steady_ms
        assert clock.is_doubting is not believes


def test_witnesses_of_the_past_say_only_that_it_was_at_least_that_late() -> None:
    for stored_ms in (0, 1_000_000 - AGREES_MS, 2_000_000):
        clock = TimerClock(1_000_000, 0)
        clock.begin(1_000_000, 0, [], stored_ms)
        assert clock.now_ms(1_000_000, 0, list) == 1_000_000


def test_a_master_that_doubts_a_clock_still_does_when_it_becomes_it_again() -> None:
    clock = TimerClock(1_000_000, 0)
    assert clock.now_ms(1_040_000, 0) == 1_000_000 + SLACK_MS
    clock.begin(1_041_000, 1000, None, 1_040_000)
    assert clock.now_ms(1_041_000, 1000) == 1_001_000 + SLACK_MS


# ---- near


def test_near_is_a_sorted_list_in_packed_rows() -> None:
    rng = random.Random(5)
    near, model = Near(), list[Found]()
    for offset in range(0, 400_000, 100):
        step = rng.random()
        if step < 0.6:
            code = encode_code(rng.randrange(40), rng.choice((MESSAGE, RECALL, ROLLED)))
            near.add(code, offset)
            model.append((code, offset))
            model.sort(key=lambda each: key_of(*each))
        elif step < 0.9:
            until_ms, limit = rng.randrange(45), rng.choice((1, 3, 50))
            due = [each for each in model if due_of(each[0]) < until_ms][:limit]
            assert near.first(until_ms, limit) == due
            done = rng.randint(0, len(due))
            near.drop(done)
            del model[:done]
        elif model and step < 0.95:
            limit = rng.randint(1, len(model))
            del model[limit:]
            assert near.shrink(limit) == key_of(*model[-1])
        else:
            last_ms = due_of(model[-1][0]) if model else 0
            more = [
                (encode_code(last_ms + rng.randrange(3), rng.choice((MESSAGE, MESSAGE, RECALL))), offset + n)
                for n in range(rng.choice((0, 1, 20)))
            ]
            more.sort(key=lambda each: key_of(*each))
            near.add_all(more)
            model += more
            if model:
                recalls = [each for code, each in model if kind_of(code) == RECALL]
                assert sorted(near.recalls(1 << 40)) == sorted(recalls)
        assert near.count == len(model)
        assert near.first_due_ms == (due_of(model[0][0]) if model else None)


# ---- far, by the queue


class Queue:
    """Entries of the timer topic's queue, of which the first may be gone."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.low = 0

    def range(self) -> tuple[int, int]:
        return self.low, len(self.codes)

    def read(self, start: int, count: int) -> Sequence[tuple[int, int, int]]:
        assert start >= self.low
        return [(0, 0, code) for code in self.codes[start : start + min(count, 7)]]

    def in_c(self) -> NativeDueEntries:
        return NativeDueEntries(
            native_library(), lambda start, count: b"".join(UNIT.pack(*each) for each in self.read(start, count))
        )


def between(far: QueueFar, after: Key, until_ms: int, limit: int) -> list[Found]:
    for _ in range(10_000):
        found = far.between(after, until_ms, limit)
        if found is not None:
            return list(found)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("in_c", [False, True], ids=["python", "c"])
@pytest.mark.parametrize("seed", range(4))
def test_the_queue_finds_what_a_sorted_list_finds(seed: int, monkeypatch: pytest.MonkeyPatch, *, in_c: bool) -> None:
    monkeypatch.setattr(queue_far, "CHUNK", 8)
    monkeypatch.setattr(queue_far, "KEPT", (1, 5, 1000)[seed % 3])
    rng = random.Random(seed)
    queue = Queue()
    far = QueueFar(queue.range, queue.read, queue.in_c() if in_c else None)
    cursor = START
    for _ in range(400):
        step = rng.random()
        if step < 0.5:
            codes = [encode_code(cursor.due_ms + rng.randrange(1, 60), MESSAGE) for _ in range(rng.choice((1, 5, 20)))]
            queue.codes += codes
            if rng.random() < 0.9:
                far.arrived(len(queue.codes), codes)
        elif step < 0.6:
            end = rng.randint(queue.low, len(queue.codes))
            del queue.codes[end:]
            far.truncated(end)
        elif step < 0.7:
            held = far.held_queue_offset(Done(cursor))
            assert held >= queue.low
            queue.low = held
        elif step < 0.72:
            far.rebuild()
        pending = [(code, offset) for offset, code in enumerate(queue.codes) if offset >= queue.low]
        pending = sorted((each for each in pending if key_of(*each) > cursor), key=lambda each: key_of(*each))
        until_ms, limit = cursor.due_ms + rng.randrange(70), rng.choice((1, 3, 100))
        assert between(far, cursor, until_ms, limit) == [each for each in pending if due_of(each[0]) < until_ms][:limit]
        assert far.applied == len(queue.codes)
        first = min((offset for _, offset in pending), default=len(queue.codes))
        assert far.held_queue_offset(Done(cursor)) <= first
        if pending and rng.random() < 0.4:
            cursor = key_of(*rng.choice(pending[:10]))


def test_in_c_a_turn_looks_through_a_hundred_thousand_entries() -> None:
    codes = [encode_code(1000 + number % 50, MESSAGE) for number in range(3 * 32 * queue_far.CHUNK + 9)]
    encoded = b"".join(UNIT.pack(0, 0, code) for code in codes)
    native = NativeDueEntries(
        native_library(), lambda start, count: encoded[UNIT_BYTES * start :][: UNIT_BYTES * count]
    )

    def read(_start: int, _count: int) -> Sequence[tuple[int, int, int]]:
        raise AssertionError("no entry is made an object")

    far = QueueFar(lambda: (0, len(codes)), read, native)
    applied = []
    while far.step():
        applied.append(far.applied)
    assert applied == [32 * queue_far.CHUNK, 64 * queue_far.CHUNK, 96 * queue_far.CHUNK]
    assert far.applied == len(codes)


def test_a_turn_reads_a_few_thousand_entries() -> None:
    queue = Queue()
    reads = [0]

    def read(start: int, count: int) -> Sequence[tuple[int, int, int]]:
        found = [(0, 0, code) for code in queue.codes[start : start + count]]
        reads[0] += len(found)
        return found

    queue.codes = [encode_code(1000 + number % 50, MESSAGE) for number in range(40_000)]
    far = QueueFar(queue.range, read)
    turns = 0
    while far.between(START, 1001, 10_000) is None:
        turns += 1
        assert reads[0] <= 2 * queue_far.CHUNK
        reads[0] = 0
    assert turns >= 8


@pytest.mark.parametrize("spread_ms", [1, 1000])
def test_many_that_are_due_together_are_not_read_again_for_each_few(
    spread_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_far, "CHUNK", 16)
    monkeypatch.setattr(queue_far, "KEPT", 500)
    rng, queue, reads = random.Random(1), Queue(), 0
    queue.codes = [encode_code(5000 + rng.randrange(spread_ms), MESSAGE) for _ in range(2000)]

    def read(start: int, count: int) -> Sequence[tuple[int, int, int]]:
        nonlocal reads
        found = queue.read(start, count)
        reads += len(found)
        return found

    far = QueueFar(queue.range, read)
    after, found = START, list[Found]()
    while part := between(far, after, 7000, 10):
        found += part
        after = key_of(*part[-1])
        if len(found) == 700:  # one that comes meanwhile is not missed
            late = encode_code(due_of(part[-1][0]) + 1, MESSAGE)
            queue.codes.append(late)
            far.arrived(len(queue.codes), [late])
    assert found == sorted(((code, offset) for offset, code in enumerate(queue.codes)), key=lambda each: key_of(*each))
    assert reads <= len(queue.codes) * 6, "once to know of them, and once for each 500 or more"


def test_what_the_log_has_to_keep_is_found_without_reading_the_millions_that_are_delivered() -> None:
    queue = Queue()
    queue.codes = [encode_code(1000 + number % 2, MESSAGE) for number in range(10 * queue_far.CHUNK)]
    reads = 0

    def read(start: int, count: int) -> Sequence[tuple[int, int, int]]:
        nonlocal reads
        found = [(0, 0, code) for code in queue.codes[start : start + count]]
        reads += len(found)
        return found

    far = QueueFar(queue.range, read)
    while far.step():
        pass
    reads, last = 0, 9 * queue_far.CHUNK + 77
    assert far.held_queue_offset(Done(Key(1001, last))) == last + 2
    assert reads <= queue_far.CHUNK
    assert far.held_queue_offset(Done(Key(1001, len(queue.codes)))) == len(queue.codes)


# ---- the table


def test_a_table_is_the_same_from_its_rows() -> None:
    table = TimerTable()
    begin = Begin(Key(70_000, 9), 3, (4, 9, 2), (("t+k", 65_000), ("t+old", 3000)), (7,))
    assert begin_of(begin.body()) == begin
    for kind, body in [
        ("recalled", {"v": 1, "place": 11, "due": 80_000}),
        ("recalled", {"v": 1, "place": 12, "due": 60_000}),
        ("key", {"v": 1, "key": "0a0b"}),
        ("begin", Begin(Key(50_000, 3), 4, ()).body()),
        ("begin", begin.body()),
        ("begin", Begin(Key(70_000, 9), 0, (7,), back=(7,)).body()),
        ("begin", Begin(Key(69_999, 9), 0, (8,), aside=(8,)).body()),
    ]:
        table.apply(kind, body, 4711)
    assert (table.cursor, table.taken, table.places) == (Key(70_000, 9), 7, {11: 80_000, 12: 60_000})
    assert (table.names, table.aside, table.key) == ({"t+k": (65_000,)}, {8: 70_000}, b"\x0a\x0b")
    table.apply(*set_back(Key(40_000, -1), 10), 4712)
    table.apply(*set_back(Key(20_000, -1), 15), 4713)
    assert table.done == Done(Key(20_000, -1), (Fence(10, Key(70_000, 9)), Fence(15, Key(40_000, -1))))
    move = Begin(Key(20_000, -1), 2, (16, 18), before=19)
    assert begin_of(move.body()) == move
    table.apply(move.kind, move.body(), 4714)
    table.apply(move.kind, move._replace(before=17, taken=0).body(), 4715)
    assert table.done == Done(Key(20_000, -1), (Fence(10, Key(70_000, 9)), Fence(15, Key(40_000, -1))), 19)
    assert (table.taken, table.last) == (9, move._replace(before=17, taken=0))
    again = TimerTable()
    for row in table.snapshot_rows():
        again.load_row(row)
    assert vars(again) == vars(table)
    again.apply("begin", Begin(Key(200_000, 9), 0, (8,), back=(8,)).body(), 4714)
    assert (again.places, again.names, again.aside) == ({}, {}, {}), "nothing is set aside that they could take back"


def test_a_table_has_what_is_in_the_tier_also_from_its_rows() -> None:
    table = TimerTable()
    entry = StowedObject(3, 7, 1, 5, 40, 99, 60_000, before=9)
    stow = Begin(Key(70_000, 9), 6, (4,), before=9, stowed=entry, days={"a": {0: 3}, "b": {0: 1, 1: 1}})
    assert begin_of(stow.body()) == stow
    table.apply("begin", Begin(Key(70_000, 9), 0, ()).body(), 50)
    table.apply(stow.kind, stow.body(), 100)
    assert (stow.kind, table.objects, table.stowed, table.done.moved) == (STOWED, {(3, 7): entry}, 5, 9)
    after = entry._replace(returned=2, due_ms=60_000)
    back = Begin(Key(70_000, 9), 0, (0, 1), stowed=after, days={"a": {0: 2}}, due_ms=60_000)
    assert begin_of(back.body()) == back
    table.apply(back.kind, back.body(), 200)
    assert (back.kind, table.objects, table.stowed) == (RETURNED, {(3, 7): after}, 3)
    assert table.days == {"a": {0: 1}, "b": {0: 1, 1: 1}}
    assert table.late == (60_000, 70_001), "they were due before the cursor, and wait behind it"
    table.apply("recalled", {"v": 1, "place": 5, "due": 60_000}, 250)
    again = TimerTable()
    for row in table.snapshot_rows():
        again.load_row(row)
    assert vars(again) == vars(table)
    assert again.named_objects == {(3, 7)}
    again.apply("begin", Begin(Key(130_000, 9), 0, ()).body(), 300)
    assert again.places == {5: 60_000}, "of what is late in the tier nothing is forgotten"
    rest = after._replace(returned=5)
    last = Begin(Key(130_000, 9), 0, (2, 3, 4), stowed=rest, days={"a": {0: 1}, "b": {0: 1, 1: 1}}, due_ms=60_000)
    again.apply(last.kind, last.body(), 400)
    assert (again.objects, again.days, again.named_objects) == ({}, {}, {(3, 7)}), "its end may not have followed"
    again.apply("begin", Begin(Key(130_001, 9), 0, ()).body(), 500)
    assert again.places == {5: 60_000}, "nor of what came late, and waits"
    again.apply("begin", Begin(Key(250_000, 9), 0, ()).body(), 600)
    assert (again.places, again.late, again.named_objects) == ({}, None, frozenset())


@pytest.mark.parametrize("values", [[], [1] * 8, "x", [3, 7, 1, 0, 40, 99, 4_000_000, 9, 0]])
def test_a_table_refuses_what_is_no_object(values: object) -> None:
    good = Begin(Key(1, 1), 0, (), before=1, stowed=StowedObject(3, 7, 1, 5, 40, 99, 4_000_000)).body()
    with pytest.raises(CorruptedFile, match="object of timers"):
        TimerTable().apply(STOWED, {**good, "object": values}, 1)
    with pytest.raises(CorruptedFile, match="object of timers"):
        TimerTable().load_row(["o", values])


def test_a_table_refuses_what_it_does_not_know() -> None:
    with pytest.raises(CorruptedFile, match="start the version that wrote it"):
        TimerTable().apply("sung", {"v": 1}, 1)
    with pytest.raises(CorruptedFile, match="start the version that wrote it"):
        TimerTable().load_row(["z"])
