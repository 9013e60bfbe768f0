"""Files of the log that topics want kept: found among the units of queues, and as a model finds them among all messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.store import wanted_files
from brokerd.store.housekeeping import Housekeeper
from brokerd.store.log.retention import FileAge, RetentionDecision, decide_going, decide_retention
from brokerd.store.seams import StoreSeams
from brokerd.store.settings import HOUR_MS, RetentionSettings
from brokerd.store.store import MessageStore
from brokerd.store.wanted_files import Kept, WantedFiles, Wish
from remoting.disk import DiskUsage
from remoting.record.layout import Field
from remoting.settings import Live
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.support.examples import examples
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, SETTINGS, STORE_HOST, Clock, bodies, dispatch_all, draft, put
from tests.unit.brokerd.store.stores import sync as flush

NOW = 1_000 * HOUR_MS
SIZE = 1000
RETENTION = RetentionSettings(reserved_time_ms=10 * HOUR_MS, enough_free_bytes=0)
ROOMY = DiskUsage(100 * SEGMENT_BYTES, 90 * SEGMENT_BYTES)


# -- what is decided of files whose wishes are known -----------------------------------------------------------------------------


def files(*told: tuple[int, int]) -> list[FileAge]:
    """Files by (age, for how much longer some topic wants it), in hours; the last one is still written."""
    known = [(NOW - age * HOUR_MS, NOW + left * HOUR_MS if left else 0) for age, left in told] + [(-1, 0)]
    return [FileAge(n * SIZE, (n + 1) * SIZE, *each) for n, each in enumerate(known)]


def decide(found: list[FileAge], percent: int = 50, held: int = 1 << 40) -> RetentionDecision:
    return decide_retention(found, DiskUsage(100 * SIZE, (100 - percent) * SIZE), held, NOW, False, RETENTION)


def test_an_old_file_stays_while_a_topic_wants_it_and_so_do_those_behind_it() -> None:
    assert decide(files((40, 0), (30, 5), (20, 0), (1, 0))) == RetentionDecision(1, False, kept=2)
    assert decide(files((40, -1), (30, -5), (20, 0), (1, 0))) == RetentionDecision(3, False), "that is over"


def test_a_file_that_is_young_is_not_kept_for_anybody() -> None:
    assert decide(files((9, 50), (1, 50))) == RetentionDecision(0, False)


def test_the_disk_comes_first() -> None:
    wanted = files(*[(30, 5)] * 9)
    assert decide(wanted, 86) == RetentionDecision(1, False, kept=8)
    assert decide(wanted, 89) == RetentionDecision(4, False, kept=5)


def test_what_somebody_else_holds_is_not_counted_as_kept() -> None:
    assert decide(files((40, 5), (30, 5), (20, 0)), held=1500) == RetentionDecision(0, False, kept=1)


def test_files_that_stay_are_not_going_soon() -> None:
    def going(found: list[FileAge], percent: int = 50) -> int:
        return decide_going(found, DiskUsage(100 * SIZE, (100 - percent) * SIZE), NOW, RETENTION)

    assert going(files((40, 0), (30, 5), (20, 0))) == SIZE
    assert going(files((40, 1), (30, 5))) == SIZE, "in an hour it goes"
    assert going(files((40, 5), (30, 5)), 84) == SIZE, "the disk comes first"


# -- what is found in a store ----------------------------------------------------------------------------------------------------


@dataclass
class House:
    """A store whose topics want what `wishes` says, and its housekeeper, by one clock."""

    disk: MemoryDisk
    clock: Clock
    wishes: dict[str, Wish]
    store: MessageStore
    keeper: Housekeeper
    usage: DiskUsage = ROOMY

    def put(self, topic: str, count: int = 1, queue_id: int = 0, *, visible: bool = True, hours: int = 1) -> None:
        for _ in range(count):
            self.clock.now_ms += hours * HOUR_MS
            put(self.store, draft(bytes(800), topic=topic, queue_id=queue_id), visible=visible)
        flush(self.store)

    def fill(self, topic: str, files: int, queue_id: int = 0) -> None:
        """Messages of the topic up to where another file begins, so many times."""
        for _ in range(files):
            number = self.file
            while self.file == number:
                self.put(topic, queue_id=queue_id)

    @property
    def file(self) -> int:
        return (self.store.commitlog.end_offset - 1) // SEGMENT_BYTES

    @property
    def first_file(self) -> int:
        return self.store.commitlog.min_offset // SEGMENT_BYTES

    @property
    def kept(self) -> Kept:
        return self.store.wanted.kept

    async def round(self) -> int:
        """Where the log begins behind it, in files."""
        await self.keeper.remove_old_files()
        return self.first_file


def house(wishes: Mapping[str, int] | None = None, disk: MemoryDisk | None = None, clock: Clock | None = None) -> House:
    """`wishes` in hours."""
    disk, clock = disk or MemoryDisk(), clock or Clock()
    wanted = {topic: Wish(hours * HOUR_MS) for topic, hours in (wishes or {}).items()}
    seams = StoreSeams(wishes=lambda: dict(wanted))
    store = MessageStore(disk, SETTINGS, clock, STORE_HOST, seams)
    store.load()
    store.set_appendable(True)
    made = House(disk, clock, wanted, store, Housekeeper(store, disk, SETTINGS, Live(RETENTION), clock))
    disk.usage = lambda: made.usage
    return made


async def test_a_file_stays_as_long_as_the_topic_with_a_message_in_it_says() -> None:
    home = house({"Kept": 100})
    home.fill("Other", 2)
    home.put("Kept")
    stored_ms, in_file = home.clock.now_ms, home.file
    home.fill("Other", 8)
    home.clock.now_ms += 50 * HOUR_MS
    assert await home.round() == in_file
    assert (home.kept.files, home.kept.topic, home.kept.overruled) == (home.file - in_file, "Kept", 0)
    assert len(bodies(home.store, "Kept")) == 1
    home.clock.now_ms = stored_ms + 100 * HOUR_MS - 1
    assert await home.round() == in_file
    home.clock.now_ms += 1
    assert await home.round() == home.file, "what is left is the file that is written"
    assert (home.kept.files, home.kept.topic) == (0, "")
    await home.keeper.stop()


async def test_a_wish_that_is_no_longer_than_the_broker_s_own_time_has_no_effect() -> None:
    home = house({"Other": 10, "Little": 1})
    home.fill("Other", 6)
    home.put("Little")
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_a_wish_that_comes_or_goes_counts_from_the_next_round_on() -> None:
    home = house()
    home.put("Kept")
    home.fill("Other", 6)
    home.wishes["Kept"] = Wish(100 * HOUR_MS)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == 0
    home.wishes["Kept"] = Wish(15 * HOUR_MS)
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_the_setting_of_the_broker_may_change_meanwhile() -> None:
    home = house({"Kept": 60})
    home.put("Kept")
    home.fill("Other", 4)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == 0
    retention = Live(RETENTION)
    keeper = Housekeeper(home.store, home.disk, SETTINGS, retention, home.clock)
    retention.change(RetentionSettings(reserved_time_ms=35 * HOUR_MS, enough_free_bytes=0))
    await keeper.remove_old_files()
    assert (home.first_file, home.kept.files) == (0, 0), "the broker keeps it itself"
    retention.change(RetentionSettings(reserved_time_ms=5 * HOUR_MS, enough_free_bytes=0))
    await keeper.remove_old_files()
    assert (home.first_file, home.kept.topic) == (0, "Kept")
    await keeper.stop()
    await home.keeper.stop()


async def test_messages_of_an_older_topic_of_that_name_are_not_kept() -> None:
    home = house()
    home.put("Kept")
    home.fill("Other", 1)
    home.wishes["Kept"] = Wish(100 * HOUR_MS, begin=home.store.commitlog.end_offset)
    home.fill("Other", 3)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_a_full_disk_removes_what_topics_want_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    home = house({"Kept": 100})
    home.put("Kept")
    home.fill("Other", 3)
    home.put("Kept")
    home.fill("Other", 5)
    home.clock.now_ms += 20 * HOUR_MS
    home.usage = DiskUsage(100 * SEGMENT_BYTES, 13 * SEGMENT_BYTES)  # two files too many
    assert await home.round() == 2
    assert (home.kept.overruled, home.kept.overruled_topic) == (1, "Kept"), "nobody wants the second one"
    assert home.kept.overruled_ms == home.clock.now_ms
    assert "1 file goes that topics want kept (local.reserve.time), as Kept does" in caplog.text
    home.usage = ROOMY
    assert await home.round() == 3, "what nobody wants goes"
    assert (home.kept.overruled, home.kept.files) == (1, home.file - 3)
    await home.keeper.stop()


async def test_a_full_disk_also_removes_what_is_young_and_that_is_told() -> None:
    home = house({"Kept": 100})
    home.put("Kept", hours=0)
    while home.file < 6:
        home.put("Other", hours=0)
    home.usage = DiskUsage(100 * SEGMENT_BYTES, 13 * SEGMENT_BYTES)
    assert await home.round() == 2
    assert (home.kept.overruled, home.kept.files) == (1, 0)
    await home.keeper.stop()


async def test_when_files_went_is_told_by_the_clock_that_others_read() -> None:
    """Also while retention goes by another one: a machine that was off for days is not believed at first."""
    home = house({"Kept": 100})
    home.put("Kept")
    home.fill("Other", 5)
    keeper = Housekeeper(home.store, home.disk, SETTINGS, Live(RETENTION), lambda: home.clock.now_ms - 48 * HOUR_MS)
    home.clock.now_ms += 48 * HOUR_MS
    home.usage = DiskUsage(100 * SEGMENT_BYTES, 13 * SEGMENT_BYTES)
    await keeper.remove_old_files()
    assert (home.first_file, home.kept.overruled) == (2, 1)
    assert home.kept.overruled_ms == home.clock.now_ms
    await keeper.stop()
    await home.keeper.stop()


class CountedWishes(dict[str, Wish]):
    """How often somebody compared them with others."""

    compared = 0

    def __ne__(self, other: object) -> bool:
        CountedWishes.compared += 1
        return super().__ne__(other)


async def test_wishes_that_nobody_changed_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    home = house({"Kept": 100})
    home.put("Kept")
    home.fill("Other", 5)
    home.clock.now_ms += 20 * HOUR_MS
    wishes = [CountedWishes(home.wishes)]
    monkeypatch.setattr(home.store.wanted, "_ask", lambda: wishes[-1])
    looks = count_looks(monkeypatch)
    assert await home.round() == 0
    CountedWishes.compared = 0
    for _ in range(3):
        assert await home.round() == 0
    assert CountedWishes.compared == 0
    before = len(looks)
    wishes.append(CountedWishes(home.wishes))
    for _ in range(3):
        assert await home.round() == 0
    assert (CountedWishes.compared, len(looks)) == (1, before), "another mapping that says the same changes nothing"
    wishes.append(CountedWishes({"Kept": Wish(15 * HOUR_MS)}))
    assert await home.round() == home.file
    await home.keeper.stop()


def fuller(files: int) -> DiskUsage:
    """A disk of a hundred files that has to lose so many; from six on it takes no messages."""
    return DiskUsage(100 * SEGMENT_BYTES, (15 - files) * SEGMENT_BYTES)


def house_of_many_queues(queues: int = 40, files: int = 12) -> House:
    """The log's files but for the first and the last have none of the messages that the topic of many queues wants kept."""
    home = house({"Kept": 100})
    home.put("Kept")
    home.fill("Other", files)
    for queue_id in range(1, queues):
        home.put("Kept", queue_id=queue_id, hours=0)
    home.fill("Other", 2)
    home.clock.now_ms += 20 * HOUR_MS
    return home


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The files that are looked at from now on, one queue each time."""
    monkeypatch.setattr(wanted_files, "_SLICE", 1)
    looks: list[int] = []
    look = WantedFiles._look

    def noted(self: WantedFiles, found: Any, now_ms: int, until_ms: int) -> None:
        looks.append(found.file.start // SEGMENT_BYTES)
        look(self, found, now_ms, until_ms)

    monkeypatch.setattr(WantedFiles, "_look", noted)
    return looks


async def test_a_disk_that_takes_no_messages_waits_for_no_look_that_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = house_of_many_queues()
    looks = count_looks(monkeypatch)
    home.usage = fuller(7)
    assert await home.round() == 7, "and not those that nobody wants, too: they were not looked at"
    assert looks == list(range(7)), "once each, for what is told"
    assert (home.kept.overruled, home.kept.overruled_topic) == (7, "Kept"), "who was not asked counts as who wants it"
    assert home.store.is_full
    home.usage = fuller(-5)
    assert await home.round() == 12
    assert not home.store.is_full
    assert home.kept.files == home.file - 12
    await home.keeper.stop()


async def test_a_disk_that_fills_up_while_queues_are_looked_at_waits_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    home = house_of_many_queues(queues=200)
    looks = count_looks(monkeypatch)
    home.usage = fuller(1)
    looked = WantedFiles.look_on

    def fill(self: WantedFiles, *terms: Any, **said: Any) -> bool:
        if len(looks) == 20:
            home.usage = fuller(7)
        return looked(self, *terms, **said)

    monkeypatch.setattr(WantedFiles, "look_on", fill)
    assert await home.round() == 7
    assert len(looks) < 100, "of more than a thousand"
    await home.keeper.stop()


async def test_a_queue_that_is_dispatched_later_is_looked_at_then() -> None:
    """A file is not judged while its messages are not in queues."""
    home = house({"Kept": 100})
    home.put("Kept", visible=False)
    while home.file < 3:
        home.put("Other", visible=False)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == 0
    dispatch_all(home.store)
    assert await home.round() == 0
    assert home.kept.topic == "Kept"
    await home.keeper.stop()


async def test_a_message_of_the_future_keeps_its_file_no_longer_than_others() -> None:
    disk, clock = FaultyDisk(Random(1)), Clock()
    disk.wall_ms = clock
    home = house({"Kept": 50}, disk, clock)
    home.fill("Other", 2)
    clock.now_ms += 3650 * 24 * HOUR_MS
    home.put("Kept", hours=0)
    clock.now_ms -= 3650 * 24 * HOUR_MS
    in_file, stored_ms = home.file, clock.now_ms
    home.fill("Other", 5)  # also stamped with that time, as store times do not decrease
    clock.now_ms = stored_ms + 40 * HOUR_MS
    assert await home.round() == in_file
    clock.now_ms = stored_ms + 61 * HOUR_MS + 60 * HOUR_MS
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_two_who_ask_for_rounds_at_once_do_not_look_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that is far ahead and not believed, files are as young as now, which is another time in each round."""
    disk, clock = FaultyDisk(Random(1)), Clock()
    disk.wall_ms = clock
    home = house({"Kept": 50}, disk, clock)
    for _ in range(4):
        home.put("Kept")
        home.fill("Other", 1)
    true_ms = count(clock.now_ms - 1000 * HOUR_MS)
    keeper = Housekeeper(home.store, disk, SETTINGS, Live(RETENTION), lambda: next(true_ms))
    look_on, looks = WantedFiles.look_on, count(1)

    def counted(self: WantedFiles, *arguments: Any, **named: Any) -> bool:
        assert next(looks) < 100
        return look_on(self, *arguments, **named)

    monkeypatch.setattr(WantedFiles, "look_on", counted)
    await asyncio.gather(keeper.remove_old_files(), keeper.remove_old_files())
    assert home.first_file == 0
    await keeper.stop()
    await home.keeper.stop()


