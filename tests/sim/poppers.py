"""Consumers that pop: an unordered group that acks, postpones, gives up and forgets, and an ordered one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import AckStatus, InvisibleTimeOutcome, PopOutcome, PoppedMessage, PopRequest, PopStatus
from remoting.errors import ProtocolError
from tests.sim.asked_acks import AskedAcks
from tests.sim.clients import TOPIC, Client, Reply
from tests.sim.records import look_at
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

POP_GROUP = "poppers"
ORDERED_GROUP = "ordered"
_ORDERED_HIDDEN_MS = 600
_OF_ITS_TIME = 0.8  # of an invisible time a message is hidden for certain, whatever the clocks do


class Popper(Client):
    """Pops from all queues; acks most messages, postpones some, gives some up, forgets some."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.is_draining = False
        self.in_hand = 0  # messages that wait for this client's next move
        self.idle_pops = 0
        # (masterships that had ended, until when) a place is hidden, as long as nobody asks for another time
        self._hidden: dict[tuple[int, int, int], tuple[int, float]] = {}
        self._attempts: dict[tuple[int, int, int], tuple[int, int]] = {}  # the same, and the delivery's number

    def drain(self) -> None:
        """From now on finish everything that comes."""
        self.is_draining = True
        self.idle_pops = 0

    def step(self) -> None:
        broker = self.broker
        asked_ms, mastership = self.world.now_ms, self.cluster.interruptions
        wait_ms = self.rng.choice((0, 0, 300))

        def run(reply: Reply) -> None:
            request = PopRequest(
                POP_GROUP,
                TOPIC,
                -1,
                self.rng.choice((1, 4, 16)),
                self.rng.choice((400, 1000, 2500)),
                broker.monotonic_ms() + wait_ms,
                InitMode.MIN,
            )
            broker.core.pop.pop(request, reply)

        self.call(broker, run, lambda outcome: self._popped(outcome, asked_ms, mastership), 1500)

    def _popped(self, outcome: PopOutcome | None, asked_ms: float, mastership: int) -> None:
        """`mastership` is the one of when it was asked: the next one may have begun when its answer comes, by another clock."""
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.history.count("pop", "unknown" if outcome is None else "failed")
            self.move()
            self.again(5, 60)
            return
        self.history.count("pop", "ok")
        self.idle_pops = self.idle_pops + 1 if outcome.status is PopStatus.NOTHING else 0
        for message in outcome.messages:
            self._take(message, asked_ms, outcome.invisible_time_ms, mastership)
        self.again(2, 40)

    def _take(self, message: PoppedMessage, asked_ms: float, invisible_time_ms: int, mastership: int) -> None:
        try:
            record, is_intact = look_at(message.record)
        except ProtocolError as error:
            may = self.cluster.may_serve_damage(self.broker)
            self.world.require(may, f"{self.broker.name} gave what is no message: {error}")
            self.history.count("pop", "damage detected")
            return
        self.world.require(is_intact, f"{self.broker.name} delivered a damaged message to a pop")
        body = record.body
        known = body in self.history.attempts
        self.world.require(known, f"{self.broker.name} delivered {body[:20]!r} to a pop, which nobody sent")
        name = self.broker.name
        place = _place(message)
        self.world.require(
            self.history.finished_places.get(place, asked_ms) >= asked_ms,
            f"{name} delivered {body[:20]!r} again after its ack, from the same place {place}",
        )
        self.world.require(
            self.history.attempts[body] > 1 or self.history.finished.get(body, asked_ms) >= asked_ms,
            f"{name} delivered {body[:20]!r} again after its ack: it was in two places",
        )
        hidden = self._hidden.get(place)
        self.world.require(
            hidden is None or hidden[0] != mastership or self.world.now_ms >= hidden[1],
            f"{name} delivered {body[:20]!r} from {place} twice within its invisible time",
        )
        before, attempts = self._attempts.get(place, (-1, 0))
        self.world.require(
            before != mastership or message.delivery_attempt > attempts,
            f"{name} counts delivery {message.delivery_attempt} of {body[:20]!r} after delivery {attempts}",
        )
        self._attempts[place] = (mastership, message.delivery_attempt)
        self._hidden[place] = (mastership, asked_ms + _OF_ITS_TIME * invisible_time_ms)
        self.history.deliveries[body] += 1
        self.in_hand += 1
        choice = self.rng.random()
        if self.is_draining or choice < 0.75:
            self.after(self.rng.uniform(0, 200), lambda: self._ack(body, message))
        elif choice < 0.85:
            self.after(self.rng.uniform(0, 200), lambda: self._postpone(body, message))
        elif choice < 0.9:
            self.after(self.rng.uniform(0, 200), lambda: self._give_up(body, message))
        else:
            self.in_hand -= 1

    def _ack(self, body: bytes, message: PoppedMessage) -> None:
        broker = self.broker

        def answered(statuses: Sequence[AckStatus] | None) -> None:
            self.in_hand -= 1
            if statuses is None or statuses[0] is AckStatus.FAILED:
                self.history.count("ack", "unknown")
                self.history.perhaps_finished.add(body)
            elif statuses[0] is AckStatus.OK:
                self.history.count("ack", "ok")
                self.history.finished.setdefault(body, self.world.now_ms)
                self.history.finished_places.setdefault(_place(message), self.world.now_ms)
            else:
                self.history.count("ack", "failed")

        self.call(
            broker,
            lambda reply: broker.core.pop.ack(POP_GROUP, message.topic, [message.receipt_handle], reply),
            answered,
            1500,
        )

    def _give_up(self, body: bytes, message: PoppedMessage) -> None:
        broker = self.broker

        def answered(status: AckStatus | None) -> None:
            self.in_hand -= 1
            if status is None or status is AckStatus.FAILED:
                self.history.count("give up", "unknown")
                self.history.perhaps_finished.add(body)
            elif status is AckStatus.OK:
                self.history.count("give up", "ok")
                self.history.given_up.add(body)
                self.history.finished.setdefault(body, self.world.now_ms)
                self.history.finished_places.setdefault(_place(message), self.world.now_ms)
            else:
                self.history.count("give up", "failed")

        self.call(
            broker,
            lambda reply: broker.core.pop.forward_to_dead_letter(
                POP_GROUP, message.topic, message.receipt_handle, reply
            ),
            answered,
            1500,
        )

    def _postpone(self, body: bytes, message: PoppedMessage) -> None:
        broker = self.broker
        self._hidden.pop(_place(message), None)

        def answered(outcome: InvisibleTimeOutcome | None) -> None:
            self.in_hand -= 1
            if outcome is None:
                self.history.count("postpone", "unknown")
            elif outcome.status is AckStatus.OK:
                self.history.count("postpone", "ok")
                self.in_hand += 1
                later = message._replace(receipt_handle=outcome.receipt_handle)
                self.after(self.rng.uniform(0, 300), lambda: self._ack(body, later))
            else:
                self.history.count("postpone", "failed")

        self.call(
            broker,
            lambda reply: broker.core.pop.change_invisible_time(
                POP_GROUP, message.topic, message.receipt_handle, 700, reply
            ),
            answered,
            1500,
        )


