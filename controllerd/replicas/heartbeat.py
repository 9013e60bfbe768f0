"""Who is alive: soft state outside the log, rebuilt from heartbeats (pure)

The clock is an argument, in monotonic milliseconds.

Every controller keeps its own table, because brokers send to all of them; only the leader's is acted upon. Rules:

- how long a broker may be silent is learned from its heartbeats (`remoting.liveness`): never less than `floor_intervals` of its
  own interval, never more than the time-out that it names; one that names no interval has just its time-out;
- a heartbeat overwrites what the one before it said, also when offsets went back. An incarnation names one life of a broker and
  is compared for equality only: two that run on copies of one directory do not follow one another;
- an id belongs to one process: while the one that has it is heard, another incarnation is refused. It changes hands when the
  connection of the first closes, or it is silent too long. Of two that came at about the same time, as after a start of this
  controller, nobody knows which was there first: the id is contested, and none of them is registered or elected. So it is when
  several waited for it to become free: one of them has it then, the others go on claiming it, on whatever connection;
- what a refused process says it has counts all the same: another leader may have heard it first, and counted it as the member.
  So the process that is heard has lost its tail, as long as it has less; and so has one that takes the id over from another
  process, which had more. The disk of that other one may come back with it, so nobody leads without it (`elect`);
- the entry belongs to the newest connection: the close of an older one says nothing, the close of its own means dead at once;
- silence counts only while others are heard: when nobody is, it is this controller that is cut off, or all of them rest;
- what this process slept through is not held against anybody;
- who was never heard by this process is not declared dead before `grace_until_ms`: a new leader that started a moment ago waits
  until brokers found it. Whom it did hear, as a follower, it may judge at once: heartbeats reach every controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from controllerd.replicas.requests import NOWHERE, Observation
from controllerd.replicas.state import MAX_REPLICAS_IN_ALL, Group
from remoting.facts.words import Cause, DiskPace
from remoting.liveness import Awake, Patience, Silence

DEFAULT_TIMEOUT_MS: Final = 2000
_MIN_TIMEOUT_MS: Final = 200
# Whoever was heard alone for so long was the only living process of its broker: all brokers speak to all controllers
_ALONE_MS: Final = 2000
_MAX_TIMEOUT_MS: Final = 60_000
_FORGET_MS: Final = 3_600_000
_FORGET_EVERY_MS: Final = 60_000
# What a life that is over left under way comes at once; who speaks for longer than that on an older connection lives, too.
_LAST_WORDS_MS: Final = 200
_MOST_TWINS: Final = 8  # of one id
# When who spoke last did not speak again for so many of its intervals, nobody's silence grows.
_DEAF_INTERVALS: Final = 2
_USUAL_INTERVAL_MS: Final = 1000  # of brokers that do not say theirs
# A refused claim to an id is told from when it was made again for so long (a broker that restarts is refused for a moment, too)
# until it was not made for so long; it is made several times a second.
_CLAIM_MS: Final = 1000
_CLAIM_OVER_MS: Final = 5000
LOWEST_PRIORITY: Final = 2**31 - 1

ReplicaKey = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Claim:
    """A process asked to be a broker whose id another living one has or claims, too, and was refused."""

    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a broker said last. `connection` grows with every accepted connection.

    `lost_tail`: it restarted without everything that it had acknowledged. `held` is the (epoch, offset) up to which the life
    before this one, or another process with its id, was known to have it, while this one has less; `held_elsewhere`: it was
    another process, on a directory of its own. `lost_confirmed`: how far what it lost says that the log was confirmed (-1: it
    says nothing). `has_room`: its disk takes messages, as it has said since `room_since_ms`; `disk`: how its log becomes durable;
    `lives`: which incarnations its directory has seen (None, of each: it does not say).
    """

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str
    connection: int
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    interval_ms: int = 0  # how often the broker promises to speak; 0 = it does not say
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    election_priority: int = LOWEST_PRIORITY
    incarnation: int = 0
    is_learner: bool = False
    lost_tail: bool = False
    held: tuple[int, int] = (-1, -1)
    held_elsewhere: bool = False
    lost_confirmed: int = -1
    has_room: bool | None = None
    lives: tuple[int, ...] | None = None
    disk: DiskPace | None = None
    room_since_ms: int = 0
    received_ms: int = 0
    since_ms: int = 0  # when this incarnation was heard first
    is_closed: bool = False
    closed_ms: int = 0  # when, if it is

    @property
    def key(self) -> ReplicaKey:
        return self.cluster_name, self.broker_name, self.broker_id

    def observation(self, *, is_contested: bool = False, counts_lives: bool = False) -> Observation:
        """What an election goes by. `counts_lives`: whether the controllers agree on lives."""
        return Observation(
            self.broker_id,
            self.epoch,
            self.max_offset,
            self.election_priority,
            self.incarnation,
            self.is_learner,
            self.lost_tail,
            lost_confirmed=self.lost_confirmed,
            is_contested=is_contested,
            held_elsewhere=self.held if self.held_elsewhere else NOWHERE,
            lives=self.lives if counts_lives else None,
            disk_stands=self.disk is DiskPace.STANDS,
        )


