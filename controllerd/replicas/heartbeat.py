"""Who is alive: soft state outside the log, rebuilt from heartbeats (pure)

The clock is an argument, in monotonic milliseconds.

Every controller keeps its own table, because brokers send to all of them; only the leader's is acted upon. Rules:

- a heartbeat overwrites what the one before it said, also when offsets went back. An incarnation names one life of a broker and
  is compared for equality only, because clocks jump: which life is the later one is told by the later connection;
- the entry belongs to the newest connection: the close of an older one says nothing, the close of its own means dead at once;
- who was merely not heard is not declared dead before `grace_until_ms`: after this controller became leader, or after its own
  process was paused, brokers get a whole time-out to be heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from controllerd.replicas.commands import Observation
from controllerd.replicas.state import MAX_REPLICAS_IN_ALL, Group

DEFAULT_TIMEOUT_MS: Final = 2000
_MIN_TIMEOUT_MS: Final = 200
_MAX_TIMEOUT_MS: Final = 60_000
_FORGET_MS: Final = 3_600_000
_LOWEST_PRIORITY: Final = 2**31 - 1

ReplicaKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a broker said last. `connection` grows with every accepted connection."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    connection: int
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    election_priority: int = _LOWEST_PRIORITY
    incarnation: int = 0
    is_learner: bool = False
    received_ms: int = 0
    is_closed: bool = False

    @property
    def key(self) -> ReplicaKey:
        return self.cluster_name, self.broker_name, self.broker_id


class HeartbeatTable:
    """The last heartbeat of every broker that this controller heard."""

    def __init__(self, *, grace_ms: int, pause_ms: int) -> None:
        """`grace_ms` is what silent brokers get; a scan that comes `pause_ms` after the one before it means that we slept."""
        self._grace_ms = grace_ms
        self._pause_ms = pause_ms
        self._last_scan_ms: int | None = None
        self._beats: dict[ReplicaKey, Heartbeat] = {}
        self.grace_until_ms = 0

    def __len__(self) -> int:
        return len(self._beats)

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> bool:
        """Take a heartbeat; True when it changes who is alive (first, revived, or another process of the same broker)."""
        known = self._beats.get(beat.key)
        if known is None:
            if len(self._beats) >= 2 * MAX_REPLICAS_IN_ALL:
                return False
        elif beat.connection < known.connection and not (known.is_closed and beat.incarnation == known.incarnation):
            return False  # what an older connection still had under way, or the last words of a life that is over
        timeout_ms = min(max(beat.timeout_ms, _MIN_TIMEOUT_MS), _MAX_TIMEOUT_MS)
        taken = replace(beat, timeout_ms=timeout_ms, received_ms=now_ms, is_closed=False)
        if beat.incarnation == 0 and known is not None:
            taken = _grown(taken, known)
        self._beats[beat.key] = taken
        return known is None or not _in_time(known, now_ms) or known.incarnation != beat.incarnation

    def connection_closed(self, connection: int) -> list[ReplicaKey]:
        """A connection is gone: who spoke on it is dead until heard again."""
        closed = [key for key, beat in self._beats.items() if beat.connection == connection and not beat.is_closed]
        for key in closed:
            self._beats[key] = replace(self._beats[key], is_closed=True)
        return closed

    def lead(self, now_ms: int) -> None:
        """This controller became leader: from now on, silence counts only after the grace period."""
        self.grace_until_ms = now_ms + self._grace_ms

    def scan(self, now_ms: int) -> bool:
        """To be called at every scan. True when this process was paused since the last: its silence is not the brokers'."""
        paused = self._last_scan_ms is not None and now_ms - self._last_scan_ms > self._pause_ms
        self._last_scan_ms = now_ms
        if paused:
            self.lead(now_ms)
        self._beats = {key: beat for key, beat in self._beats.items() if now_ms - beat.received_ms < _FORGET_MS}
        return paused

    def get(self, group: Group, broker_id: int) -> Heartbeat | None:
        """The last heartbeat of a replica."""
        return self._beats.get((group.cluster_name, group.broker_name, broker_id))

    def is_alive(self, group: Group, broker_id: int, now_ms: int) -> bool:
        """Whether the replica was heard in time."""
        beat = self.get(group, broker_id)
        return beat is not None and _in_time(beat, now_ms)

    def is_dead(self, group: Group, broker_id: int, now_ms: int) -> bool:
        """Whether the replica may be acted upon as dead: its connection closed, or silent beyond time-out and grace."""
        beat = self.get(group, broker_id)
        if beat is not None and (beat.is_closed or _in_time(beat, now_ms)):
            return beat.is_closed
        return now_ms >= self.grace_until_ms

    def observe(self, group: Group, now_ms: int) -> tuple[Observation, ...]:
        """The live replicas of a group, for a command."""
        found = []
        for broker_id in sorted(group.replicas):
            beat = self.get(group, broker_id)
            if beat is not None and _in_time(beat, now_ms):
                found.append(
                    Observation(
                        broker_id,
                        beat.epoch,
                        beat.max_offset,
                        beat.election_priority,
                        beat.incarnation,
                        beat.is_learner,
                    )
                )
        return tuple(found)

    def not_alive(self, group: Group, broker_ids: Iterable[int], now_ms: int) -> tuple[int, ...]:
        """Which of the ids are dead; during the grace period silence is not held against anybody."""
        return tuple(sorted(broker_id for broker_id in set(broker_ids) if self.is_dead(group, broker_id, now_ms)))


def _in_time(beat: Heartbeat, now_ms: int) -> bool:
    return not beat.is_closed and now_ms - beat.received_ms <= beat.timeout_ms


def _grown(beat: Heartbeat, known: Heartbeat) -> Heartbeat:
    """Without an incarnation a late heartbeat cannot be told from a restart: progress then only grows, as (epoch, offset)."""
    if (beat.epoch, beat.max_offset) >= (known.epoch, known.max_offset):
        return beat
    return replace(beat, epoch=known.epoch, max_offset=known.max_offset, confirm_offset=known.confirm_offset)
