"""What must be true of timers: of each append of a master when it is made, and of the log that everybody has at the end.

At each append: nothing is delivered before its time, by the wall clock of the machine and by what its steady clock says of the
wall clock that the process began with, or controllers say; nor is it by a clock that was ahead of all others when this broker
became the master. What is delivered is what waits at the place that it names; and one master delivers in the order of its
batches (`timer_order.py`), but for what is sent after a clock went back.

At the end, of every timer in the log: it was delivered once; or not at all, since it was taken back, or is due later. The log
alone says what had to be so: the judge knows no cursor.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from brokerd.journal.replay import decode_log_record
from brokerd.store.log.derive import derive_range
from brokerd.store.unit import Unit
from brokerd.timers.clock import AGREES_MS, PATIENCE_MS, SLACK_MS
from brokerd.timers.codes import (
    DELETE_KEY,
    DUE_MS,
    OUT_MS,
    PLACE,
    RECALL,
    ROLLED,
    due_of,
    key_of,
    kind_of,
    number_of,
    timer_code,
)
from brokerd.timers.copies import name_of
from brokerd.timers.cursor import AHEAD, BEGIN, FENCE, RECALLED, TIMERS_TOPIC, Begin, begin_of
from remoting.names import TIMER_TOPIC
from remoting.record.codec import Record
from remoting.record.fields import store_timestamp_of
from tests.sim.delays import records_of
from tests.sim.records import look_at
from tests.sim.timed import TIMED_TOPIC, Wanted, make_clients
from tests.sim.timer_order import Order

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

_CLOCKS_DIFFER: Final = 0.99  # monotonic clocks run a little fast or slow
_CLOCKS_APART_MS: Final = 4000  # of two machines whose clocks nobody set
_RESOLUTION_MS: Final = 1  # of all clocks
_ENOUGH_MS: Final = 3000  # for what is due to be delivered by a group that is at rest


class Entry(NamedTuple):
    """A record of the timer topic; `place` is where its message waited first."""

    record: Record
    code: int
    place: int
    properties: dict[str, str]

    @property
    def due_ms(self) -> int:
        return int(self.properties[DUE_MS])


class Timed:
    """Timers in one story: an ingredient."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._wanted = Wanted()
        self._at_rest_since_ms: float | None = None

    def begin(self) -> None:
        self._cluster.clients += make_clients(self._cluster, self._wanted)

    def end(self) -> None:
        """Clients are told to stop by others."""

    def built(self, broker: SimBroker) -> None:
        """A process of the group begins."""
        watch = _Watch(self._cluster, self._wanted, broker)
        broker.append_listeners.append(watch.appended)

    def is_settled(self) -> bool:
        """Whether the topic is made, and all that is due is delivered; in time it must be, and `check` says what is not. A clock
        that may be doubted need not be: who does not doubt it is at rest when it has delivered by it."""
        if self._master().core.metadata.topic(TIMED_TOPIC) is None:
            return False
        now_ms = self._cluster.world.now_ms
        if self._at_rest_since_ms is None:
            self._at_rest_since_ms = now_ms
        return now_ms - self._at_rest_since_ms >= _ENOUGH_MS or not self._left(_believed_ms(self._master()))

    def check(self) -> None:
        cluster = self._cluster
        broker = self._master()
        now_ms = self._certain_ms(broker)
        _check_log(cluster, self._wanted, broker, now_ms)
        left = self._left(now_ms)
        cluster.world.require(not left, f"{broker.name} serves, and timers wait long after they were due: {left}")
        for each in cluster.brokers:
            rows = [sorted(map(repr, one.core.timers.table.snapshot_rows())) for one in (broker, each)]
            cluster.world.require(
                rows[0] == rows[1], f"the timers' tables of {broker.name} and {each.name} differ: {rows}"
            )
            _check_held(cluster, each)

    def _master(self) -> SimBroker:
        master = self._cluster.master()
        assert master is not None
        return master

    def _certain_ms(self, broker: SimBroker) -> int:
        """What time it is at least for a master, which doubts its clock where controllers say something else."""
        now_ms = _believed_ms(broker)
        others_ms = min(each.wall_ms() for each in self._cluster.controllers)
        return others_ms if now_ms > others_ms + AGREES_MS else now_ms

    def _left(self, now_ms: int) -> list[bytes]:
        """What is due by then and was not delivered, and may be."""
        broker = self._master()
        entries, copies = _entries(broker), _copies(broker)
        gone = _taken_back(entries, copies, broker).places
        return [
            each.record.body[:20]
            for place, each in _last_ones(entries).items()
            if place not in copies and place not in gone and due_of(each.code) < now_ms
        ]


