"""How far consumer groups are behind, for metrics.

A look at all queues. Of many some in each turn of the loop, and who asks meanwhile gets what the last whole look found. Nothing
happens while nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from brokerd.loop.in_turns import run_in_turns
from brokerd.loop.scheduler import Scheduler
from brokerd.processors.administration.state import QUEUES_AT_ONCE, StateWalk
from remoting.facts.lag import TopicLag, topic_lags

_AGE_S: Final = 1.0  # a look that is younger is good enough


class LagSurvey:
    def __init__(self, walk: Callable[[], StateWalk], scheduler: Scheduler) -> None:
        self._walk = walk
        self._scheduler = scheduler
        self._last: Sequence[TopicLag] = ()
        self._last_s = -_AGE_S
        self._is_looking = False

    def lags(self) -> Sequence[TopicLag]:
        """At most a second old, or of the last whole look."""
        if not self._is_looking and self._scheduler.time() - self._last_s >= _AGE_S:
            self._is_looking = True
            run_in_turns(self._steps(), QUEUES_AT_ONCE, self._scheduler.call_soon)
        return self._last

    def _steps(self) -> Iterator[int]:
        try:
            walk = self._walk()
            yield from walk.steps()
            found: list[TopicLag] = []
            queues = {each.name: len(each.queues) for each in walk.topics}
            for lag in topic_lags(walk.state()):
                found.append(lag)
                yield queues[lag.topic]
            self._last, self._last_s = found, self._scheduler.time()
        finally:
            self._is_looking = False
