"""Which queues a pop looks at, and in which order.

Queues are visited from a chosen one on, so that load spreads, and those of a PRIORITY topic from the highest priority down; one
in five pops looks at returned messages first, the others at last, so that neither starves.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from brokerd.loop.long_polling import ANY_QUEUE
from brokerd.metadata.service import MetadataService
from brokerd.pop.handles import FLAG_NORMAL, FLAG_RETRY_V1, FLAG_RETRY_V2, retry_topic, retry_topic_v1
from brokerd.pop.plan import Chance, Source, Work
from brokerd.pop.requests import PopRequest
from remoting.names import RETRY_PREFIX


class Visits:
    """`chance` is the next pop's: who looks meanwhile sees what that one takes."""

    def __init__(self, metadata: MetadataService, retry_share_percent: int, rng: random.Random) -> None:
        self._metadata = metadata
        self._retry_share_percent = retry_share_percent
        self._rng = rng
        self.chance = self._draw()

    def draw_again(self) -> None:
        """What was planned is taken: the next pop has a chance of its own."""
        self.chance = self._draw()

    def retry_sources(self, request: PopRequest) -> Sequence[Source]:
        """Where copies of the topic's messages wait for the group."""
        if request.topic.startswith(RETRY_PREFIX):
            return ()
        names = (
            (retry_topic(request.group, request.topic), FLAG_RETRY_V2),
            (retry_topic_v1(request.group, request.topic), FLAG_RETRY_V1),
        )
        found = ((name, flag, self._metadata.topic(name)) for name, flag in names)
        return [Source(name, flag, topic.read_queue_nums) for name, flag, topic in found if topic is not None]

    def queue_ids(self, work: Work, source: Source) -> Sequence[int]:
        if source.retry_flag == FLAG_NORMAL and work.request.queue_id != ANY_QUEUE:
            return (work.request.queue_id,)
        if source.retry_flag == FLAG_NORMAL and self._goes_by_priority(work):
            return range(source.queues - 1, -1, -1)
        start = int(work.chance.begin * source.queues)
        return [*range(start, source.queues), *range(start)]

    # ---- inside

    def _draw(self) -> Chance:
        returned_first = self._rng.randrange(100) < self._retry_share_percent
        return Chance(self._rng.random(), returned_first, self._rng.randrange(100))

    def _goes_by_priority(self, work: Work) -> bool:
        """A queue of a PRIORITY topic holds the messages of one priority, the last one the highest; it is looked at first.

        The group's `priority.factor` is the share of pops, in percent, that do: the others let the lower ones get their turn.
        """
        topic, group = self._metadata.topic(work.request.topic), self._metadata.group(work.request.group)
        if topic is None or topic.message_type != "PRIORITY" or work.taking.is_ordered:
            return False
        factor = group.attributes.get("priority.factor", "") if group is not None else ""
        share = int(factor) if factor.isascii() and factor.isdecimal() and len(factor) < 4 else 100
        return work.chance.percentile < share