class HeartbeatTable:
    """The last heartbeat of every broker that this controller heard."""

    def __init__(self, *, grace_ms: int, pause_ms: int, scan_ms: int, floor_intervals: int) -> None:
        """`scan` comes every `scan_ms`; one that is `pause_ms` late means that this process stood still."""
        self._grace_ms = grace_ms
        self._scan_ms = scan_ms
        self._floor_intervals = floor_intervals
        self.awake = Awake(pause_ms)
        self.counts_lives = False  # whether all controllers read which life of a broker is counted
        self._beats: dict[ReplicaKey, Heartbeat] = {}
        self._silences: dict[ReplicaKey, Silence] = {}
        self._twins: dict[ReplicaKey, dict[int, Heartbeat]] = {}  # who else claims an id, by incarnation
        self._claims: dict[ReplicaKey, dict[str, Claim]] = {}  # by address
        self._voice_ms: int | None = None  # when anybody was heard last
        self._deaf_ms = 0  # and for how long after that silence counts
        self._forget_at_ms: int | None = None
        self.grace_until_ms = 0

    def __len__(self) -> int:
        return len(self._beats)

    def heartbeat(self, beat: Heartbeat, now_ms: int) -> bool:
        """Take a heartbeat; True when it changes who is alive (first, revived, or another process of the same broker), or whose
        disk stands."""
        known = self._beats.get(beat.key)
        if known is None:
            if len(self._beats) >= 2 * MAX_REPLICAS_IN_ALL:
                return False
        elif self._has_other(known, beat.incarnation, now_ms):
            self._note_twin(beat, now_ms)
            self._beats[beat.key] = _with_what_twin_has(known, beat)
            return False
        elif beat.connection < known.connection and not self._goes_on(beat, known, now_ms):
            return False  # what an older connection still had under way, or the last words of a life that is over
        was_alive = known is not None and self._in_time(known, now_ms)
        self._note_heard(beat, now_ms)
        timeout_ms = min(max(beat.timeout_ms, _MIN_TIMEOUT_MS), _MAX_TIMEOUT_MS)
        is_same_life = known is not None and known.incarnation == beat.incarnation
        since_ms = known.since_ms if known is not None and is_same_life else now_ms
        goes_on = known is not None and is_same_life and known.has_room is beat.has_room
        room_since_ms = known.room_since_ms if known is not None and goes_on else now_ms
        taken = replace(
            beat,
            timeout_ms=timeout_ms,
            room_since_ms=room_since_ms,
            received_ms=now_ms,
            since_ms=since_ms,
            is_closed=False,
        )
        if beat.incarnation == 0 and known is not None:
            taken = _monotone(taken, known)
        elif known is not None:
            taken = _compared(taken, known, elsewhere=self._lived_beside(known, beat.incarnation))
        self._beats[beat.key] = taken
        self._twins.get(beat.key, {}).pop(beat.incarnation, None)
        self._learn(taken, now_ms, anew=known is None or known.is_closed or known.incarnation != beat.incarnation)
        return not was_alive or known is None or known.incarnation != beat.incarnation or known.disk is not beat.disk

    def _note_twin(self, beat: Heartbeat, now_ms: int) -> None:
        """Another process claims an id that is not free."""
        twins = self._twins.setdefault(beat.key, {})
        before = twins.get(beat.incarnation)
        if before is None and len(twins) >= _MOST_TWINS:
            del twins[min(twins, key=lambda each: twins[each].received_ms)]
        since_ms = before.since_ms if before is not None else now_ms
        twins[beat.incarnation] = replace(beat, received_ms=now_ms, since_ms=since_ms)

    def other_process(self, group: Group, broker_id: int, incarnation: int, now_ms: int) -> Heartbeat | None:
        """What another process than this incarnation said last that has the id and lives, or claims it as this one does; None
        when it is free."""
        beat = self.get(group, broker_id)
        if beat is None or self._has_other(beat, incarnation, now_ms):
            return beat
        rivals = (each for each in self._rivals(beat, now_ms) if each.incarnation != incarnation)
        return next(rivals, None)

    def refused(self, known: Heartbeat, address: str, now_ms: int) -> None:
        """Who has this address wants to be the broker that `known` is, or claims to be, and was told that the id is not free."""
        claims = self._claims.get(known.key, {})
        claims = {each: claim for each, claim in claims.items() if now_ms - claim.last_ms <= _CLAIM_OVER_MS}
        if address not in claims and len(claims) >= _MOST_TWINS:
            del claims[min(claims, key=lambda each: claims[each].last_ms)]
        first_ms = claims[address].first_ms if address in claims else now_ms
        self._claims[known.key] = claims | {address: Claim(first_ms, now_ms)}

    def claimed_by(self, group: Group, broker_id: int, now_ms: int) -> str | None:
        """The address of a process that keeps asking for an id, other than where the id was registered last; None without one."""
        claims = self._claims.get((group.cluster_name, group.broker_name, broker_id), {})
        replica = group.replicas.get(broker_id)
        asking = (
            address
            for address, claim in claims.items()
            if now_ms - claim.last_ms <= _CLAIM_OVER_MS and claim.last_ms - claim.first_ms >= _CLAIM_MS
        )
        return next((each for each in asking if replica is None or each != replica.address), None)

    def is_contested(self, group: Group, broker_id: int, now_ms: int) -> bool:
        """Whether several living processes claim the id, and nobody can tell which was there first: none is registered."""
        beat = self.get(group, broker_id)
        return beat is not None and self._is_contested(beat, now_ms)

    def _has_other(self, known: Heartbeat, incarnation: int, now_ms: int) -> bool:
        return bool(known.incarnation and incarnation not in (0, known.incarnation)) and self._in_time(known, now_ms)

    def _lived_beside(self, known: Heartbeat, incarnation: int) -> bool:
        """Whether another process claimed the id, and the one that had it spoke after that: it is no later life of that one."""
        twin = self._twins.get(known.key, {}).get(incarnation)
        return twin is not None and known.received_ms - twin.since_ms > _LAST_WORDS_MS

    def _is_contested(self, beat: Heartbeat, now_ms: int) -> bool:
        return next(self._rivals(beat, now_ms), None) is not None

    def _rivals(self, beat: Heartbeat, now_ms: int) -> Iterator[Heartbeat]:
        """Who else lives and claims the id of this one, and may have been there first."""
        return (
            twin
            for twin in self._twins.get(beat.key, {}).values()
            if twin.since_ms - beat.since_ms <= _ALONE_MS
            and now_ms - twin.received_ms <= min(max(twin.timeout_ms, _MIN_TIMEOUT_MS), _MAX_TIMEOUT_MS)
            and (twin.connection > beat.connection or twin.received_ms - twin.since_ms > _LAST_WORDS_MS)
        )

    def connection_closed(self, connection: int, now_ms: int) -> list[ReplicaKey]:
        """A connection is gone: who spoke on it is dead until heard again."""
        for twins in self._twins.values():
            for incarnation in [each for each, twin in twins.items() if twin.connection == connection]:
                del twins[incarnation]
        closed = [key for key, beat in self._beats.items() if beat.connection == connection and not beat.is_closed]
        for key in closed:
            self._beats[key] = replace(self._beats[key], is_closed=True, closed_ms=now_ms)
        return closed

    def lead(self, now_ms: int) -> None:
        """This controller became leader: whom it never heard gets a grace period to be heard."""
        self.grace_until_ms = now_ms + self._grace_ms

    def scan(self, now_ms: int, after_ms: int | None = None) -> int:
        """To be called every `scan_ms`, or `after_ms` after the last time. How long this process stood still since then: its
        silence is not the brokers'."""
        pause_ms = self.awake.tick(now_ms, self._scan_ms if after_ms is None else after_ms)
        if pause_ms:
            self._discount_pause(pause_ms, now_ms)
            self.grace_until_ms += pause_ms
        if self._forget_at_ms is None or now_ms >= self._forget_at_ms:
            self._forget_at_ms = now_ms + _FORGET_EVERY_MS
            self._forget(now_ms)
        return pause_ms

    def is_calm(self, now_ms: int, for_ms: int) -> bool:
        """Whether all that were heard live, and nobody's silence can be too long within `for_ms`."""
        return now_ms >= self.grace_until_ms and all(
            not beat.is_closed and self._silences[key].silent_ms(now_ms) + for_ms <= self._silences[key].limit_ms
            for key, beat in self._beats.items()
        )

    def get(self, group: Group, broker_id: int) -> Heartbeat | None:
        return self._beats.get((group.cluster_name, group.broker_name, broker_id))

    def silence(self, group: Group, broker_id: int) -> Silence | None:
        """How regularly a replica speaks."""
        return self._silences.get((group.cluster_name, group.broker_name, broker_id))

    def is_alive(self, group: Group, broker_id: int, now_ms: int) -> bool:
        """Whether the replica was heard in time."""
        beat = self.get(group, broker_id)
        return beat is not None and self._in_time(beat, now_ms)

    def is_dead(self, group: Group, broker_id: int, now_ms: int) -> bool:
        """Whether the replica may be acted upon as dead: its connection closed, or silent too long while others were heard."""
        beat = self.get(group, broker_id)
        if beat is None:
            return now_ms >= self.grace_until_ms
        return beat.is_closed or self._silences[beat.key].is_dead(self._judged_ms(now_ms))

    def observe(self, group: Group, now_ms: int) -> tuple[Observation, ...]:
        """The live replicas of a group, for a request."""
        return tuple(
            beat.observation(is_contested=self._is_contested(beat, now_ms), counts_lives=self.counts_lives)
            for broker_id in sorted(group.replicas)
            if (beat := self.get(group, broker_id)) is not None and self._in_time(beat, now_ms)
        )

    def last_words(self, group: Group, now_ms: int) -> tuple[Observation, ...]:
        """What members of the sync-state set that are not alive said last, as far as this controller heard it."""
        return tuple(
            beat.observation()
            for broker_id in group.sync_state_set
            if (beat := self.get(group, broker_id)) is not None and not self._in_time(beat, now_ms)
        )

    def not_alive(self, group: Group, broker_ids: Iterable[int], now_ms: int) -> tuple[int, ...]:
        """Which of the ids may be acted upon as dead."""
        return tuple(sorted(broker_id for broker_id in set(broker_ids) if self.is_dead(group, broker_id, now_ms)))

    def absence(self, group: Group, broker_id: int, now_ms: int) -> Cause | None:
        """What speaks against a replica; None for one that was heard in time."""
        beat = self.get(group, broker_id)
        if beat is None:
            return Cause.NEVER_HEARD
        if beat.is_closed:
            return Cause.CLOSED
        return None if self._in_time(beat, now_ms) else Cause.SILENT

    def unheard_ms(self, group: Group, broker_id: int, now_ms: int) -> int:
        """For how long an absent replica has been so: since its connection closed, or it spoke last; 0 if nobody knows."""
        beat = self.get(group, broker_id)
        if beat is None:
            return 0
        return now_ms - beat.closed_ms if beat.is_closed else self._silences[beat.key].silent_ms(now_ms)

    def why_dead(self, group: Group, broker_id: int, now_ms: int) -> str:
        """What speaks against a replica, for the log."""
        beat = self.get(group, broker_id)
        if beat is None:
            return "never heard by this controller"
        if beat.is_closed:
            return "its connection closed"
        silence = self._silences[beat.key]
        return f"silent for {silence.silent_ms(now_ms)} ms, {silence.limit_ms} are allowed"

    def _in_time(self, beat: Heartbeat, now_ms: int) -> bool:
        return not beat.is_closed and not self._silences[beat.key].is_dead(now_ms)

    def _goes_on(self, beat: Heartbeat, known: Heartbeat, now_ms: int) -> bool:
        """Whether a heartbeat on an older connection counts: who had the newer one is gone, and these are no last words."""
        if known.is_closed:
            return beat.incarnation == known.incarnation or now_ms - known.closed_ms >= DEFAULT_TIMEOUT_MS
        return not self._in_time(known, now_ms) and now_ms - known.received_ms >= DEFAULT_TIMEOUT_MS

    def _judged_ms(self, now_ms: int) -> int:
        """The moment at which silence is looked at: it stops soon after the last voice."""
        return now_ms if self._voice_ms is None else min(now_ms, self._voice_ms + self._deaf_ms)

    def _note_heard(self, beat: Heartbeat, now_ms: int) -> None:
        """Somebody spoke. If nobody had for a while, that time says nothing about those who are still to come."""
        if self._voice_ms is not None and now_ms - self._voice_ms > self._deaf_ms:
            self._discount_pause(now_ms - self._voice_ms, now_ms)
        self._voice_ms = now_ms
        self._deaf_ms = _DEAF_INTERVALS * (beat.interval_ms if beat.interval_ms > 0 else _USUAL_INTERVAL_MS)

    def _discount_pause(self, pause_ms: int, now_ms: int) -> None:
        for silence in self._silences.values():
            silence.discount_pause(pause_ms, now_ms)
        if self._voice_ms is not None:
            self._voice_ms = min(now_ms, self._voice_ms + pause_ms)

    def _learn(self, beat: Heartbeat, now_ms: int, *, anew: bool) -> None:
        """Another gap of the broker; a new process of it, or another promise, begins with nothing known."""
        silence = self._silences.get(beat.key)
        interval_ms = min(max(beat.interval_ms, 0), beat.timeout_ms)
        floor_ms = min(interval_ms * self._floor_intervals, beat.timeout_ms) if interval_ms else beat.timeout_ms
        patience = Patience(max(interval_ms, 1), floor_ms, beat.timeout_ms)
        if anew or silence is None or silence.patience != patience:
            self._silences[beat.key] = Silence(patience, now_ms)
        else:
            silence.heard(now_ms)

    def _forget(self, now_ms: int) -> None:
        for key in [key for key, beat in self._beats.items() if now_ms - beat.received_ms >= _FORGET_MS]:
            del self._beats[key], self._silences[key]
            self._twins.pop(key, None)
            self._claims.pop(key, None)


