"""One process, one thread, one seed: virtual time, nodes that crash and freeze, clocks that disagree, and a bad network.

Everything that happens is an event in one queue, and every choice comes from a generator made of the seed and a name, so a seed
is a story that can be told again, and leaving one thing out of it (see `shrink`) leaves the choices of the others as they were.
Actions belong to a node's life: what a crashed node had planned never happens, what a frozen one had planned happens when it goes
on. `trace` keeps the story for people; `fingerprint` covers every event, so two runs can be compared.
"""

from __future__ import annotations

import gc
import itertools
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, NoReturn

Action = Callable[[], None]

_EPOCH_MS = 1_700_000_000_000
_SELDOM = 1 << 62
_MUCH_LOSS = 0.1


def _never() -> bool:
    return False


@contextmanager
def collector_off() -> Iterator[None]:
    """Look for no circles meanwhile. A story makes much that lives to its end, and few of them, and looking took an eighth of its
    time. What is not looked at before its end is young when it is garbage, so the next short look finds all of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Violation(AssertionError):
    """A promise was broken; the text says which, the world's trace how."""


class World:
    """The clock and the queue. Times are milliseconds since the beginning of the world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0.0
        self.trace: list[str] = []
        # What is to come: when, a number that no other has, and what; `after` adds to it, and `Node.after` does so itself.
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.numbers = itertools.count()
        self._times_ms = array("d")  # of all events so far, and their numbers: what the fingerprint is made of
        self._numbers = array("q")

    @property
    def steps(self) -> int:
        """How many events there were."""
        return len(self._times_ms)

    @property
    def fingerprint(self) -> int:
        """Of the order and the times of all events so far."""
        return zlib.crc32(self._numbers.tobytes(), zlib.crc32(self._times_ms.tobytes()))

    def random(self, name: str) -> Random:
        """A generator of its own for whoever makes choices."""
        return Random(f"{self.seed} {name}")

    def after(self, delay_ms: float, action: Callable[..., None], *args: Any) -> None:
        """Do something later."""
        heappush(self.queue, (self.now_ms + delay_ms, next(self.numbers), action, args))

    def run(self, duration_ms: float) -> None:
        """Let time pass."""
        self.run_until(_never, duration_ms, every=_SELDOM)

    def run_until(self, condition: Callable[[], bool], limit_ms: float, every: int = 1) -> bool:
        """Let time pass until something is true, looked at `every` so many events; False when the limit came first."""
        with collector_off():
            return self._run_until(condition, limit_ms, every)

    def _run_until(self, condition: Callable[[], bool], limit_ms: float, every: int) -> bool:
        end = self.now_ms + limit_ms
        queue = self.queue
        pop, note_time, note_number = heappop, self._times_ms.append, self._numbers.append
        countdown = 1
        while True:
            countdown -= 1
            if not countdown:
                if condition():
                    return True
                countdown = every
            if not queue or queue[0][0] > end:
                self.now_ms = end
                return condition()
            now_ms, number, action, args = pop(queue)
            self.now_ms = now_ms
            note_time(now_ms)
            note_number(number)
            action(*args)

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms:10.1f} {text}")

    def require(self, condition: bool, promise: str) -> None:
        """Raise Violation unless the promise was kept."""
        if not condition:
            self.broken(promise)

    def broken(self, promise: str) -> NoReturn:
        """Raise Violation: for checks that are made so often that the words for them are made only then."""
        self.note(f"VIOLATION: {promise}")
        raise Violation(f"seed {self.seed}: {promise}")


class Timer:
    """A planned call that may be cancelled."""

    __slots__ = ("args", "callback", "cancelled")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def fire(self) -> None:
        if not self.cancelled:
            if self.args:
                self.callback(*self.args)
            else:
                self.callback()

    def cancel(self) -> None:
        self.cancelled = True


class Node:
    """A process on a machine. `life` counts its starts; actions of an earlier life are dropped.

    Its clocks are its own: the monotonic one begins anywhere and runs a little fast or slow, the wall clock is seconds off and
    may be set by an hour.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.is_running = False
        self.is_paused = False
        rng = world.random(f"clock of {name}")
        self._rate = rng.uniform(0.998, 1.002)
        self._origin_ms = rng.randrange(10_000_000)
        self.wall_offset_ms = _EPOCH_MS + rng.randrange(-2000, 2000)
        self._deferred: list[tuple[int, Action]] = []

    @property
    def is_up(self) -> bool:
        """Whether the process runs and serves; one that has not ended its start may only run."""
        return self.is_running

    # clocks

    def monotonic_ms(self) -> int:
        return int(self._origin_ms + self.world.now_ms * self._rate)

    def wall_ms(self) -> int:
        return self.wall_offset_ms + int(self.world.now_ms)

    # the `brokerd.loop.scheduler.Scheduler` of this node

    def time(self) -> float:
        return (self._origin_ms + self.world.now_ms * self._rate) / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        timer = Timer(callback, args)
        self.after(1e-6, self.guarded(timer.fire))
        return timer

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        timer = Timer(callback, args)
        # A little late rather than early: this clock must show the time that was asked for.
        self.after(delay * 1000 / self._rate + 1e-6, self.guarded(timer.fire))
        return timer

    # lives

    def guarded(self, action: Action) -> Action:
        """The action, with what this node's process does about its errors."""
        return action

    def after(self, delay_ms: float, action: Action) -> None:
        """Plan something in this life."""
        world = self.world
        heappush(world.queue, (world.now_ms + delay_ms, next(world.numbers), self.do, (self.life, action)))

    def do(self, life: int, action: Action) -> None:
        """Do it now if the node still lives that life; keep it while the node is frozen."""
        if life != self.life or not self.is_running:
            return
        if self.is_paused:
            self._deferred.append((life, action))
            return
        action()

    def every(self, interval_ms: float, action: Action) -> None:
        """Do something again and again in this life, by this node's clock."""
        interval_ms /= self._rate

        def again() -> None:
            action()
            self.after(interval_ms, again)

        self.after(interval_ms, again)

    def begin_life(self) -> None:
        assert not self.is_running
        self.life += 1
        self.is_running = True
        self.is_paused = False
        self._deferred.clear()

    def end_life(self) -> None:
        assert self.is_running
        self.is_running = False
        self.is_paused = False
        self._deferred.clear()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        deferred, self._deferred = self._deferred, []
        for life, action in deferred:
            self.do(life, action)