class OrderedPopper(Client):
    """Pops one queue in order: nothing may come before what precedes it is finished, and one batch is in flight at a time."""

    def __init__(self, world: World, cluster: SimCluster, name: str, queue_id: int) -> None:
        super().__init__(world, cluster, name)
        self._queue_id = queue_id
        self._acks = AskedAcks()

    def step(self) -> None:
        broker = self.broker
        asked_ms = self.world.now_ms

        def run(reply: Reply) -> None:
            request = PopRequest(
                ORDERED_GROUP,
                TOPIC,
                self._queue_id,
                self.rng.choice((1, 4, 16)),
                _ORDERED_HIDDEN_MS,
                broker.monotonic_ms(),
                InitMode.MIN,
                fifo=True,
                attempt_id=f"{self.name}{asked_ms}",
            )
            broker.core.pop.pop(request, reply)

        self.call(broker, run, self._popped, 1500)

    def _popped(self, outcome: PopOutcome | None) -> None:
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.history.count("ordered pop", "unknown" if outcome is None else "failed")
            self.move()
            self.again(5, 60)
            return
        self.history.count("ordered pop", "ok")
        if outcome.messages:
            self._take(list(outcome.messages))
        self.again(2, 40)

    def _take(self, messages: list[PoppedMessage]) -> None:
        name = self.broker.name
        offsets = [message.queue_offset for message in messages]
        together = set(offsets)
        waiting = [
            offset for offset in range(offsets[-1]) if offset not in together and not self._acks.may_be_finished(offset)
        ]
        self.world.require(offsets == sorted(offsets), f"{name} gave an ordered group the offsets {offsets}")
        self.world.require(
            not waiting,
            f"{name} gave an ordered group {offsets} of queue {self._queue_id} before {waiting[:5]} is finished",
        )
        if self.rng.random() < 0.8:
            self.after(self.rng.uniform(0, 100), lambda: self._ack(messages))

    def _ack(self, messages: list[PoppedMessage]) -> None:
        broker = self.broker
        part = messages[: self.rng.randint(1, len(messages))]
        offsets = [message.queue_offset for message in part]
        self._acks.ask(offsets)

        def answered(statuses: Sequence[AckStatus] | None) -> None:
            self._acks.answer(offsets, statuses)
            for status in statuses or [None] * len(part):
                known = status is AckStatus.OK
                self.history.count("ordered ack", "ok" if known else "unknown" if status is None else "failed")

        handles = [message.receipt_handle for message in part]
        self.call(broker, lambda reply: broker.core.pop.ack(ORDERED_GROUP, TOPIC, handles, reply), answered, 1500)


def _place(message: PoppedMessage) -> tuple[int, int, int]:
    return message.retry_flag, message.queue_id, message.queue_offset
