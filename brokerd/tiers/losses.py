"""What of the tier is not there any more though its object store answers: a bucket that was lost and made again, or emptied.

A master looks for its last object of the manifest and for one segment after the other, every minute, and both before it opens the
tier. Where one is missing it uploads nothing and keeps all files, for `tiers.lost_after_ms`: the objects may be put back, or
another url be right. Then what is missing leaves the contents, and what of it is in files still is uploaded again. That cannot be
undone, so the time is long, and counts only while the store answers and the same objects are missing: while some come back, or
while it is away, somebody is at work.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from brokerd.tiers.manifests import ManifestWriter
from brokerd.tiers.objects.interface import NotThere, ObjectStore, ObjectStoreError, Unknown
from brokerd.tiers.reconcile import NOTHING_MISSING, Missing
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.table import NOWHERE, TierTable
from brokerd.tiers.upload.uploader import Loop
from remoting.settings import Live
from remoting.tier.contents import Queue, TierContents
from remoting.tier.manifest import Position
from remoting.tier.names import ENTRY_BYTES, manifest_name
from remoting.tier.segments import Segment

log = logging.getLogger(__name__)

LOOK_S: Final = 60.0
_TRIES: Final = 4  # of a request whose outcome is not known: of many thousand one fails now and then
_PAUSE_S: Final = 0.5


class Lost(ObjectStoreError):
    """The store answers, and does not have what was put there."""


async def is_manifest_missing(objects: ObjectStore, position: Position) -> bool:
    """Whether what the master wrote last is not there. Raises ObjectStoreError."""
    return position != NOWHERE and position.number >= 0 and not await _is_there(objects, manifest_name(*position), 0)


async def is_missing(objects: ObjectStore, queue: Queue, segment: Segment) -> bool:
    """Whether one of its objects is not there, or ends too early. Raises ObjectStoreError."""
    messages, entries = segment.names(*queue)
    return not (
        await _is_there(objects, messages, segment.stored_bytes - 1)
        and await _is_there(objects, entries, segment.messages * ENTRY_BYTES - 1)
    )


async def missing_of(
    objects: ObjectStore, contents: TierContents, pause: Callable[[float], Awaitable[None]], goes_on: Callable[[], bool]
) -> Missing:
    """All that is; each object is asked for itself, since a listing may be late. Raises ObjectStoreError."""
    missing = Missing({}, [])
    for queue, segments in list(contents.queues.items()):
        for segment in segments:
            if not goes_on():
                return missing
            if await _tried(partial(is_missing, objects, queue, segment), pause):
                missing.segments.setdefault(queue, set()).add(segment)
    for entry in list(contents.index.values()):
        if not await _tried(partial(_is_there, objects, entry.name, 0), pause):
            missing.of_index.append(entry)
    return missing


async def _tried(ask: Callable[[], Awaitable[bool]], pause: Callable[[float], Awaitable[None]]) -> bool:
    for _ in range(_TRIES - 1):
        try:
            return await ask()
        except Unknown:
            await pause(_PAUSE_S)
    return await ask()


async def _is_there(objects: ObjectStore, name: str, last: int) -> bool:
    """Whether the object has that byte."""
    try:
        await objects.get(name, last, 1)
    except NotThere:
        return False
    return True


class Losses:
    """What is missing, from when that was seen until the tier is open again."""

    def __init__(self, loop: Loop, settings: Live[TierSettings]) -> None:
        self._loop = loop
        self._settings = settings
        self._is_suspected = False
        self._seen = NOTHING_MISSING
        self._since_ms = 0  # what was seen has been missing

    @property
    def is_any(self) -> bool:
        """Whether all files are kept for that."""
        return self._is_suspected

    def suspect(self) -> None:
        """Something is missing: look at all of it, and count the time from the next look on."""
        self._is_suspected, self._seen = True, NOTHING_MISSING

    def failed(self, error: ObjectStoreError) -> None:
        """The tier was not opened for that."""
        if self._is_suspected and not isinstance(error, Lost):
            self.suspect()

    def forget(self) -> None:
        """It is there again, or was given up, or is another master's to see."""
        self._is_suspected, self._seen = False, NOTHING_MISSING

    async def given_up(self, objects: ObjectStore, table: TierTable, goes_on: Callable[[], bool]) -> Missing:
        """What leaves the contents, asked before the tier is opened. Raises ObjectStoreError, `Lost` among them as long as
        something is missing that is not given up."""
        # without what it wrote last this is another store, or an older state of it
        if not self._is_suspected and not await is_manifest_missing(objects, table.position):
            return NOTHING_MISSING
        missing = await missing_of(objects, table.contents, self._loop.pause, goes_on)
        if not missing.is_any or not goes_on():
            return NOTHING_MISSING
        now_ms = self._loop.wall_ms()
        if missing != self._seen:
            self._is_suspected, self._seen, self._since_ms = True, missing, now_ms
        left_ms = self._since_ms + self._settings.value.lost_after_ms - now_ms
        if left_ms > 0:
            raise Lost(
                f"the object store answers, and does not have what was put there: {missing.messages} messages, and "
                f"{len(missing.of_index)} objects of the index, are missing at {self._settings.value.url}. Put them back from a "
                f"copy, or correct tiers.url; they are given up in {left_ms // 60_000 + 1} minutes (tiers.lost_after_ms, which "
                "may be made 0 when there is no copy), and what files have of them is uploaded again"
            )
        log.error(
            "%d messages are missing in the tier and given up; what files have is uploaded again", missing.messages
        )
        return missing


class LossWatch:
    """One life, from when the tier is open on. `lost` is called once."""

    def __init__(
        self,
        objects: ObjectStore,
        writer: ManifestWriter,
        contents: Callable[[], TierContents],
        loop: Loop,
        lost: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._writer = writer
        self._contents = contents
        self._loop = loop
        self._lost = lost
        self._to_look_at: list[tuple[Queue, Segment]] = []
        self._stopped = False

    def begin(self) -> None:
        self._loop.scheduler.call_later(LOOK_S, self._spawn)

    def stop(self) -> None:
        """Say nothing more."""
        self._stopped = True

    def _spawn(self) -> None:
        if not self._stopped:
            self._loop.spawn(self._look(), "see whether the tier has what was put there")

    async def _look(self) -> None:
        try:
            is_lost = await self._is_manifest_lost() or await self._is_segment_lost()
        except ObjectStoreError:
            is_lost = False  # it does not answer: who uploads or writes its state says so
        if is_lost and not self._stopped:
            self._lost()
        else:
            self.begin()

    async def _is_manifest_lost(self) -> bool:
        position = self._writer.position
        # what it wrote last goes when there is a checkpoint behind it, which moves the position first
        return await is_manifest_missing(self._objects, position) and self._writer.position == position

    async def _is_segment_lost(self) -> bool:
        """One after the other, over the minutes."""
        if not self._to_look_at:
            queues = self._contents().queues
            self._to_look_at = [(queue, next(iter(queues[queue]))) for queue in queues if len(queues[queue])]
        while self._to_look_at:
            queue, segment = self._to_look_at.pop()
            if self._names(queue, segment):
                return await is_missing(self._objects, queue, segment) and self._names(queue, segment)
        return False

    def _names(self, queue: Queue, segment: Segment) -> bool:
        """Whether the contents do, still, maybe of one that grew meanwhile: what they do not name goes minutes later."""
        segments = self._contents().queues.get(queue)
        named = segments.at(segment.first) if segments is not None else None
        return named is not None and segment.is_part_of(named)