def _believed_ms(broker: SimBroker) -> int:
    """What time it is for a process that goes by the rule of `timers.clock`."""
    wall_ms, steady_ms = broker.wall_ms(), broker.monotonic_ms()
    begin_wall_ms, begin_steady_ms = broker.first_clocks
    if steady_ms - begin_steady_ms >= PATIENCE_MS:
        return wall_ms
    return min(wall_ms, begin_wall_ms + SLACK_MS + steady_ms - begin_steady_ms + 1)


class _Watch:
    """Looks at everything that one process appends as a master."""

    def __init__(self, cluster: SimCluster, wanted: Wanted, broker: SimBroker) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._broker = broker
        self._epoch = -1
        self._order = Order(self._code_of, self._place_of, self._require)
        self._is_new = False  # what follows was not announced before, when it was due by the clock of another master
        self._witness = (
            cluster.world.now_ms,
            0,
        )  # when this broker became the master, and the latest time that anybody told then
        self._controllers_ms = 0  # how far a controller's clock was ahead of the world's, at most

    def appended(self, start: int, end: int) -> None:
        """The log has new bytes. Timers are delivered in an append of their own, which begins with what announces them."""
        log = self._broker.core.store.commitlog
        world = self._cluster.world
        offsets_ms = (each.wall_ms() - int(world.now_ms) for each in self._cluster.controllers)
        self._controllers_ms = max(self._controllers_ms, *offsets_ms)
        epoch = self._broker.driver.machine.master_epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._order.restart()
            self._witness = world.now_ms, max(self._stored_before_ms(start), self._controllers_ms + int(world.now_ms))
        data = bytes(log.read(start, end - start))
        if TIMERS_TOPIC.encode() not in data:
            return

        def read(offset: int, length: int) -> bytes:
            return data[offset - start : offset - start + length]

        derived = derive_range(read, start, end, log.shape.checked(), 1 << 16)
        for topic, _, _, physical_offset, size, _, _, count in (entry for each in derived for entry in each.entries):
            for at in range(physical_offset, physical_offset + count * size, size):
                if topic == TIMERS_TOPIC:
                    decoded = decode_log_record(read(at, size))
                    if decoded.kind in (BEGIN, AHEAD):
                        self._began(begin_of(decoded.body))
                    elif decoded.kind == FENCE:
                        self._order.restart()
                        self._cluster.history.count("timer", "fences")
                elif topic == TIMED_TOPIC:
                    record = look_at(read(at, size)).record
                    self._look(record, record.property_map())

    def _began(self, begin: Begin) -> None:
        self._is_new = begin.taken > 0
        if begin.after is not None:
            self._cluster.history.count("timer", "batches ahead")
        self._order.begins(begin)

    def _look(self, record: Record, properties: dict[str, str]) -> None:
        require, broker, name = self._cluster.world.require, self._broker, repr(record.body[:20])
        place, due_ms = int(properties[PLACE]), int(properties[DUE_MS])
        now_ms = self._latest_ms()
        is_on_time = due_ms <= now_ms or not self._is_new
        require(is_on_time, f"{broker.name} delivers {name} at {now_ms}, {due_ms - now_ms} ms early")
        asked = self._wanted.asked.get(record.body)
        if asked is None:
            self._cluster.world.broken(f"{broker.name} delivers {name}, which nobody sent")
        require(asked.deliver_ms is None or asked.deliver_ms <= due_ms, f"{name} is due before its sender asked for it")
        origin = self._entry(place)
        require(origin.body == record.body, f"{broker.name} delivers {name} for {origin.body[:20]!r}")
        require(origin.property_map()[DUE_MS] == str(due_ms), f"{name} waits for another time than it was sent with")
        is_from_here = origin.store_host == broker.store_host and broker.began_ms < asked.began_ms
        if asked.deliver_ms is None and is_from_here and self._is_new and not self._cluster.injector.clocks_were_set:
            waited_ms = self._cluster.world.now_ms - asked.began_ms
            require(
                waited_ms >= asked.delay_ms * _CLOCKS_DIFFER - _RESOLUTION_MS,
                f"{broker.name} delivers {name} {waited_ms:.1f} ms after it was sent, asked were {asked.delay_ms}",
            )
            self._cluster.history.count("timer", "watched")
        self._order.delivers(place)

    def _stored_before_ms(self, offset: int) -> int:
        """The store time of the log's last record before that offset."""
        log, last_ms = self._broker.core.store.commitlog, 0
        begin = max(log.min_offset, offset - 1 - (offset - 1) % log.segment_size_bytes)
        while (record := log.record_at(begin)) is not None and begin < offset:
            last_ms, begin = max(last_ms, store_timestamp_of(record)), begin + len(record)
        return last_ms

    def _latest_ms(self) -> int:
        """What time it may be, at the latest, for this process."""
        now_ms, wall_ms = self._cluster.world.now_ms, self._broker.wall_ms()
        others_ms = self._controllers_ms + int(now_ms) + SLACK_MS + _RESOLUTION_MS
        began_ms, witnessed_ms = self._witness
        if now_ms - began_ms > PATIENCE_MS:
            return min(wall_ms, max(_believed_ms(self._broker), others_ms))
        by_witness_ms = witnessed_ms + AGREES_MS + SLACK_MS + int((now_ms - began_ms) / _CLOCKS_DIFFER)
        return min(wall_ms, max(_believed_ms(self._broker), others_ms), max(by_witness_ms, others_ms))

    def _unit(self, offset: int) -> Unit:
        """Dispatched or not: a new master delivers what was announced before at once."""
        record_log = self._broker.core.record_log
        _, end = record_log.queue_range(TIMER_TOPIC, 0)
        if offset >= end:
            return record_log.undispatched_units(TIMER_TOPIC)[offset - end]
        (unit,) = record_log.read_units(TIMER_TOPIC, 0, offset, 1)
        return unit

    def _code_of(self, offset: int) -> int:
        return self._unit(offset)[2]

    def _place_of(self, offset: int) -> int:
        """Where the message of that entry waited first."""
        place = (
            number_of(self._entry(offset).property_map(), PLACE) if kind_of(self._code_of(offset)) == ROLLED else None
        )
        return offset if place is None else place

    def _entry(self, offset: int) -> Record:
        physical_offset, size, _ = self._unit(offset)
        return look_at(bytes(self._broker.core.record_log.record_at(physical_offset, size))).record

    def _require(self, is_so: bool, what: str) -> None:
        self._cluster.world.require(is_so, f"{self._broker.name}: {what}")


