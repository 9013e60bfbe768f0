"""An object store in memory for tests with a clock moved by hand: it fails before or after it did what it was asked, and late."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Generator, Sequence
from typing import Any

from brokerd.loop.cold_line import Clocks
from brokerd.tiers.objects.interface import AlreadyThere, Listed, NotThere, ObjectStoreError, Read, Refused, Unknown
from brokerd.tiers.upload.uploader import Loop, in_turn
from remoting.disk import Bytes
from tests.support.turns import Turns


class Moment:
    """What a coroutine awaits: it goes on when the loop says."""

    def __init__(self) -> None:
        self.resume: Callable[[], None] = lambda: None

    def __await__(self) -> Generator[Moment, None, None]:
        yield self


class Steps:
    """Runs coroutines over `Turns`. `errors` are those that none of them caught."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.running = 0

    def spawn(self, work: Coroutine[Any, Any, None], _what: str) -> None:
        self.running += 1
        self._turns.call_soon(self._step, work)

    def _step(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            moment: Moment = work.send(None)
        except StopIteration:
            self.running -= 1
        else:
            moment.resume = lambda: self._step(work)

    async def pause(self, seconds: float) -> None:
        moment = Moment()
        self._turns.call_later(seconds, lambda: moment.resume())
        await moment

    def loop(self) -> Loop:
        return Loop(
            self._turns,
            self.spawn,
            self.pause,
            self._turns.wall_ms,
            in_turn,
            Clocks(self._turns.time, self._turns.time),
        )


class Stored:
    """What is in an object store, whoever asks for it. `puts` are all names that were ever put; its clock is `skew_ms` ahead.

    The methods are what the store does when a request reaches it, at `wall_ms`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.times: dict[str, int] = {}
        self.unfinished: dict[str, int] = {}  # what somebody began to put, and when: it is nowhere listed
        self.puts: list[str] = []
        self.appends = 0
        self.skew_ms = 0

    def put(self, name: str, content: bytes | Sequence[bytes], wall_ms: int) -> None:
        """Raises AlreadyThere."""
        if name in self.objects:
            raise AlreadyThere(name)
        self.objects[name] = content if isinstance(content, bytes) else b"".join(content)
        self.puts.append(name)
        self.times[name] = wall_ms + self.skew_ms

    def append(self, name: str, at: int, content: bytes, wall_ms: int) -> None:
        """Raises AlreadyThere and NotThere."""
        held = self.objects.get(name)
        if held is None or len(held) < at:
            raise NotThere(name)
        if len(held) > at:
            raise AlreadyThere(name)
        self.objects[name] = held + content
        self.appends += 1
        self.times[name] = wall_ms + self.skew_ms

    def get(self, name: str, start: int, length: int) -> bytes:
        """Raises NotThere."""
        found = self.objects.get(name, b"")[start : start + length]
        if len(found) != length:
            raise NotThere(name)
        return found

    def get_all(self, name: str, most: int) -> bytes:
        """Raises NotThere, and ObjectStoreError for an object that is longer than `most`."""
        if name not in self.objects:
            raise NotThere(name)
        if len(self.objects[name]) > most:
            raise ObjectStoreError(name)
        return self.objects[name]

    def list(self, prefix: str, after: str, limit: int, unlisted: Container[str] = ()) -> list[Listed]:
        names = sorted(
            name for name in self.objects if name.startswith(prefix) and name > after and name not in unlisted
        )
        return [Listed(name, len(self.objects[name]), self.times[name]) for name in names[:limit]]

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


class FaultyObjects:
    """`tiers.objects.interface.ObjectStore` for one broker. The rates are chances of each request; `fails_within` is of an append
    of which a part is done.

    A broker that appends where it was not told that its own bytes end is found out.
    """

    def __init__(
        self, stored: Stored, steps: Steps, turns: Turns, rng: random.Random, *, appends: bool = False
    ) -> None:
        self.stored = stored
        self.appends = appends
        self.fails_within = 0.0
        self._ends: dict[str, int] = {}  # of what was put or appended here, and is known to be there
        self._steps = steps
        self._turns = turns
        self._rng = rng
        self.slow_s = 0.01
        self.fails_before = self.fails_after = 0.0
        self.is_down = self.is_refusing = False
        self.has_no_manifest = False  # all but puts to the manifest succeed
        self.faults = 0
        self.unlisted: set[str] = set()  # put, but not listed yet

    async def put(self, name: str, content: bytes | Sequence[Bytes]) -> None:
        await self._request()
        if self.has_no_manifest and name.startswith("manifest/"):
            self.faults += 1
            raise Unknown("not done")
        self.stored.put(name, content, self._turns.wall_ms())
        await self._answer()
        self._ends[name] = len(content) if isinstance(content, bytes) else sum(map(len, content))

    async def append(self, name: str, at: int, content: Sequence[Bytes]) -> None:
        assert self.appends
        assert self._ends.pop(name, -1) == at, f"nobody told where {name} ends"
        whole = b"".join(content)
        await self._request()
        is_whole = self._rng.random() >= self.fails_within
        part = whole if is_whole else whole[: self._rng.randrange(len(whole))]
        self.stored.append(name, at, part, self._turns.wall_ms())
        if not is_whole:
            self.faults += 1
            raise Unknown("a part of it is there")
        await self._answer()
        self._ends[name] = at + len(whole)

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        await self.put(name, [part async for part in parts])

    async def get(self, name: str, start: int, length: int) -> bytes:
        await self._request()
        return self.stored.get(name, start, length)

    def read_in_thread(self, _work: Callable[[Read], Any]) -> None:
        """Gets are requests."""

    async def get_all(self, name: str, most: int) -> bytes:
        await self._request()
        return self.stored.get_all(name, most)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        await self._request()
        return self.stored.list(prefix, after, limit, self.unlisted)

    async def remove(self, names: Sequence[str]) -> None:
        await self._request()
        self.stored.remove(names)
        await self._answer()

    async def remove_unfinished(self, before_ms: int) -> int:
        await self._request()
        gone = [name for name, written_ms in self.stored.unfinished.items() if written_ms < before_ms]
        for name in gone:
            del self.stored.unfinished[name]
        return len(gone)

    async def close(self) -> None: ...

    async def _request(self) -> None:
        await self._steps.pause(self.slow_s * self._rng.random())
        if self.is_refusing:
            self.faults += 1
            raise Refused("the bucket is full")
        if self.is_down or self._rng.random() < self.fails_before:
            self.faults += 1
            raise Unknown("not done")

    async def _answer(self) -> None:
        await self._steps.pause(self.slow_s * self._rng.random())
        if self._rng.random() < self.fails_after:
            self.faults += 1
            raise Unknown("done, but nobody heard of it")
