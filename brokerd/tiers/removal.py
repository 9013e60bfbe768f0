"""Objects that leave the tier: what a commit took out, some minutes later, and what nobody names, found by a sweep (shell).

A sweep walks over all objects of the broker group, a page at a time, soon after the tier was opened and then once a day. It
removes what no segment names, such as what dead masters and puts of unknown outcome left behind, and in a directory the files
that they did not write to their ends. An object has to be older than an hour by the store's own clock, which is read off an
object that is put for that. Before anything is removed, somebody with a higher epoch must not be there: what that one's contents
name is not ours to remove.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple, Protocol

from brokerd.tiers.commits import Commits
from brokerd.tiers.manifests import Manifests
from brokerd.tiers.objects.interface import ObjectStore, ObjectStoreError
from brokerd.tiers.upload.uploader import Loop
from remoting.tier.contents import Queue, TierContents
from remoting.tier.names import (
    clock_name,
    is_clock_name,
    parse_index_name,
    parse_object_name,
    parse_stowed_name,
)

DELAY_MS: Final = 300_000  # a replica may still read by what it knew
SWEEP_MS: Final = 86_400_000
YOUNG_MS: Final = 3_600_000

_PAGE: Final = 1000
_REMOVED_AT_ONCE: Final = 500
_PAUSE_S: Final = 0.1  # between pages


class Owner(Protocol):
    """The master, as far as removal needs it."""

    @property
    def epoch(self) -> int: ...

    @property
    def contents(self) -> TierContents: ...

    def next_number(self) -> int:
        """One that no object of this epoch was ever named by."""

    def is_stowed(self, epoch: int, number: int) -> bool:
        """Whether the log names that object of timers, is about to, or did a moment ago."""

    def fenced(self, reason: str) -> None:
        """A later master is there."""

    def troubled(self, error: ObjectStoreError | None) -> None: ...


class Going(NamedTuple):
    """An object that is removed then."""

    at_ms: int
    name: str


class Removal:
    """One life. `removed` and `swept` count objects; `sweeps`: what nobody names is looked for."""

    def __init__(self, objects: ObjectStore, owner: Owner, commits: Commits, loop: Loop) -> None:
        self.removed = self.swept = 0
        self._objects = objects
        self._owner = owner
        self._commits = commits
        self._loop = loop
        self._going: list[Going] = []
        # Of what is taken out by commits that are not acknowledged yet, by how many: a topic may be deleted while it expires
        self._held: Counter[str] = Counter()
        self.sweeps = True
        self._is_busy = self._is_in_trouble = self._stopped = False
        self._next_sweep_ms = loop.wall_ms() + DELAY_MS

    @property
    def waiting(self) -> int:
        """Objects that are removed when their time has come."""
        return len(self._going)

    def hold(self, names: Sequence[str]) -> None:
        """The contents are about to have them no more; `add` follows when that is acknowledged, or `release`."""
        self._held.update(names)

    def release(self, names: Sequence[str]) -> None:
        """Nothing came of it: they stay, unless something else takes them out."""
        for name in names:
            if self._held[name] > 1:
                self._held[name] -= 1
            else:
                del self._held[name]

    def add(self, names: Sequence[str]) -> None:
        """Nothing of the contents names them any more."""
        self.release(names)
        now_ms = self._loop.wall_ms()
        self._follow_clock(now_ms)
        self._going += [Going(now_ms + DELAY_MS, name) for name in names]

    def tend(self, now_ms: int) -> None:
        """Begin what is due, unless that was begun before and is not done."""
        self._follow_clock(now_ms)
        is_due = self._is_sweep_due(now_ms) or (bool(self._going) and self._going[0].at_ms <= now_ms)
        if is_due and not self._is_busy:
            self._is_busy = True
            self._loop.spawn(self._run(now_ms), "remove objects of the tier")

    def _follow_clock(self, now_ms: int) -> None:
        """A clock that was ahead and is set back makes nobody wait until it is there again."""
        self._next_sweep_ms = min(self._next_sweep_ms, now_ms + SWEEP_MS)
        at_ms = now_ms + DELAY_MS
        if self._going and self._going[-1].at_ms > at_ms:  # they are in the order of their times
            self._going = [Going(min(each.at_ms, at_ms), each.name) for each in self._going]

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True

    def _is_sweep_due(self, now_ms: int) -> bool:
        return self.sweeps and now_ms >= self._next_sweep_ms

    async def _run(self, now_ms: int) -> None:
        try:
            await self._remove_going(now_ms)
            if self._is_sweep_due(now_ms) and not self._stopped:
                await self._sweep()
                self._next_sweep_ms = now_ms + SWEEP_MS
            self._report(None)
        except ObjectStoreError as error:
            self._report(error)
        finally:
            self._is_busy = False

    def _report(self, error: ObjectStoreError | None) -> None:
        if not self._stopped and (error is not None or self._is_in_trouble):
            self._is_in_trouble = error is not None
            self._owner.troubled(error)

    async def _remove_going(self, now_ms: int) -> None:
        while self._going and self._going[0].at_ms <= now_ms and not self._stopped:
            names = [each.name for each in self._going[:_REMOVED_AT_ONCE] if each.at_ms <= now_ms]
            if await self._remove(names):
                self.removed += len(names)
            del self._going[: len(names)]

    async def _remove(self, names: Sequence[str]) -> bool:
        """False when they are not ours any more. Raises ObjectStoreError."""
        if await Manifests(self._objects).highest_epoch(self._owner.epoch) is not None:
            if not self._stopped:
                self._owner.fenced("a later master has opened the tier")
            return False
        if self._stopped:
            return False
        await self._objects.remove(names)
        return True

    # ---- what nobody names

    async def _sweep(self) -> None:
        now_ms = await self._store_ms()
        after = ""
        while not self._stopped:
            page = await self._objects.list("", after, _PAGE)
            old = [each.name for each in page if each.modified_ms < now_ms - YOUNG_MS]
            names = await self._nameless(old)
            for start in range(0, len(names), _REMOVED_AT_ONCE):
                if await self._remove(names[start : start + _REMOVED_AT_ONCE]):
                    self.swept += len(names[start : start + _REMOVED_AT_ONCE])
            if len(page) < _PAGE:
                self.swept += await self._objects.remove_unfinished(now_ms - YOUNG_MS)
                return
            after = page[-1].name
            await self._loop.pause(_PAUSE_S)

    async def _store_ms(self) -> int:
        """What time it is for the object store. Raises ObjectStoreError."""
        name = clock_name(self._owner.epoch, self._owner.next_number())
        await self._objects.put(name, b"")
        found = [each for each in await self._objects.list(name) if each.name == name]
        await self._objects.remove([name])
        return found[0].modified_ms if found else 0  # 0: it is not listed yet, and nothing is old

    async def _nameless(self, names: Sequence[str]) -> list[str]:
        """Those that no segment, no timers and not the index have, nor had a moment ago nor is about to have."""
        going = self._held.keys() | {each.name for each in self._going}
        parsed = [(name, found) for name in names if (found := parse_object_name(name)) is not None]
        nameless = [name for name in names if is_clock_name(name)]
        of_index = [(name, key) for name in names if (key := parse_index_name(name)) is not None]
        nameless += [name for name, key in of_index if name not in going and not self._is_indexed(*key)]
        stowed = [(name, key) for name in names if (key := parse_stowed_name(name)) is not None]
        nameless += [name for name, key in stowed if name not in going and not self._owner.is_stowed(*key)]
        for queue, of_queue in groupby(parsed, key=lambda each: Queue(each[1].topic, each[1].queue_id)):
            named = {(each.epoch, each.number) for each in self._owner.contents.queues.get(queue, ())}
            for name, each in of_queue:
                key = each.epoch, each.number  # no two segments have the same ones
                if key not in named and name not in going and not self._commits.is_on_its_way(queue, *key):
                    nameless.append(name)
            await self._loop.pause(0)
        return nameless

    def _is_indexed(self, epoch: int, number: int) -> bool:
        """Whether that object of the index is used, or is about to be."""
        return (epoch, number) in self._owner.contents.index or self._commits.is_index_on_its_way(epoch, number)