class Network:
    """Links between nodes, each direction on its own: delays, lost and doubled messages, and whether it is cut.

    A message is part of no stream: one may overtake another, as over two connections. `counters` says what was done to them.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.loss = 0.0  # of messages; streams pay with the time of a retransmission
        self.reply_loss = 0.0  # of answers of controllers alone
        self.doubling = 0.0
        self.counters: Counter[str] = Counter()
        self._rng = world.random("network")
        self._slow_ms: dict[tuple[str, str], float] = {}
        self._cut: set[tuple[str, str]] = set()
        self._held: list[tuple[Node, Node, int, Action]] = []

    def cut(self, a: str, b: str) -> None:
        """Nothing passes from a to b any more."""
        self._cut.add((a, b))

    def join(self, a: str, b: str) -> None:
        """What passes from a to b arrives again; what was held on streams waits for `heal`."""
        self._cut.discard((a, b))

    def slow(self, a: str, b: str, delay_ms: float) -> None:
        """What passes from a to b takes that much longer."""
        self._slow_ms[a, b] = delay_ms

    def heal(self) -> None:
        """All links work again; what was held on the streams continues."""
        self._cut.clear()
        self._slow_ms.clear()
        self.loss = self.reply_loss = self.doubling = 0.0
        held, self._held = self._held, []
        for source, target, life, action in held:
            self.stream(source, target, life, action)

    def is_cut(self, a: str, b: str) -> bool:
        return (a, b) in self._cut

    def is_well(self, a: str, b: str) -> bool:
        """Whether what passes between the two arrives in time."""
        return self.loss < _MUCH_LOSS and not {(a, b), (b, a)} & {*self._cut, *self._slow_ms}

    def reply(self, source: Node, target: Node, action: Action) -> None:
        """An answer of a controller, which may be lost although the request was carried out."""
        if self.reply_loss and self._rng.random() < self.reply_loss:
            self.counters["reply lost"] += 1
            return
        self.send(source, target, action)

    def send(self, source: Node, target: Node, action: Action, *, may_double: bool = False) -> None:
        """A message that may be lost; it arrives after a delay, in the target's present life."""
        if (self._cut and (source.name, target.name) in self._cut) or (self.loss and self._rng.random() < self.loss):
            self.counters["message lost"] += 1
            return
        if may_double and self.doubling and self._rng.random() < self.doubling:
            self.counters["message doubled"] += 1
            self.world.after(self.delay_ms(source, target), self._arrive, source, target, target.life, action)
        self.world.after(self.delay_ms(source, target), self._arrive, source, target, target.life, action)

    def _arrive(self, source: Node, target: Node, life: int, action: Action) -> None:
        if self._cut and (source.name, target.name) in self._cut:
            self.counters["message lost"] += 1
            return
        self.counters["message delivered"] += 1
        if life == target.life and target.is_running and not target.is_paused:
            action()
        else:
            target.do(life, action)

    def delay_ms(self, source: Node, target: Node) -> float:
        """Mostly a fraction of a millisecond, sometimes much longer."""
        random = self._rng.random
        delay = 0.05 + 0.45 * random() if random() < 0.95 else 0.5 + 39.5 * random()
        return delay + self._slow_ms.get((source.name, target.name), 0.0) if self._slow_ms else delay

    def stream_delay_ms(self, source: Node, target: Node) -> float:
        delay = self.delay_ms(source, target)
        while self.loss and self._rng.random() < self.loss and delay < 3000:
            self.counters["stream part sent again"] += 1
            delay = 2 * delay + 200
        return delay

    def cut_point(self, length: int) -> int:
        """Where a part of a stream is torn into two; 0 = it arrives whole."""
        return self._rng.randrange(1, length) if length > 1 and self._rng.random() < 0.3 else 0

    def stream(self, source: Node, target: Node, life: int, action: Action) -> None:
        """A part of an ordered stream: it waits while the link is cut. The caller keeps the order."""
        if self._cut and (source.name, target.name) in self._cut:
            self._held.append((source, target, life, action))
            return
        self.counters["stream part delivered"] += 1
        target.do(life, action)


class Stream:
    """One direction of a connection: bytes in order, each part a delay after the one before at the earliest."""

    def __init__(self, network: Network, source: Node, target: Node, receive: Callable[[bytes], None]) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._receive = receive
        self._life = target.life
        self._waiting: list[bytes] = []
        self._is_flowing = False
        self.waiting_bytes = 0
        self.is_open = True

    def send(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._waiting.append(data)
        self.waiting_bytes += len(data)
        if not self._is_flowing:
            self._is_flowing = True
            self._next()

    def _next(self) -> None:
        network = self._network
        network.world.after(network.stream_delay_ms(self._source, self._target), self._arrive)

    def _arrive(self) -> None:
        """Deliver what waits, cut into pieces at random, then look again while there is more."""
        if not self.is_open:
            return
        if not self._waiting:
            self._is_flowing = False
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        cut = self._network.cut_point(len(data))
        if cut:
            self._waiting.append(data[cut:])
            data = data[:cut]
        self.waiting_bytes -= len(data)
        if self._target.life == self._life and self._target.is_up:
            self._network.stream(self._source, self._target, self._life, partial(self._deliver, data))

    def _deliver(self, data: bytes) -> None:
        if self.is_open:
            self._receive(data)
            self._next()
