"""Storms: everything at once that clients, operators and a failing log do to a group, in any order that its seed draws.

Beside what `test_history` has: leases and clients that go, attempts that are repeated, messages that are given up, moved before
their file goes, or refused by the log; queues that come and go, snapshots, and masters that step down and lead again. Promised
is the same, and the order of an ordered group; and at any moment what the ledger counts is what it holds, and what a replica
would read from the log.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final, NamedTuple
from unittest.mock import patch

import pytest

from brokerd.metadata.configs import BY_MESSAGE_GROUP, ORDER_SCOPE, TopicConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop import batches, ledger, queue_ledger
from brokerd.pop.order import passing
from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome, PopOutcome, PopRequest, PopStatus
from brokerd.store.put_status import PutStatus
from remoting.errors import LogboomError
from remoting.record.codec import decode_record
from tests.support.examples import examples
from tests.support.memory_log import draft
from tests.support.pop_broker import PopBroker, body_of, master
from tests.support.turns import Turns

TOPIC, GROUP, DEAD, RETRY = "t", "g", "%DLQ%g", "%RETRY%g+t"
MAX_AHEAD_MS: Final = 40  # pop times of a queue are distinct, so they may be a little ahead of the clock
FEW, MANY = 3, 10_000  # attempts
QUEUE_OF: Final = {"a": 0, "b": 0, "c": 1}  # of message groups
UNORDERED, BY_QUEUE, BY_GROUP = "unordered", "order of queues", "order of message groups"
STEPS: Final = 300


class Place(NamedTuple):
    message_group: str
    queue_id: int
    offset: int


class Storm:
    def __init__(self, seed: int, order: str) -> None:
        self.rng = rng = random.Random(seed)
        self.order = order
        self.attempts = rng.choice((FEW, MANY))
        self.settings = {
            "lease_grace_ms": 500,
            "inherited_lease_ms": 2000,
            "max_in_flight_per_group": rng.choice((100_000, 20)),
            "revive_messages": rng.choice((256, 3)),
        }
        self.broker = master(**self.settings)
        scope = {ORDER_SCOPE: BY_MESSAGE_GROUP} if order == BY_GROUP else {}
        self.broker.group(GROUP, fifo=order != UNORDERED, retry_max_times=self.attempts, attributes=scope)
        self.queues = 3
        self.broker.topic(TOPIC, self.queues)
        self.log = self.broker.log
        self.log.acknowledges = self.log.dispatches = False
        self.acknowledged = self.log.end_offset
        self.sent: dict[str, int] = {}  # where each ends in the log
        self.places: dict[str, Place] = {}
        self.finished: dict[str, str] = {}  # by which handle
        self.perhaps: set[str] = set()  # finished: somebody asked for it
        self.given_up: set[str] = set()
        self.held: list[tuple[str, str]] = []  # (body, handle) of deliveries
        self.hidden_until: dict[str, int] = {}
        self.switches = 0

    # ---- clients

    def send(self) -> None:
        body, message_group = f"m{len(self.places)}", self.rng.choice(("a", "b", "c", ""))
        queue_id = QUEUE_OF.get(message_group, self.rng.randrange(self.queues)) % self.queues
        named = {"__SHARDINGKEY": message_group} if message_group else {}
        try:
            [place] = self.log.append_placed([draft(TOPIC, body.encode(), queue_id, properties=named)])
        except LogboomError:
            return
        self.sent[body] = place.end_offset
        self.places[body] = Place(message_group, queue_id, place.queue_offset)

    def pop(self) -> None:
        is_lease = self.rng.random() < 0.2
        invisible_ms = self.rng.choice((500, 1000, 3000) if is_lease else (0, 200, 1000, 3000))
        attempt_id = self.rng.choice(("", "", "one", "two"))
        request = PopRequest(
            GROUP,
            TOPIC,
            self.rng.choice((-1, -1, -1, 0)),
            self.rng.choice((1, 3, 32)),
            invisible_ms,
            self.broker.turns.monotonic_ms() + self.rng.choice((0, 500)),
            InitMode.MIN,
            fifo=self.order != UNORDERED,
            attempt_id=attempt_id,
            client_id=self.rng.choice(("one", "two")),
            auto_renew=is_lease,
            has_tag=self.rng.random() < 0.8,
        )
        taken_by = self.switches

        def done(outcome: PopOutcome) -> None:
            if outcome.status != PopStatus.FOUND:
                return
            assert taken_by == self.switches, "an answer of a master that is none any more"
            # a repeated attempt gets its own again, and of a lease nobody knows when it ends
            is_new = not attempt_id and self.order == UNORDERED
            taken_ms = outcome.pop_time_ms + MAX_AHEAD_MS
            until_ms = 0 if is_lease or attempt_id else outcome.pop_time_ms + invisible_ms - MAX_AHEAD_MS
            before: set[str] = set()
            for message in outcome.messages:
                body = body_of(message)
                assert body not in self.finished, f"{body} was finished"
                assert not is_new or self.hidden_until.get(body, 0) <= taken_ms, f"{body} is with somebody else"
                self.check_order(body, before)
                self.hidden_until[body] = until_ms
                before.add(body)
                self.held.append((body, message.receipt_handle))

        self.broker.pop_service.pop(request, done)

    def ack(self) -> None:
        chosen = self.rng.sample(self.held, min(len(self.held), self.rng.randint(1, 6)))
        self.perhaps.update(body for body, _ in chosen)

        def done(statuses: object) -> None:
            for (body, handle), status in zip(chosen, statuses, strict=True):  # type: ignore[call-overload]
                if status == AckStatus.OK:
                    assert self.finished.setdefault(body, handle) == handle, f"{body} was finished by another handle"

        self.broker.pop_service.ack(GROUP, TOPIC, [handle for _, handle in chosen], done)

    def change(self) -> None:
        if not self.held:
            return
        body, handle = self.rng.choice(self.held)
        self.hidden_until[body] = 0

        def done(outcome: InvisibleTimeOutcome) -> None:
            if outcome.status == AckStatus.OK:
                assert body not in self.finished
                self.held.append((body, outcome.receipt_handle))

        self.broker.pop_service.change_invisible_time(GROUP, TOPIC, handle, self.rng.choice((0, 500, 2000)), done)

    def give_up(self) -> None:
        if not self.held:
            return
        body, handle = self.rng.choice(self.held)
        self.perhaps.add(body)
        self.given_up.add(body)

        def done(status: AckStatus) -> None:
            if status == AckStatus.OK:
                self.finished.setdefault(body, handle)

        self.broker.pop_service.forward_to_dead_letter(GROUP, TOPIC, handle, done)

    def come_or_go(self) -> None:
        alive, client_id = self.broker.alive, self.rng.choice(("one", "two"))
        if client_id in alive:
            alive.discard(client_id)
            self.broker.pop_service.client_gone(client_id)
        else:
            alive.add(client_id)

    # ---- the log, and time

    def acknowledge(self) -> None:
        self.acknowledged = self.log.end_offset
        self.log.dispatch()
        self.log.acknowledge()

    def dispatch_some(self) -> None:
        self.log.dispatch(self.rng.randint(1, 5))

    def refuse(self) -> None:
        """The log takes a few appends more and then none; or it takes them again."""
        log = self.log
        log.refuses_after = log.appends + self.rng.randrange(3) if log.refuses_after is None else None

    def snapshot(self) -> None:
        self.broker.pop_service.rolled()

    def wait(self) -> None:
        self.broker.turns.run(self.rng.choice((1, 50, 700, 3000)))

    def let_go(self) -> None:
        """The log is about to lose a part of what it has: nothing of what moved before, which may lose its order then."""
        moved = [*self.log.read_units(RETRY, 0, 0, 1), *self.log.undispatched_units(RETRY)]
        most = min(self.acknowledged, moved[0][0]) if moved and self.order != UNORDERED else self.acknowledged
        self.log.going_offset = self.rng.randrange(most + 1)
        self.broker.turns.run(10_000)
        self.log.going_offset = 0

    # ---- masters and operators

    def change_queues(self) -> None:
        self.log.refuses_after = None
        self.log.acknowledges = self.log.dispatches = True
        self.acknowledge()
        queues = self.rng.choice((1, 2, 3, 4))
        self.broker.metadata.put_topic(TopicConfig(TOPIC, queues, queues), lambda _error: None)  # which may refuse it
        self.queues = self.read_queues()
        self.log.acknowledges = self.log.dispatches = False
        self.acknowledged = self.log.end_offset

    def step_down_and_lead_again(self) -> None:
        self.log.refuses_after = None
        self.broker.become_replica()
        self.switches += 1
        self.log.acknowledge(PutStatus.SERVICE_NOT_AVAILABLE)
        self.broker.become_master()

    def switch(self) -> None:
        """The master dies; the next one has what was acknowledged, and perhaps some more."""
        old = self.log
        end_offset = self.rng.choice([each for each in old.positions if each >= self.acknowledged])
        dispatched = self.rng.choice([each for each in old.positions if each <= end_offset])
        self.broker.become_replica()
        self.switches += 1
        old.acknowledge(PutStatus.SERVICE_NOT_AVAILABLE)
        old.listeners.clear()
        self.log = old.copy(end_offset, dispatched)
        self.log.acknowledges = self.log.dispatches = False
        alive = self.broker.alive
        self.broker = PopBroker(self.log, self.broker.turns, **self.settings).become_master()
        self.broker.alive |= alive
        self.sent = {body: end for body, end in self.sent.items() if end <= end_offset}
        self.acknowledged = end_offset
        self.queues = self.read_queues()

    def read_queues(self) -> int:
        topic = self.broker.metadata.topic(TOPIC)
        assert topic is not None
        return topic.read_queue_nums

    # ---- what was promised

    def check_order(self, body: str, beside: set[str]) -> None:
        """What comes before a message in its order is finished, or came before it in the same answer."""
        dead = self.dead_letters() if self.attempts == FEW else ()
        for other in self.before(body):
            assert other in self.finished or other in self.perhaps or other in beside or other in dead, (
                f"{body} at {self.places[body]} came before {other} at {self.places[other]}"
            )

    def before(self, body: str) -> Iterator[str]:
        place = self.places[body]
        for other in self.sent if self.order != UNORDERED else ():
            each = self.places[other]
            is_one = self.order == BY_QUEUE or (place.message_group and each.message_group == place.message_group)
            if is_one and each.queue_id == place.queue_id and each.offset < place.offset:
                yield other

    def dead_letters(self) -> list[str]:
        return self.copies(DEAD)

    def copies(self, topic: str) -> list[str]:
        """Also those that are not dispatched."""
        units = [*self.log.read_units(topic, 0, 0, 1 << 30), *self.log.undispatched_units(topic)]
        return [decode_record(self.log.record_at(*unit[:2])).body.decode() for unit in units]

    def check_counts(self) -> None:
        ledger = self.broker.pop_service.ledger
        in_flight = 0
        for queue in ledger.queues():
            batches = list(queue.batches.values())
            offsets = [offset for batch in batches for offset in batch.remaining_offsets()]
            assert len(offsets) == len(set(offsets)) == queue.in_flight
            assert sum(len(batch.remaining_offsets()) for batch in batches if batch.is_returned) == queue.returned
            assert queue.committed_offset() == min([*offsets, queue.next_offset])
            if queue.keeps_groups:
                passed_over = sum(len(batch.remaining_offsets()) for batch in batches if batch.is_passed_over)
                assert passed_over == queue.passed_over
            in_flight += queue.in_flight
        assert ledger.in_flight(GROUP) == in_flight

    def check_log(self) -> None:
        """A replica that reads the log has the same; when a batch is due is its master's own."""
        log = self.log.copy()
        twin = PopBroker(log, Turns(), **self.settings)
        twin.rebuild()
        for resident in twin.residents:
            resident.catch_up()
        rows = (broker.pop_service.ledger.snapshot_rows() for broker in (self.broker, twin))
        here, there = (sorted(repr([*row[:6], *row[7:]] if row[0] == "b" else row) for row in each) for each in rows)
        assert here == there

    def settle(self) -> None:
        """One diligent consumer, until nothing comes any more."""
        self.log.refuses_after = None
        self.log.acknowledges = self.log.dispatches = True
        self.acknowledge()
        for client_id in list(self.broker.alive):
            self.broker.alive.discard(client_id)
            self.broker.pop_service.client_gone(client_id)
        quiet = 0
        while quiet < 4:
            ordered = self.order != UNORDERED
            receive = self.broker.receive(32, fifo=ordered, invisible_time_ms=60_000, init_mode=InitMode.MIN)
            if receive.outcome.status == PopStatus.FOUND:
                before: set[str] = set()
                for message in receive.messages:
                    body = body_of(message)
                    assert body not in self.finished
                    self.check_order(body, before)
                    before.add(body)
                self.perhaps |= before  # whoever waits for it gets what follows in that turn
                assert set(self.broker.ack(*receive.messages)) == {AckStatus.OK}
                self.finished |= dict.fromkeys(before, "")
                quiet = 0
            else:
                self.broker.turns.run(70_000 if quiet == 3 else 4000)
                quiet += 1


