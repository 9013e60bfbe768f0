"""Which files of the log stay because a topic wants its messages longer than the broker keeps files.

A file has messages of all topics, so it stays while one of them wants one in it. That is decided by the last message that a queue
has in the file: its place is found among the queue's units, its time is read from the log. Only queues of topics that want
something are looked at, and only for files that would go now or soon; for each of them once, some queues at a time, those first
whose topics want most, and no further than to the first one that keeps it.

What is not certain counts as wanted for as long as it may be: a message whose time or place cannot be read, or is not what was
written, is as young as the file's last one, and one that claims to be of the future is no younger. Each replica finds out by
its own files.

A disk that takes no messages waits for none of that: the files that have to go whoever wants them are looked at once, so that it
is told which those were, and the others stay for this time. Who was not asked counts as who wants the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.store.log.begin_times import BeginTimes
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.log.retention import FileAge, RetentionDecision
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.unit import BLANK_SIZE, Unit
from remoting.errors import StorageError

_SLICE: Final = 20  # queues looked at in one turn of the loop: some milliseconds


class Wish(NamedTuple):
    """A topic wants its messages in files for at least `reserved_ms`. Those before `begin` in the log are not its own: an older
    topic of its name had them."""

    reserved_ms: int
    begin: int = 0


Wishes = Mapping[str, Wish]  # by topic; of those that want nothing, nothing


def no_wishes() -> Wishes:
    """Files stay as long as the broker says."""
    return {}


@dataclass(slots=True)
class _Found:
    """What is known of a file, and the queues that were not looked at yet, last those whose topics want most."""

    file: FileAge
    left: list[ConsumeQueue]
    until_ms: int = 0
    topic: str = ""
    is_looked_at: bool = False  # some queues of it

    def may_be_wanted_until(self, wishes: Wishes) -> tuple[int, str]:
        """As far as is known, and by whom; who was not asked counts as who wants the file."""
        if self.left and self.file.newest_timestamp_ms >= 0:
            topic = self.left[-1].topic
            until_ms = self.file.newest_timestamp_ms + wishes[topic].reserved_ms
            if until_ms > self.until_ms:
                return until_ms, topic
        return self.until_ms, self.topic


@dataclass(slots=True)
class Kept:
    """What came of it. `files` of the log stay now for topics, the oldest for `topic`. `overruled` files went since the start
    although topics wanted them, as the disk was full: the last one at `overruled_ms` by this machine's clock, which
    `overruled_topic` wanted."""

    files: int = 0
    topic: str = ""
    overruled: int = 0
    overruled_topic: str = ""
    overruled_ms: int | None = None


class WantedFiles:
    """Of one store. The loop's thread calls everything."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, times: BeginTimes, wishes: Callable[[], Wishes]) -> None:
        """`wishes` is asked anew for every look, and makes another mapping when something changed."""
        self.kept = Kept()
        self._log = log
        self._queues = queues
        self._times = times
        self._ask = wishes
        self._wishes: Wishes = {}
        self._known_for: tuple[int, int] = (-1, -1)
        self._found: dict[int, _Found] = {}

    def look_on(
        self,
        files: Sequence[FileAge],
        least: int,
        now_ms: int,
        until_ms: int,
        reserved_ms: int,
        *,
        is_hurried: bool = False,
    ) -> bool:
        """Look a little further for messages that are wanted in these files, the oldest of the log, all of which is dispatched;
        whether there is more to look at: in each of the `least` oldest, and up to the first that is wanted after `until_ms`. What
        is wanted until `now_ms` at most is of no interest. The broker itself keeps files for `reserved_ms`. `is_hurried`: one
        look at each of the `least` oldest is enough."""
        self._forget_what_changed(files, reserved_ms)
        is_kept = False
        for index, file in enumerate(files if self._wishes else ()):
            if file.newest_timestamp_ms < 0 or (is_hurried and index >= least):
                break
            found = self._found.get(file.start)
            if found is None or found.file != file:
                self._found[file.start] = _Found(file, self._queues_of(file, reserved_ms))
                return True
            if found.left and found.until_ms <= until_ms and not (is_hurried and found.is_looked_at):
                self._look(found, now_ms, until_ms)
                found.is_looked_at = True
                return True
            is_kept = is_kept or found.until_ms > until_ms
            if is_kept and index + 1 >= least:
                break
        return False

    def marked(self, files: Sequence[FileAge], *, is_hurried: bool = False) -> list[FileAge]:
        """The files, with how long they are wanted, as far as was looked; `is_hurried`: with how long they may be wanted."""
        most_ms = max((wish.reserved_ms for wish in self._wishes.values()), default=0)
        return [self._marked(file, is_hurried, most_ms) for file in files]

    def note(self, files: Sequence[FileAge], decision: RetentionDecision, now_ms: int, told_ms: int) -> None:
        """What was decided of these marked files at `now_ms`, by the clock that retention goes by; whoever hears of it compares
        with the clocks of machines, and by this one's it is `told_ms`."""
        kept = self.kept
        going = [file for file in files[: decision.remove] if file.wanted_until_ms > now_ms]
        staying = next((file for file in files[decision.remove :] if file.wanted_until_ms > now_ms), None)
        kept.files, kept.topic = (decision.kept, self._topic_of(staying)) if staying is not None else (0, "")
        if going:
            kept.overruled += len(going)
            kept.overruled_topic, kept.overruled_ms = self._topic_of(going[-1]), told_ms

    # ---- inside

    def _marked(self, file: FileAge, is_hurried: bool, most_ms: int) -> FileAge:
        found = self._found.get(file.start)
        if found is not None and found.file == file:
            until_ms = found.may_be_wanted_until(self._wishes)[0] if is_hurried else found.until_ms
            return file._replace(wanted_until_ms=until_ms)
        if is_hurried and most_ms and file.newest_timestamp_ms >= 0:
            return file._replace(wanted_until_ms=file.newest_timestamp_ms + most_ms)
        return file

    def _topic_of(self, file: FileAge) -> str:
        found = self._found.get(file.start)
        if found is None:
            return ""
        return found.topic if found.until_ms >= file.wanted_until_ms else found.may_be_wanted_until(self._wishes)[1]

    def _forget_what_changed(self, files: Sequence[FileAge], reserved_ms: int) -> None:
        wishes, known_for = self._ask(), (self._log.generation, reserved_ms)
        before, self._wishes = self._wishes, wishes
        if (wishes is not before and wishes != before) or known_for != self._known_for:
            self._known_for = known_for
            self._found.clear()
        if len(self._found) > len(files):
            starts = {file.start for file in files}
            self._found = {start: found for start, found in self._found.items() if start in starts}

    def _queues_of(self, file: FileAge, reserved_ms: int) -> list[ConsumeQueue]:
        """Those that may have something that keeps the file longer than the broker does."""
        wanting = {topic for topic, wish in self._wishes.items() if wish.reserved_ms > reserved_ms}
        queues = [
            queue
            for (topic, _), queue in self._queues.table.items()
            if topic in wanting and queue.last_physical >= file.start
        ]
        return sorted(queues, key=lambda queue: self._wishes[queue.topic].reserved_ms)

    def _look(self, found: _Found, now_ms: int, until_ms: int) -> None:
        for _ in range(min(_SLICE, len(found.left))):
            queue = found.left.pop()
            wish = self._wishes[queue.topic]
            if found.file.newest_timestamp_ms + wish.reserved_ms <= max(found.until_ms, now_ms):
                found.left.clear()  # nor does any of the others want more
                return
            stored_ms = self._last_stored_ms(queue, found.file, wish.begin)
            if stored_ms >= 0 and stored_ms + wish.reserved_ms > found.until_ms:
                found.until_ms, found.topic = stored_ms + wish.reserved_ms, queue.topic
            if found.until_ms > until_ms:
                return

    def _last_stored_ms(self, queue: ConsumeQueue, file: FileAge, begin: int) -> int:
        """When the queue's last message in the file was stored, or later; -1 when it has none there."""
        try:
            unit = self._last_unit(queue, file.end)
        except StorageError:
            return file.newest_timestamp_ms  # whoever needs the units says so; the scrubber looks for what is damaged
        if unit is None:
            return -1
        position, size, _ = unit
        if size == BLANK_SIZE:  # nobody knows where the message was
            return file.newest_timestamp_ms
        if position < max(file.start, begin):
            return -1
        stored_ms = self._times.at(position)
        return min(stored_ms, file.newest_timestamp_ms) if stored_ms >= 0 else file.newest_timestamp_ms

    def _last_unit(self, queue: ConsumeQueue, before: int) -> Unit | None:
        """Of the queue's last message before that place of the log; None without one. Raises StorageError when that unit or the
        next one, which say so, cannot be read or are not what was written."""
        low = queue.min_offset(self._log.min_offset)
        end = queue.first_behind(before, low)
        first = max(queue.first_offset, end - 1)
        units = list(queue.checked_units(first, end + 1 - first))
        return units[0] if end > low else None
