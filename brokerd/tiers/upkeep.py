"""What becomes of segments that are in the tier: they expire, and are merged (shell).

One life of it lasts from when the tier is open until this broker is not the master any more. What leaves the contents leaves them
by a commit; its objects go later (`removal`). A queue has one such change on its way at a time, so that each fits what it finds.
The segment that grows at that moment stays as it is, and what is about to be taken out does not grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Final, Protocol

from brokerd.metadata import tier_policy as policy
from brokerd.tiers import removal
from brokerd.tiers.commits import Commits
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.merger import Merger
from brokerd.tiers.upload.merging import Limits, choose, may_grow, span_ms
from brokerd.tiers.upload.uploader import Loop
from remoting.settings import Live
from remoting.tier.contents import Change, Queue, dropped, expired, merged, unindexed
from remoting.tier.index import ALL_TOPICS, IndexObject, part_of
from remoting.tier.segments import Form, QueueSegments, Segment

SETTLED_MS: Final = 600_000
"""Messages that are younger are not merged: an election that may lose messages would take older ones along that are merged with
them."""

_NEVER_MS: Final = 1 << 62
_TEND_S: Final = 60.0
_SLICE: Final = 500  # queues looked at in one turn of the loop


class Owner(removal.Owner, Protocol):
    """The master, as far as upkeep needs it."""

    def attributes(self, topic: str) -> Mapping[str, str]:
        """A topic's; none without one."""

    def reserved_ms(self, topic: str) -> int:
        """How long its messages are kept; 0 = for ever."""

    def is_growing(self, queue: Queue) -> bool:
        """Whether something is on its way into the queue's last segment."""


