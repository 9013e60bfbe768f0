"""A store, a replica of it and a slow, obvious model, over generated operations.

The model is a list of messages: those before the confirmed ones are visible, those before the synced ones survive everything.
"""

from __future__ import annotations

from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.store.draft import Draft
from brokerd.store.run import AppendResult
from brokerd.store.store import MessageStore
from brokerd.store.upkeep.retention import RetentionDecision
from remoting.java_hash import java_hash
from remoting.record.codec import decode_record
from tests.support.disks import FaultyDisk
from tests.support.examples import examples
from tests.unit.brokerd.store.stores import SEGMENT_BYTES, Clock, draft, log_bytes, make_store, open_store, sync

TOPICS = ("A", "%RETRY%B")


class StoreMachine(RuleBasedStateMachine):
    """`messages` are (draft, result) of everything in the log, in order; counts are how many of them are confirmed or synced."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[Draft, AppendResult]] = []
        self.confirmed = 0
        self.synced = 0
        self.number = 0

    @initialize(seed=st.integers(0, 1 << 20))
    def begin(self, seed: int) -> None:
        self.clock = Clock()
        self.disk = FaultyDisk(Random(seed))
        self.store = open_store(self.disk, self.clock)
        self.replica_disk = FaultyDisk(Random(seed + 1))
        self.replica = make_store(self.replica_disk, self.clock)
        self.replica.load()

    # -- what happens ----------------------------------------------------------------------------------------------------------

    @rule(
        sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=6),
        topic=st.sampled_from(TOPICS),
        queue_id=st.integers(0, 2),
        tag=st.sampled_from(["", "x", "y"]),
        sys_flag=st.sampled_from([0, 0, 0, 4, 8, 12]),
    )
    def append(self, sizes: list[int], topic: str, queue_id: int, tag: str, sys_flag: int) -> None:
        drafts = []
        for size in sizes:
            self.number += 1
            body = str(self.number).encode().ljust(size, b".")
            drafts.append(draft(body, topic=topic, queue_id=queue_id, tag=tag, sys_flag=sys_flag))
        self.messages += zip(drafts, self.store.append_messages(drafts), strict=True)

    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(self.confirmed, len(self.messages)))
        self.confirmed = count
        position = self.end_of(count)
        while self.store.dispatch_offset < position:
            before = self.store.dispatch_offset
            self.store.dispatch(position)
            if self.store.dispatch_offset == before:
                break

    @rule()
    def sync(self) -> None:
        sync(self.store)
        self.synced = len(self.messages)

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()
        self.synced = len(self.messages)

    @rule()
    def prepare_next(self) -> None:
        self.store.prepare_next_segment()

    @rule(step_ms=st.integers(-10_000, 10_000))
    def clock_jumps(self, step_ms: int) -> None:
        self.clock.now_ms += step_ms

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        begin = self.store.commitlog.min_offset
        expired = sum(place.physical_offset < begin for _, place in self.messages)
        if expired == len(self.messages):
            return  # nothing is left to cut
        keep = data.draw(st.integers(expired, len(self.messages) - 1))
        self.store.truncate(self.messages[keep][1].physical_offset)
        self.forget_from(keep)
        if self.replica.commitlog.end_offset > self.store.commitlog.end_offset:
            self.replica.truncate(self.store.commitlog.end_offset)

    @rule()
    def expire(self) -> None:
        starts = self.store.commitlog.segment_starts()
        if len(starts) > 3 and starts[1] <= self.store.held_offset():
            for removal in self.store.apply_retention(RetentionDecision(1, False)):
                removal()

    @rule(lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=5), seen=st.integers(0, 20_000))
    def replicate(self, lengths: list[int], seen: int) -> None:
        if self.replica.commitlog.end_offset < self.store.commitlog.min_offset:
            self.replica.reset(self.store.commitlog.min_offset)
        for length in lengths:
            end = self.replica.commitlog.end_offset
            data = self.store.commitlog.read(end, length)
            if data:
                self.replica.append_replicated(end, data)
        self.replica.dispatch(seen)

    @rule(power_lost=st.booleans())
    def replica_restarts(self, power_lost: bool) -> None:
        end, flushed = self.replica.commitlog.end_offset, sync(self.replica)
        assert flushed == end
        whole = self.replica.commitlog.complete_offset
        self.crash(self.replica_disk, power_lost)
        self.replica = make_store(self.replica_disk, self.clock)
        self.replica.load()
        # A filler of which only the begin had arrived is whole on disk: zeros follow it there anyway.
        file_end = -(-whole // SEGMENT_BYTES) * SEGMENT_BYTES
        assert self.replica.commitlog.end_offset in ({whole, file_end} if end > whole else {whole})

    @rule()
    def process_dies(self) -> None:
        self.disk.kill()
        self.restarted(len(self.messages))

    @rule()
    def power_is_lost(self) -> None:
        self.disk.crash()
        self.restarted(self.synced)

    @rule()
    def ends_cleanly(self) -> None:
        self.store.close()
        self.disk.kill()
        self.restarted(len(self.messages))

    # -- what must hold ----------------------------------------------------------------------------------------------------------

    @invariant()
    def the_visible_messages_are_the_confirmed_ones(self) -> None:
        begin = self.store.commitlog.min_offset
        expected: dict[tuple[str, int], list[tuple[Draft, AppendResult]]] = {}
        for each, result in self.messages[: self.confirmed]:
            if result.queue_offset >= 0 and result.physical_offset >= begin:
                expected.setdefault((each.topic, each.queue_id), []).append((each, result))
        for topic in TOPICS:
            for queue_id in range(3):
                self.check_queue(topic, queue_id, expected.get((topic, queue_id), []))

    def check_queue(self, topic: str, queue_id: int, expected: list[tuple[Draft, AppendResult]]) -> None:
        low, high = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        assert high - low == len(expected)
        if not expected:
            return
        assert [result.queue_offset for _, result in expected] == list(range(low, high))
        found = self.store.read_messages(topic, queue_id, low, 1000, 1 << 30)
        records = [decode_record(record) for record in found.records]
        assert [record.body for record in records] == [each.body for each, _ in expected]
        assert [record.physical_offset for record in records] == [result.physical_offset for _, result in expected]
        assert [record.queue_offset for record in records] == list(range(low, high))
        tagged = self.store.read_messages(topic, queue_id, low, 1000, 1 << 30, {java_hash("x")})
        wanted = [each.body for each, _ in expected if b"TAGS\1x\2" in each.properties]
        assert [decode_record(record).body for record in tagged.records] == wanted
        times = [record.store_timestamp_ms for record in records]
        assert times == sorted(times)

    @invariant()
    def the_replica_has_a_prefix(self) -> None:
        begin = max(self.replica.commitlog.min_offset, self.store.commitlog.min_offset)
        end = min(self.replica.commitlog.end_offset, self.store.commitlog.end_offset)
        if begin < end:
            assert part(self.replica, begin, end) == part(self.store, begin, end)

    # -- helpers -----------------------------------------------------------------------------------------------------------------

    def end_of(self, count: int) -> int:
        return self.messages[count - 1][1].end_offset if count else 0

    def forget_from(self, keep: int) -> None:
        del self.messages[keep:]
        self.confirmed, self.synced = min(self.confirmed, keep), min(self.synced, keep)

    def crash(self, disk: FaultyDisk, power_lost: bool) -> None:
        if power_lost:
            disk.crash()
        else:
            disk.kill()

    def restarted(self, at_least: int) -> None:
        """The store opens again: a prefix of the messages is there, and visible is no more than had been confirmed."""
        self.store = open_store(self.disk, self.clock)
        end = self.store.commitlog.end_offset
        present = sum(result.end_offset <= end for _, result in self.messages)
        assert present >= at_least
        assert end == max(self.end_of(present), end - end % self.store.commitlog.segment_size_bytes)
        self.forget_from(present)
        self.synced = present
        visible = sum(result.end_offset <= self.store.dispatch_offset for _, result in self.messages)
        assert visible <= self.confirmed
        self.confirmed = visible
        if self.replica.commitlog.end_offset > end:
            self.replica.truncate(end)


def part(store: MessageStore, begin: int, end: int) -> bytes:
    log = log_bytes(store)
    return log[begin - store.commitlog.min_offset : end - store.commitlog.min_offset]


TestStoreAgainstItsModel = StoreMachine.TestCase
TestStoreAgainstItsModel.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