async def test_what_cannot_be_read_counts_as_young_as_the_file() -> None:
    disk = FaultyDisk(Random(1))
    home = house({"Kept": 100}, disk)
    home.put("Kept", hours=0)
    position, stored_ms = 0, home.clock.now_ms
    home.fill("Other", 5)
    newest_ms = home.store.file_ages()[0].newest_timestamp_ms
    assert newest_ms > stored_ms
    disk.flip_bit(f"commitlog/{0:020d}", position + Field.STORE_TIMESTAMP.at + 7, 3)
    home.clock.now_ms = newest_ms + 100 * HOUR_MS - 1
    assert await home.round() == 0
    home.clock.now_ms += 1
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_a_start_finds_the_same() -> None:
    home = house({"Kept": 100})
    home.put("Kept", queue_id=3)
    home.fill("Other", 5)
    home.store.close()
    await home.keeper.stop()
    again = house({"Kept": 100}, home.disk, home.clock)
    again.clock.now_ms += 20 * HOUR_MS
    assert await again.round() == 0
    assert again.kept.topic == "Kept"
    await again.keeper.stop()


async def test_a_log_that_is_cut_or_copied_anew_is_looked_at_anew() -> None:
    home = house({"Kept": 100})
    home.put("Kept")
    home.fill("Other", 4)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == 0
    home.store.set_appendable(False)
    home.store.reset()
    home.store.set_appendable(True)
    home.fill("Other", 5)
    home.clock.now_ms += 20 * HOUR_MS
    assert await home.round() == home.file
    await home.keeper.stop()