# ---- the log at the end


class _TakenBack(NamedTuple):
    """What must not be delivered, and what may be or not."""

    certain: list[Entry]
    perhaps: list[Entry]

    @property
    def places(self) -> set[int]:
        return {each.place for each in (*self.certain, *self.perhaps)}


def _entries(broker: SimBroker) -> list[Entry]:
    found = []
    for offset, record in enumerate(records_of(broker, TIMER_TOPIC)):
        properties = record.property_map()
        code = timer_code(record.properties, record.store_timestamp_ms)
        place = number_of(properties, PLACE) if kind_of(code) == ROLLED else None
        found.append(Entry(record, code, offset if place is None else place, properties))
    return found


def _last_ones(entries: list[Entry]) -> dict[int, Entry]:
    """Where each message waits now, or waited last, by the place where it waited first."""
    return {each.place: each for each in entries if kind_of(each.code) != RECALL}


def _copies(broker: SimBroker) -> dict[int, list[Record]]:
    """What was delivered, by the place that it waited at first."""
    found: dict[int, list[Record]] = {}
    for record in records_of(broker, TIMED_TOPIC):
        place = number_of(record.property_map(), PLACE)
        if place is not None:
            found.setdefault(place, []).append(record)
    return found


def _taken_back(entries: list[Entry], copies: dict[int, list[Record]], broker: SimBroker) -> _TakenBack:
    """What the log takes back. A client's marker counts before every timer that it finds waiting and that is due behind it; of
    one that is due in the same moment, or was delivered, it is too late. What is recalled by its handle is so from then on."""
    certain, perhaps = [], []
    messages = [each for each in entries if kind_of(each.code) != RECALL]
    for marker in entries:
        if kind_of(marker.code) != RECALL or PLACE in marker.properties:
            continue
        at = marker.record.physical_offset
        own_key = key_of(marker.code, marker.record.queue_offset)
        for entry in messages:
            if _is_meant(marker, entry):
                is_waiting = entry.record.physical_offset < at and not _is_delivered(copies, entry.place, at)
                is_behind = key_of(entry.code, entry.record.queue_offset) > own_key
                (certain if is_waiting and is_behind else perhaps).append(entry)
    by_place: dict[int, list[Entry]] = {}
    for each in messages:
        by_place.setdefault(each.place, []).append(each)
    for record in records_of(broker, TIMERS_TOPIC):
        if record.property_map()["TAGS"] == RECALLED:
            place = orjson.loads(record.body)["place"]
            is_late = _is_delivered(copies, place, record.physical_offset)
            (perhaps if is_late else certain).extend(by_place.get(place, ()))
    return _TakenBack(certain, perhaps)


