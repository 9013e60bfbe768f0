"""The ledger against a slow and obvious model, and against itself rebuilt from its records or from a snapshot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.pop import records
from brokerd.pop.claims import Claims
from brokerd.pop.handles import ReceiptHandle
from brokerd.pop.ledger import PopLedger
from brokerd.pop.queue_ledger import Again, Blocked, Fresh
from tests.support.examples import examples

GROUP, TOPIC = "group", "topic"
QUEUES = (0, 1)


@dataclass
class Message:
    """`handle` is the valid one while the message is hidden; `due_ms` when it ends."""

    queue_id: int
    offset: int
    state: str = "ready"  # ready, hidden, finished
    handle: ReceiptHandle | None = None
    due_ms: int = 0
    deliveries: int = 0
    attempt_id: str = ""


class LedgerMachine(RuleBasedStateMachine):
    ordered = False

    @initialize()
    def start(self) -> None:
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
        queue_id=st.sampled_from(QUEUES),
        limit=st.integers(1, 32),
        invisible=st.integers(0, 5000),
        matches=st.integers(1, 3),
        attempt_id=st.sampled_from(["", "one", "two"]),
    )
    def take(self, queue_id: int, limit: int, invisible: int, matches: int, attempt_id: str) -> None:
        """Every `matches`-th message passes the filter."""
        queue = self.ledger.queue(GROUP, TOPIC, queue_id)
        messages = self.messages[queue_id]
        counts = None
        next_offset = queue.next_offset if queue is not None else 0
        if self.ordered and queue is not None:
            plan = queue.ordered_plan(attempt_id, self.now_ms)
            self.check_plan(plan, queue_id, attempt_id)
            if isinstance(plan, Blocked):
                return
            if isinstance(plan, Again):
                self.taken(queue_id, next_offset, plan.offsets[:limit], plan.counts[:limit], invisible, attempt_id)
                return
        offsets = []
        while next_offset < len(messages) and len(offsets) < limit:
            assert messages[next_offset].state == "ready"
            if next_offset % matches == 0:
                offsets.append(next_offset)
            else:
                messages[next_offset].state = "finished"
            next_offset += 1
        self.taken(queue_id, next_offset, offsets, counts, invisible, attempt_id)

    def taken(
        self, queue_id: int, next_offset: int, offsets: Any, counts: Any, invisible: int, attempt_id: str
    ) -> None:
        queue = self.ledger.queue(GROUP, TOPIC, queue_id)
        pop_time = max(self.now_ms, queue.last_pop_time_ms + 1 if queue is not None else 0)
        batch = records.taken_batch(TOPIC, queue_id, next_offset, offsets, counts)
        due = self.now_ms + invisible
        pop = records.Pop(pop_time, invisible, due, attempt_id=attempt_id, ordered=self.ordered)
        body = records.taken(GROUP, pop, [batch])
        self.record(records.TAKEN, body)
        for place, offset in enumerate(offsets):
            message = self.messages[queue_id][offset]
            assert message.state == "ready" or self.ordered
            message.state = "hidden"
            message.deliveries = counts[place] if counts else message.deliveries + 1
            revive_queue_id = 999 if self.ordered else 0
            message.handle = ReceiptHandle(
                offsets[0], pop_time, invisible, revive_queue_id, 0, "broker-a", queue_id, offset
            )
            message.due_ms = due
            message.attempt_id = attempt_id
            self.handles.append(message.handle)

    def check_plan(self, plan: Any, queue_id: int, attempt_id: str) -> None:
        pending = [each for each in self.messages[queue_id] if each.state == "hidden"]
        hidden = [each for each in pending if not self.visible(each)]
        if not pending:
            assert isinstance(plan, Fresh)
        elif hidden:
            same = attempt_id and all(each.attempt_id == attempt_id for each in hidden)
            assert isinstance(plan, Again if same else Blocked)
            if same:
                assert list(plan.offsets) == [each.offset for each in hidden]
                assert list(plan.counts) == [each.deliveries for each in hidden]
        else:
            assert isinstance(plan, Again)
            assert list(plan.offsets) == [each.offset for each in pending]
            assert list(plan.counts) == [each.deliveries + 1 for each in pending]

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

    @rule(step=st.integers(1, 4000), limit=st.integers(1, 5))
    def advance(self, step: int, limit: int) -> None:
        self.now_ms += step
        while due := self.ledger.expire(self.now_ms, limit):
            entries = []
            for batch in due:
                for offset in batch.remaining_offsets():
                    message = self.messages[batch.queue.queue_id][offset]
                    assert self.visible(message)
                    if not self.ordered:
                        message.state = "finished"  # it lives on in the retry topic
                if not self.ordered:
                    entries.append([GROUP, TOPIC, batch.queue.queue_id, batch.pop_time_ms, batch.remaining])
            if entries:
                self.record(records.REVIVED, records.finished(entries))
        if not self.ordered:
            assert not any(self.visible(each) for messages in self.messages.values() for each in messages)

    @rule(queue_id=st.sampled_from(QUEUES), back=st.integers(0, 5))
    def reset(self, queue_id: int, back: int) -> None:
        messages = self.messages[queue_id]
        offset = max(0, len(messages) - back)
        self.record(records.RESET, records.reset(GROUP, TOPIC, queue_id, offset))
        for message in messages:
            message.state = "ready" if message.offset >= offset else "finished"
            message.deliveries = 0
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

    # ---- what must hold at any time

    @invariant()
    def bookkeeping_agrees(self) -> None:
        if not hasattr(self, "ledger"):
            return
        total = 0
        for queue_id in QUEUES:
            queue = self.ledger.queue(GROUP, TOPIC, queue_id)
            if queue is None:
                continue
            pending = [each.offset for each in self.messages[queue_id] if each.state == "hidden"]
            assert queue.in_flight == len(pending)
            committed = queue.committed_offset()
            assert committed == (min(pending) if pending else queue.next_offset)
            assert committed >= self.committed[queue_id]
            self.committed[queue_id] = committed
            total += len(queue.batches)
        assert self.ledger._batch_count == total


class OrderedLedgerMachine(LedgerMachine):
    ordered = True


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestOrderedLedger = OrderedLedgerMachine.TestCase
TestOrderedLedger.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
