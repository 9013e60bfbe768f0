"""Light stories of timers: the replication of a group, one event at a time, and on every broker of it the real timer service.

What the service appends are records in memory, as many in one append as in a batch; the replicated log has their numbers, so it
is copied, confirmed, cut and lost record by record as in any light story. The clock is the group's. A message is sent for a
moment, some ms to some roll windows ahead; some are taken back, by their places or by markers in their slots. Bursts are late, so
that the newest overtake them, and a disk that fills up has timers moved before their files go. While it goes on
nothing may be delivered early. When the group has healed and all is due, the log says whether each was delivered once, or taken
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Final, NamedTuple
from unittest.mock import patch

import orjson

from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.timers import moving
from brokerd.timers.codes import DELETE_KEY, DUE_MS, PLACE, Key, key_of, timer_code
from brokerd.timers.cursor import AHEAD, MOVED, RECALLED, TIMERS_TOPIC
from brokerd.timers.interface import Recalled
from brokerd.timers.settings import TimerSettings
from remoting.errors import NotMaster, RequestError
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record, decode_record
from tests.sim.light import STEPS, LightStory
from tests.support.memory_log import MemoryRecordLog
from tests.support.turns import Turns
from tests.unit.brokerd.replication import group as replication
from tests.unit.brokerd.timers.world import TOPIC, Node

WEIGHTS: Final = {
    **{"send_timer": 12.0, "send_burst": 3.0, "recall_timer": 2.0, "mark_timer": 2.0, "fill_up": 2.0},
    **{"tick": 16.0, "elect": 4.0},
}
_MARK: Final = b"T"  # begins the numbers in the replicated log
_LONGEST_MS: Final = 4000
_STEP_MS: Final = 50


class TimedLog(MemoryRecordLog):
    """A broker's records, of one life. `ends` are where they end in the replicated log, with their numbers."""

    def __init__(self, story: TimedLightStory, node: replication.Node) -> None:
        super().__init__(story.turns.wall_ms)
        self.is_master = self.acknowledges = self.dispatches = False
        self.ends: list[tuple[int, int]] = []
        self._story = story
        self._node = node
        self._visible = 0

    def append_placed(self, drafts: Sequence[Draft]) -> Sequence[AppendResult]:
        if not self._node.is_master:
            raise NotMaster
        places = super().append_placed(drafts)
        for place in places:
            number = self._story.keep(self.record_at(place.physical_offset, place.size))
            self._story.group.append(self._node, _MARK + b"%d" % number)
            self.ends.append((self._node.log.end_offset, number))
        return places

    def take(self, ends: Sequence[tuple[int, int]]) -> None:
        """The replicated log has these records behind those that are here."""
        for end, number in ends:
            self._take(self._story.kept[number])
            self.ends.append((end, number))

    def confirm(self, offset: int) -> None:
        """What ends there in the replicated log, or before, is readable and acknowledged."""
        count = sum(end <= offset for end, _ in self.ends[self._visible :])
        self._visible += count
        while count:  # in portions, as it comes
            part = min(count, self._story.rng.choice((1, 2, 9)))
            self.dispatch(part)
            count -= part
        confirmed = self.positions[self._visible - 1] if self._visible else 0
        done = [each for each in self._waiting if each[0] <= confirmed]
        self._waiting = [each for each in self._waiting if each[0] > confirmed]
        for _, callback in done:
            callback(PutStatus.PUT_OK)

    def cut_to(self, count: int) -> int:
        """Only so many records are left; where they end."""
        del self.ends[count:]
        end = self.positions[count - 1] if count else 0
        self._visible = min(self._visible, count)
        waiting, self._waiting = self._waiting, []
        for _, callback in waiting:
            callback(PutStatus.SERVICE_NOT_AVAILABLE)
        self.cut(end)
        return end

    def all_records(self) -> list[Record]:
        return [decode_record(each) for each in self._records.values()]


class Broker:
    """A broker's timers, from a start to its end."""

    def __init__(self, story: TimedLightStory, node: replication.Node) -> None:
        self.node = node
        self.life = node.life
        self.log = TimedLog(story, node)
        self.timers = Node(self.log, story.turns, Random(node.life), story.timer_settings)
        self.leads_in: int | None = None  # the master epoch

    def follow(self) -> None:
        """Be what the replicated log and the role say."""
        machine = self.node.machine
        epoch = machine.master_epoch if self.node.is_master else None
        if self.leads_in is not None and epoch != self.leads_in:
            self.timers.service.step_down()
            self.log.is_master, self.leads_in = False, None
        there = _records_of(self.node.log)
        common = _common(self.log.ends, there)
        if common < len(self.log.ends):
            end = self.log.cut_to(common)
            if self.timers.followed is not None:
                self.timers.followed.files.truncate(end)
            self.timers.service.truncated(end)
            self.timers.service.rebuild()
        self.log.take(there[common:])
        self.log.confirm(machine.confirm_offset)
        if epoch is not None and self.leads_in is None:
            self.leads_in = epoch
            self.timers.lead()

    def end(self) -> None:
        """Its process is gone."""
        self.timers.service.close()
        self.log.is_master = False