@pytest.fixture
def small_bounds(seed: int) -> Iterator[None]:
    """In two of three storms what is bounded comes to its bounds soon."""
    rows, passed_over, remembered = ((1000, 10_000, 16_384), (2, 1, 2), (4, 3, 20))[seed % 3]
    with (
        patch.object(batches, "ROWS", rows),
        patch.object(batches, "_TIGHT", rows),
        patch.object(ledger, "REMEMBERED", remembered),
        patch.object(queue_ledger, "MAX_PASSED_OVER", passed_over),
        patch.object(passing, "MAX_PASSED_OVER", passed_over),
    ):
        yield


@pytest.mark.parametrize("order", [UNORDERED, BY_QUEUE, BY_GROUP])
@pytest.mark.parametrize("seed", range(examples(6)))
@pytest.mark.usefixtures("small_bounds")
def test_no_storm_breaks_a_promise(seed: int, order: str) -> None:
    storm = Storm(seed, order)
    often = [storm.send] * 8 + [storm.pop] * 7 + [storm.ack] * 5 + [storm.change] * 2 + [storm.acknowledge] * 3
    often += [storm.wait] * 4 + [storm.give_up, storm.dispatch_some, storm.come_or_go, storm.refuse, storm.snapshot]
    seldom = [storm.let_go, storm.change_queues, storm.switch, storm.step_down_and_lead_again]
    for step in range(STEPS):
        storm.rng.choice(seldom if storm.rng.random() < 0.06 else often)()
        if step % 10 == 0:
            storm.check_counts()
    storm.log.refuses_after = None
    storm.check_log()
    storm.settle()
    storm.check_counts()
    dead = storm.dead_letters()
    assert len(dead) == len(set(dead)), "no dead letter twice"
    moved = storm.copies(RETRY)
    assert order == UNORDERED or len(moved) == len(set(moved)), "nothing moves twice before its copy goes"
    assert not (storm.finished.keys() & set(dead)) - storm.given_up, "and none that was acked"
    # nobody reads what was never taken of a queue that the topic has no more
    read = {body for body in storm.sent if storm.places[body].queue_id < storm.queues}
    assert read <= storm.finished.keys() | storm.perhaps | set(dead), "every message is delivered and finished"
    assert storm.broker.pop_service.ledger.in_flight(GROUP) == 0
