"""An object store as a node of a story, behind the simulated network: slow, out of reach, full, wrong about what it did.

What it holds is `tests.support.tiers.Stored`. A request is a message that may be lost, arrive twice, or come long after whoever
sent it has given up or died; so is the answer. While the store is in trouble it fails before it does something, or after it did.
A listing may miss what was put just now. Stories last seconds, and a tier does some things after hours: `skip` lets its time, for
the store and for whoever uses it, go on by so much at once.

What must be true of every request is looked at when it is carried out:

- objects are written once: another content under a name that exists means that two took it for theirs; where it can append (in
  some stories), one life of a broker does, behind what it was told to be there, and any of it may come to be there in part;
- one broker writes the manifest of an epoch;
- the newest manifest names what is there, and that is never removed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from brokerd.loop.cold_line import Clocks
from brokerd.loop.scheduler import Timer
from brokerd.tiers.objects.interface import Listed, ObjectStoreError, Read, Refused, Unknown
from brokerd.tiers.upload.uploader import Loop, in_turn
from remoting.checksum import crc32
from remoting.tier.contents import COMMITTED, GROWN, MERGED, TierContents
from remoting.tier.manifest import Followed, ManifestPart, decode_part, has_whole_checkpoint
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import decode_segment
from tests.sim.loop import SimLoop
from tests.sim.world import Network, Node, World
from tests.support.tiers import Stored

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker

TIMEOUT_MS: Final = 1000
_LONGEST_PAUSE_S: Final = 0.3  # of a tier, in a story that lasts some seconds
_UNLISTED_MS: Final = 2000
_MANIFEST: Final = "manifest/"
_SEEN_LATE: Final = 0.5  # of what is put while listings are late
_APPENDING: Final = 0.5  # of all stores


class SimObjectStore(Node):
    """The store. The rates are chances of each request, and of an append that a part of it is done; `slow_ms` is the longest that
    one takes."""

    def __init__(self, world: World, network: Network) -> None:
        super().__init__(world, "objects")
        self.network = network
        self.stored = Stored()
        self.counters: Counter[str] = Counter()
        self.writers: dict[int, str] = {}  # of the manifest of each epoch
        self.skipped_ms = 0
        self.appends = world.random("appends").random() < _APPENDING
        self._rng = world.random("object store")
        self._listed_ms: dict[str, int] = {}  # when what is not listed yet will be
        self.heal()
        self.begin_life()

    def heal(self) -> None:
        self.fails_before = self.fails_after = self.fails_within = 0.0
        self.is_refusing = self.lists_late = False
        self.slow_ms = 5.0

    def tier_ms(self) -> int:
        """What time it is in the tier."""
        return self.wall_ms() + self.skipped_ms

    def skip(self, by_ms: int) -> None:
        """So much time passes, for all that has to do with the tier."""
        self.skipped_ms += by_ms

    def serve(self, what: str, carry_out: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        """A request has arrived; `answer` gets its outcome, an error of ours or a value."""
        self.counters[what] += 1
        self.after(self._rng.uniform(0.1, self.slow_ms), lambda: self._serve(carry_out, answer))

    def _serve(self, carry_out: Callable[[], Any], answer: Callable[[Any], None]) -> None:
        if self.is_refusing:
            self.counters["refused"] += 1
            answer(Refused("the bucket is full"))
            return
        if self._rng.random() < self.fails_before:
            self.counters["failed before it was done"] += 1
            answer(Unknown("not done"))
            return
        try:
            outcome = carry_out()
        except ObjectStoreError as error:
            outcome = error
        if self._rng.random() < self.fails_after:
            self.counters["failed after it was done"] += 1
            outcome = Unknown("done, but nobody heard of it")
        self.after(self._rng.uniform(0.1, self.slow_ms), lambda: answer(outcome))

    # ---- what is done, when it is done

    def put(self, by: str, name: str, content: bytes) -> None:
        """Raises AlreadyThere."""
        held = self.stored.objects.get(name)
        is_same = held is None or (held.startswith(content) if self.appends else held == content)
        self.world.require(is_same, f"{by} puts another {name} than there is")
        if name.startswith(_MANIFEST):
            epoch = int(name.removeprefix(_MANIFEST).partition("-")[0])
            writer = self.writers.setdefault(epoch, by)
            self.world.require(writer == by, f"{writer} and {by} both write the manifest of epoch {epoch}")
            self._check_named(by, name, content)
        self.stored.put(name, content, self.tier_ms())
        if self.lists_late and self._rng.random() < _SEEN_LATE:
            self.counters["listed late"] += 1
            self._listed_ms[name] = self.tier_ms() + self._rng.randrange(_UNLISTED_MS)

    def append(self, name: str, at: int, content: bytes) -> None:
        """Raises AlreadyThere, NotThere, and Unknown when a part of it was done."""
        is_whole = self._rng.random() >= self.fails_within
        part = content if is_whole else content[: self._rng.randrange(len(content))]
        self.stored.append(name, at, part, self.tier_ms())
        if not is_whole:
            self.counters["done in part"] += 1
            raise Unknown("a part of it is there")

    def _check_named(self, by: str, name: str, content: bytes) -> None:
        """What the manifest is about to name is there before it does."""
        if any(each > name for each in self.stored.objects if each.startswith(_MANIFEST)):
            return  # of a master that is none any more: nobody goes by it
        for kind, *values in decode_part(content, name).changes:
            if kind in (COMMITTED, GROWN, MERGED):
                segment = decode_segment(values[2])
                names = segment.names(values[0], values[1])
                checks = (segment.stored_bytes, segment.crc), (segment.messages * ENTRY_BYTES, segment.entries_crc)
                for each, (size, crc) in zip(names, checks, strict=True):
                    held = self.stored.objects.get(each, b"")[:size]
                    is_there = len(held) == size and crc32(held) == crc
                    self.world.require(is_there, f"{by} writes a manifest that names {each}, which is not there")

    def list(self, prefix: str, after: str, limit: int) -> list[Listed]:
        now_ms = self.tier_ms()
        self._listed_ms = {name: at_ms for name, at_ms in self._listed_ms.items() if at_ms > now_ms}
        return self.stored.list(prefix, after, limit, self._listed_ms)

    def remove(self, by: str, names: Sequence[str]) -> None:
        named = self.names_of(self.contents())
        wrong = sorted(named.intersection(names))
        self.world.require(not wrong, f"{by} removes what the manifest names: {wrong[:2]}")
        self.counters["removed"] += len(self.stored.objects.keys() & set(names))
        self.stored.remove(names)

    # ---- for who knows nothing but what is here

    def contents(self) -> TierContents:
        """By the newest manifest."""
        followed = Followed(TierContents())
        for part in self.manifest():
            followed.take(part)
        return followed.contents

    def manifest(self) -> list[ManifestPart]:
        """The last whole checkpoint of the highest epoch that has one, and what follows it."""
        names = sorted(name for name in self.stored.objects if name.startswith(_MANIFEST))
        parts: list[ManifestPart] = []
        for name in reversed(names):
            part = decode_part(self.stored.objects[name], name)
            if parts and part.position.epoch != parts[-1].position.epoch:
                parts = []  # its writer did not get as far as a checkpoint
            parts.append(part)
            if part.is_begin and has_whole_checkpoint(parts):
                return parts[::-1]
        return []

    @staticmethod
    def names_of(contents: TierContents) -> set[str]:
        return {each.name for each in contents.index.values()}.union(
            name
            for queue, segments in contents.queues.items()
            for segment in segments
            for name in segment.names(*queue)
        )


class SimObjects:
    """`ObjectStore` for one life of a broker."""

    def __init__(self, broker: SimBroker, node: SimObjectStore, rng: Random) -> None:
        self._broker = broker
        self._node = node
        self._sim = SimLoop(broker, rng)
        self._to_begin: dict[Coroutine[Any, Any, None], None] = {}
        self._ends: dict[str, int] = {}  # of what was put or appended here, and is known to be there
        self._has_ended = False

    def end(self) -> None:
        """The life is over: what was to begin in the next turn never does."""
        self._has_ended = True
        for work in self._to_begin:
            work.close()
        self._to_begin.clear()

    def loop(self) -> Loop:
        """Of the tier of that life."""
        scheduler = _NoLongPauses(self._broker)
        return Loop(scheduler, self._spawn, self._pause, self._wall_ms, in_turn, Clocks(scheduler.time, scheduler.time))

    async def put(self, name: str, content: bytes | Sequence[bytes]) -> None:
        whole = content if isinstance(content, bytes) else b"".join(content)
        node, by = self._node, self._broker.name
        await self._ask("put", lambda: node.put(by, name, whole))
        self._ends[name] = len(whole)

    @property
    def appends(self) -> bool:
        return self._node.appends

    async def append(self, name: str, at: int, content: Sequence[bytes]) -> None:
        whole, node = b"".join(content), self._node
        is_known = self._ends.pop(name, -1) == at
        node.world.require(is_known, f"{self._broker.name} appends to {name}, and nobody told it where that ends")
        await self._ask("append", lambda: node.append(name, at, whole))
        self._ends[name] = at + len(whole)

    async def put_stream(self, name: str, parts: AsyncIterator[bytes]) -> None:
        await self.put(name, [part async for part in parts])

    async def get(self, name: str, start: int, length: int) -> bytes:
        content: bytes = await self._ask("get", lambda: self._node.stored.get(name, start, length))
        return content

    def read_in_thread(self, _work: Callable[[Read], Any]) -> None:
        """Gets are requests."""

    async def get_all(self, name: str, most: int) -> bytes:
        content: bytes = await self._ask("get", lambda: self._node.stored.get_all(name, most))
        return content

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[Listed]:
        found: list[Listed] = await self._ask("list", lambda: self._node.list(prefix, after, limit))
        return found

    async def remove(self, names: Sequence[str]) -> None:
        node, by = self._node, self._broker.name
        await self._ask("remove", lambda: node.remove(by, names))

    async def remove_unfinished(self, before_ms: int) -> int:
        """A put is there as a whole or not at all."""
        return 0

    async def close(self) -> None: ...

    async def _ask(self, what: str, carry_out: Callable[[], Any]) -> Any:
        """Raises ObjectStoreError."""
        broker, node, network = self._broker, self._node, self._node.network
        outcome: asyncio.Future[Any] = self._sim.create_future()
        life = broker.life

        def settle(value: Any) -> None:
            broker.do(life, broker.guarded(lambda: self._sim.settle(outcome, value)))

        def answer(value: Any) -> None:
            network.send(node, broker, lambda: settle(value))

        network.send(broker, node, lambda: node.serve(what, carry_out, answer), may_double=True)
        broker.after(TIMEOUT_MS, lambda: settle(Unknown("no answer in time")))
        return await outcome

    # ---- Loop

    def _spawn(self, work: Coroutine[Any, Any, None], _what: str) -> None:
        """It begins in the next turn."""
        if self._has_ended:  # what was under way is thrown away, and would begin something at its end
            work.close()
            return
        self._to_begin[work] = None

        def begin() -> None:
            del self._to_begin[work]
            self._sim.spawn(work)

        self._broker.after(0, self._broker.guarded(begin))

    async def _pause(self, seconds: float) -> None:
        turn: asyncio.Future[None] = self._sim.create_future()
        self._broker.call_later(min(seconds, _LONGEST_PAUSE_S), lambda: self._sim.settle(turn, None))
        await turn

    def _wall_ms(self) -> int:
        return self._broker.wall_ms() + self._node.skipped_ms


class _NoLongPauses:
    """A scheduler that does soon what shall be done in a minute: segments of small stories are merged one by one."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self.time = broker.time
        self.call_soon = broker.call_soon

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        return self._broker.call_later(min(delay, _LONGEST_PAUSE_S), callback, *args)
