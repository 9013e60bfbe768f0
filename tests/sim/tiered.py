"""A tier in a story: its brokers upload to a simulated object store, and remove local files as soon as they may.

So most of what is read, by consumers and by the checks, is read from the tier; in some stories all that it has is, also while
files have it. The store has troubles of its own beside the faults of the story. Checker 11, that log, queues, index and tier
agree:

- in some stories a topic wants its messages in local files for an hour: no file goes with one in it that is younger;
- no local file goes before all of its messages, but those of the system, are in the tier as the broker's own log says
  (a full disk, which does not wait, is the subject of the model: `tests.unit.brokerd.tiers.world`);
- in the end all replicas have the same table of the tier, and the manifest alone says the same;
- what it names is there, with its checksums, offsets without a gap or a double, and the very bytes of the log where that is
  still in somebody's files; the part of the log that it is of belongs to the epochs of that log;
- the index's objects are what was stored, and they name each of these messages for each of its keys;
- each queue's readable begin is where reading succeeds: its first message, as nothing expires;
- a day later, nothing is there that nobody names, and all of it holds again, after what was merged was merged.

That each message is where it was acknowledged, with its bytes, is checked by those who check it without a tier: they read it
here. What must be true of each single request is looked at in `object_store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final

from brokerd.composition.environment import Tier
from brokerd.metadata import tier_policy
from brokerd.metadata.local_policy import RESERVE_TIME
from brokerd.store.log.retention import FileAge, RetentionDecision
from brokerd.store.read_levels import ReadLevel
from brokerd.store.unit import UNIT
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.settings import TierSettings
from remoting.checksum import crc32
from remoting.record.codec import Record, body_is_intact, decode_records
from remoting.tier.blocks import BlockIndex, index_bytes
from remoting.tier.contents import Queue, TierContents
from remoting.tier.index import ITEM, decode_index
from remoting.tier.names import ENTRY_BYTES, LEASES, STATES, parse_stowed_name
from remoting.tier.segments import Form, Segment
from tests.sim.clients import TOPIC
from tests.sim.object_store import SimObjects, SimObjectStore
from tests.sim.transactors import TRANSACTION_TOPIC

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

TIERED: Final = "tiers"
SEGMENT_BYTES: Final = 16384  # of a file of the log, so that many go in a story
# They send back, or deliver late, by the place of a message in the local files.
WITHOUT_CLIENTS: Final = frozenset({"delayer", "backer"})

_MINUTE_MS: Final = 60_000
_NOT_OF_MESSAGES: Final = ("manifest/", LEASES, STATES)
_DAY_MS: Final = 26 * 60 * _MINUTE_MS
_MOST_SKIPPED_MS: Final = (
    50 * _MINUTE_MS
)  # while there are uploads: what is on its way for an hour is taken for garbage
_A_DAY_LATER_MS: Final = 8000
_FORCED: Final = 0.125  # of all stories
_KEEPING: Final = 0.125  # of those, too
_KEPT_MS: Final = 60 * _MINUTE_MS
_AT_REST_MS: Final = 1000  # longer than the tier waits for anything
_TROUBLES: Final = {
    "cut off": 3,
    "one cut off": 2,
    "fails": 5,
    "slow": 3,
    "refuses": 1,
    "lists late": 2,
    "minutes pass": 3,
}


class Tiered:
    """The tier of one story."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._world = world = cluster.world
        self._rng = rng = world.random("tier")
        self.node = SimObjectStore(world, cluster.network)
        self.settings = TierSettings(
            url="memory:///",
            commit_interval_ms=rng.choice((10, 50, 200)),
            commit_bytes=rng.choice((1024, 4096, 65_536)),
            buffer_bytes=1 << 20,
            segment_bytes=rng.choice((4096, 65_536, 1 << 30)),
            requests_in_flight=rng.choice((1, 4, 16)),
            archive=rng.random() < 0.3,
            cache_bytes=1 << 20,
            fetches_in_flight=rng.choice((1, 4, 16)),
        )
        if world.random("read level").random() < _FORCED:
            self.settings = replace(self.settings, read_level=ReadLevel.FORCE)
        keeping = world.random("kept topic")
        self._kept = (
            keeping.choice((TOPIC, TRANSACTION_TOPIC, TRANSACTION_TOPIC)) if keeping.random() < _KEEPING else ""
        )
        self.removed_files = self.removed_messages = self.kept_rounds = 0
        self._is_over = False
        self._objects: dict[SimBroker, SimObjects] = {}  # of brokers that live
        self._log_end, self._unchanged_since_ms = -1, 0.0

    # ---- what brokers get

    def tier_of(self, broker: SimBroker) -> Tier:
        """For one life of it."""
        objects = SimObjects(broker, self.node, self._world.random(f"tier of {broker.name}, life {broker.life}"))
        self.ended(broker)  # that is how a start begins again that had something mended
        self._objects[broker] = objects
        return Tier(objects, objects.loop())

    def said_of(self, topic: str) -> dict[str, str]:
        """The topic's attributes."""
        return {RESERVE_TIME: "1"} if topic == self._kept else {}

    def ended(self, broker: SimBroker) -> None:
        """A life of the broker, or the story, is over."""
        if broker in self._objects:
            self._objects.pop(broker).end()

    def close(self) -> None:
        """The story is over, however it ended."""
        for broker in list(self._objects):
            self.ended(broker)

    def decide(self, broker: SimBroker, decision: RetentionDecision) -> RetentionDecision:
        """Which files of a broker go: all that may. While its disk is full none goes that waits for its upload."""
        store, tiers = broker.core.store, broker.core.tiers
        held = store.held_offset()
        if store.is_full:
            waiting = tiers.waiting_offset()
            held = held if waiting is None else min(held, waiting)
        ages = store.file_ages()[:-1]
        ends = [each.end for each in ages]
        may_go = sum(end <= held for end in ends)
        count = may_go if store.is_full else self._unwanted(broker, ages[:may_go])
        self.kept_rounds += count < may_go
        if count:
            self._check_going(broker, ends[count - 1])
            self.removed_files += count
        return decision._replace(remove=count)

    def _unwanted(self, broker: SimBroker, files: Sequence[FileAge]) -> int:
        """How many of these go which are older than none that is wanted, if nobody else wants any of them."""
        wanted, now_ms = broker.core.store.wanted, broker.wall_ms()
        while wanted.look_on(files, 0, now_ms, now_ms, 0):
            pass
        marked = wanted.marked(files)
        count = next((n for n, file in enumerate(marked) if file.wanted_until_ms > now_ms), len(marked))
        if count and self._kept:
            self._check_unwanted(broker, files[count - 1].end, now_ms)
        return count

    def _check_unwanted(self, broker: SimBroker, end: int, now_ms: int) -> None:
        """Among all messages up to there is none that the topic wants."""
        store, config = broker.core.store, broker.core.metadata.topic(self._kept)
        if config is None or RESERVE_TIME not in config.attributes:
            return
        for queue_id in store.queue_ids(self._kept):
            first = store.local_min_offset(self._kept, queue_id)
            for position, _, _ in store.read_units(self._kept, queue_id, first, 1 << 20):
                stored_ms = store.commitlog.store_timestamp_at(position)
                if position < end and stored_ms + _KEPT_MS > now_ms:
                    self._world.broken(f"{broker.name} removes a message of {self._kept} of {stored_ms} at {now_ms}")

    def _check_going(self, broker: SimBroker, end: int) -> None:
        """All of the log up to there is about to go: its messages are in the tier."""
        core = broker.core
        for topic, queue_id in list(core.store.queues.table):
            topic_config = core.metadata.topic(topic)
            if topic_config is None or not tier_policy.is_kept(topic, topic_config.attributes):
                continue
            first = core.store.local_min_offset(topic, queue_id)
            segments = core.tiers.segments_of(Queue(topic, queue_id))
            for offset, (position, _, _) in enumerate(core.store.read_units(topic, queue_id, first, 1 << 20), first):
                if position >= end:
                    break
                segment = segments.at(offset)
                if segment is None or not segment.first <= offset < segment.end or segment.log_end <= position:
                    self._world.broken(
                        f"{broker.name} removes offset {offset} of {topic}/{queue_id}, which is not in the tier"
                    )
                self.removed_messages += 1

    # ---- Addition

    def begin(self) -> None:
        until_ms = self._cluster.story.fault_ms
        if self._cluster.injector.mood == "calm":
            return
        for number in range(self._rng.randint(2, 8)):
            at_ms = self._rng.uniform(50, until_ms)
            self._world.after(at_ms, lambda number=number: self._trouble(self._world.random(f"trouble {number}")))

    def end(self) -> None:
        self._is_over = True
        self.node.heal()

    def is_settled(self) -> bool:
        """Whether all is uploaded, and nothing more became of it for a while."""
        master, now_ms = self._cluster.master(), self._world.now_ms
        if master is None or master.core.store.commitlog.end_offset != self._log_end:
            self._log_end = -1 if master is None else master.core.store.commitlog.end_offset
            self._unchanged_since_ms = now_ms
            return False
        tiers = master.core.tiers
        is_done = tiers.is_open and not tiers.trouble and not len(tiers.pending)
        return is_done and now_ms - self._unchanged_since_ms > _AT_REST_MS

    def check(self) -> None:
        self._count()
        self._cluster.wait_until_settled("after all was read")
        self._check_all()
        self.node.skip(_DAY_MS)
        self._world.run(_A_DAY_LATER_MS)
        self._cluster.wait_until_settled("a day later")
        self._check_all()
        self._check_garbage()
        self._cluster.check_messages_again()

    def _count(self) -> None:
        history, stored = self._cluster.history, self.node.stored
        counts = {
            "objects put": len(stored.puts),
            "appends": stored.appends,
            "objects that are longer than what is named": self._longer(),
            "files removed": self.removed_files,
            "rounds that kept files for a topic": self.kept_rounds,
            "messages that went with them": self.removed_messages,
            "manifests of other masters": max(0, len(self.node.writers) - 1),
            **{f"store: {name}": count for name, count in self.node.counters.items()},
        }
        for name, count in counts.items():
            history.operations["tier", name] += count
        for broker in self._cluster.brokers:
            if broker.core.tiers.cold is not None:
                history.operations["tier", "cold messages read"] += broker.core.tiers.cold.messages_out

    def _longer(self) -> int:
        """What an append left that ended otherwise than well, or one of a master that died."""
        objects = self.node.stored.objects
        return sum(
            len(objects.get(segment.messages_name(*queue), b"")) > segment.stored_bytes
            for queue, segments in self.node.contents().queues.items()
            for segment in segments
        )

    # ---- troubles of the store

    def _trouble(self, rng: Random) -> None:
        if self._is_over:
            return
        node, world = self.node, self._world
        kind = rng.choices(list(_TROUBLES), list(_TROUBLES.values()))[0]
        length_ms = rng.choice((rng.uniform(20, 400), rng.uniform(400, 2500)))
        if kind == "cut off":
            self._cut_off([broker.name for broker in self._cluster.brokers], rng, length_ms)
        elif kind == "one cut off":
            self._cut_off([rng.choice(self._cluster.brokers).name], rng, length_ms)
        elif kind == "minutes pass":
            by_ms = rng.choice((2, 6, 11)) * _MINUTE_MS
            if node.skipped_ms + by_ms > _MOST_SKIPPED_MS:
                return
            node.skip(by_ms)
        else:
            if kind == "fails":
                node.fails_before, node.fails_after = rng.choice((0, 0.2, 0.6)), rng.choice((0, 0.2, 0.6))
                node.fails_within = rng.choice((0, 0.2, 0.6)) if node.appends else 0.0
            elif kind == "slow":
                node.slow_ms = rng.choice((100, 1500, 4000))
            elif kind == "refuses":
                node.is_refusing = True
            else:
                node.lists_late = True
            world.after(length_ms, node.heal)
        self._cluster.coverage.fault(f"object store {kind}", world.now_ms)
        self._cluster.history.count("object store", kind)
        world.note(f"the object store: {kind}, for {length_ms:.0f} ms")

    def _cut_off(self, names: Sequence[str], rng: Random, length_ms: float) -> None:
        network, node = self._cluster.network, self.node.name
        ways = [(name, node) for name in names] + [(node, name) for name in names]
        if rng.random() < 0.5:
            ways = ways[len(names) :] if rng.random() < 0.5 else ways[: len(names)]  # one direction alone

        def join() -> None:
            for way in ways:
                network.join(*way)

        for way in ways:
            network.cut(*way)
        self._world.after(length_ms, join)

    # ---- checker 11

    def _check_all(self) -> None:
        require = self._world.require
        master = self._cluster.master()
        assert master is not None
        known = master.core.tiers.table
        rows = sorted(map(repr, known.contents.rows()))
        for broker in self._cluster.brokers:
            table = broker.core.tiers.table
            require(
                sorted(map(repr, table.contents.rows())) == rows and table.position == known.position,
                f"the tables of the tier of {master.name} and {broker.name} differ",
            )
        require(sorted(map(repr, self.node.contents().rows())) == rows, f"the manifest and {master.name} differ")
        self._check_epochs(master)
        for queue, segments in known.contents.queues.items():
            for segment in segments:
                self._check_segment(queue, segment, self._records_of(queue, segment))
        self._check_index(known.contents)
        for broker in self._cluster.brokers:
            self._check_begins(broker, known.contents)

    def _check_epochs(self, master: SimBroker) -> None:
        """The manifest was made of the log that there is."""
        own = {entry.epoch: entry.start_offset for entry in master.driver.machine.epochs.entries}
        for epoch, start in self.node.manifest()[-1].epochs:
            first = own.get(epoch)
            self._world.require(
                first == start or epoch < min(own), f"epoch {epoch} begins at {first}, by the manifest at {start}"
            )

    def _check_begins(self, broker: SimBroker, contents: TierContents) -> None:
        store = broker.core.store
        for topic, queue_id in store.queues.table:
            config = broker.core.metadata.topic(topic)
            if config is None or not tier_policy.is_kept(topic, config.attributes):
                continue
            first, local = store.min_offset(topic, queue_id), store.local_min_offset(topic, queue_id)
            segments = contents.queues.get(Queue(topic, queue_id))
            end = segments.end if segments is not None else 0
            self._world.require(first == 0, f"{topic}/{queue_id} of {broker.name} begins at {first}")
            self._world.require(local <= end, f"{topic}/{queue_id} of {broker.name} has {end} to {local} nowhere")

    def _records_of(self, queue: Queue, segment: Segment) -> bytes:
        """The message bytes."""
        objects, place = self.node.stored.objects, f"{queue.topic}/{queue.queue_id} [{segment.first}, {segment.end})"
        content = objects.get(segment.messages_name(*queue), b"")
        entries = objects.get(segment.entries_name(*queue), b"")
        if self.node.appends:  # what is behind the segment is nothing
            content, entries = content[: segment.stored_bytes], entries[: segment.messages * ENTRY_BYTES]
        is_whole = (len(content), crc32(content), crc32(entries)) == (
            segment.stored_bytes,
            segment.crc,
            segment.entries_crc,
        )
        self._world.require(is_whole, f"{place} is not in the store as the manifest says")
        if segment.form is Form.BLOCKS:
            index = BlockIndex(content[-index_bytes(segment.message_bytes) :], segment.message_bytes, len(content))
            blocks = index.blocks_of(0, segment.message_bytes)
            content = b"".join(index.unpacked(content, blocks, number) for number in blocks)
        self._world.require(len(content) == segment.message_bytes, f"{place} has {len(content)} message bytes")
        begins = [begin - segment.base for begin, _, _ in UNIT.iter_unpack(entries)]
        sizes = [size for _, size, _ in UNIT.iter_unpack(entries)]
        is_dense = begins == [sum(sizes[:n]) for n in range(len(sizes))] and sum(sizes) == len(content)
        self._world.require(is_dense, f"the entries of {place} do not follow each other")
        return content

    def _check_segment(self, queue: Queue, segment: Segment, content: bytes) -> None:
        place = f"{queue.topic}/{queue.queue_id} [{segment.first}, {segment.end})"
        records = list(decode_records(content))
        offsets = [record.queue_offset for record in records]
        self._world.require(offsets == list(range(segment.first, segment.end)), f"{place} has the offsets {offsets}")
        at = 0
        for record in records:
            self._world.require(body_is_intact(record), f"{place} has a damaged message at {record.queue_offset}")
            self._check_in_log(place, record, content[at : at + record.size])
            at += record.size

    def _check_index(self, contents: TierContents) -> None:
        """It names each message for each of its keys; more, too, that are gone."""
        found: set[bytes] = set()
        for entry in contents.index.values():
            try:
                items = decode_index(self.node.stored.objects.get(entry.name, b""), entry)
            except ValueError as error:
                self._world.broken(str(error))
            found.update(items[at : at + ITEM.size] for at in range(0, len(items), ITEM.size))
        for queue, segments in contents.queues.items():
            topic = queue.topic.encode()
            for segment in segments:
                content = self._records_of(queue, segment)
                items = PlainKeys().items_of(topic, queue.queue_id, segment.first, content)
                wanted = {items[at : at + ITEM.size] for at in range(0, len(items), ITEM.size)}
                self._cluster.history.operations["tier", "keys looked for in the index"] += len(wanted)
                place = f"{queue.topic}/{queue.queue_id} [{segment.first}, {segment.end})"
                self._world.require(wanted <= found, f"{len(wanted - found)} keys of {place} are not in the index")

    def _check_in_log(self, place: str, record: Record, encoded: bytes) -> None:
        """Whoever has that part of the log still has the same there."""
        for broker in self._cluster.brokers:
            log = broker.core.store.commitlog
            if log.min_offset <= record.physical_offset < log.end_offset:
                held = bytes(log.read(record.physical_offset, record.size))
                self._world.require(held == encoded, f"{place} has at {record.queue_offset} what {broker.name} has not")

    def _check_garbage(self) -> None:
        there = {name for name in self.node.stored.objects if not name.startswith(_NOT_OF_MESSAGES)}
        named = self.node.names_of(self.node.contents())
        master = self._cluster.master()
        assert master is not None
        of_timers, upkeep = master.core.timers.table.named_objects, master.core.tiers.upkeep
        there = {name for name in there if parse_stowed_name(name) not in of_timers}
        if upkeep is not None:  # what was merged a moment ago goes in five minutes
            there -= {each.name for each in upkeep.removal._going}
        self._world.require(there == named, f"a day later nobody names {sorted(there - named)[:3]}")
