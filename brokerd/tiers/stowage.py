"""Timers that wait in the tier: objects put and read for who keeps timers (shell over an object store; `timers.tier.TimerTier`).

An object is put under a name that nobody had before, as any other; after a put of unknown outcome, under another one. It is ours
to put while the tier is open here. To read one only the store is needed. Who asks has a few requests under way at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from brokerd.tiers import stowed_reads
from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStore, ObjectStoreError, Unknown
from brokerd.tiers.upload.uploader import Loop
from brokerd.timers.tier import NO_STORE, Done, Fetched, Seen, Stored, Summarized, Unseen, Wanted
from remoting.tier.stowed import (
    Encoded,
    StowedObject,
    Waiting,
    blocks_of,
    describe,
    encode_block,
    encode_head,
    in_blocks,
    timers_of,
)
from remoting.tier.stowed_summary import encode_summary

log = logging.getLogger(__name__)

_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_BLOCKS_AT_ONCE: Final = 4  # made in a turn of the loop

Key = tuple[int, int]


class Owner(Protocol):
    """The master, while its tier is open."""

    @property
    def epoch(self) -> int:
        """Objects are named by it."""

    def next_number(self) -> int:
        """One that no object of this epoch was ever named by."""

    def retired(self, names: Sequence[str]) -> None:
        """Nobody needs these objects any more."""


class Stowage:
    """Of one broker. `named` says which objects the log names."""

    def __init__(self, objects: ObjectStore | None, loop: Loop | None, named: Callable[[], Collection[Key]]) -> None:
        self.trouble = ""
        self.failures = 0
        self._objects = objects
        self._loop = loop
        self._named = named
        self._owner: Owner | None = None
        self._life = 0
        self._unsettled: set[Key] = set()

    # ---- for the service of the tier

    def open(self, owner: Owner) -> None:
        """Objects may be put from now on."""
        self._life += 1
        self._owner = owner

    def close(self) -> None:
        """Not any more; what was begun comes to nothing."""
        self._life += 1
        self._owner = None
        self._unsettled.clear()
        self.trouble = ""

    def is_named(self, key: Key) -> bool:
        """Whether the log names that object, is about to, or did a moment ago."""
        return key in self._unsettled or key in self._named()

    # ---- timers.tier.TimerTier

    @property
    def is_there(self) -> bool:
        return self._objects is not None

    @property
    def is_open(self) -> bool:
        return self._owner is not None

    def store(self, timers: Sequence[Waiting], before: int, done: Stored) -> None:
        if self._owner is None or self._objects is None or self._loop is None:
            done(None)
            return
        work = self._store(self._objects, self._loop, self._owner, timers, before, done)
        self._loop.spawn(work, "have timers wait in the tier")

    def settle(self, entry: StowedObject) -> None:
        self._unsettled.discard(entry.key)

    def fetch(self, entry: StowedObject, done: Done) -> None:
        if self._objects is None or self._loop is None:
            done(None)
        else:
            self._loop.spawn(self._fetch(self._objects, entry, done), "have timers come back from the tier")

    def summarize(self, entry: StowedObject, done: Summarized) -> None:
        if self._objects is None or self._loop is None:
            done(NO_STORE)
        else:
            self._loop.spawn(_summarize(self._objects, entry, done), "count the timers of the tier")

    def look(self, entry: StowedObject, wanted: Wanted, done: Seen) -> None:
        if self._objects is None or self._loop is None:
            done(Unseen(NO_STORE, of_store=True))
        else:
            self._loop.spawn(_look(self._objects, entry, wanted, done), "look for timers of the tier")

    def hold(self, entry: StowedObject) -> None:
        self._unsettled.add(entry.key)

    def retire(self, entry: StowedObject) -> None:
        self._unsettled.discard(entry.key)
        if self._owner is not None:  # else a sweep finds it
            self._owner.retired([entry.name])

    # ---- inside

    async def _store(
        self,
        objects: ObjectStore,
        loop: Loop,
        owner: Owner,
        timers: Sequence[Waiting],
        before: int,
        done: Stored,
    ) -> None:
        life = self._life
        blocks: list[Encoded] = []
        for part in in_blocks(timers):
            blocks.append(encode_block(part))
            if len(blocks) % _BLOCKS_AT_ONCE == 0:
                await loop.pause(0)
        blocks.append(await loop.aside(partial(encode_summary, timers)))
        head = encode_head(blocks)
        content = [head, *(each.content for each in blocks)]
        for tries in range(_TRIES):
            if life != self._life:
                break
            entry = describe(head, owner.epoch, owner.next_number(), before)
            self._unsettled.add(entry.key)
            try:
                await objects.put(entry.name, content)
            except ObjectStoreError as error:
                if life == self._life:
                    self._unsettled.discard(entry.key)
                    self._failed(f"timers cannot go to the tier: {error}")
                if not isinstance(error, (Unknown, AlreadyThere)):
                    break
                if tries < _TRIES - 1:
                    await loop.pause(_PAUSE_S)
            else:
                if life == self._life:
                    self._succeeded()
                    done(entry)
                    return
        done(None)

    async def _fetch(self, objects: ObjectStore, entry: StowedObject, done: Done) -> None:
        try:
            blocks, _ = blocks_of(entry, bytes(await objects.get(entry.name, 0, entry.head_bytes)))
            number = next(
                at for at, each in enumerate(blocks) if each.first <= entry.returned < each.first + each.timers
            )
            block = blocks[number]
            timers = timers_of(entry, block, bytes(await objects.get(entry.name, block.position, block.size)))
        except (ObjectStoreError, ValueError) as error:
            self._failed(f"timers cannot come back from {entry.name}: {error}")
            done(None)
            return
        self._succeeded()
        next_ms = blocks[number + 1].due_ms if number + 1 < len(blocks) else None
        done(Fetched(timers[entry.returned - block.first :], next_ms))

    def _failed(self, text: str) -> None:
        self.failures += 1
        if not self.trouble:
            log.warning("%s", text)
        self.trouble = text

    def _succeeded(self) -> None:
        if self.trouble:
            log.info("timers go to the tier and come back again")
        self.trouble = ""


async def _summarize(objects: ObjectStore, entry: StowedObject, done: Summarized) -> None:
    try:
        summary = await stowed_reads.read_summary(objects, entry)
    except (ObjectStoreError, ValueError) as error:
        done(str(error))
    else:
        done(summary)


async def _look(objects: ObjectStore, entry: StowedObject, wanted: Wanted, done: Seen) -> None:
    try:
        looked = await stowed_reads.look(objects, entry, wanted)
    except (ObjectStoreError, ValueError) as error:
        of_store = isinstance(error, ObjectStoreError) and not isinstance(error, NotThere)
        done(Unseen(str(error), of_store))
    else:
        done(looked)
