"""The ledger against a slow and obvious model, and against itself rebuilt from its records or from a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from unittest.mock import patch

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.pop import batches, records
from brokerd.pop.batch import Batch, Place
from brokerd.pop.claims import Claims
from brokerd.pop.departures import hashes_of, released_of
from brokerd.pop.handles import ReceiptHandle
from brokerd.pop.ledger import PopLedger
from brokerd.pop.order.group_order import encode_hashes
from brokerd.pop.queue_ledger import Again, Blocked, Fresh
from brokerd.pop.records import OWN_INVISIBLE_MS
from brokerd.pop.timers import DueRows
from tests.support.examples import examples

GROUP, TOPIC = "group", "topic"
QUEUES = (0, 1)


@dataclass
class Message:
    """`handle` is the valid one while the message is hidden; `due_ms` when it ends; `returned`: it waits to be taken again."""

    queue_id: int
    offset: int
    state: str = "ready"  # ready, hidden, leaving, finished
    returned: bool = False
    handle: ReceiptHandle | None = None
    due_ms: int = 0
    deliveries: int = 0
    attempt_id: str = ""

    @property
    def group(self) -> int:
        """Its message group; 0 for none."""
        return self.offset % 4

    @property
    def is_pending(self) -> bool:
        return self.state in ("hidden", "leaving")


def _released(places: Iterable[Place]) -> list[list[Any]]:
    return released_of([(TOPIC, [place.as_older() for place in places])])


class LedgerMachine(RuleBasedStateMachine):
    modes: tuple[object, ...] = (False,)  # ordered or not, of a pop; or "groups": in each message group

    @initialize()
    def start(self) -> None:
        self.patches = [patch.object(batches, "ROWS", 4), patch.object(batches, "_TIGHT", 2)]  # blocks come and go
        for each in self.patches:
            each.start()
        self.frozen: Iterator[Any] | None = None
        self.frozen_rows: list[Any] = []
        self.now_ms = 1_000_000
        self.ledger = PopLedger()
        self.log: list[tuple[str, bytes]] = []
        self.messages: dict[int, list[Message]] = {queue_id: [] for queue_id in QUEUES}
        self.handles: list[ReceiptHandle] = []
        self.committed = dict.fromkeys(QUEUES, 0)

    def record(self, kind: str, body: Any) -> None:
        self.log.append((kind, orjson.dumps(body)))
        self.ledger.apply(kind, body)

    def visible(self, message: Message) -> bool:
        return message.state == "hidden" and message.due_ms <= self.now_ms

    # ---- rules

    @rule(queue_id=st.sampled_from(QUEUES), count=st.integers(1, 10))
    def append(self, queue_id: int, count: int) -> None:
        messages = self.messages[queue_id]
        messages += [Message(queue_id, len(messages) + i) for i in range(count)]

    @rule(
        data=st.data(),
        queue_id=st.sampled_from(QUEUES),
        limit=st.integers(1, 32),
        invisible=st.integers(0, 5000),
        matches=st.integers(1, 3),
        attempt_id=st.sampled_from(["", "one", "two"]),
    )
    def take(self, data: Any, queue_id: int, limit: int, invisible: int, matches: int, attempt_id: str) -> None:
        """Every `matches`-th message passes the filter."""
        mode = data.draw(st.sampled_from(self.modes))
        ordered = bool(mode)
        queue = self.ledger.queue(GROUP, TOPIC, queue_id)
        messages = self.messages[queue_id]
        next_offset = queue.next_offset if queue is not None else 0
        again: list[Place] = []
        if mode == "groups" and (queue is None or queue.keeps_groups):
            is_cut = data.draw(st.booleans())
            elsewhere = data.draw(st.sets(st.sampled_from(range(1, 4)), max_size=1))
            self.take_in_groups(queue_id, limit, invisible, matches, attempt_id, elsewhere, is_cut=is_cut)
            return
        if ordered and queue is not None:
            plan = queue.ordered_plan(attempt_id, self.now_ms, limit)
            self.check_plan(plan, queue_id, attempt_id, limit)
            if isinstance(plan, Blocked):
                return
            if isinstance(plan, Again):
                again = list(plan.places)
        elif queue is not None:
            waiting = self.waiting(queue_id)
            again = waiting[: data.draw(st.integers(0, min(limit, len(waiting))))]
        again.sort(key=lambda place: place.offset)
        offsets = [place.offset for place in again if place.offset % matches == 0]
        counts = [place.deliveries for place in again if place.offset % matches == 0]
        for place in again:
            if place.offset % matches:
                messages[place.offset].state = "finished"
        while next_offset < len(messages) and len(offsets) < limit and not (ordered and again):
            assert messages[next_offset].state == "ready"
            if next_offset % matches == 0:
                offsets.append(next_offset)
                counts.append(1)
            else:
                messages[next_offset].state = "finished"
            next_offset += 1
        self.give(queue_id, next_offset, offsets, counts, again, invisible, attempt_id, mode)

    def give(
        self,
        queue_id: int,
        next_offset: int,
        offsets: list[int],
        counts: list[int],
        again: list[Place],
        invisible: int,
        attempt_id: str,
        mode: object,
    ) -> None:
        queue, ordered = self.ledger.queue(GROUP, TOPIC, queue_id), bool(mode)
        pop_time = max(self.now_ms, queue.last_pop_time_ms + 1 if queue is not None else 0)
        due = self.now_ms + invisible
        batch = records.taken_batch(TOPIC, queue_id, next_offset, offsets, counts if again else None)
        pop = records.Pop(pop_time, invisible, due, attempt_id=attempt_id if ordered else "", ordered=ordered)
        hashes = [encode_hashes(offset % 4 for offset in offsets)] if mode == "groups" else None
        self.record(records.TAKEN, records.taken(GROUP, pop, [batch], _released(again), hashes))
        for offset, count in zip(offsets, counts, strict=True):
            message = self.messages[queue_id][offset]
            is_repeated = ordered and attempt_id and message.attempt_id == attempt_id and message.due_ms > self.now_ms
            assert count == message.deliveries + (not is_repeated)
            message.state, message.returned, message.deliveries = "hidden", False, count
            handle = (offsets[0], pop_time, invisible, 999 if ordered else 0, 0, "broker-a", queue_id, offset)
            message.handle = ReceiptHandle(*handle)
            message.due_ms = due
            message.attempt_id = attempt_id if ordered else ""
            self.handles.append(message.handle)

    def take_in_groups(
        self,
        queue_id: int,
        limit: int,
        invisible: int,
        matches: int,
        attempt_id: str,
        elsewhere: set[int],
        *,
        is_cut: bool,
    ) -> None:
        """What is free, then what is new, passing over what waits. Of the groups `elsewhere` something is before that in another
        queue. `is_cut`: the master dies before it takes anything new."""
        queue = self.ledger.queue(GROUP, TOPIC, queue_id)
        messages = self.messages[queue_id]
        expected: dict[int, int] = {}
        held = set(elsewhere)
        for each in messages:
            own = bool(attempt_id) and each.attempt_id == attempt_id and each.due_ms > self.now_ms
            if not each.is_pending:
                continue
            if len(expected) < limit and (own or each.returned) and each.state == "hidden" and each.group not in held:
                expected[each.offset] = each.deliveries + (not own)
            else:
                held.add(each.group)
                held.discard(0)
        again = queue.free_places(attempt_id, self.now_ms, limit, elsewhere) if queue is not None else []
        assert [(place.offset, place.deliveries) for place in again] == list(expected.items())
        offsets = [place.offset for place in again if place.offset % matches == 0]
        for place in again:
            if place.offset % matches:
                messages[place.offset].state = "finished"
        next_offset = queue.next_offset if queue is not None else 0
        new, passed = [], []
        while next_offset < len(messages) and len(offsets) + len(new) < limit and len(new) + len(passed) < 32:
            each = messages[next_offset]
            assert each.state == "ready"
            if each.offset % matches:
                each.state = "finished"
            elif each.group in held:
                passed.append(each.offset)
            else:
                new.append(each.offset)
            next_offset += 1
        if passed:
            noted = sorted([*new, *passed])
            pop_time = max(self.now_ms, queue.last_pop_time_ms + 1 if queue is not None else 0)
            pop = records.Pop(pop_time, 0, self.now_ms, ordered=True)
            batch = records.taken_batch(TOPIC, queue_id, next_offset, noted, [0] * len(noted))
            hashes = [encode_hashes(offset % 4 for offset in noted)]
            self.record(records.TAKEN, records.taken(GROUP, pop, [batch], hashes=hashes))
            queue = self.ledger.queue(GROUP, TOPIC, queue_id)
            assert queue is not None
            batch_of_them = queue.batches[pop_time]
            self.ledger.give_back(batch_of_them)
            for offset in noted:
                messages[offset].state, messages[offset].returned = "hidden", True
                messages[offset].due_ms, messages[offset].handle = self.now_ms, None
            if is_cut:
                new = []
            again += [Place(batch_of_them, batch_of_them.place_of(offset), 1) for offset in new]
        counts = [expected[offset] for offset in offsets] + [1] * len(new)
        self.give(queue_id, next_offset, offsets + new, counts, again, invisible, attempt_id, "groups")

    def waiting(self, queue_id: int) -> list[Place]:
        """What an unordered pop may take again of a queue."""
        waiting = [
            Place(batch, place, batch.deliveries(place) + 1)
            for batch in self.ledger.returned(GROUP, TOPIC)
            for place in batch.remaining_places()
        ]
        assert list(self.ledger.returned_places(GROUP, TOPIC)) == [each.as_older() for each in waiting]
        return [each for each in waiting if each.batch.queue.queue_id == queue_id]

    def check_plan(self, plan: Any, queue_id: int, attempt_id: str, limit: int) -> None:
        pending = [each for each in self.messages[queue_id] if each.is_pending]
        expected = []
        for each in pending[:limit]:
            own = bool(attempt_id) and each.attempt_id == attempt_id and each.due_ms > self.now_ms
            if each.state == "leaving" or not (own or self.visible(each)):
                break
            expected.append((each.offset, each.deliveries + (not own)))
        if not pending:
            assert isinstance(plan, Fresh)
        elif not expected:
            assert isinstance(plan, Blocked)
        else:
            assert [(place.offset, place.deliveries) for place in plan.places] == expected

    @precondition(lambda self: any(self.waiting(queue_id) for queue_id in QUEUES))
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        """What was delivered often enough: the broker takes it itself."""
        queue_id = data.draw(st.sampled_from([each for each in QUEUES if self.waiting(each)]))
        waiting = self.waiting(queue_id)
        numbers = data.draw(st.sets(st.integers(0, len(waiting) - 1), min_size=1, max_size=3))
        chosen = sorted((waiting[number] for number in numbers), key=lambda place: place.offset)
        queue = chosen[0].batch.queue
        pop = records.Pop(
            max(self.now_ms, queue.last_pop_time_ms + 1), OWN_INVISIBLE_MS, self.now_ms, attempt_id="dead 0"
        )
        counts = [place.batch.deliveries(place.place) for place in chosen]
        batch = records.taken_batch(TOPIC, queue_id, queue.next_offset, [place.offset for place in chosen], counts)
        for place in chosen:
            message = self.messages[queue_id][place.offset]
            assert message.returned
            message.state, message.returned = "leaving", False
        self.record(records.TAKEN, records.taken(GROUP, pop, [batch], _released(chosen), hashes_of(chosen)))

    @rule()
    def left(self) -> None:
        """The copies are stored: nothing leaves any more."""
        leaving = [each for queue in self.ledger.queues() for each in queue.batches.values() if each.is_leaving]
        for batch in leaving:
            for offset in batch.remaining_offsets():
                assert self.messages[batch.queue.queue_id][offset].state == "leaving"
                self.messages[batch.queue.queue_id][offset].state = "finished"
        if leaving:
            self.record(records.REVIVED, records.finished([each.entry(each.remaining) for each in leaving]))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def finish(self, data: Any) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.handles), min_size=1, max_size=8))
        claims = Claims(self.ledger, self.now_ms)
        for handle in chosen:
            message = self.messages[handle.queue_id][handle.queue_offset]
            expected = message.state == "hidden" and message.handle == handle and not self.visible(message)
            assert claims.finish(GROUP, TOPIC, handle) is expected
            if expected:
                message.state = "finished"
        for kind, body in claims.records():
            self.record(kind, body)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), invisible=st.sampled_from([0, 1, 700, 5000]))
    def change(self, data: Any, invisible: int) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.handles), min_size=1, max_size=4))
        claims = Claims(self.ledger, self.now_ms)
        for handle in chosen:
            message = self.messages[handle.queue_id][handle.queue_offset]
            expected = message.state == "hidden" and message.handle == handle and not self.visible(message)
            pop_time_ms = claims.change(GROUP, TOPIC, handle, invisible)
            assert (pop_time_ms is not None) is expected
            if pop_time_ms is not None:
                message.handle = handle._replace(
                    start_offset=handle.queue_offset,
                    pop_time_ms=pop_time_ms,
                    invisible_time_ms=invisible,
                )
                message.due_ms = self.now_ms + invisible
                message.attempt_id = ""
                self.handles.append(message.handle)
        for kind, body in claims.records():
            self.record(kind, body)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), field=st.integers(0, 7), delta=st.integers(1, 3))
    def forge(self, data: Any, field: int, delta: int) -> None:
        handle = data.draw(st.sampled_from(self.handles))
        if field == 5:
            return
        forged = handle._replace(**{handle._fields[field]: handle[field] + delta})
        if forged in self.handles or field == 4:
            return
        assert self.ledger.find(GROUP, TOPIC, forged, self.now_ms) is None
        assert self.ledger.find("other", TOPIC, handle, self.now_ms) is None

    @rule(step=st.integers(1, 4000), limit=st.integers(1, 5), loses=st.integers(0, 5))
    def advance(self, step: int, limit: int, loses: int) -> None:
        """Time passes, and what is due comes back; what is at some offsets is gone from the store."""
        self.now_ms += step
        while any(due := self.ledger.expire(self.now_ms, limit)):
            batches = due.batches
            for rows in due.rows:
                batches += self.give_back_rows(rows, loses)
            for batch in batches:
                if batch.is_leaving:
                    self.ledger.defer(batch, self.now_ms + 500)
                    continue
                mask = 0
                for place in batch.remaining_places():
                    message = self.messages[batch.queue.queue_id][batch.offset_at(place)]
                    assert self.visible(message)
                    if loses and message.offset % 7 == loses:
                        mask |= 1 << place
                        message.state = "finished"
                    else:
                        message.returned = True
                if mask:
                    self.record(records.REVIVED, records.finished([batch.entry(mask)]))
                if batch.remaining:
                    self.ledger.give_back(batch)
        waiting = {
            (place.batch.queue.queue_id, place.offset) for queue_id in QUEUES for place in self.waiting(queue_id)
        }
        assert waiting == {
            (each.queue_id, each.offset)
            for messages in self.messages.values()
            for each in messages
            if self.visible(each)
        }
        assert self.ledger.returned_count(GROUP, TOPIC) == len(waiting)

    def give_back_rows(self, due: DueRows, loses: int) -> list[Batch]:
        """Those that lose nothing come back together; the others are returned."""
        queue_id = self.ledger.queue_of(due).queue_id
        whole, others = [], []
        for row in due.rows:
            _, first, remaining, deliveries = row
            offsets = [first + place for place in range(remaining.bit_length()) if remaining >> place & 1]
            if loses and any(offset % 7 == loses for offset in offsets):
                others.append(row)
                continue
            for message in (self.messages[queue_id][offset] for offset in offsets):
                assert self.visible(message)
                assert message.deliveries == deliveries
                message.returned = True
            whole.append(row)
        messages = self.ledger.give_back_rows(due._replace(rows=whole)) if whole else 0
        assert messages == sum(remaining.bit_count() for _, _, remaining, _ in whole)
        return self.ledger.batches_of(due._replace(rows=others))

    @rule(queue_id=st.sampled_from(QUEUES), back=st.integers(0, 5))
    def reset(self, queue_id: int, back: int) -> None:
        messages = self.messages[queue_id]
        offset = max(0, len(messages) - back)
        self.record(records.RESET, records.reset(GROUP, TOPIC, queue_id, offset))
        for message in messages:
            message.state = "ready" if message.offset >= offset else "finished"
            message.returned = False
            message.attempt_id = ""
            message.deliveries = 0
            message.attempt_id = ""
        self.committed[queue_id] = offset

    @rule(through_json=st.booleans())
    def rebuild(self, through_json: bool) -> None:
        """What a new master has: the same state, timers started afresh."""
        rebuilt = PopLedger()
        if through_json:
            for kind, body in self.log:
                rebuilt.apply(kind, orjson.loads(body))
        else:
            for row in list(self.ledger.snapshot_rows()):
                rebuilt.load_row(orjson.loads(orjson.dumps(row)))
        assert sorted(map(repr, rebuilt.snapshot_rows())) == sorted(map(repr, self.ledger.snapshot_rows()))
        rebuilt.resume(self.now_ms, 0, 0)
        self.ledger = rebuilt
        self.frozen = None  # the master died while it wrote it
        for message in (each for messages in self.messages.values() for each in messages):
            message.returned = False

    @rule()
    def freeze(self) -> None:
        """A snapshot is begun that is read in many turns."""
        self.frozen_rows = [without_due(row) for row in self.ledger.snapshot_rows()]
        self.frozen = iter(self.ledger.freeze().rows())

    @precondition(lambda self: self.frozen is not None)
    @rule(count=st.integers(1, 12))
    def read_on(self, count: int) -> None:
        """It says what was there when it was begun, whatever changed since."""
        assert self.frozen is not None
        for row in islice(self.frozen, count):
            assert without_due(row) == self.frozen_rows.pop(0)
        if not self.frozen_rows:
            assert next(self.frozen, None) is None
            self.frozen = None

    # ---- what must hold at any time

    @invariant()
    def bookkeeping_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        for queue_id in QUEUES:
            queue = self.ledger.queue(GROUP, TOPIC, queue_id)
            if queue is None:
                continue
            pending = [each.offset for each in self.messages[queue_id] if each.is_pending]
            assert queue.in_flight == len(pending)
            if queue.keeps_groups:
                never = [each for each in self.messages[queue_id] if each.state == "hidden" and not each.deliveries]
                assert queue.passed_over == len(never)
                assert sum(queue.order.passed_over.values()) == sum(bool(each.group) for each in never)
            committed = queue.committed_offset()
            assert committed == (min(pending) if pending else queue.next_offset)
            assert committed >= self.committed[queue_id]
            self.committed[queue_id] = committed
            assert len(queue.batches) == len(list(queue.batches))

    def teardown(self) -> None:
        for each in getattr(self, "patches", ()):
            each.stop()


def without_due(row: list[Any]) -> list[Any]:
    """When a batch is due is the master's own affair: a snapshot may have it as it was, or as it is."""
    return [*row[:6], *row[7:]] if row[0] == "b" else list(row)


class OrderedLedgerMachine(LedgerMachine):
    modes = (True,)


class MixedLedgerMachine(LedgerMachine):
    """The group changes between the two."""

    modes = (False, True)


class GroupedLedgerMachine(LedgerMachine):
    modes = ("groups",)


class ChangingLedgerMachine(LedgerMachine):
    """The group changes between all of them."""

    modes = (False, True, "groups")


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestOrderedLedger = OrderedLedgerMachine.TestCase
TestOrderedLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestGroupedLedger = GroupedLedgerMachine.TestCase
TestGroupedLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestChangingLedger = ChangingLedgerMachine.TestCase
TestChangingLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestMixedLedger = MixedLedgerMachine.TestCase
TestMixedLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
