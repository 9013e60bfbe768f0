"""The end of the log, lent to the carrier's thread, which takes sends of who sends densely (`native/lane.py`).

It is lent while nobody else has to have a message for it to be acknowledged, for some milliseconds at a time: so long holds what
was looked at, among it the time that records carry. Where the disk has to have it, the thread wants its syncs by itself
(`log/syncs_in_c.py`), and answers behind them; what waits for one when its connection comes back waits here, like all that the
loop appended. Whoever appends, cuts the log or looks at numbers of queues has it taken back
first (`MessageStore.settle`), and so has whoever is to see what was answered (`catch_up`). Taking it back takes note of what is
in the log; what that entails, for replicas and readers, comes in a turn of its own, as somebody may be in the middle of
something.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from brokerd.loop.scheduler import Scheduler
from brokerd.native.lane import Done
from brokerd.native.stays import Waiting
from brokerd.sending.acknowledging import Appends
from brokerd.sending.late_answers import answer_later
from brokerd.sending.lent import InC
from brokerd.sending.turns import SendTurns
from brokerd.store.log.segment import Segment
from brokerd.store.run import Run
from remoting.errors import LogboomError, StorageError
from remoting.record.layout import FILLER_BYTES
from remoting.transport.carrying import Lender
from remoting.transport.connection import RemotingConnection

_LENT_NS: Final = 5_000_000
_PAUSE_S: Final = 0.001  # so often it is taken note of what was done, when nobody asks
_MOST_BYTES: Final = 16 << 20
_NEXT_BYTES: Final = 32 << 10  # for which the file is to have blocks, where the disk is waited for
_MOST_UNUSED: Final = 3  # times in a row
_RETRY_S: Final = 0.001
_MOST_MISSED: Final = 4  # syncs, times in a row
_COUNTED: Final = 64  # times that it is lent, behind which it is seen whether that is worth while
_REST_NS: Final = 100_000_000
_WORTH_WHILE: Final = 16  # messages of one who stays: what it costs to have him come and go


class _Lent(NamedTuple):
    run: Run
    segment: Segment
    since_ns: int


class Measures(NamedTuple):
    """A monotonic clock; and with how much less in the log's file the loop takes what comes, and begins the next one."""

    now_ns: Callable[[], int] = time.monotonic_ns
    least_bytes: int = 1 << 20


_USUAL: Final = Measures()