async def test_only_queues_of_topics_that_want_something_are_looked_at_and_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = house({"Kept": 20, "Long": 200})
    home.put("Long")
    for queue_id in range(20):
        home.put("Kept", queue_id=queue_id, hours=0)
        home.put("Other", queue_id=queue_id, hours=0)
    home.fill("Other", 3)
    home.clock.now_ms += 30 * HOUR_MS
    looked: list[str] = []
    look = WantedFiles._last_stored_ms

    def noted(self: WantedFiles, queue: object, file: FileAge, begin: int) -> int:
        looked.append(queue.topic)
        return look(self, queue, file, begin)

    monkeypatch.setattr(WantedFiles, "_last_stored_ms", noted)
    for _ in range(3):
        assert await home.round() == 0
    assert looked == ["Long"], "it wants most, and has a message there"
    del home.wishes["Long"]
    home.clock.now_ms += 30 * HOUR_MS
    await home.keeper.remove_expired_now()
    assert home.first_file == home.file
    assert looked == ["Long"], "what the others want is over for whatever is in these files"
    await home.keeper.stop()


# -- the same as a model that looks at all messages ------------------------------------------------------------------------------

TOPICS = ("A", "B", "C")

steps = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(TOPICS), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("pass"), st.integers(1, 30)),
    st.tuples(st.just("wish"), st.sampled_from(TOPICS), st.sampled_from((0, 5, 15, 40, 90))),
    st.tuples(st.just("full"), st.integers(0, 8)),
    st.tuples(st.just("round")),
    st.tuples(st.just("cut")),
)


