"""Reads of old messages, which only the tier has, in a line: one has its turn in a turn of the loop, behind all else.

An event loop serves whoever is ready one after the other, so whoever reads what is new waits for each old read before him.
While there are such others, old reads get a share of the loop's time: after a turn the line rests until the turn was no more of
the time than that, and then until one of the others was served, for a while at most: who got his answer does not ask again at
once. In front of each turn it lets a moment go by then: who was answered may be on this machine, and wait for the very
processor that the loop has. For the same reason nothing is begun, and no timer is set, when somebody is served: the line looks
when somebody should have been, by how far apart the others' answers are, and where it was wrong waits for the next one. Turns
that nobody stood there to have are not made up for later. While there are no others, nobody rests; whether there are is found out
by looking, so who comes first after a while waits for a moment to see somebody served. What else is done for old reads (fetching
them, an answer that is laid out later) is charged to the line, too.

Turns go round between those who stand there, so who asks for much at once waits for himself. How many stand is bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Generator
from math import floor
from typing import Any, Final, NamedTuple

from brokerd.loop.scheduler import Scheduler, Timer
from remoting import codes
from remoting.errors import RequestError
from remoting.exposition import Histogram

MOST_STANDING: Final = 10_000
# of a turn beside others: what a pull may ask for at most, and less than a millisecond of small messages
SHORT_BYTES: Final = 256 * 1024
SHORT_MESSAGES: Final = 64

_WAITS_S: Final = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_BESIDE_S: Final = 0.1  # who was served so long ago is served, too, in a moment
_LOOK_S: Final = 0.05  # who rests does not rest on when the others have gone
_LONGEST_REST_S: Final = 0.25  # one turn that the machine held up is no reason to rest for long
_PATIENCE_S: Final = 0.01  # for others to be served, and so far a share of the past is made up for
_NO_REST_S: Final = 0.00002  # setting a timer takes as long
_MOMENT_S: Final = 0.0001  # in which who was answered takes his answer
_FIRST_GAP_S: Final = 0.001  # between two answers, before any was seen
_LEAST_GAP_S: Final = 0.000001  # so many may be answered at one time that there is none
_SLOWLY: Final = 8  # answers for a change of the gap, of which this part is let go by, too: some are later than others
_DENSE_S: Final = 4 * _MOMENT_S  # a gap in which turns could not be but anywhere
_EARLY: Final = 0.75  # of a gap
_PART: Final = 0.5  # likewise, where it is not known yet when the gap begins

FULL: Final = RequestError(
    codes.SYSTEM_BUSY,
    f"[OVERLOAD]{MOST_STANDING} requests for messages that only the tier has wait already; try again later",
)


class Others(NamedTuple):
    """Who is served beside the line. `done` counts what was done for anybody; what a turn of the line adds to it is its own.
    `tell` has a call made whenever something is done, or never again with None."""

    done: Callable[[], int]
    tell: Callable[[Callable[[], None] | None], None]


NOBODY: Final = Others(lambda: 0, lambda _: None)


# Have a call made in some seconds, which may be parts of a millisecond; of one at a time
Shortly = Callable[[float, Callable[[], None]], object]


class Clocks(NamedTuple):
    """Seconds, as fine as they can be had: `clock_s` goes on within a turn of the event loop, where the scheduler's may not;
    `used_s` is what the loop's thread used of the processor."""

    clock_s: Callable[[], float]
    used_s: Callable[[], float]


class _Standing(NamedTuple):
    since_s: float
    turn: Callable[[], None]
    still: Callable[[], bool]


def _always() -> bool:
    return True


