"""One process, one thread, one seed: virtual time, nodes that crash and pause, and a network that delays, loses and cuts.

Everything that happens is an event in one queue, and every choice comes from one generator, so a seed is a story that can be told
again. Actions belong to a node's life: what a crashed node had planned never happens, what a paused one had planned happens when
it is resumed. `trace` keeps the story for people.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

Action = Callable[[], None]


class World:
    """The clock and the queue. Times are milliseconds since the beginning of the world."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now_ms = 0.0
        self.steps = 0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Action]] = []
        self._count = itertools.count()

    def after(self, delay_ms: float, action: Action) -> None:
        """Do something later."""
        heapq.heappush(self._queue, (self.now_ms + delay_ms, next(self._count), action))

    def run(self, duration_ms: float, check: Action | None = None) -> None:
        """Let time pass; `check` runs after every event."""
        end = self.now_ms + duration_ms
        while self._queue and self._queue[0][0] <= end:
            self.now_ms, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
            if check is not None:
                check()
        self.now_ms = end

    def run_until(self, condition: Callable[[], bool], limit_ms: float, check: Action | None = None) -> bool:
        """Let time pass until something is true; False when it is not within the limit."""
        end = self.now_ms + limit_ms
        while not condition():
            if not self._queue or self._queue[0][0] > end:
                self.now_ms = end
                return condition()
            self.now_ms, _, action = heapq.heappop(self._queue)
            self.steps += 1
            action()
            if check is not None:
                check()
        return True

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ms:10.1f} {text}")


class Timer:
    """A planned call that may be cancelled."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Node:
    """A process on a machine. `life` counts its starts; actions of an earlier life are dropped."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self._deferred: list[tuple[int, Action]] = []

    # the `brokerd.scheduler.Scheduler` of this node

    def time(self) -> float:
        return self.world.now_ms / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        return self.call_later(0, callback, *args)

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        timer = Timer()

        def fire() -> None:
            if not timer.cancelled:
                callback(*args)

        self.after(delay * 1000, fire)
        return timer

    # lives

    def after(self, delay_ms: float, action: Action) -> None:
        """Plan something in this life."""
        life = self.life
        self.world.after(delay_ms, lambda: self.do(life, action))

    def do(self, life: int, action: Action) -> None:
        """Do it now if the node still lives that life; keep it while the node is paused."""
        if life != self.life or not self.is_up:
            return
        if self.is_paused:
            self._deferred.append((life, action))
            return
        action()

    def every(self, interval_ms: float, action: Action) -> None:
        """Do something again and again in this life."""

        def again() -> None:
            action()
            self.after(interval_ms, again)

        self.after(interval_ms, again)

    def begin_life(self) -> None:
        assert not self.is_up
        self.life += 1
        self.is_up = True
        self.is_paused = False
        self._deferred.clear()
        self.world.note(f"{self.name} starts (life {self.life})")

    def end_life(self) -> None:
        assert self.is_up
        self.is_up = False
        self._deferred.clear()

    def pause(self) -> None:
        self.is_paused = True
        self.world.note(f"{self.name} freezes")

    def resume(self) -> None:
        self.is_paused = False
        self.world.note(f"{self.name} goes on")
        deferred, self._deferred = self._deferred, []
        for life, action in deferred:
            self.do(life, action)


class Network:
    """Links between nodes, each direction on its own: a delay, a share of lost messages, and whether it is cut."""

    def __init__(self, world: World, *, loss: float = 0.0) -> None:
        self.world = world
        self.loss = loss
        self.lost = 0
        self.delivered = 0
        self._cut: set[tuple[str, str]] = set()
        self._held: list[tuple[Node, Node, int, Action]] = []

    def cut(self, a: str, b: str) -> None:
        """Nothing passes from a to b any more."""
        self._cut.add((a, b))

    def heal(self) -> None:
        """All links work again; what was held on the streams continues."""
        self._cut.clear()
        self.loss = 0.0
        held, self._held = self._held, []
        for source, target, life, action in held:
            self._deliver(source, target, life, action)

    def is_cut(self, a: str, b: str) -> bool:
        return (a, b) in self._cut

    def send(self, source: Node, target: Node, action: Action) -> None:
        """A message that may be lost; it arrives after a delay, in the target's present life."""
        if self.is_cut(source.name, target.name) or self.world.rng.random() < self.loss:
            self.lost += 1
            return
        life = target.life

        def arrive() -> None:
            if self.is_cut(source.name, target.name):
                self.lost += 1
                return
            self.delivered += 1
            target.do(life, action)

        self.world.after(self.delay_ms(), arrive)

    def stream(self, source: Node, target: Node, action: Action) -> None:
        """A part of an ordered stream: it waits while the link is cut. The caller keeps the order."""
        self._deliver(source, target, target.life, action)

    def delay_ms(self) -> float:
        """Mostly a fraction of a millisecond, sometimes much longer."""
        rng = self.world.rng
        return rng.uniform(0.05, 0.5) if rng.random() < 0.95 else rng.uniform(0.5, 40)

    def _deliver(self, source: Node, target: Node, life: int, action: Action) -> None:
        if self.is_cut(source.name, target.name):
            self._held.append((source, target, life, action))
            return
        self.delivered += 1
        target.do(life, action)


class Stream:
    """One direction of a connection: bytes in order, each part a delay after the one before at the earliest."""

    def __init__(self, network: Network, source: Node, target: Node, receive: Callable[[bytes], None]) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._receive = receive
        self._life = target.life
        self._next_ms = 0.0
        self._waiting: list[bytes] = []
        self._is_flowing = False
        self.is_open = True

    def send(self, data: bytes) -> None:
        if not self.is_open:
            return
        self._waiting.append(data)
        if not self._is_flowing:
            self._is_flowing = True
            self._network.world.after(self._network.delay_ms(), self._arrive)

    @property
    def waiting_bytes(self) -> int:
        return sum(map(len, self._waiting))

    def _arrive(self) -> None:
        """Deliver what waits, cut into pieces at random, then look again while there is more."""
        if not self.is_open:
            return
        if not self._waiting:
            self._is_flowing = False
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        rng = self._network.world.rng
        if len(data) > 1 and rng.random() < 0.3:
            cut = rng.randrange(1, len(data))
            self._waiting.append(data[cut:])
            data = data[:cut]

        def deliver() -> None:
            if self.is_open:
                self._receive(data)
                self._network.world.after(self._network.delay_ms(), self._arrive)

        if self._target.life == self._life and self._target.is_up:
            self._network.stream(self._source, self._target, deliver)
