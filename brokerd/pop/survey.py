"""What each consumer group holds at the moment, for metrics: in flight, since when, which ordered queues are blocked, and for how
long it has waited at a gate.

A look at all queues of the ledger, and at who waits at the gate. Few are looked at at once; of many a slice in each turn of the
loop, and who asks meanwhile gets what the last whole look found. Nothing happens while nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerd.loop.scheduler import Scheduler
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.gate import Gate
from brokerd.pop.queue_ledger import QueueLedger

SLICE: Final = 1000  # queues, and waits at the gate, in one turn of the loop
_AGE_MS: Final = 1000  # a look that is younger is good enough

_Waiting = tuple[str, str]  # at the gate: topic, group


@dataclass(slots=True)
class Held:
    """Of one group. `oldest_ms` is when the message that it holds longest was taken; None = it holds none. `waiting_groups` are
    the message groups that have messages which were passed over. `gated_ms` is since when it waits at a gate; None = it does
    not."""

    in_flight: int = 0
    oldest_ms: int | None = None
    blocked_queues: int = 0
    waiting_groups: int = 0
    gated_ms: int | None = None


class PopSurvey:
    """`now_ms` is the clock of pop times."""

    def __init__(self, ledger: PopLedger, gate: Gate, scheduler: Scheduler, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._gate = gate
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._last: Mapping[str, Held] = {}
        self._last_ms = -_AGE_MS
        self._left: list[QueueLedger | _Waiting] | None = None  # of the look under way
        self._found: dict[str, Held] = {}

    def groups(self) -> Mapping[str, Held]:
        """By group; those that hold nothing and do not wait are left out. At most a second old, or of the last whole look."""
        if self._left is None and int(self._scheduler.time() * 1000) - self._last_ms >= _AGE_MS:
            self._left = [*self._ledger.queues(), *self._gate.waiting()]
            self._found = {}
            self._look()
        return self._last

    def _look(self) -> None:
        """Look at a slice, and go on in the next turn while there is more."""
        assert self._left is not None
        now_ms = self._now_ms()
        for each in self._left[-SLICE:]:
            if isinstance(each, tuple):
                self._add_wait(*each, now_ms)
            elif each.in_flight:
                self._add(each, now_ms)
        del self._left[-SLICE:]
        if self._left:
            self._scheduler.call_soon(self._look)
            return
        self._left = None
        self._last, self._found = self._found, {}
        self._last_ms = int(self._scheduler.time() * 1000)

    def _add(self, queue: QueueLedger, now_ms: int) -> None:
        held = self._held(queue.group)
        held.in_flight += queue.in_flight
        oldest_ms = queue.oldest_pop_time_ms()
        if oldest_ms is not None and (held.oldest_ms is None or oldest_ms < held.oldest_ms):
            held.oldest_ms = oldest_ms
        held.blocked_queues += queue.blocked_until_ms(now_ms) is not None
        held.waiting_groups += len(queue.order.passed_over)

    def _add_wait(self, topic: str, group: str, now_ms: int) -> None:
        """A queue that is blocked by what a client has of it was counted there."""
        wait = self._gate.wait_of(topic, group)
        if wait is None:
            return
        held = self._held(group)
        held.gated_ms = wait.since_ms if held.gated_ms is None else min(held.gated_ms, wait.since_ms)
        for queue_id in wait.queue_ids:
            queue = self._ledger.queue(group, topic, queue_id)
            held.blocked_queues += queue is None or queue.blocked_until_ms(now_ms) is None

    def _held(self, group: str) -> Held:
        return self._found.setdefault(group, Held())
