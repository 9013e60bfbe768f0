"""Calls that wait until somebody can carry them out: bounded, in order, tried again in portions (pure over a scheduler).

Each call has keys, and of those that share one none leaves before an earlier one. They are tried on a walk from the first to the
last, a portion in each turn of the loop: whatever shares a key with a call that this walk left where it is, stays too. So whoever
takes calls asks `waits` first, and has a new one wait behind those that do. A call that left and comes back, since it was not
carried out after all, takes the place that it had.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.proxy.calls import Call

# Of one turn of the loop: how many calls are looked at, how many of them leave, and about how much of request messages leaves
MAX_LOOKED_AT: Final = 1000
MAX_LEAVING: Final = 64
MAX_LEAVING_BYTES: Final = 256 * 1024

_KEY_BYTES: Final = 256  # about what a call of many keys takes for each

What = TypeVar("What")


class Held(NamedTuple, Generic[What]):
    """A call that waits, or that left and may come back. `number` is its place; `what` is the carrier's own; `expires_ms`, on the
    scheduler's clock, is until when it is worth another try."""

    number: int
    call: Call
    keys: Sequence[Hashable]
    what: What
    expires_ms: int


class Carrier(Protocol[What]):
    """Who carries the calls out."""

    def look(self) -> None:
        """Some time has passed, and all are tried again."""

    def attempt(self, held: Held[What]) -> Held[What] | None:
        """Have it leave now, or with this portion: None. Otherwise it stays, as what is returned."""

    def expire(self, held: Held[What]) -> None:
        """It waited too long, and has left."""

    def carry_out(self) -> None:
        """The portion is complete: what `attempt` had leave with it has left."""


class HeldCalls(Generic[What]):
    """At most `max_held` calls, whose request messages and keys take at most `max_bytes`. All are tried again every `look_s`."""

    def __init__(
        self, scheduler: Scheduler, carrier: Carrier[What], *, look_s: float, max_held: int, max_bytes: int
    ) -> None:
        self._scheduler = scheduler
        self._carrier = carrier
        self._look_s = look_s
        self._max_held = max_held
        self._max_bytes = max_bytes
        self._numbers = itertools.count(1)
        self._staying: list[Held[What]] = []  # ascending: what the walk left where it is
        self._ahead: deque[Held[What]] = deque()  # ascending, higher than those: what the walk has not come to
        self._returned: list[Held[What]] = []  # in no order; they get their places when a walk begins
        self._newest = 0  # the highest number that was ever ahead
        self._stuck: set[Hashable] = set()  # the keys of what stays and of what returned
        self._bytes = 0
        self._by_key: dict[Hashable, int] = {}  # how many are held
        self._next: Timer | None = None  # the next turn of the walk, or the next look
        self._is_walking = False
        self._begins_anew = False
        self._to_look_at = 0

    def __len__(self) -> int:
        return len(self._staying) + len(self._ahead) + len(self._returned)

    def waits(self, key: Hashable) -> bool:
        """Whether a call with that key is held."""
        return key in self._by_key

    def admit(self, call: Call, keys: Sequence[Hashable], what: What, expires_ms: int) -> Held[What]:
        """The call with its place, behind all earlier ones: to be held, or to leave at once. No key is there twice."""
        return Held(next(self._numbers), call, keys, what, expires_ms)

    def hold(self, held: Held[What]) -> bool:
        """Keep it; False when there are too many."""
        size = _size(held)
        if len(self) >= self._max_held or self._bytes + size > self._max_bytes:
            return False
        self._bytes += size
        for key in held.keys:
            self._by_key[key] = self._by_key.get(key, 0) + 1
        if held.number > self._newest:
            self._newest = held.number
            self._ahead.append(held)
        else:
            self._returned.append(held)
            self._stuck.update(held.keys)
        if self._next is None and not self._is_walking:
            self._next = self._scheduler.call_later(self._look_s, self._look)
        return True

    def try_all(self) -> None:
        """Something changed: try all of them, from the first one on, beginning in the next turn of the loop."""
        self._begins_anew = True
        if not self._is_walking and len(self):
            self._drop_timer()
            self._is_walking = True
            self._next = self._scheduler.call_later(0, self._walk_on)

    def take_all(self) -> Sequence[Held[What]]:
        """All of them, in order; none is held any more."""
        self._drop_timer()
        self._is_walking = False
        self._gather()
        held = list(self._ahead)
        self._ahead.clear()
        self._by_key.clear()
        self._bytes = 0
        return held

    # ---- the walk

    def _look(self) -> None:
        self._carrier.look()
        self._is_walking = self._begins_anew = True
        self._walk_on()

    def _walk_on(self) -> None:
        self._next = None
        if self._begins_anew or self._to_look_at <= 0:
            self._begins_anew = False
            self._gather()
            # Where more comes than leaves, a walk has to end as well: those that stay expire on the next one
            self._to_look_at = self._max_held
        try:
            self._walk_a_portion()
        finally:
            self._is_walking = bool(self._ahead) or (self._begins_anew and len(self) > 0)
            if self._is_walking:
                self._next = self._scheduler.call_later(0, self._walk_on)
            elif len(self):
                self._next = self._scheduler.call_later(self._look_s, self._look)

    def _walk_a_portion(self) -> None:
        carrier, ahead, stuck = self._carrier, self._ahead, self._stuck
        now_ms = int(self._scheduler.time() * 1000)
        looked_at = leaving = leaving_bytes = 0
        most = min(self._to_look_at, MAX_LOOKED_AT)
        while ahead and looked_at < most and leaving < MAX_LEAVING and leaving_bytes < MAX_LEAVING_BYTES:
            looked_at += 1
            held = ahead.popleft()
            if not held.call.live:
                self._leaves(held)
                continue
            if now_ms >= held.expires_ms:
                self._leaves(held)
                carrier.expire(held)
            elif not stuck.isdisjoint(held.keys):
                self._staying.append(held)
                stuck.update(held.keys)
                continue
            else:
                stays = carrier.attempt(held)
                if stays is not None:
                    self._staying.append(stays)
                    stuck.update(stays.keys)
                    continue
                self._leaves(held)
            leaving += 1
            leaving_bytes += len(held.call.message)
        self._to_look_at -= looked_at
        carrier.carry_out()

    def _leaves(self, held: Held[What]) -> None:
        self._bytes -= _size(held)
        for key in held.keys:
            left = self._by_key[key] - 1
            if left:
                self._by_key[key] = left
            else:
                del self._by_key[key]

    def _gather(self) -> None:
        """All are ahead, each in its place."""
        if self._returned:
            each = sorted((*self._staying, *self._ahead, *self._returned), key=attrgetter("number"))
            self._ahead.clear()
            self._ahead.extend(each)
        else:
            self._ahead.extendleft(reversed(self._staying))
        self._staying, self._returned = [], []
        self._stuck.clear()

    def _drop_timer(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None


def _size(held: Held[What]) -> int:
    return len(held.call.message) + _KEY_BYTES * max(0, len(held.keys) - 1)
