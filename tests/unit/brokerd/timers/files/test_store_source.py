"""The timer files as a follower of a store's log."""

from __future__ import annotations

from contextlib import closing

from brokerd.store.draft import Draft
from brokerd.store.store import MessageStore
from brokerd.timers.codes import CODE_RULES, DELETE_KEY, DUE_MS, LEG_MS, START, Key, encode_code
from brokerd.timers.done import Done
from brokerd.timers.files.layout import LOG_DIRECTORY
from brokerd.timers.files.page import read_page
from brokerd.timers.files.source import UNKNOWN, Confirmed, Delivered, StoreSource
from brokerd.timers.files.timer_files import TimerFiles
from remoting.disk import Disk
from remoting.java_hash import java_hash
from remoting.names import TIMER_TOPIC
from remoting.record.properties import encode_properties
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.store.stores import dispatch_all, draft, make_store, put
from tests.unit.brokerd.timers.files.queue_model import TINY, ask

NOW_MS = 1_700_000_000_000


def timer(due_ms: int, **properties: str) -> Draft:
    encoded = encode_properties({"REAL_TOPIC": "TopicA", DUE_MS: str(due_ms), **properties})
    return draft(topic=TIMER_TOPIC, properties=encoded)


class Broker:
    """A store with timer files; `present` is what its tables say."""

    def __init__(self, disk: Disk) -> None:
        self.store: MessageStore = make_store(disk, rules=CODE_RULES)
        self.present = Delivered(Done(START), 0)
        self.source = StoreSource(self.store, lambda: self.present)
        self.files = TimerFiles(disk, self.source, TINY)
        self.store.followers.append(self.files)
        self.store.load()
        self.store.set_appendable(True)

    def follow(self) -> list[tuple[int, int]]:
        """All that the files find when they have followed the log."""
        while self.files.step() or self.files.take(self.store.dispatch_offset, 1 << 16):
            pass
        assert self.files.offset == self.store.dispatch_offset
        return ask(self.files)

    def end(self) -> None:
        self.store.close()


def test_timers_are_followed_kept_and_cut_with_the_log() -> None:
    disk = MemoryDisk()
    broker = Broker(disk)
    put(broker.store, draft(), timer(NOW_MS + 5000), draft(), timer(NOW_MS + 3000, **{LEG_MS: str(NOW_MS + 2000)}))
    cut_at = put(broker.store, draft(), timer(NOW_MS + 3000, **{DELETE_KEY: "TopicA+U"}))[1].physical_offset
    found = [
        (encode_code(NOW_MS + 2000, 0), 1),
        (encode_code(NOW_MS + 3000, 1), 2),
        (encode_code(NOW_MS + 5000, 0), 0),
    ]
    assert broker.follow() == found
    broker.end()
    again = Broker(disk)
    assert again.files.applied == 0  # nothing is believed before it was held against the queue
    assert again.follow() == found
    assert again.files.times_begun_again == 0
    again.store.truncate(cut_at)
    assert again.follow() == [found[0], found[2]]
    put(again.store, timer(NOW_MS + 1000))
    assert again.follow() == [(encode_code(NOW_MS + 1000, 0), 2), found[0], found[2]]
    again.store.checkpoint(closing=True)
    again.store.set_appendable(False)
    again.store.reset(0)
    assert again.follow() == []
    assert disk.names(LOG_DIRECTORY) == []


def test_a_broker_that_ends_leaves_files_that_know_what_was_delivered_last() -> None:
    """RocketMQ would deliver it again: it goes by these files alone."""
    disk = MemoryDisk()
    broker = Broker(disk)
    put(broker.store, timer(NOW_MS), timer(NOW_MS + 5000))
    broker.present = Delivered(Done(Key(NOW_MS, 0)), broker.store.dispatch_offset)
    broker.end()
    left = read_page(disk)
    assert left is not None
    assert (left.passed, left.applied, left.messages) == (Key(NOW_MS, 0), 2, 1)


def test_the_topic_and_the_time_are_the_records() -> None:
    disk = MemoryDisk()
    broker = Broker(disk)
    put(broker.store, timer(NOW_MS + 5000))
    broker.follow()
    broker.end()
    with closing(disk.open(f"{LOG_DIRECTORY}/{0:020d}")) as segment:
        content = segment.read(0, 52)
    stored_ms = int.from_bytes(content[16:24], "big")
    assert stored_ms == NOW_MS
    assert stored_ms + int.from_bytes(content[24:28], "big") == NOW_MS + 4999
    assert int.from_bytes(content[40:44], "big", signed=True) == java_hash("TopicA")
    assert broker.source.origin(1 << 40, 100) == UNKNOWN


def test_what_is_confirmed_is_known_at_the_first_look() -> None:
    """Also when an earlier state was waited for: a broker that ends looks once."""
    dispatched, present = 100, Delivered(Done(Key(NOW_MS, 0)), 150)
    confirmed = Confirmed(lambda: dispatched, lambda: present)
    assert confirmed() is None
    dispatched, present = 300, Delivered(Done(Key(NOW_MS + 1, 1)), 250)
    assert confirmed() == present
    earlier, present = present, Delivered(Done(Key(NOW_MS + 2, 2)), 350)
    assert confirmed() == earlier


def test_a_start_from_a_log_that_is_confirmed_less_far_waits() -> None:
    """The files passed a cursor that the tables do not know yet."""
    disk = MemoryDisk()
    broker = Broker(disk)
    put(broker.store, timer(NOW_MS), timer(NOW_MS + 5000))
    broker.follow()
    put(broker.store, draft())
    broker.present = Delivered(Done(Key(NOW_MS, 0)), broker.store.dispatch_offset)
    known_at = broker.store.dispatch_offset
    put(broker.store, draft())
    assert broker.follow() == [(encode_code(NOW_MS + 5000, 0), 1)]
    broker.end()
    again = Broker(disk)
    again.files.step()
    assert again.files.applied == 0
    assert again.files.take(again.store.dispatch_offset, 1 << 16) == 0
    again.present = Delivered(Done(Key(NOW_MS, 0)), known_at)
    assert again.follow() == [(encode_code(NOW_MS + 5000, 0), 1)]
    assert again.files.times_begun_again == 0


def test_what_is_not_confirmed_is_not_passed() -> None:
    broker = Broker(MemoryDisk())
    put(broker.store, timer(NOW_MS), timer(NOW_MS + 5000))
    assert [offset for _, offset in broker.follow()] == [0, 1]
    put(broker.store, draft())
    put(broker.store, draft(), visible=False)
    broker.present = Delivered(Done(Key(NOW_MS, 0)), broker.store.commitlog.end_offset)
    assert [offset for _, offset in broker.follow()] == [0, 1]
    dispatch_all(broker.store)
    assert [offset for _, offset in broker.follow()] == [1]


def test_a_broker_without_timers_has_no_files() -> None:
    disk = MemoryDisk()
    broker = Broker(disk)
    put(broker.store, draft(), draft())
    assert broker.follow() == []
    broker.end()
    assert not disk.exists("timerwheel")
    assert not disk.exists("config/timercheck")