class TimedLightStory(LightStory):
    """`run` raises Violation."""

    kind = "timers"

    def __init__(self, seed: int, *, steps: int = STEPS, weights: dict[str, float] | None = None) -> None:
        super().__init__(seed, steps=steps, heals=True, weights={**WEIGHTS, **(weights or {})})
        rng = Random(seed)
        self.turns = Turns()
        self.timer_settings = TimerSettings(
            batch_messages=rng.choice((1, 3, 9)),
            in_flight_messages=rng.choice((9, 16_384)),
            near_s=1,
            near_max=rng.choice((3, 1000)),
            roll_window_s=1,
            retry_ms=50,
        )
        self.is_traced = True
        self.kept: list[bytes] = []  # records, by number
        self.saw: Counter[str] = Counter()
        self._brokers: dict[int, Broker] = {}
        self._sent: dict[str, tuple[int, int]] = {}  # by key: place and due time
        self._acknowledged: set[str] = set()
        self._recalled: set[str] = set()
        self._delivered: set[bytes] = set()
        self._began_ms = self.group.now_ms

    def run(self, *_: object, **__: object) -> None:
        # these logs have little but timers, and do not last long
        with patch.object(moving, "MOST_PART", 1000), patch.object(moving, "LOOK_S", 0.02):
            super().run()

    def keep(self, record: bytes) -> int:
        """The number of a record that a master appends: what it delivers is due."""
        decoded = decode_record(record)
        if decoded.topic == TOPIC:
            due_ms, now_ms = int(decoded.property_map()[DUE_MS]), self.turns.wall_ms()
            assert due_ms <= now_ms, f"{decoded.body!r} is delivered {due_ms - now_ms} ms early"
            self.saw["delivered again" if decoded.body in self._delivered else "delivered"] += 1
            self._delivered.add(decoded.body)
        self.kept.append(record)
        return len(self.kept) - 1

    # ---- events

    def send_timer(self) -> bool:
        """On whoever thinks that he is the master, for some of one moment."""
        masters = self._masters()
        if not masters:
            return False
        broker = self.rng.choice(masters)
        ahead_ms = self.rng.choice((1, 20, 60, 300, 900, self.rng.randrange(_LONGEST_MS)))
        self._send(broker, ahead_ms, self.rng.choice((1, 2, 4)))
        return True

    def send_burst(self) -> bool:
        """More for a moment than are delivered in some batches."""
        masters = self._masters()
        if not masters:
            return False
        self._send(self.rng.choice(masters), self.rng.choice((1, 60)), 6 * self.timer_settings.batch_messages)
        return True

    def fill_up(self) -> bool:
        """The disks: files of the log go soon, up to any of them."""
        masters = self._masters()
        for broker in masters:
            broker.timers.going = self.rng.randrange(broker.log.queue_range(TIMER_TOPIC, 0)[1] + 1)
        return bool(masters)

    def _send(self, broker: Broker, ahead_ms: int, count: int) -> None:
        for _ in range(count):
            key = f"k{len(self.kept)}"
            due_ms = max(self.turns.wall_ms() + ahead_ms, broker.timers.service.least_due_ms)
            self._sent[key] = broker.timers.put(key, due_ms), due_ms
            broker.log.when_acknowledged(broker.log.end_offset, self._noting(key))

    def recall_timer(self) -> bool:
        """By its place."""
        masters = self._masters()
        if not (masters and self._sent):
            return False
        key = self.rng.choice(list(self._sent)[-12:])
        broker = self.rng.choice(masters)

        def done(problem: RequestError | None) -> None:
            if problem is None:
                self._recalled.add(key)

        broker.timers.service.recall(Recalled(TOPIC, key, *self._sent[key]), done)
        return True

    def mark_timer(self) -> bool:
        """By a message that names it."""
        masters = self._masters()
        if not (masters and self._sent):
            return False
        key = self.rng.choice(list(self._sent)[-12:])
        self.rng.choice(masters).timers.put_marker(key, self._sent[key][1])
        return True

    def _masters(self) -> list[Broker]:
        return [each for each in self._brokers.values() if each.leads_in is not None and each.node.is_master]

    def _noting(self, key: str) -> Callable[[PutStatus], None]:
        def done(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK:
                self._acknowledged.add(key)

        return done

    # ---- time and the log

    def _note_changes(self, event: str) -> None:
        super()._note_changes(event)
        self._follow()

    def _follow(self) -> None:
        for node in self.group.nodes.values():
            broker = self._brokers.get(node.broker_id)
            if broker is not None and not (node.alive and node.life == broker.life):
                self._brokers.pop(node.broker_id).end()
                broker = None
            if node.alive:
                if broker is None:
                    broker = self._brokers[node.broker_id] = Broker(self, node)
                broker.follow()
        self.turns.run(self.group.now_ms - self._began_ms - self.turns.monotonic_ms())

    # ---- the end

    def _tell(self) -> None:
        super()._tell()
        for _ in range(2 * _LONGEST_MS // _STEP_MS):
            self.group.settle_now()
            self._follow()
            self.group.tick(_STEP_MS)
        self.group.settle_now()
        self._follow()
        self._check()

    def _check(self) -> None:
        (master,) = self._masters()
        records = master.log.all_records()
        tables = [list(map(repr, each.timers.service.table.snapshot_rows())) for each in self._brokers.values()]
        assert all(each == tables[0] for each in tables), f"the brokers' tables differ: {tables}"
        timers, copies = _timers_of(records), _copies_of(records)
        for key, found in copies.items():
            assert len(found) == 1, f"{key} is delivered {len(found)} times"
            place = found[0].property_map()[PLACE]
            assert place == str(timers[key].queue_offset), f"{key} says that it waited at {place}"
        lost = sorted(self._acknowledged - timers.keys())
        assert not lost, f"{lost} were acknowledged, and are lost"
        back = _taken_back(records, timers, copies)
        for key in sorted(self._recalled & copies.keys()):
            raise AssertionError(f"{key} is delivered though it was recalled")
        for key in sorted(back.certain.keys() & copies.keys()):
            is_before = copies[key][0].physical_offset < back.certain[key]
            assert is_before, f"{key} is delivered though something in the log takes it back in time"
        waiting = sorted(timers.keys() - copies.keys() - back.certain.keys() - back.perhaps)
        assert not waiting, f"{waiting} are never delivered"
        kinds = Counter(each.property_map()["TAGS"] for each in records if each.topic == TIMERS_TOPIC)
        self.saw["overtook"] += kinds[AHEAD]
        self.saw["moved"] += kinds[MOVED]
        self.saw["came"] += len(copies)
        self.saw["taken back"] += len((back.certain.keys() | back.perhaps) - copies.keys())
        self.saw["rolled"] += sum("TIMER_ROLL_TIMES" in each[0].property_map() for each in copies.values())


def _records_of(log: replication.MemoryReplicatedLog) -> list[tuple[int, int]]:
    """Where the timers' records end in a replicated log, and their numbers."""
    bounds = log.boundaries()
    contents = ((end, log.content(start + 1, end)) for start, end in pairwise(bounds))
    return [(end, int(content[1:])) for end, content in contents if content.startswith(_MARK)]


def _common(own: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> int:
    return next(
        (at for at, pair in enumerate(zip(own, there, strict=False)) if pair[0] != pair[1]), min(len(own), len(there))
    )


def _timers_of(records: Sequence[Record]) -> dict[str, Record]:
    """By key: where each waited first."""
    found = {}
    for record in records:
        properties = record.property_map()
        if record.topic == TIMER_TOPIC and PLACE not in properties and DELETE_KEY not in properties:
            found[record.body.decode()] = record
    return found


def _copies_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        if record.topic == TOPIC:
            found.setdefault(record.body.decode(), []).append(record)
    return found


class _TakenBack(NamedTuple):
    """By key, from which place in the log on it is not delivered; and what may be delivered or not."""

    certain: dict[str, int]
    perhaps: set[str]


def _taken_back(records: Sequence[Record], timers: dict[str, Record], copies: dict[str, list[Record]]) -> _TakenBack:
    """A marker counts before every timer that it finds waiting and that is due behind it. The log alone says what that is."""
    keys = {record.queue_offset: key for key, record in timers.items()}
    waits: dict[str, list[tuple[int, Key]]] = {
        key: [] for key in timers
    }  # where each record of it is, and when it is due
    back = _TakenBack({}, set())
    for record in records:
        properties, at = record.property_map(), record.physical_offset
        if record.topic == TIMERS_TOPIC and properties["TAGS"] == RECALLED:
            back.certain.setdefault(keys[orjson.loads(record.body)["place"]], at)
        if record.topic != TIMER_TOPIC:
            continue
        own = key_of(timer_code(record.properties, record.store_timestamp_ms), record.queue_offset)
        if DELETE_KEY not in properties:
            waits[record.body.decode()].append((at, own))
            continue
        key = properties[DELETE_KEY].removeprefix(f"{TOPIC}+")
        if key not in timers or PLACE in properties:
            continue
        is_waiting = not any(copy.physical_offset < at for copy in copies.get(key, ()))
        if is_waiting and any(due > own for _, due in waits[key]):
            back.certain.setdefault(key, at)
        else:
            back.perhaps.add(key)
    return back