class SendLending:
    """Of one broker. All of it is the loop's."""

    def __init__(
        self,
        turns: SendTurns,
        appends: Appends,
        in_c: InC,
        scheduler: Scheduler,
        show: Callable[[], None],
        measures: Measures | None = None,
    ) -> None:
        """`show` has readers see what is acknowledged by now."""
        self._store = store = turns.store
        self._appends = appends
        self._counters = turns.counters
        self._kernel, self._carrier, self._syncs = in_c
        self._lane = self._carrier.lane
        self._scheduler = scheduler
        self._show = show
        self._now_ns, self._least_bytes = measures or _USUAL
        self._lent: _Lent | None = None
        self._untold: list[tuple[Run, Done]] = []
        self._told_ns = 0
        self._goes_on = self._has_ended = False
        self._times = self._frames = 0  # how often it was lent, and what was taken, since that was seen last
        self._unused = 0
        self._rests_until_ns = 0
        self._missed_syncs = 0  # times in a row
        self._sees_late = False  # something may be durable, and answered, that the loop did not hear of
        store.take_back = self.take_back
        self._carrier.lane_listener = self._heard
        self._carrier.waiting_listener = self._wait

    def look(self, connection: RemotingConnection) -> None:
        """All that the connection sent was taken now. If it sends densely the thread is to take what it sends next."""
        if (
            not connection.density.note(connection.last_active, waits_for_disk=self._syncs is not None)
            or self._has_ended
        ):
            return
        if self._now_ns() < self._rests_until_ns or not self._may_lend:
            return
        connection.go_on_sending()  # where reading was paused, answers are put off
        came_back = partial(connection.density.came_back, worth_while=_WORTH_WHILE)
        if self._carrier.have_sender(connection, came_back) and self._lent is None:
            self._soon()

    def take_back(self) -> None:
        """Nobody else appends any more, and all that was appended is in the store. It may be lent again in the next turn."""
        if self._lent is not None:
            self._settle()
            self._soon()
        if not self._appends.is_masters:  # what waits is not for the log as it will be
            self._carrier.finish_senders()

    def take_all_back(self) -> None:
        """The same, and what waits for the disk waits here."""
        self._settle()
        self._carrier.finish_senders()
        self._soon()

    def catch_up(self) -> None:
        """Who reads now sees all that was answered."""
        if self._lent is not None and self._lane.has_news:
            self._go_round()
        elif self._untold:
            self._tell()
        self._see_durable()
        self._show()

    @property
    def waiting(self) -> tuple[int, int]:
        """How many groups of messages wait for the disk beside the loop, and the first of them for how many ms; for a person."""
        count, since_ns = self._carrier.waiting_senders()
        return count, (self._now_ns() - since_ns) // 1_000_000 if count else 0

    def end(self) -> None:
        """It is not lent any more."""
        self._has_ended = True
        self.take_all_back()
        self._tell()
        self._see_durable()

    @property
    def _may_lend(self) -> bool:
        if self._appends.are_durable and self._syncs is None:
            return False
        return self._appends.are_alone and self._store.commitlog.file_to_lend is not None and self._has_room

    @property
    def _has_room(self) -> bool:
        """Whether the file has room for enough, as far as is known here."""
        return self._store.commitlog.segment_remaining() >= self._least_bytes + FILLER_BYTES

    def _see_durable(self) -> None:
        """All that was answered."""
        if self._syncs is not None and self._sees_late:
            self._sees_late = self._carrier.has_senders
            self._syncs.catch_up()
            self._count_waited()

    def _count_waited(self) -> None:
        """Messages of which it is known now how long they waited for the disk."""
        for waited_ms, messages in self._lane.waited():
            self._counters.puts.add(waited_ms, messages)

    def _wait(self, lender: Lender, waiting: Waiting) -> None:
        """Its answers came back with the connection: they leave when the loop knows that they may. It has to know of the
        messages, too, but somebody may be in the middle of something."""
        assert isinstance(lender, RemotingConnection)
        self._appends.wait(waiting.end, answer_later(lender, waiting, self._counters))
        self._soon()

    def _soon(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self._scheduler.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if self._lent is not None and self._lane.has_news:
            self._settle()
        self._lend()
        self._tell()
        self._see_durable()

    def _heard(self) -> None:
        """The thread took something for the first time since it has the lane, or missed it."""
        if self._lent is None:
            if self._carrier.has_senders:
                self._soon()
        elif not self._lane.has_news:
            if self._now_ns() - self._lent.since_ns > _LENT_NS:
                self._was_unused()
        elif self._now_ns() - self._told_ns >= _PAUSE_S * 1e9:
            self._go_round()
        else:
            self._scheduler.call_later(_PAUSE_S, self._go_round_for_news)

    def _was_unused(self) -> None:
        """Nothing was taken in all the time, and then something came."""
        self._unused += 1
        if self._unused < _MOST_UNUSED:  # the thread may have had no processor
            self._go_round()
        else:  # nobody sends as densely as that
            self._unused = 0
            self._carrier.recall_senders()

    def _go_round_for_news(self) -> None:
        if self._lent is not None and self._lane.has_news:
            self._go_round()

    def _go_round(self) -> None:
        self._settle()
        self._lend()  # before all that follows from what was taken
        self._tell()

    def _lend(self) -> None:
        if self._lent is not None or self._has_ended or not self._carrier.has_senders:
            return
        now_ns = self._now_ns()
        if self._times == _COUNTED:
            if self._frames < _COUNTED:  # others append all the time
                self._rests_until_ns = now_ns + _REST_NS
            self._times = self._frames = 0
        segment = self._store.commitlog.file_to_lend
        if segment is not None and self._syncs is not None and not self._syncs.serves(segment.start):
            self._wait_for_syncs()
            return
        self._missed_syncs = 0
        run = self._begin_run(segment) if segment is not None and now_ns >= self._rests_until_ns else None
        if segment is None or run is None or run.room < self._least_bytes:
            self._carrier.recall_senders()
            return
        run.limit = min(run.limit, run.start + _MOST_BYTES)
        self._times += 1
        self._sees_late = True
        file, syncs_at = segment.file.descriptor, self._syncs.at if self._syncs is not None else 0
        self._lane.lend(self._kernel.lend(run), file, segment.start, _LENT_NS, syncs_at)
        self._lent = _Lent(run, segment, now_ns)  # not before: who takes back what was not lent waits for ever

    def _wait_for_syncs(self) -> None:
        """Who syncs has something else to do, mostly for a moment, or begins with another file when the loop has appended
        there."""
        self._missed_syncs += 1
        if self._missed_syncs > _MOST_MISSED:
            self._missed_syncs = 0
            self._carrier.recall_senders()
        else:
            self._scheduler.call_later(_RETRY_S, self._soon)

    def _begin_run(self, segment: Segment) -> Run | None:
        """For what is taken next; None when that is for the loop, which tells who sends it."""
        if not self._may_lend:
            return None
        try:
            run = self._store.begin_run()
            self._store.commitlog.write_ahead_of(segment, _NEXT_BYTES)
        except LogboomError:
            return None
        return run

    def _settle(self) -> None:
        """Have nobody else append, and take note of what is in the log."""
        lent, self._lent = self._lent, None
        if lent is None:
            return
        run = lent.run
        done = self._lane.take_back()
        self._frames += done.frames
        if done.frames:
            self._unused = 0
        try:
            self._kernel.take_back(run, has_failed=done.error != 0)
            if run.size:
                self._store.note_appended(run)
        except Exception as error:
            self._store.fail(StorageError(f"what was answered is not known: {error}"))  # or it were written over
            raise
        if run.size:
            self._untold.append((run, done))
        if done.error:
            self._note_failed(lent.segment, done)

    def _note_failed(self, segment: Segment, done: Done) -> None:
        """The disk refused what came last, of which nothing was answered; the loop has it again."""
        error = StorageError(f"cannot write {segment.file.path}: {os.strerror(done.error)}")
        error.__cause__ = OSError(done.error, os.strerror(done.error))
        self._store.commitlog.note_failed(segment, done.tried_end, error)
        self._store.note_append_error(self._store.commitlog.refusal or error)

    def _tell(self) -> None:
        """Of what is in the log."""
        untold, self._untold = self._untold, []
        if not untold:
            return
        self._told_ns = self._now_ns()
        if self._appends.is_masters:  # else it was told when the role changed
            self._appends.appended(self._store.commitlog.end_offset)
        for run, done in untold:
            if self._syncs is None:
                self._counters.puts.add(done.busy_ns / done.passes / 1e6, run.message_count)
            self._counters.stored(run)
        self._count_waited()
        self._show()  # now: who sent it is answered already, and may be followed by who reads