class Upkeep:
    """One life. `merges` and `merged_bytes` count what was merged in it."""

    def __init__(
        self, objects: ObjectStore, owner: Owner, commits: Commits, loop: Loop, settings: Live[TierSettings]
    ) -> None:
        self.merges = self.merged_bytes = 0
        self.removal = removal.Removal(objects, owner, commits, loop)
        self._owner = owner
        self._commits = commits
        self._loop = loop
        self._settings = settings
        self._merger = Merger(objects, loop)
        self._changing: dict[Queue, int] = {}  # up to which offset segments are about to be taken out
        self._dropping: Counter[str] = Counter()
        self._grown: dict[Queue, None] = {}
        self._settle_ms: dict[Queue, int] = {}  # when the last segment of a queue will be settled that is not yet
        # By part of all topics: nothing in the tier is older, as far as was looked, and of what was uploaded since then.
        self._kept_ms: dict[int, int] = {}
        self._uploaded_ms: dict[int, int] = {}
        self._is_open = False
        self._index_going = self._is_looking = self._is_merging = self._is_in_trouble = self._stopped = False

    def begin(self, *, expires_only: bool = False) -> None:
        """The tier is open. With `expires_only` nothing is merged, nor is what nobody names looked for: a mount does not know all
        that the group's own log names."""
        self._is_open = True
        if not expires_only:
            self._grown.update(dict.fromkeys(self._owner.contents.queues))
        self.removal.sweeps = not expires_only
        self._tend()

    def _tend(self) -> None:
        if self._stopped:
            return
        now_ms = self._loop.wall_ms()
        if not self._is_looking:
            self._is_looking = True
            self._kept_ms, self._uploaded_ms = self._uploaded_ms, {}
            self._look_for_expired(list(self._owner.contents.queues), now_ms)
        self._grown.update(dict.fromkeys(self._settled_by(now_ms)))
        if not self._is_merging and self._grown:
            self._is_merging = True
            grown, self._grown = self._grown, {}
            self._loop.spawn(self._merge_all(list(grown)), "merge segments of the tier")
        self.removal.tend(now_ms)
        self._loop.scheduler.call_later(_TEND_S, self._tend)

    def stop(self) -> None:
        """Begin nothing more. What was not removed is found by a sweep."""
        self._stopped = True
        self.removal.stop()

    def uploaded(self, queue: Queue, segment: Segment) -> None:
        """The queue gets that segment."""
        part = part_of(queue.topic)
        self._uploaded_ms[part] = min(segment.first_ms, self._uploaded_ms.get(part, segment.first_ms))
        self._note_kept(queue, segment.first_ms)

    def grown(self, queue: Queue) -> None:
        """It has another segment."""
        self._grown[queue] = None

    def lets_grow(self, queue: Queue, last: Segment, first_ms: int) -> bool:
        """Whether messages, the first of which was stored then, may come to the queue's last segment."""
        is_going = queue.topic in self._dropping or last.first < self._changing.get(queue, 0)
        return not is_going and may_grow(last, first_ms, self._limits(queue))

    def drop(self, topic: str) -> None:
        """The topic was deleted: what it has in the tier goes, and what is on its way there."""
        has_some = any(queue.topic == topic for queue in self._owner.contents.queues)
        # what the manifest has beyond the own log is in the contents when the tier is open
        if has_some or self._commits.is_any_on_its_way(topic) or not self._is_open:
            self._dropping[topic] += 1
            self._take_out(dropped(topic), partial(self._dropped, topic))

    def _dropped(self, topic: str) -> None:
        self._dropping[topic] -= 1
        if not self._dropping[topic]:
            del self._dropping[topic]

    # ---- expiry

    def _look_for_expired(self, queues: list[Queue], now_ms: int) -> None:
        """In all of them, some in each turn of the loop."""
        for queue in queues[-_SLICE:]:
            segments = self._owner.contents.queues.get(queue)
            if segments is None:
                continue
            if len(segments):
                self._note_kept(queue, next(iter(segments)).first_ms)
            if not self._is_changing(queue):
                self._expire(queue, segments, now_ms)
        del queues[-_SLICE:]
        self._is_looking = bool(queues) and not self._stopped
        if self._is_looking:
            self._loop.scheduler.call_soon(self._look_for_expired, queues, now_ms)
        elif not self._stopped:
            self._expire_index()

    def _note_kept(self, queue: Queue, from_ms: int) -> None:
        """The queue has something of that time."""
        part = part_of(queue.topic)
        self._kept_ms[part] = min(from_ms, self._kept_ms.get(part, from_ms))

    def _expire_index(self) -> None:
        """Objects of the index go when no topic that they may know has anything in the tier that is as old as what they name."""
        if self._index_going:
            return
        old = [entry for entry in self._owner.contents.index.values() if self._is_of_nothing(entry)]
        if old and not self._commits.is_any_waiting:
            self._index_going = True
            names = [entry.name for entry in old]
            self._hold_and_commit(unindexed(old), names, self._index_gone)

    def _is_of_nothing(self, entry: IndexObject) -> bool:
        if entry.topics == ALL_TOPICS:
            return all(entry.end_ms < kept_ms for kept_ms in self._kept_ms.values())
        return all(entry.end_ms < self._kept_ms.get(part, _NEVER_MS) for part in entry.parts)

    def _index_gone(self) -> None:
        self._index_going = False

    def _expire(self, queue: Queue, segments: QueueSegments, now_ms: int) -> None:
        reserved_ms = self._reserved_ms(queue)
        offset = expired_to(segments, now_ms - reserved_ms) if reserved_ms else None
        if offset is not None and (offset < segments.end or not self._owner.is_growing(queue)):
            self._changing[queue] = offset
            self._take_out(expired(queue, offset), partial(self._changed, queue))

    def _changed(self, queue: Queue) -> None:
        del self._changing[queue]

    def _reserved_ms(self, queue: Queue) -> int:
        return self._owner.reserved_ms(queue.topic)

    # ---- merging, one queue at a time

    async def _merge_all(self, queues: list[Queue]) -> None:
        try:
            while queues and not self._stopped:
                await self._merge_next(queues[-1])
                queues.pop()
                await self._loop.pause(0)
            self._report(None)
        except ObjectStoreError as error:
            self._grown.update(dict.fromkeys(queues))  # again in a minute
            self._report(error)
        finally:
            self._is_merging = False

    def _report(self, error: ObjectStoreError | None) -> None:
        if not self._stopped and (error is not None or self._is_in_trouble):
            self._is_in_trouble = error is not None
            self._owner.troubled(error)

    async def _merge_next(self, queue: Queue) -> None:
        """Raises ObjectStoreError."""
        if self._is_changing(queue):
            self._grown[queue] = None
            return
        limits = self._limits(queue)
        old = list(choose(self._settled(queue), limits))
        if not old:
            self._note_unsettled(queue)
            return
        self._changing[queue] = old[-1].end
        name = self._owner.epoch, self._owner.next_number()
        try:
            segment = await self._merger.merge(queue, old, limits.form, name)
        except ObjectStoreError:
            self._changed(queue)
            raise
        if self._stopped or not self._still_has(queue, old):
            self._changed(queue)
            return
        self.merges += 1
        self.merged_bytes += segment.message_bytes
        self._take_out(merged(queue, segment), partial(self._merged, queue))

    def _limits(self, queue: Queue) -> Limits:
        settings = self._settings.value
        is_archived = policy.is_archived(self._owner.attributes(queue.topic), settings.archive)
        form = Form.BLOCKS if is_archived else Form.RAW
        return Limits(settings.segment_bytes, span_ms(self._reserved_ms(queue)), form)

    def _settled(self, queue: Queue) -> Sequence[Segment]:
        """Those of the queue's segments that may be merged, but for one that grows at this moment."""
        segments = self._owner.contents.queues.get(queue)
        if segments is None:
            return ()
        found = settled(segments, self._loop.wall_ms() - SETTLED_MS)
        is_last_growing = bool(found) and found[-1].end == segments.end and self._owner.is_growing(queue)
        return found[:-1] if is_last_growing else found

    def _note_unsettled(self, queue: Queue) -> None:
        """Look at the queue once more when it has nothing unsettled: maybe no message comes that would have it looked at."""
        segments = self._owner.contents.queues.get(queue, QueueSegments())
        if len(segments) and segments.last.last_ms >= self._loop.wall_ms() - SETTLED_MS:
            self._settle_ms[queue] = segments.last.last_ms + SETTLED_MS + 1

    def _settled_by(self, now_ms: int) -> list[Queue]:
        """The queues that were noted and that are settled now; they are noted no more."""
        found = [queue for queue, settled_ms in self._settle_ms.items() if settled_ms <= now_ms]
        for queue in found:
            del self._settle_ms[queue]
        return found

    def _still_has(self, queue: Queue, old: Sequence[Segment]) -> bool:
        """A topic may have been deleted, and begun again, meanwhile."""
        segments = self._owner.contents.queues.get(queue, ())
        now = [each for each in segments if old[0].first <= each.first < old[-1].end]
        return queue.topic not in self._dropping and now == old

    def _merged(self, queue: Queue) -> None:
        self._changed(queue)
        self._grown[queue] = None  # there may be more to merge

    def _is_changing(self, queue: Queue) -> bool:
        return queue in self._changing or queue.topic in self._dropping

    def _take_out(self, change: Change, done: Callable[[], None]) -> None:
        """Commit a change that takes segments out; their objects go later."""
        gone = self._owner.contents.taken_out_by(change)
        names = [name for queue, segment in gone for name in segment.names(*queue)]
        self._hold_and_commit(change, names, done)

    def _hold_and_commit(self, change: Change, names: Sequence[str], done: Callable[[], None]) -> None:
        """`done` also when it is left out, as the contents are what they were: then these objects stay."""
        self.removal.hold(names)
        left_out = partial(self._left_out, names, done)
        self._commits.add(change, partial(self._taken_out, names, done), left_out=left_out)

    def _taken_out(self, names: Sequence[str], done: Callable[[], None]) -> None:
        self.removal.add(names)
        done()

    def _left_out(self, names: Sequence[str], done: Callable[[], None]) -> None:
        self.removal.release(names)
        done()


def settled(segments: Iterable[Segment], before_ms: int) -> list[Segment]:
    """Those from the first on whose messages were all stored before that time."""
    return list(takewhile(lambda each: each.last_ms < before_ms, segments))


def expired_to(segments: QueueSegments, before_ms: int) -> int | None:
    """The end of those from the first on whose messages were all stored before that time; None when there are none."""
    old = settled(segments, before_ms)
    return old[-1].end if old else None