class ColdLine:
    """The line of one broker. `clock_s` goes on within a turn of the loop, and `used_s` is what its thread used of the processor:
    `share` is how much of that, for each second, old reads may use beside `others`, who are set by who knows them. `shortly` is
    there for who has it finer than the scheduler, and `give_way` is called when one of the others was answered.

    `waits_s` are how long each waited whose turn came; `busy_s` is what their turns used of the processor, and what was charged.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clocks: Clocks,
        share: Callable[[], float],
        shortly: Shortly | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> None:
        self.others = NOBODY
        self.waits_s = Histogram(_WAITS_S)
        self.busy_s = 0.0
        self.clock_s, self.used_s = clocks
        self._scheduler = scheduler
        self._share = share
        self._shortly: Shortly = scheduler.call_later if shortly is None else shortly
        self._give_way = give_way
        self._line: OrderedDict[object, deque[_Standing]] = OrderedDict()
        self._count = 0
        self._is_taken = False  # this turn of the loop; or the next one in line has his soon
        self._is_turn = False
        self._rests_until_s = 0.0
        self._turn_s = 0.0  # the last one's cost
        self._after_s = 0.0
        self._patience: Timer | None = None  # while the next one has his turn behind the next answer
        self._answered_s = self._ended_s = -_BESIDE_S  # the others, and a turn, last
        self._gap_s = _FIRST_GAP_S
        self._listens = False  # to when they are
        self._stood_s = 0.0  # somebody in the line, last
        self._own = 0  # of what was served
        self._seen = 0
        self._seen_s = self._looked_s = -_BESIDE_S

    @property
    def turns(self) -> int:
        """How many had theirs."""
        return sum(self.waits_s.counts)

    @property
    def standing(self) -> int:
        """How many stand there."""
        return self._count

    @property
    def is_beside_others(self) -> bool:
        """Whether others are served, now or a moment ago."""
        now_s, others = self.clock_s(), self.others.done() - self._own
        if others != self._seen:
            # it may have been at any time since the last look, which was long ago when nobody stood here
            self._seen, self._seen_s = others, max(self._looked_s, now_s - _BESIDE_S + _PATIENCE_S)
        self._looked_s = now_s
        return now_s - self._seen_s < _BESIDE_S

    @property
    def is_short(self) -> bool:
        """Whether this is somebody's turn, and others wait for its end."""
        return self._is_turn and self.is_beside_others

    def enter(self, who: object, turn: Callable[[], None], still: Callable[[], bool] = _always) -> bool:
        """Have the turn now, if nobody else is here and nothing else is served; stand in line otherwise. False when too many do.

        `still` is asked when it is his turn: False = he has gone, and it is the next one's. It is asked once."""
        if self.take():
            self.waits_s.observe(0.0)
            self._run(turn)
            return True
        return self.stand(who, turn, still)

    def stand(self, who: object, turn: Callable[[], None], still: Callable[[], bool] = _always) -> bool:
        """The same, never now."""
        if self._count >= MOST_STANDING:
            return False
        standing = _Standing(self.clock_s(), turn, still)
        if not self._count:
            self._rests_until_s = max(self._rests_until_s, standing.since_s)
        of_one = self._line.get(who)
        if of_one is None:
            self._line[who] = deque((standing,))
        else:
            of_one.append(standing)
        self._count += 1
        self._go_on()
        return True

    def take(self) -> bool:
        """Take the turn without a word, where `enter` would have it now. What it costs is for the taker to `charge`."""
        if self._is_taken or self._line or self.is_beside_others:
            return False
        self._is_taken = True
        self._scheduler.call_soon(self._ended)
        return True

    def charge(self, seconds: float) -> None:
        """So much of the loop's time went for old reads. Within a turn, which is measured as a whole, that means nothing."""
        if not self._is_turn:
            self._spend(seconds)

    async def counted(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The work, each step of which is charged."""
        await _Steps(work(), self.used_s, self.charge)

    # ---- inside

    def _go_on(self) -> None:
        if self._is_taken or not self._line:
            return
        self._is_taken = True
        if not self._listens:
            self._listen(is_on=True)
        self._look()

    def _listen(self, *, is_on: bool) -> None:
        """To when the others are served, as long as somebody stands in the line every now and then."""
        self._listens = is_on
        self.others.tell(self._was_served if is_on else None)

    def _was_served(self) -> None:
        """One of the others: he may wait for this to be over."""
        if self._give_way is not None and not self._is_turn:
            self._give_way()
        now_s = self.clock_s()
        if not self._line and now_s - self._stood_s > _BESIDE_S:
            self._listen(is_on=False)
        elif not self._is_turn:
            gap_s = min(now_s - self._answered_s, 2 * self._gap_s)  # one who came late says little of the next
            self._gap_s = max(_LEAST_GAP_S, self._gap_s + (gap_s - self._gap_s) / _SLOWLY)
            self._answered_s = now_s
            if self._patience is not None:
                self._be_next()

    def _look(self) -> None:
        """Have the next one's turn come."""
        now_s, due_s = self.clock_s(), self._due_s()
        if not self.is_beside_others:
            self._scheduler.call_soon(self._next)
        elif due_s > now_s + _NO_REST_S:
            self._shortly(min(self._gap_after(due_s) - now_s, _LOOK_S), self._look)
        elif self._is_early(now_s):
            self._let_moment_go_by(now_s)
        else:
            self._patience = self._scheduler.call_later(_PATIENCE_S, self._be_next)

    def _due_s(self) -> float:
        """When the line has rested: behind an answer that had a turn already, also for the next, unless answers are rare."""
        due_s = self._rests_until_s
        if self._ended_s < self._answered_s or self._gap_s > _PATIENCE_S:
            return due_s
        return min(due_s + self._turn_s / self._share(), max(due_s, self._answered_s + self._gap_s))

    def _gap_after(self, until_s: float) -> float:
        """When, from then on, one of the others should have been served, and have taken what he got, and asks for nothing yet."""
        first_s = self._answered_s + self._gap_s / _SLOWLY + _MOMENT_S
        gaps = max(-1, floor((until_s - first_s) / self._gap_s))
        begin_s = first_s + gaps * self._gap_s
        if until_s + self._turn_s < begin_s + self._gap_s * _PART:
            return until_s
        return begin_s + self._gap_s

    def _is_early(self, now_s: float) -> bool:
        """Whether there is time for another turn like the last one, before who was served asks again."""
        return self._gap_s < _DENSE_S or now_s + self._turn_s < self._answered_s + self._gap_s * _EARLY

    def _be_next(self) -> None:
        """Behind what is written now and taken by who is on this machine."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._let_moment_go_by(self.clock_s())

    def _let_moment_go_by(self, now_s: float) -> None:
        left_s = max(self._answered_s, self._ended_s) + _MOMENT_S - now_s
        if left_s > _MOMENT_S / 4:
            self._shortly(left_s, self._behind_all)
        else:
            self._behind_all()

    def _behind_all(self) -> None:
        """Behind whoever is ready now."""
        self._scheduler.call_soon(self._next)

    def _next(self) -> None:
        now_s = self._stood_s = self.clock_s()
        while self._line:
            who, of_one = self._line.popitem(last=False)
            standing = of_one.popleft()
            if of_one:
                self._line[who] = of_one
            self._count -= 1
            if self._is_there(standing):
                self.waits_s.observe(now_s - standing.since_s)
                self._scheduler.call_soon(self._after)
                try:
                    self._run(standing.turn)
                finally:
                    self._scheduler.call_soon(self._after_it)
                return
        self._is_taken = False

    def _is_there(self, standing: _Standing) -> bool:
        try:
            return standing.still()
        except BaseException:
            self._behind_all()  # who is behind him has nothing to do with that
            raise

    def _run(self, turn: Callable[[], None]) -> None:
        before, used_s = self.others.done(), self.used_s()
        self._is_turn = True
        try:
            turn()
        finally:
            self._is_turn = False
            self._own += self.others.done() - before
            self._turn_s = self.used_s() - used_s
            self._spend(self._turn_s)

    def _after(self) -> None:
        """What runs between this and the next one was asked for by the turn: its answer goes to the socket."""
        self._after_s = self.used_s()

    def _after_it(self) -> None:
        after_s = self.used_s() - self._after_s
        self._turn_s += after_s
        self._spend(after_s)
        self._ended()

    def _ended(self) -> None:
        self._ended_s = self.clock_s()
        if self._line and not self.is_beside_others:
            self._next()
        else:
            self._is_taken = False
            self._go_on()

    def _spend(self, seconds: float) -> None:
        now_s = self.clock_s()
        self.busy_s += seconds
        until_s = max(self._rests_until_s, now_s - seconds - _PATIENCE_S) + seconds / self._share()
        self._rests_until_s = min(until_s, now_s + _LONGEST_REST_S)


class _Steps(Generator[Any, Any, None]):
    """A coroutine, of which it is counted how long its steps take."""

    def __init__(
        self, work: Coroutine[Any, Any, None], used_s: Callable[[], float], charge: Callable[[float], None]
    ) -> None:
        self._work = work
        self._used_s = used_s
        self._charge = charge

    def __await__(self) -> Generator[Any, Any, None]:
        return self

    def send(self, value: Any) -> Any:
        began_s = self._used_s()
        try:
            return self._work.send(value)
        finally:
            self._charge(self._used_s() - began_s)

    def throw(self, *error: Any) -> Any:
        began_s = self._used_s()
        try:
            return self._work.throw(*error)
        finally:
            self._charge(self._used_s() - began_s)
