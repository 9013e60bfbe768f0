"""A broker over a disk in memory and an object store that fails, in random stories; what was sent is read back and compared."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from brokerd.composition.environment import Tier
from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.cold import ColdMiss
from brokerd.store.draft import Draft
from brokerd.store.index.search import Question
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.queues.queue_reads import Boundary, GetStatus
from brokerd.store.settings import StoreSettings
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upkeep import Upkeep
from remoting.checksum import crc32
from remoting.errors import LogboomError
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import pack_host
from remoting.settings import Live
from remoting.tier.contents import Queue
from remoting.tier.index import part_of
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Form, Segment
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk, MemoryFile
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns

HOST = pack_host("127.0.0.1", 10911)
SEGMENT_BYTES = 64 * 1024
STORE = StoreSettings(segment_size_bytes=SEGMENT_BYTES, queue_file_units=16, index_enabled=False)
SETTINGS = TierSettings(
    url="memory:///",
    commit_interval_ms=1000,
    commit_bytes=4096,
    buffer_bytes=1 << 20,
    cache_bytes=1 << 20,
    segment_bytes=64 << 10,
    state_interval_ms=86_400_000,  # a test of their own is about these; here they would draw from the faults of each story
)
HOUR_MS = 3_600_000
RESERVED_MS = 2 * HOUR_MS
SHORT = "Short"
TOPICS: dict[str, dict[str, str]] = {
    "Orders": {},
    "%RETRY%" + "g" * 90: {"tier.archive": "true"},
    SHORT: {"tier.reserve.time": str(RESERVED_MS // HOUR_MS)},
}
QUEUES = 2
KEYS = 60
_T = TypeVar("_T")


class Wrong(AssertionError):
    """A promise was broken."""


class World:
    """One story."""

    def __init__(self, seed: int, settings: TierSettings = SETTINGS, *, appends: bool = False) -> None:
        self.rng = random.Random(seed)
        self.appends = appends
        self.settings = Live(settings)
        self.turns = Turns()
        self.disk = MemoryDisk()
        self.stored = Stored()
        self.stored.skew_ms = self.rng.choice([0, 3, -3]) * HOUR_MS
        self.sent_ms: dict[tuple[str, int], dict[int, int]] = {}
        self.epoch = 0
        self.sent: dict[tuple[str, int], dict[int, bytes]] = {}
        self.keys: dict[tuple[str, int, int], str] = {}
        self.gone: dict[tuple[str, int], set[int]] = {}  # never in the tier, and not in the files any more
        self.indexes_that_expire = self.left_behind = 0
        self.losses = self.cold_reads = self.misses = self.viewed = self.queried = self.faults = 0
        self.starts = self.zombies = self.removed_files = self.archived = self.switched = 0
        self.not_kept: set[str] = set()  # topics that somebody switched off
        self.upkeeps: dict[int, Upkeep] = {}
        self.has_begun = False
        self.lives: list[FaultyObjects] = []
        self.start()
        for topic in TOPICS:
            self.make_topic(topic)

    # ---- what happens

    def start(self) -> None:
        """The process begins, and this broker becomes the master in a new epoch. Another one before it may not know that yet."""
        self.starts += 1
        self.epoch += self.rng.randint(1, 3)
        self.steps = Steps(self.turns)
        self.objects = FaultyObjects(self.stored, self.steps, self.turns, self.rng, appends=self.appends)
        self.lives.append(self.objects)
        epochs = self.broker.replica.epochs if self.starts > 1 else []
        self.broker = AloneBroker(
            self.disk,
            self.turns,
            STORE,
            HOST,
            tier=Tier(self.objects, self.steps.loop()),
            tiers=self.settings,
        )
        self.broker.replica.epochs = list(epochs)
        self.core, self.store = self.broker.core, self.broker.core.store
        self.turns.run()
        self.broker.replica.become(Role.MASTER, self.epoch)
        self.turns.run()

    def restart(self, *, leaves_zombie: bool) -> None:
        """It ends and begins again. A zombie goes on with the object store from its own files, but its log takes nothing."""
        old = self.broker
        old.replica.is_taking = False
        if leaves_zombie:
            self.zombies += 1
            self.store.checkpoint()
            self.disk = _copy_of(self.disk)
            self.store.set_appendable(False)
        else:
            old.core.close()
            self.store.close()
        self.start()

    def lose_tail(self) -> None:
        """An election that may lose messages: the log ends earlier now, and goes on with others in a new epoch."""
        queue = self.rng.choice(list(self.sent) or [None])
        if not self.has_begun:
            return
        low, high = (0, 0) if queue is None else self.core.record_log.queue_range(*queue)
        low = max(low, self.store.local_min_offset(*queue) if queue is not None else 0)
        if low >= high:
            return
        position = self.store.read_units(*queue, self.rng.randrange(low, high), 1)[0][0]
        if position < max(self.kept_to, self.store.commitlog.end_offset - SEGMENT_BYTES):
            return
        self.losses += 1
        replica = self.broker.replica
        replica.become(Role.REPLICA)
        self.turns.run()
        self.store.truncate(position)
        replica.epochs = [entry for entry in replica.epochs if entry.start_offset < position]
        replica.confirm_offset = position
        self.turns.run()
        for each, bodies in self.sent.items():
            end = self.store.max_offset(*each)
            for offset in [offset for offset in bodies if offset >= end]:
                del bodies[offset]
        self.epoch += 1
        replica.become(Role.MASTER, self.epoch)
        self.turns.run()

    def make_topic(self, name: str) -> None:
        done: list[Any] = []
        self.core.metadata.put_topic(TopicConfig(name, QUEUES, QUEUES, 6, attributes=TOPICS[name]), done.append)
        self.turns.run()
        assert done == [None]
        self.not_kept.discard(name)
        self.kept_to = self.store.commitlog.end_offset

    def switch(self, name: str) -> None:
        """What of the topic is not uploaded yet is not wanted in the tier any more, or all that is still here is, maybe while
        uploads of it are under way."""
        if self.rng.random() < 0.5:
            self.objects.slow_s = 2.0
            self.turns.run(1500)
        self.switched += 1
        self.not_kept ^= {name}
        attributes = TOPICS[name] | ({"tier.enable": "false"} if name in self.not_kept else {})
        done: list[Any] = []
        self.core.metadata.put_topic(TopicConfig(name, QUEUES, QUEUES, 6, attributes=attributes), done.append)
        self.turns.run()
        assert done == [None]
        self.kept_to = self.store.commitlog.end_offset

    def delete_topic(self, name: str) -> None:
        if self.rng.random() < 0.5:  # while segments of it are being merged, maybe
            self.objects.slow_s = 30.0
            self.turns.run(65_000)
        done: list[Any] = []
        self.core.metadata.delete_topic(name, done.append)
        self.turns.run()
        assert done == [None]
        for queue in [queue for queue in self.sent if queue[0] == name]:
            del self.sent[queue], self.sent_ms[queue]
            self.gone.pop(queue, None)
        self.make_topic(name)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.send_one(self.rng.choice(list(TOPICS)), self.rng.randrange(QUEUES))
        self.turns.run()

    def send_one(self, topic: str, queue_id: int) -> None:
        """Nothing becomes of it before the next turn."""
        body = self.rng.randbytes(self.rng.choice([0, 10, 200, 200, 200, 3000, 9000]))
        offset = self.store.queue_offsets.next(topic, queue_id)
        key = f"k{self.rng.randrange(KEYS)}"
        properties = f"KEYS\x01all {key}\x02UNIQ_KEY\x01{self.starts}-{len(self.keys)}-{offset}\x02".encode()
        self.core.record_log.append_messages([Draft(topic, queue_id, body, properties, self.turns.wall_ms(), HOST)])
        self.keys[topic, queue_id, offset] = key
        self.sent.setdefault((topic, queue_id), {})[offset] = body
        self.sent_ms.setdefault((topic, queue_id), {})[offset] = self.turns.wall_ms()

    def remove_files(self, *, needs_room: bool) -> None:
        """Retention: the oldest files go, unless somebody needs them; a full disk does not wait for uploads."""
        self.store.set_full(needs_room)
        held = self.store.held_offset()
        ages = self.store.file_ages()
        count = sum(1 for age in ages[:-1] if age.end <= held)
        before = {queue: self.store.local_min_offset(*queue) for queue in self.sent}
        for removal in self.store.apply_retention(RetentionDecision(count, False)):
            removal()
        self.removed_files += count
        self.kept_to = max(self.kept_to, self.store.commitlog.end_offset if count else 0)
        for queue, low in before.items():
            segments = self.core.tiers.segments_of(Queue(*queue))
            kept = {offset for each in segments for offset in range(each.first, each.end)}
            for offset in range(low, self.store.local_min_offset(*queue)):
                if offset not in kept and offset not in self._expired(queue):
                    if not needs_room and queue[0] not in self.not_kept:
                        raise Wrong(f"{queue} lost {offset}, which was not uploaded")
                    self.gone.setdefault(queue, set()).add(offset)

    def trouble(self) -> None:
        objects = self.objects
        objects.fails_before = self.rng.choice([0, 0, 0.2, 0.6])
        objects.fails_after = self.rng.choice([0, 0, 0.2, 0.6])
        objects.fails_within = self.rng.choice([0, 0, 0.3]) if self.appends else 0.0
        objects.is_down = self.rng.random() < 0.1
        objects.is_refusing = self.rng.random() < 0.1
        objects.has_no_manifest = self.rng.random() < 0.2
        objects.slow_s = self.rng.choice([0.001, 0.1, 2.0, 60.0])

    def pass_hours(self) -> None:
        """What is lost in an election is lost soon."""
        self.turns.set_wall_clock(self.rng.choice([0, 0, 1, 2, 30]) * HOUR_MS)
        self.turns.run(self.rng.choice([120_000, 700_000]))
        self.kept_to = self.store.commitlog.end_offset

    def heal(self) -> None:
        for objects in self.lives:
            objects.fails_before = objects.fails_after = objects.fails_within = 0.0
            objects.is_down = objects.is_refusing = objects.has_no_manifest = False
            objects.slow_s = 0.01

    # ---- what is looked at

    def check(self) -> None:
        """Read each queue from its first readable message to its end."""
        for queue, bodies in self.sent.items():
            there = self._check_queue(queue, bodies, self.gone.get(queue, set()))
            self._check_times(queue, there)
        for topic in TOPICS:
            self._check_keys(topic)

    def _check_queue(self, queue: tuple[str, int], bodies: dict[int, bytes], gone: set[int]) -> set[int]:
        """The queue offsets that can be read."""
        there: set[int] = set()
        offset, end = self.store.min_offset(*queue), self.store.max_offset(*queue)
        missing = set(range(offset)) - gone - self._expired(queue)
        if missing:
            raise Wrong(f"{queue} begins at {offset}, and {sorted(missing)[:5]} are nowhere")
        local = self.store.local_min_offset(*queue)
        while offset < end:
            self.cold_reads += offset < local
            result = self._read(queue, offset)
            if result.status is GetStatus.MESSAGE_WAS_REMOVING:
                passed = set(range(offset, result.next_offset))
                if not passed <= gone | self._expired(queue):
                    raise Wrong(f"{queue} has {sorted(passed - gone)[:5]} nowhere")
            elif result.status is not GetStatus.FOUND:
                raise Wrong(f"{queue} at {offset}: {result.status}")
            for record in map(decode_record, result.records):
                if self.rng.random() < 0.05:
                    self._check_place(record)
                if record.body != bodies.get(record.queue_offset) or record.queue_offset < offset:
                    raise Wrong(f"{queue} has another message at {record.queue_offset}")
                offset = record.queue_offset + 1
                there.add(record.queue_offset)
            if offset < result.next_offset and result.status is GetStatus.FOUND:
                raise Wrong(f"{queue} goes on at {result.next_offset} behind {offset}")
            offset = result.next_offset
        return there

    def _expired(self, queue: tuple[str, int]) -> set[int]:
        """Messages that need not be there any more."""
        if queue[0] != SHORT:
            return set()
        before_ms = self.turns.wall_ms() - RESERVED_MS
        return {offset for offset, at_ms in self.sent_ms[queue].items() if at_ms < before_ms}

    def check_objects(self, *, after_a_day: bool) -> None:
        """What the contents name is there, and in the end nothing else is."""
        contents = self.core.tiers.table.contents
        named = {entry.name for entry in contents.index.values()}
        for queue, segments in contents.queues.items():
            for segment in segments:
                named.update(segment.names(*queue))
                self.archived += segment.form is Form.BLOCKS
                self._check_stored(queue, segment)
        there = {name for name in self.stored.objects if not name.startswith(("manifest/", "state/"))}
        if not named <= there:
            raise Wrong(f"not there: {sorted(named - there)[:3]}")
        if after_a_day and there - named:
            raise Wrong(f"nobody names {sorted(there - named)[:3]}")

    def _check_stored(self, queue: Queue, segment: Segment) -> None:
        """Its objects are what was stored; they may be longer where somebody could append."""
        sizes, checksums = (segment.stored_bytes, segment.messages * ENTRY_BYTES), (segment.crc, segment.entries_crc)
        for name, size, checksum in zip(segment.names(*queue), sizes, checksums, strict=True):
            content = self.stored.objects.get(name, b"")
            self.left_behind += len(content) > size
            if crc32(content[:size]) != checksum or len(content) < size or (len(content) > size and not self.appends):
                raise Wrong(f"{queue} has another object than {segment}")

    def _check_expiry(self) -> None:
        """Nothing stays much longer than it is reserved (storage.md 8.7, P-38)."""
        before_ms = self.turns.wall_ms() - RESERVED_MS - 120_000
        for queue, segments in self.core.tiers.table.contents.queues.items():
            if queue.topic == SHORT and any(each.last_ms < before_ms for each in segments):
                raise Wrong(f"{queue} is kept too long")
        for entry in self.core.tiers.table.contents.index.values():
            self.indexes_that_expire += entry.reserved_ms == RESERVED_MS
            is_needed = any(
                segment.first_ms <= entry.end_ms
                for queue, segments in self.core.tiers.table.contents.queues.items()
                for segment in segments
                if part_of(queue.topic) in entry.parts
            )
            if entry.reserved_ms and entry.end_ms < before_ms and not is_needed:
                raise Wrong(f"{entry.name} is kept longer than all that it can name")

    def _read(self, queue: tuple[str, int], offset: int) -> Any:
        for _ in range(200):
            result = self.store.read_messages(*queue, offset, self.rng.choice([1, 3, 32]), 100_000)
            if result.status is not GetStatus.BEING_FETCHED:
                return result
            self.turns.run(50)
        raise Wrong(f"{queue} at {offset} is fetched and never there")

    def _check_times(self, queue: tuple[str, int], there: set[int]) -> None:
        """What a slow look over everything that can be read says."""
        times = {offset: ms for offset, ms in self.sent_ms[queue].items() if offset in there}
        end, low = self.store.max_offset(*queue), self.store.min_offset(*queue)
        for _ in range(3):
            asked_ms = self.rng.choice(list(self.sent_ms[queue].values())) + self.rng.choice([-1, 0, 0, 1])
            lower = next((offset for offset, ms in times.items() if ms >= asked_ms), end)
            upper = max((offset for offset, ms in times.items() if ms <= asked_ms), default=low)
            for boundary, wanted in ((Boundary.LOWER, lower), (Boundary.UPPER, upper)):
                found = self._asked(partial(self.store.offset_by_time, *queue, asked_ms, boundary))
                if found != wanted:
                    raise Wrong(f"{queue} at {asked_ms} ms, {boundary}: {found}, and it is {wanted}")
        for offset in self.rng.sample(range(end), min(end, 2)):
            stored_ms = self._asked(partial(self.store.store_timestamp, *queue, offset))
            if stored_ms != times.get(offset, -1):
                raise Wrong(f"{queue} has {offset} at {stored_ms}, and it is {times.get(offset, -1)}")

    def _check_keys(self, topic: str) -> None:
        """Of what is in the tier the same is found as by looking at all of it."""
        index = self.core.tiers.index
        assert index is not None
        self.turns.run(5000)  # what was sent before is uploaded then
        uploaded = self._uploaded(topic)
        for _ in range(3):
            key = self.rng.choice(["all", *(f"k{self.rng.randrange(KEYS)}" for _ in range(3))])
            some_ms = sorted(self.rng.choice([ms for ms, _ in uploaded.values()] or [0]) for _ in range(2))
            question = Question(topic, key, self.rng.choice([1, 5, 64]), *self.rng.choice([some_ms, [0, 1 << 60]]))
            wanted = [
                (ms, place)
                for place, (ms, word) in uploaded.items()
                if key in ("all", word) and question.begin_ms <= ms <= question.end_ms
            ]
            known = {place for _, place in wanted if self.rng.random() < 0.1}
            newest = sorted((each for each in wanted if each[1] not in known), reverse=True)[: question.most]
            found: list[Any] = []
            index.find(question, known, lambda *answer: found.extend(answer))  # noqa: B023
            self.turns.run(30_000)
            if self._uploaded(topic) != uploaded:
                return
            records, is_complete = found
            if isinstance(records, LogboomError) or not is_complete:
                raise Wrong(f"{question}: {found}")
            decoded = list(map(decode_record, records))
            places = [(each.store_timestamp_ms, (each.queue_id, each.queue_offset)) for each in decoded]
            if places != newest[::-1]:
                raise Wrong(f"{question}: found {places}, and it is {newest[::-1]}")
            self.queried += len(decoded)

    def _uploaded(self, topic: str) -> dict[tuple[int, int], tuple[int, str]]:
        """When it was stored, and its key, by queue id and queue offset."""
        return {
            (queue_id, offset): (self.sent_ms[topic, queue_id][offset], self.keys[topic, queue_id, offset])
            for queue_id in range(QUEUES)
            for segment in self.core.tiers.segments_of(Queue(topic, queue_id))
            for offset in range(segment.first, segment.end)
        }

    def _check_place(self, record: Record) -> None:
        """A message whose place in the log somebody knows is found, wherever it is."""
        place = record.physical_offset
        found = self.store.message_at(place)
        if found is None:
            self.viewed += 1
            found = self._asked(partial(self.store.cold_message_at, record.topic, place))
        if found is None or decode_record(found) != record:
            raise Wrong(f"{record.topic}/{record.queue_id} has another message at {place} of the log")
        inside = self._asked(partial(self.store.cold_message_at, record.topic, place + 1))
        if inside is not None:
            raise Wrong(f"no message begins at {place + 1}")

    def _asked(self, ask: Callable[[], _T]) -> _T:
        for _ in range(200):
            try:
                return ask()
            except ColdMiss as miss:
                fetched: list[bool] = []
                miss.when_fetched(partial(fetched.append, True))
                self.turns.run(500)
                self.misses += 1
                if not fetched:
                    raise Wrong(f"nobody is told: {miss}") from None
        raise Wrong("it is fetched and never there")

    def finish(self) -> None:
        """All is well again: everything is uploaded, and read."""
        self.heal()
        self.turns.run(400_000)
        tiers = self.core.tiers
        if tiers.trouble or not tiers.is_open or len(tiers.pending):
            raise Wrong(f"not uploaded: {list(tiers.pending.queues())}; {tiers.trouble}; open: {tiers.is_open}")
        self.remove_files(needs_room=False)
        self.check()
        self.check_objects(after_a_day=False)
        self._check_expiry()
        self.turns.set_wall_clock(26 * HOUR_MS)
        self.turns.run(700_000)
        self.check()
        self.check_objects(after_a_day=True)
        self._check_expiry()
        self.merges = sum(each.merges for each in self.upkeeps.values())
        self.swept = sum(each.removal.swept for each in self.upkeeps.values())
        self.faults = sum(objects.faults for objects in self.lives)

    def run(self, steps: int) -> None:
        chances: list[tuple[int, Callable[[], None]]] = [
            (12, lambda: self.send(self.rng.randint(1, 40))),
            (12, lambda: self.turns.run(self.rng.choice([1, 50, 500, 3000]))),
            (4, self.trouble),
            (3, self.heal),
            (3, lambda: self.remove_files(needs_room=False)),
            (1, lambda: self.remove_files(needs_room=True)),
            (2, lambda: self.restart(leaves_zombie=self.rng.random() < 0.5)),
            (1, lambda: self.delete_topic(self.rng.choice(list(TOPICS)))),
            (1, lambda: self.switch(self.rng.choice(list(TOPICS)))),
            (2, self.lose_tail),
            (3, self.pass_hours),
            (2, self.check_when_well),
        ]
        weights = [weight for weight, _ in chances]
        for _ in range(steps):
            self.rng.choices(chances, weights)[0][1]()
            if self.core.tiers.upkeep is not None:
                self.upkeeps[id(self.core.tiers.upkeep)] = self.core.tiers.upkeep
            if not self.has_begun and self.core.tiers.table.contents.log_id:
                self.has_begun = True  # a log that forgets its name is another log for the tier
                self.kept_to = max(self.kept_to, self.store.commitlog.end_offset)
        self.finish()

    def check_when_well(self) -> None:
        self.heal()
        self.turns.run(5000)
        self.check()
        if self.core.tiers.is_open:
            self.check_objects(after_a_day=False)


def _copy_of(disk: MemoryDisk) -> MemoryDisk:
    twin = MemoryDisk()
    twin._directories = set(disk._directories)
    twin.files = {path: MemoryFile(file.seen.copy(), file.seen.copy()) for path, file in disk.files.items()}
    return twin
