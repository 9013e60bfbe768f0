"""The timer files on a disk that fails: nothing is lost that the queue still has, and nothing keeps a broker from starting."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from random import Random

import pytest

from brokerd.timers.codes import START, Key
from brokerd.timers.files.layout import LOG_DIRECTORY, WHEEL_PATH
from brokerd.timers.files.page import PATH, decode_page
from brokerd.timers.files.timer_files import TimerFiles
from remoting.errors import StorageError
from tests.support.disks import FaultyDisk, PowerLost
from tests.unit.brokerd.timers.files.queue_model import ListedQueue, ask, follow, make_files, open_files, write

BEGIN_MS = 1_000_000
Story = Callable[[FaultyDisk, ListedQueue], None]


def some_timers(queue: ListedQueue, rng: Random, count: int) -> None:
    for _ in range(count):
        queue.add(queue.cursor.due_ms + rng.randrange(1, 6_000))


def cut(files: TimerFiles, queue: ListedQueue, end: int) -> None:
    queue.cut(end)
    files.truncate(queue.end_offset)
    files.truncated(len(queue.codes))


def growing(disk: FaultyDisk, queue: ListedQueue) -> None:
    rng = Random(1)
    files = open_files(disk, queue, clean=True)
    for _ in range(4):
        some_timers(queue, rng, 5)
        follow(files, queue)
        write(files)
        queue.deliver(Key(queue.cursor.due_ms + 1_500, -1))


def cutting(disk: FaultyDisk, queue: ListedQueue) -> None:
    rng = Random(2)
    files = open_files(disk, queue, clean=True)
    for end in (3, 7, 12):
        some_timers(queue, rng, 9)
        follow(files, queue)
        write(files)
        some_timers(queue, rng, 2)
        follow(files, queue)
        cut(files, queue, end)
    write(files)


def going_round(disk: FaultyDisk, queue: ListedQueue) -> None:
    """The wheel has fifteen slots: later timers take the places of delivered ones, and files of the timer log go."""
    rng = Random(3)
    files = open_files(disk, queue, clean=True)
    for _ in range(6):
        some_timers(queue, rng, 4)
        follow(files, queue)
        write(files)
        queue.deliver(Key(queue.cursor.due_ms + 7_000, -1))
    follow(files, queue)
    write(files)


def starting_again(disk: FaultyDisk, queue: ListedQueue) -> None:
    rng = Random(4)
    for _ in range(3):
        files = open_files(disk, queue)
        some_timers(queue, rng, 6)
        follow(files, queue)
        write(files)
        some_timers(queue, rng, 1)
        follow(files, queue)
        files.close()


def finds_all(disk: FaultyDisk, queue: ListedQueue) -> TimerFiles:
    """Start, follow, and compare with the queue."""
    files = open_files(disk, queue)
    follow(files, queue)
    assert files.applied == len(queue.codes)
    assert ask(files) == queue.expected(START, 1 << 50, 1 << 20, files.applied)
    return files


def new_queue() -> ListedQueue:
    queue = ListedQueue()
    queue.deliver(Key(BEGIN_MS, -1))
    return queue


@pytest.mark.parametrize("story", [growing, cutting, going_round, starting_again])
def test_power_is_lost_at_every_sync(story: Story) -> None:
    whole = FaultyDisk(Random(0))
    story(whole, new_queue())
    for point in range(1, whole.counters.sync_points + 1):
        for seed in range(2):
            disk, queue = FaultyDisk(Random(f"{point}/{seed}")), new_queue()
            disk.lose_power_at(point)
            with pytest.raises(PowerLost):
                story(disk, queue)
            disk.crash()
            has_page = disk.exists(PATH)
            files = finds_all(disk, queue)
            assert files.times_begun_again == (not has_page), "what was durable is not made again"
            write(files)
            again = finds_all(disk, queue)
            assert again.times_begun_again == 0


@pytest.mark.parametrize("fault", ["write", "sync"])
def test_failed_writes_are_done_again_by_the_next_start(fault: str) -> None:
    whole = FaultyDisk(Random(0))
    growing(whole, new_queue())
    count = whole.counters.writes if fault == "write" else whole.counters.syncs
    for number in range(1, count + 1):
        disk, queue = FaultyDisk(Random(number)), new_queue()
        (disk.fail_write_at if fault == "write" else disk.fail_sync_at)(number)
        with pytest.raises(StorageError):
            growing(disk, queue)
        disk.crash()
        finds_all(disk, queue)


def rotten(path: str, step: int) -> None:
    """One bit of every so many bytes of a file, each in files of its own."""
    rng = Random(path)
    disk, queue = FaultyDisk(rng), new_queue()
    growing(disk, queue)
    size = disk.open(path).size_bytes
    for position in range(0, size, step):
        disk, queue = FaultyDisk(rng), new_queue()
        growing(disk, queue)
        disk.flip_bit(path, position, rng.randrange(8))
        files = open_files(disk, queue)
        for _ in range(2):  # damage that a question meets has them made again, which comes next
            follow(files, queue)
            found = ask(files)
        assert found == queue.expected(START, 1 << 50, 1 << 20, len(queue.codes)), (path, position)


@pytest.mark.parametrize(("path", "step"), [(WHEEL_PATH, 1), (PATH, 61), (f"{LOG_DIRECTORY}/{228:020d}", 1)])
def test_rot_is_found(path: str, step: int) -> None:
    rotten(path, step)


def test_a_page_with_a_wrong_bit_is_none() -> None:
    disk, queue = FaultyDisk(Random(0)), new_queue()
    growing(disk, queue)
    content = disk.read_bytes(PATH)
    assert content is not None
    assert decode_page(content) is not None
    for position in range(len(content)):
        rotten = bytearray(content)
        rotten[position] ^= 1 << position % 8
        assert decode_page(bytes(rotten)) is None, position


@pytest.mark.parametrize("path", [WHEEL_PATH, PATH, f"{LOG_DIRECTORY}/{0:020d}", f"{LOG_DIRECTORY}/{228:020d}"])
def test_missing_files_are_made_again(path: str) -> None:
    disk, queue = FaultyDisk(Random(0)), new_queue()
    growing(disk, queue)
    assert disk.exists(path)
    disk.remove(path)
    assert finds_all(disk, queue).times_begun_again == 1


def test_a_bad_sector_is_no_reason_not_to_start() -> None:
    for path in (WHEEL_PATH, f"{LOG_DIRECTORY}/{228:020d}"):
        disk, queue = FaultyDisk(Random(0)), new_queue()
        growing(disk, queue)
        disk.spoil_page(path, 0)
        files = open_files(disk, queue)
        for _ in range(2):
            follow(files, queue)
            found = ask(files)
        assert found == queue.expected(START, 1 << 50, 1 << 20, len(queue.codes))


def test_a_write_that_the_cut_overtook_changes_nothing() -> None:
    disk, queue = FaultyDisk(Random(0)), new_queue()
    files = make_files(disk, queue)
    some_timers(queue, Random(5), 8)
    follow(files, queue)
    late = files.begin_write(closing=True)
    assert late is not None
    cut(files, queue, 3)
    late.run()
    files.finish_write(late)
    assert not disk.exists(PATH)
    write(files)
    assert finds_all(disk, queue).times_begun_again == 0


@pytest.mark.parametrize("brought", [(PATH,), (PATH, WHEEL_PATH, LOG_DIRECTORY)])
@pytest.mark.parametrize("waiting", [0, 1])
def test_files_of_another_broker_group_are_made_again(brought: tuple[str, ...], waiting: int) -> None:
    """They say how far a queue was followed, which is another one; of all that was due there little may wait."""
    other, theirs = FaultyDisk(Random(0)), new_queue()
    for _ in range(9):
        theirs.add(theirs.cursor.due_ms + 2_000)
    theirs.deliver(Key(theirs.cursor.due_ms + 2_500, -1))
    for _ in range(waiting):
        theirs.add(theirs.cursor.due_ms + 5_000)
    files = open_files(other, theirs, clean=True)
    follow(files, theirs)
    write(files)
    disk, queue = FaultyDisk(Random(1)), new_queue()
    growing(disk, queue)
    queue.deliver(Key(max(queue.cursor, theirs.cursor).due_ms, 99))
    some_timers(queue, Random(2), 5)
    queue.end_offset += 10_000
    for path in brought:
        disk.remove(path)
        for name in other.names(path) if path == LOG_DIRECTORY else [""]:
            each = f"{path}/{name}" if name else path
            if other.exists(each):
                with closing(other.open(each)) as segment:
                    content = segment.read(0, segment.size_bytes)
                if each == PATH:
                    disk.replace_bytes(each, content)
                else:
                    with closing(disk.open(each, create=True, size_bytes=len(content))) as copy:
                        copy.write(0, [content])
    assert finds_all(disk, queue).times_begun_again == 1
