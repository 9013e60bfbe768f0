"""The timer files against a list of all timers: whatever happens between, they find what the list says."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import booleans, integers, lists, sampled_from

from brokerd.timers.codes import MESSAGE, RECALL, ROLLED, START, Key, key_of
from brokerd.timers.done import Done
from brokerd.timers.far_timers import FarTimers
from brokerd.timers.files.page import PATH
from brokerd.timers.files.timer_files import TimerFiles, TimerWrite
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.timers.files.queue_model import ListedQueue, ask, follow, make_files

AHEAD_MS = integers(0, 20_000)  # more than the wheel has slots
KINDS = sampled_from([MESSAGE, RECALL, ROLLED])


class Timers(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.disk = MemoryDisk()
        self.queue = ListedQueue()
        self.queue.deliver(Key(1_000_000, -1))
        self.files: TimerFiles = make_files(self.disk, self.queue)
        self.files.load(known=True, clean=True)
        self.far = FarTimers(self.files, self.queue.queue_range, self.queue.units)
        self.begun_again = self.files.times_begun_again
        self.may_begin_again = False
        self.writing: TimerWrite | None = None
        self.asked: tuple[Key, int, int] | None = None

    @property
    def cursor(self) -> Key:
        return self.queue.cursor

    @rule(ahead_ms=lists(AHEAD_MS, max_size=12), kind=KINDS)
    def append(self, ahead_ms: list[int], kind: int) -> None:
        for each in ahead_ms:
            self.queue.add(self.cursor.due_ms + 1 + each, kind)
        self.far.arrived(len(self.queue.codes), self.queue.codes[len(self.queue.codes) - len(ahead_ms) :])

    def looked(self) -> None:
        """From now on there is no reason to make the files again."""
        self.what_is_right_is_not_made_again()
        self.begun_again, self.may_begin_again = self.files.times_begun_again, False

    @rule(pieces=integers(1, 5))
    def take(self, pieces: int) -> None:
        self.files.take(self.queue.end_offset, pieces << 9)

    @rule()
    def follow(self) -> None:
        follow(self.files, self.queue)

    @rule(ahead_ms=integers(0, 3_000), offset=integers(-1, 30))
    def deliver(self, ahead_ms: int, offset: int) -> None:
        self.queue.deliver(max(self.cursor, Key(self.cursor.due_ms + ahead_ms, offset)))

    @rule()
    def dispatch_the_rest(self) -> None:
        self.queue.unseen = 0

    @rule(
        behind_ms=integers(0, 8_000),
        offset=sampled_from([-1, 4, 1 << 62]),
        until_ms=integers(0, 40_000),
        limit=integers(1, 9),
    )
    def ask(self, behind_ms: int, offset: int, until_ms: int, limit: int) -> None:
        after = max(self.cursor, Key(self.cursor.due_ms + behind_ms, offset))
        until_ms += after.due_ms
        found = ask(self.files, after, until_ms, limit)
        assert found == self.queue.expected(after, until_ms, limit, self.files.applied)
        self.looked()

    @rule(until_ms=integers(0, 40_000), limit=integers(1, 9))
    def ask_slowly(self, until_ms: int, limit: int) -> None:
        """One call of many; others things happen before the next."""
        if self.asked is None or self.asked[0] < self.cursor:
            self.asked = (self.cursor, self.cursor.due_ms + until_ms, limit)
        found = self.files.between(*self.asked)
        if found is not None:
            assert list(found) == self.queue.expected(*self.asked, self.files.applied)
            self.asked = None

    @rule(until_ms=integers(0, 40_000), limit=integers(1, 9))
    def ask_for_all_that_is_dispatched(self, until_ms: int, limit: int) -> None:
        while self.far.step():
            pass
        assert self.far.applied == len(self.queue.codes)
        found = ask(self.far, self.cursor, self.cursor.due_ms + until_ms, limit)
        assert found == self.queue.expected(self.cursor, self.cursor.due_ms + until_ms, limit, len(self.queue.codes))

    @rule()
    def ask_all_in_portions(self) -> None:
        after, found = self.cursor, []
        while portion := ask(self.files, after, 1 << 50, 5):
            found += portion
            after = key_of(*portion[-1])
        assert found == self.queue.expected(self.cursor, 1 << 50, 1 << 20, self.files.applied)

    @precondition(lambda self: self.writing is None)
    @rule()
    def begin_write(self) -> None:
        self.writing = self.files.begin_write(closing=True)

    @precondition(lambda self: self.writing is not None)
    @rule(runs=booleans())
    def end_write(self, runs: bool) -> None:
        assert self.writing is not None
        if runs:
            self.writing.run()
            self.files.finish_write(self.writing)
        else:
            self.files.abandon_write(self.writing)
        self.writing = None

    @precondition(lambda self: self.writing is not None)
    @rule()
    def run_write(self) -> None:
        """It is on disk before the loop hears of it."""
        assert self.writing is not None
        self.writing.run()

    @rule(count=integers(1, 30))
    def cut(self, count: int) -> None:
        before = len(self.queue.history)
        self.queue.cut(len(self.queue.codes) - count)
        self.files.truncate(self.queue.end_offset)
        self.far.truncated(len(self.queue.codes))
        self.may_begin_again = self.may_begin_again or len(self.queue.history) < before
        self.asked = None

    @rule(count=integers(1, 10))
    def expire(self, count: int) -> None:
        self.queue.low = min(len(self.queue.codes), self.queue.low + count)
        self.asked = None  # it may have found some of these already
        assert list(self.files.forget_expired(self.queue.log_range()[0])) == []

    @rule(clean=booleans(), lost=integers(0, 5), unseen=integers(0, 3))
    def start_again(self, clean: bool, lost: int, unseen: int) -> None:
        """The process ended; the log may have lost its end, or less of it is known to be confirmed than was."""
        before = len(self.queue.history)
        if clean:
            if self.writing is not None:
                self.end_write(True)
            written = self.files.begin_write(closing=True)
            if written is not None:
                written.run()
                self.files.finish_write(written)
        else:
            self.queue.cut(len(self.queue.codes) - lost)
            self.queue.unseen = unseen
        self.files.close()
        self.writing = self.asked = None
        self.files = make_files(self.disk, self.queue)
        self.far = FarTimers(self.files, self.queue.queue_range, self.queue.units)
        is_known = self.disk.exists(PATH)
        self.files.load(known=True, clean=clean)
        assert self.files.offset <= self.queue.end_offset
        self.begun_again, self.may_begin_again = 0 if is_known else 1, len(self.queue.history) < before

    @rule()
    def begin_anew(self) -> None:
        self.files.restart(self.queue.log_range()[0])
        self.begun_again += 1

    @invariant()
    def nothing_pending_is_let_go(self) -> None:
        if not hasattr(self, "files"):
            return
        held = self.far.held_queue_offset(Done(self.cursor))
        pending = self.queue.expected(START, 1 << 50, 1 << 20, len(self.queue.codes))
        assert held <= min((offset for _, offset in pending), default=held)

    @invariant()
    def what_is_right_is_not_made_again(self) -> None:
        if hasattr(self, "files"):
            assert self.may_begin_again or self.files.times_begun_again == self.begun_again


TestTimers = Timers.TestCase
TestTimers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
