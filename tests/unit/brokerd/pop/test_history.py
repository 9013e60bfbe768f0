"""Random histories of sending, popping, finishing, postponing and changes of master, checked against what was promised.

The log of a new master is the old one's, cut somewhere behind what was acknowledged. Promised is: a message whose finish was
accepted is never delivered again; every other message is delivered in the end, or in the dead-letter topic, once, where attempts
are limited; windows of two deliveries do not overlap; in the end nothing is in flight and nothing lags.
"""

from __future__ import annotations

import random

import pytest

from brokerd.pop.requests import AckStatus, PopOutcome, PopRequest, PopStatus
from brokerd.store.put_status import PutStatus
from tests.support.memory_log import draft
from tests.support.pop_broker import PopBroker, body_of, master

TOPIC, GROUP, QUEUES = "t", "g", 3
MAX_AHEAD_MS = 20  # pop times of a queue are distinct, so they may be a little ahead of the clock


class History:
    def __init__(self, seed: int, *, fifo: bool) -> None:
        self.rng = random.Random(seed)
        self.fifo = fifo
        self.broker = master(lease_grace_ms=500)
        self.broker.topic(TOPIC, QUEUES)
        self.broker.group(GROUP, fifo=fifo, retry_max_times=4 if seed % 3 == 0 else 10_000)
        self.log = self.broker.log
        self.log.acknowledges = self.log.dispatches = False
        self.acknowledged = self.log.end_offset
        self.sent: dict[str, int] = {}  # body -> end offset in the log
        self.finished: set[str] = set()
        self.finished_by: dict[str, str] = {}  # the handle of each
        self.unknown: set[str] = set()  # bodies whose finish was not answered, or not acknowledged
        self.deliveries: dict[str, int] = {}
        self.held: list[tuple[str, str]] = []  # (body, handle) of deliveries
        self.windows: dict[str, int] = {}  # body -> until when its last delivery hides it
        self.switches = 0

    # ---- steps

    def send(self) -> None:
        body = f"m{len(self.sent)}"
        self.log.append_messages([draft(TOPIC, body.encode(), self.rng.randrange(QUEUES))])
        self.sent[body] = self.log.end_offset

    def pop(self) -> None:
        invisible = self.rng.choice((0, 200, 1000, 3000))
        request = PopRequest(
            GROUP,
            TOPIC,
            self.rng.choice((-1, -1, 0, 1)),
            self.rng.choice((1, 3, 32)),
            invisible,
            self.broker.turns.monotonic_ms() + self.rng.choice((0, 500)),
            fifo=self.fifo,
        )
        taken_by = self.switches

        def done(outcome: PopOutcome) -> None:
            if outcome.status != PopStatus.FOUND:
                return
            assert taken_by == self.switches, "an answer of a master that is none any more"
            for message in outcome.messages:
                body = body_of(message)
                taken_ms = outcome.pop_time_ms + MAX_AHEAD_MS
                assert body not in self.finished, f"{body} was finished"
                assert self.windows.get(body, 0) <= taken_ms, f"{body} is with somebody else"
                self.windows[body] = outcome.pop_time_ms + invisible - MAX_AHEAD_MS
                self.deliveries[body] = self.deliveries.get(body, 0) + 1
                self.held.append((body, message.receipt_handle))

        self.broker.pop_service.pop(request, done)

    def ack(self) -> None:
        if not self.held:
            return
        chosen = self.rng.sample(self.held, min(len(self.held), self.rng.randint(1, 6)))
        self.unknown.update(body for body, _ in chosen)

        def done(statuses: list[AckStatus]) -> None:
            for (body, handle), status in zip(chosen, statuses, strict=True):
                if status == AckStatus.OK:
                    asked_again = self.finished_by.setdefault(body, handle) == handle
                    assert body not in self.finished or asked_again
                    self.finished.add(body)

        self.broker.pop_service.ack(GROUP, TOPIC, [handle for _, handle in chosen], done)  # type: ignore[arg-type]

    def change(self) -> None:
        if not self.held:
            return
        body, handle = self.rng.choice(self.held)
        invisible = self.rng.choice((0, 500, 2000))
        self.windows[body] = 0  # it may count although its answer is lost; the ledger's own test knows when it ends

        def done(outcome: object) -> None:
            if outcome.status == AckStatus.OK:  # type: ignore[attr-defined]
                assert body not in self.finished
                self.held.append((body, outcome.receipt_handle))  # type: ignore[attr-defined]

        self.broker.pop_service.change_invisible_time(GROUP, TOPIC, handle, invisible, done)

    def acknowledge(self) -> None:
        """The replicas confirm what is appended: it is dispatched and answered."""
        self.acknowledged = self.log.end_offset
        self.log.dispatch()
        self.log.acknowledge()

    def wait(self) -> None:
        self.broker.turns.run(self.rng.choice((1, 50, 700)))

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
        self.broker = PopBroker(self.log, self.broker.turns, lease_grace_ms=500).become_master()
        self.sent = {body: end for body, end in self.sent.items() if end <= end_offset}
        self.acknowledged = end_offset

    def settle(self) -> None:
        """One diligent consumer, until nothing comes any more."""
        self.log.acknowledges = self.log.dispatches = True
        self.acknowledge()
        quiet = 0
        while quiet < 3:
            receive = self.broker.receive(32, fifo=self.fifo, invisible_time_ms=60_000)
            if receive.outcome.status == PopStatus.FOUND:
                for message in receive.messages:
                    body = body_of(message)
                    assert body not in self.finished
                    self.deliveries[body] = self.deliveries.get(body, 0) + 1
                    self.finished.add(body)
                assert set(self.broker.ack(*receive.messages)) == {AckStatus.OK}
                quiet = 0
            else:
                self.broker.turns.run(4000)
                quiet += 1


@pytest.mark.parametrize("fifo", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("seed", range(25))
def test_history(seed: int, fifo: bool) -> None:
    history = History(seed, fifo=fifo)
    steps = [history.send] * 6 + [history.pop] * 6 + [history.ack] * 5 + [history.change] * 2
    steps += [history.acknowledge] * 3 + [history.wait] * 4 + [history.switch]
    for _ in range(250):
        history.rng.choice(steps)()
    history.settle()
    dead = [record.body.decode() for record in history.broker.stored(f"%DLQ%{GROUP}")]
    assert len(dead) == len(set(dead)), "no dead letter twice"
    assert not history.finished.intersection(dead), "and none that was finished"
    assert set(history.sent) <= history.finished | history.unknown | set(dead), (
        "every message is delivered and finished"
    )
    assert set(history.sent) <= set(history.deliveries)
    pop = history.broker.pop_service
    assert pop.ledger.in_flight(GROUP) == 0
    assert not any(queue.batches for queue in pop.ledger.queues())
    for queue_id in range(QUEUES):
        assert (pop.ledger.committed_offset(GROUP, TOPIC, queue_id) or 0) == history.log.max_offset(TOPIC, queue_id)