class Model:
    """All messages of the log, as (position, topic, store time)."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, str, int]] = []

    def begin(self, home: House) -> tuple[int, int]:
        """Where the log begins behind a round, in files, at least and at most: the rule in one sentence. Where the disk takes no
        messages, what nobody wants may stay for this time."""
        surplus = 0
        if home.usage.free_bytes < 15 * SEGMENT_BYTES:
            surplus = 15 - home.usage.free_bytes // SEGMENT_BYTES
        starts, held = home.store.commitlog.segment_starts(), home.store.held_offset()
        ages = {age.start: age.newest_timestamp_ms for age in home.store.file_ages()}
        unwanted = 0
        for start in starts[:-1]:
            is_old = 0 <= ages[start] <= home.clock.now_ms - RETENTION.reserved_time_ms
            is_wanted = any(
                start <= position < start + SEGMENT_BYTES
                and topic in home.wishes
                and time_ms + home.wishes[topic].reserved_ms > home.clock.now_ms
                for position, topic, time_ms in self.messages
            )
            if not is_old or is_wanted:
                break
            unwanted += 1
        may_go = sum(start + SEGMENT_BYTES <= held for start in starts[:-1])
        is_full = surplus > 5 or (surplus > 0 and home.store.is_full)
        at_most = min(max(unwanted, surplus), may_go, RETENTION.files_per_round)
        at_least = min(surplus, at_most) if is_full else at_most
        begin, end = [(starts[removed] if starts else 0) // SEGMENT_BYTES for removed in (at_least, at_most)]
        return begin, end


@pytest.mark.parametrize("slice_queues", [1, 20])
@settings(max_examples=examples(60), deadline=None)
@given(story=st.lists(steps, min_size=5, max_size=60))
async def test_rounds_remove_what_the_model_says(slice_queues: int, story: list[tuple[object, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wanted_files, "_SLICE", slice_queues)
        home, model = house(), Model()
        for step in [*story, ("round",)]:
            await take(home, model, step)
        await home.keeper.stop()


async def take(home: House, model: Model, step: tuple[object, ...]) -> None:
    match step:
        case "put", str(topic), int(queue_id), int(count):
            for _ in range(0 if home.store.is_full else count):
                (result,) = put(home.store, draft(bytes(700), topic=topic, queue_id=queue_id))
                model.messages.append((result.physical_offset, topic, home.store.last_timestamp_ms))
            flush(home.store)
        case "pass", int(hours):
            home.clock.now_ms += hours * HOUR_MS
        case "wish", str(topic), int(hours):
            home.wishes.pop(topic, None)
            if hours:
                home.wishes[topic] = Wish(hours * HOUR_MS)
        case "full", int(surplus):
            home.usage = fuller(surplus)
        case ("cut",):
            if model.messages and model.messages[-1][0] > home.store.commitlog.min_offset:
                home.store.truncate(model.messages.pop()[0])
        case ("round",):
            at_least, at_most = model.begin(home)
            assert at_least <= await home.round() <= at_most