def _monotone(beat: Heartbeat, known: Heartbeat) -> Heartbeat:
    """Without an incarnation a late heartbeat cannot be told from a restart: progress then only grows, as (epoch, offset)."""
    if (beat.epoch, beat.max_offset) >= (known.epoch, known.max_offset):
        return beat
    return replace(beat, epoch=known.epoch, max_offset=known.max_offset, confirm_offset=known.confirm_offset)


def _with_what_twin_has(known: Heartbeat, twin: Heartbeat) -> Heartbeat:
    """The id may have acknowledged what the other process has."""
    held = twin.epoch, twin.confirm_offset
    if held <= known.held:
        return _compared(known, known)
    return _compared(known, replace(known, held=held, held_elsewhere=True))


def _compared(beat: Heartbeat, known: Heartbeat, *, elsewhere: bool = False) -> Heartbeat:
    """A new life that has less than the one before was known to have: its disk lost what it had acknowledged. With `elsewhere`
    it is no later life: another process has that.

    That is over when it has as much again, or was brought to follow a newer master.
    """
    held = known.held if beat.incarnation == known.incarnation else max(known.held, (known.epoch, known.confirm_offset))
    if beat.epoch > held[0] or beat.max_offset >= held[1]:
        return beat
    return replace(beat, lost_tail=True, held=held, held_elsewhere=known.held_elsewhere or elsewhere)