def _is_delivered(copies: dict[int, list[Record]], place: int, before: int) -> bool:
    return any(copy.physical_offset < before for copy in copies.get(place, ()))


def _is_meant(marker: Entry, entry: Entry) -> bool:
    return (
        marker.properties[DELETE_KEY] == name_of(entry.properties)
        and marker.properties[OUT_MS] == entry.properties[OUT_MS]
    )


def _check_log(cluster: SimCluster, wanted: Wanted, broker: SimBroker, now_ms: int) -> None:
    require = cluster.world.require
    entries, copies = _entries(broker), _copies(broker)
    back = _taken_back(entries, copies, broker)
    for place, found in copies.items():
        require(len(found) == 1, f"{found[0].body[:20]!r}, which waited at {place}, is delivered {len(found)} times")
    for entry in back.certain:
        name = repr(entry.record.body[:20])
        require(entry.place not in copies, f"{name} is delivered, though a marker in the log takes it back in time")
    may_be_gone = back.places
    stored = Counter(each.body for each in records_of(broker, TIMED_TOPIC))
    for body, count in stored.items():
        most = wanted.attempts[body]
        require(count <= most, f"{body[:20]!r} is delivered {count} times after {most} attempts")
    last = _last_ones(entries)
    for entry in entries:
        if kind_of(entry.code) == RECALL:
            continue
        asked_ms = wanted.asked[entry.record.body].deliver_ms
        if asked_ms is not None and not cluster.injector.clocks_were_set:
            late_ms = entry.due_ms - asked_ms
            require(
                late_ms <= _CLOCKS_APART_MS, f"{entry.record.body[:20]!r} is due {late_ms} ms after it was asked for"
            )
        if entry.place in copies:
            continue
        is_explained = entry.place in may_be_gone or due_of(last[entry.place].code) >= now_ms
        require(is_explained, f"{entry.record.body[:20]!r}, which waited at {entry.place}, is never delivered")
        body = entry.record.body
        is_wanted_gone = body in wanted.perhaps_recalled or entry.place not in may_be_gone
        require(is_wanted_gone, f"{body[:20]!r} is taken back, and nobody asked for that")
    by_offset = {each.record.physical_offset: each for each in entries}
    at_once = {each.physical_offset: each.body for each in records_of(broker, TIMED_TOPIC)}
    for body, physical_offset in wanted.acknowledged:
        held = by_offset[physical_offset].record.body if physical_offset in by_offset else at_once.get(physical_offset)
        require(held == body, f"{broker.name} lost {body[:20]!r}, acknowledged at {physical_offset}")
    for body, physical_offset in wanted.recalled.items():
        place = by_offset[physical_offset].place
        require(place not in copies, f"{body[:20]!r} is delivered, though it was recalled")


def _check_held(cluster: SimCluster, broker: SimBroker) -> None:
    """The log is held where the first timer waits that is not delivered yet."""
    copies = _copies(broker)
    entries = _entries(broker)
    last = _last_ones(entries)
    gone = _taken_back(entries, copies, broker).places
    waiting = [each for place, each in last.items() if place not in copies and place not in gone]
    if waiting:
        first = min(each.record.physical_offset for each in waiting)
        held = broker.core.timers.held_offset()
        cluster.world.require(
            held is not None and held <= first, f"{broker.name} holds its log from {held}, a timer waits at {first}"
        )
