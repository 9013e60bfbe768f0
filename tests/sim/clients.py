"""Clients that record every outcome: ok, failed, or unknown when no answer came.

Producers with keys, one of them repeating what failed; a consumer that pops and acks; consumers that pull and commit; an owner
of a topic that comes and goes; an administrator of the controllers. Each goes on with its next step when the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from brokerd.replication.control import ControlRequest
from brokerd.services import (
    AckStatus,
    Draft,
    InitMode,
    InvisibleTimeOutcome,
    PopOutcome,
    PoppedMessage,
    PopRequest,
    PopStatus,
    PutStatus,
    SendOutcome,
    TopicConfig,
)
from remoting import codes
from remoting.errors import RequestError
from remoting.message import body_is_intact, decode_record, encode_properties, pack_host
from tests.sim.broker import CLUSTER, GROUP
from tests.sim.history import TopicLife
from tests.sim.world import Node, World

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController

TOPIC = "T"
QUEUES = 2
POP_GROUP = "poppers"
_HOST = pack_host("10.1.0.1", 40000)
# Longer than any delay of the network plus any freeze: when it is over, the request is too.
_SURE_TIMEOUT_MS = 4500

Reply = Callable[[Any], None]


class Client(Node):
    """Talks to whom it believes to be the master; clients do not fail, but the network between does."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, name)
        self.rng = world.random(name)
        self.cluster = cluster
        self.history = cluster.history
        self.is_active = True
        self.calls = 0  # that have no answer yet
        self._target = 0
        self.begin_life()
        self.after(self.rng.uniform(1, 50), self.step)

    def step(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Begin no step any more."""
        self.is_active = False

    def again(self, low_ms: float, high_ms: float) -> None:
        """The next step comes after a while."""
        self.after(self.rng.uniform(low_ms, high_ms), self._step_if_active)

    def _step_if_active(self) -> None:
        if self.is_active:
            self.step()

    @property
    def broker(self) -> SimBroker:
        return self.cluster.brokers[self._target]

    def move(self) -> None:
        """Try another broker from now on."""
        self._target = self.rng.randrange(len(self.cluster.brokers))

    def call(
        self, broker: SimBroker, run: Callable[[Reply], None], answered: Callable[[Any], None], timeout_ms: float
    ) -> None:
        """Have something run at a broker; `answered` gets what it replies, or None when no answer came in time."""
        network = self.cluster.network
        is_over = False
        self.calls += 1

        def finish(value: Any) -> None:
            nonlocal is_over
            if not is_over:
                is_over = True
                self.calls -= 1
                answered(value)

        def reply(value: Any) -> None:
            network.send(broker, self, lambda: finish(value))

        network.send(self, broker, broker.guarded(lambda: run(reply)))
        self.after(timeout_ms, lambda: finish(None))


class Producer(Client):
    """One send of a few messages in flight. One that `repeats` sends again what it does not know to be stored."""

    def __init__(self, world: World, cluster: SimCluster, name: str, queue_id: int, *, repeats: bool) -> None:
        super().__init__(world, cluster, name)
        self._queue_id = queue_id
        self._repeats = repeats
        self._count = 0

    def step(self) -> None:
        count = self.rng.choice((1, 1, 1, 2, 5))
        bodies = []
        for _ in range(count):
            self._count += 1
            bodies.append(f"{self.name}:{self._count}:".encode() + b"." * self.rng.randrange(400))
        self._send(bodies, 1)

    def _send(self, bodies: list[bytes], attempt: int) -> None:
        broker = self.broker
        for body in bodies:
            self.history.may_be_stored(body)
        drafts = [make_draft(TOPIC, self._queue_id, body) for body in bodies]
        self.call(
            broker,
            lambda reply: broker.take_send(drafts, reply),
            lambda outcomes: self._sent(bodies, attempt, outcomes),
            self.rng.choice((600, 2000)),
        )

    def _sent(self, bodies: list[bytes], attempt: int, outcomes: Sequence[SendOutcome] | None) -> None:
        history = self.history
        left: list[bytes] = []
        for n, body in enumerate(bodies):
            outcome = None if outcomes is None else outcomes[n]
            if outcome is not None and outcome.status is PutStatus.PUT_OK:
                history.acknowledged.setdefault(body, []).append((outcome.queue_id, outcome.queue_offset))
                history.count("send", "ok")
                continue
            left.append(body)
            if outcome is not None and was_refused(outcome):
                history.refused(body)
                history.count("send", "failed")
            else:
                history.count("send", "unknown")
        if left:
            self.move()
            if self._repeats and attempt < 4 and self.is_active:
                self.after(self.rng.uniform(5, 60), lambda: self._send(left, attempt + 1))
                return
        self.again(2, 40)


class Popper(Client):
    """Pops from all queues; acks most messages, postpones some, forgets some."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.is_draining = False
        self.in_hand = 0  # messages that wait for this client's next move
        self.idle_pops = 0

    def drain(self) -> None:
        """From now on finish everything that comes."""
        self.is_draining = True
        self.idle_pops = 0

    def step(self) -> None:
        broker = self.broker
        asked_ms = self.world.now_ms
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

        self.call(broker, run, lambda outcome: self._popped(outcome, asked_ms), 1500)

    def _popped(self, outcome: PopOutcome | None, asked_ms: float) -> None:
        if outcome is None or outcome.status is PopStatus.REFUSED:
            self.history.count("pop", "unknown" if outcome is None else "failed")
            self.move()
            self.again(5, 60)
            return
        self.history.count("pop", "ok")
        self.idle_pops = self.idle_pops + 1 if outcome.status is PopStatus.NOTHING else 0
        for message in outcome.messages:
            self._take(message, asked_ms)
        self.again(2, 40)

    def _take(self, message: PoppedMessage, asked_ms: float) -> None:
        record = decode_record(message.record)
        self.world.require(body_is_intact(record), f"{self.broker.name} delivered a damaged message to a pop")
        body = record.body
        known = body in self.history.attempts
        self.world.require(known, f"{self.broker.name} delivered {body[:20]!r} to a pop, which nobody sent")
        name = self.broker.name
        place = _place(message)
        self.world.require(
            self.history.finished_places.get(place, asked_ms) >= asked_ms,
            f"{name} delivered {body[:20]!r} again after its ack, from the same place {place}",
        )
        if self.history.finished.get(body, asked_ms) < asked_ms and self.history.attempts[body] == 1:
            # It was brought back, and whoever did that was cut off between the copy and the record that says so: the next one
            # brings it back again. Without such an interruption there is one copy at a time.
            self.history.count("pop", "copied twice")
            self.world.require(
                message.retry_flag != 0 and self.cluster.interruptions > 0,
                f"{name} delivered {body[:20]!r} again after its ack",
            )
        self.history.deliveries[body] += 1
        self.in_hand += 1
        choice = self.rng.random()
        if self.is_draining or choice < 0.75:
            self.after(self.rng.uniform(0, 200), lambda: self._ack(body, message))
        elif choice < 0.85:
            self.after(self.rng.uniform(0, 200), lambda: self._postpone(body, message))
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

    def _postpone(self, body: bytes, message: PoppedMessage) -> None:
        broker = self.broker

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


class Puller(Client):
    """Reads a queue in order, from any replica, and commits how far it came."""

    def __init__(self, world: World, cluster: SimCluster, name: str, queue_id: int) -> None:
        super().__init__(world, cluster, name)
        self._queue_id = queue_id
        self._position = 0
        self._is_committing = False

    def step(self) -> None:
        broker = self.rng.choice(self.cluster.brokers)
        start = max(0, self._position - self.rng.choice((0, 0, 0, 5, 40)))

        def run(reply: Reply) -> None:
            store = broker.core.store
            high = store.max_offset(TOPIC, self._queue_id)
            self.world.require(
                store.dispatch_offset <= broker.engine.core.confirm_offset or not broker.engine.is_master,
                f"{broker.name} shows messages beyond its confirm offset",
            )
            result = store.read_messages(TOPIC, self._queue_id, start, 32, 1 << 20)
            reply((high, list(result.records)))

        self.call(broker, run, lambda answer: self._read(broker, start, answer), 800)

    def _read(self, broker: SimBroker, start: int, answer: tuple[int, list[bytes]] | None) -> None:
        if answer is None:
            self.history.count("pull", "unknown")
        else:
            self.history.count("pull", "ok")
            for n, encoded in enumerate(answer[1]):
                self._see(broker, start + n, encoded)
            self._position = max(self._position, start + len(answer[1]))
        if self.rng.random() < 0.4 and not self._is_committing:
            self._commit()
        self.again(10, 90)

    def _see(self, broker: SimBroker, offset: int, encoded: bytes) -> None:
        record = decode_record(encoded)
        if not body_is_intact(record):
            # A consumer checks the sum that the record carries, and asks elsewhere.
            self.world.require(broker in self.cluster.rotten, f"{broker.name} served a damaged message to a pull")
            self.history.count("pull", "damage detected")
            return
        place = self._queue_id, record.queue_offset
        require = self.world.require
        require(record.queue_offset == offset, f"{broker.name} gave offset {record.queue_offset} for {offset}")
        require(record.body in self.history.attempts, f"{broker.name} shows {record.body[:20]!r}, which nobody sent")
        before = self.history.seen.setdefault(place, record.body)
        require(
            before == record.body,
            f"{broker.name} shows {record.body[:20]!r} at offset {offset} of queue {self._queue_id}; seen was {before[:20]!r}",
        )

    def _commit(self) -> None:
        broker = self.broker
        offset, queue_id, history = self._position, self._queue_id, self.history
        key = self.name, queue_id
        self._is_committing = True
        history.asked[key] = max(history.asked.get(key, -1), offset)

        def answered(answer: tuple[RequestError | None] | None) -> None:
            self._is_committing = False
            if answer is None:
                history.count("commit", "unknown")
                self.move()
            elif answer[0] is None:
                history.count("commit", "ok")
                history.committed[key] = max(history.committed.get(key, -1), offset)
            else:
                history.count("commit", "failed")
                self.move()

        # One commit at a time, and an answer that never comes is waited for: commits of one consumer do not overtake each other.
        self.call(
            broker,
            lambda reply: broker.core.metadata.commit_offset(
                self.name, TOPIC, queue_id, offset, lambda error: reply((error,))
            ),
            answered,
            _SURE_TIMEOUT_MS,
        )


class TopicOwner(Client):
    """Makes a topic, sends to it, deletes it, makes it again: what was in the old one must not be in the new one."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self.topic = TopicLife(name=f"D-{name}")
        self.history.topics[self.topic.name] = self.topic
        self._sends_left = 0

    def step(self) -> None:
        topic = self.topic
        if not topic.exists:
            self._create()
        elif self._sends_left:
            self._sends_left -= 1
            self._send()
        else:
            self._delete()

    def _create(self) -> None:
        broker, topic = self.broker, self.topic
        topic.is_settled = False

        def done(error: RequestError | None) -> None:
            topic.exists = topic.is_settled = True
            topic.generation += 1
            topic.sent.clear()
            topic.acknowledged.clear()
            self._sends_left = self.rng.choice((0, 1, 3))
            self.world.note(f"{topic.name} exists, generation {topic.generation}")

        self._change("create", lambda reply: broker.core.metadata.put_topic(TopicConfig(topic.name, 1, 1), reply), done)

    def _delete(self) -> None:
        broker, topic = self.broker, self.topic
        topic.is_settled = False

        def done(error: RequestError | None) -> None:
            topic.exists, topic.is_settled = False, True
            self.world.note(f"{topic.name} is deleted")

        self._change("delete", lambda reply: broker.core.metadata.delete_topic(topic.name, reply), done)

    def _change(self, operation: str, run: Callable[[Reply], None], done: Callable[[Any], None]) -> None:
        def answered(answer: tuple[RequestError | None] | None) -> None:
            if answer is None:
                self.history.count(operation, "unknown")
                self.move()
            elif answer[0] is not None:
                self.history.count(operation, "failed")
                self.move()
            else:
                self.history.count(operation, "ok")
                done(None)
            self.again(5, 80)

        self.call(self.broker, lambda reply: run(lambda error: reply((error,))), answered, _SURE_TIMEOUT_MS)

    def _send(self) -> None:
        broker, topic = self.broker, self.topic
        body = f"{topic.name}/{topic.generation}/{self._sends_left}/{len(topic.sent)}".encode()
        topic.sent[body] = topic.sent.get(body, 0) + 1
        topic.is_settled = False

        def answered(outcomes: Sequence[SendOutcome] | None) -> None:
            topic.is_settled = True
            if outcomes is not None and outcomes[0].status is PutStatus.PUT_OK:
                self.history.count("send to a short-lived topic", "ok")
                topic.acknowledged[body] = outcomes[0].queue_id, outcomes[0].queue_offset
            else:
                self.history.count("send to a short-lived topic", "unknown" if outcomes is None else "failed")
                self.move()
            self.again(5, 60)

        drafts = [make_draft(topic.name, 0, body)]
        self.call(broker, lambda reply: broker.take_send(drafts, reply), answered, _SURE_TIMEOUT_MS)


class Administrator(Client):
    """Designates masters now and then, and once in a while has a broken machine replaced."""

    _token = 1 << 40

    def step(self) -> None:
        self.again(300, 1500)
        if self.cluster.injector.mood == "rot":
            return  # to make a damaged replica master would be to rely on it alone
        controller = self.cluster.leader() if self.rng.random() < 0.7 else self.rng.choice(self.cluster.controllers)
        if controller is None:
            return
        choice = self.rng.random()
        if choice < 0.3 and self.cluster.changes_members:
            self._change_members(controller)
            return
        if choice < 0.45:
            self._transfer(controller)
            return
        broker = self.rng.choice(self.cluster.brokers)
        broker_id = self.cluster.id_of(broker)
        if broker_id is None or not controller.is_up:
            return
        self._token += 1
        ext = {
            "clusterName": CLUSTER,
            "brokerName": GROUP,
            "brokerId": str(broker_id),
            "designateElect": "true",
            "invokeTime": "0",
        }
        request = ControlRequest(self._token, "", codes.CONTROLLER_ELECT_MASTER, ext)
        self.ask(controller, request, "designate")

    def _change_members(self, controller: SimController) -> None:
        """Bring a controller in that waits, or let one go when there are more than three."""
        if not controller.is_up:
            return
        known = controller.node.core.configuration
        waiting = [each for each in self.cluster.controllers if each.name not in (*known.members, *known.retired)]
        kind, name = "", ""
        if known.learners and self.rng.random() < 0.7:
            kind, name = "promote", self.rng.choice(sorted(known.learners))
        elif waiting and (len(known.voters) <= 3 or self.rng.random() < 0.5):
            kind, name = self.rng.choice(("add-voter", "add-learner")), self.rng.choice(waiting).name
        elif len(known.voters) > 3:
            kind, name = "remove", self.rng.choice(sorted(known.voters))
        if kind:
            changes = [{"kind": kind, "id": name, "address": f"{name}:9876"}]
            self._ask_controller(
                controller, codes.CHANGE_CONTROLLER_MEMBERS, {}, kind, orjson.dumps({"changes": changes})
            )

    def _transfer(self, controller: SimController) -> None:
        target = self.rng.choice(self.cluster.controllers).name
        self._ask_controller(controller, codes.TRANSFER_CONTROLLER_LEADER, {"controllerId": target}, "transfer")

    def _ask_controller(
        self, controller: SimController, code: int, ext: dict[str, str], operation: str, body: bytes = b""
    ) -> None:
        self._token += 1
        self.ask(controller, ControlRequest(self._token, "", code, ext, body), operation)

    def clean(self, broker_id: int) -> None:
        """Ask every controller to forget a replica; only the leader does."""
        for controller in self.cluster.controllers:
            self._token += 1
            ext = {"clusterName": CLUSTER, "brokerName": GROUP, "brokerControllerIdsToClean": str(broker_id)}
            self.ask(controller, ControlRequest(self._token, "", codes.CLEAN_BROKER_DATA, ext), "clean")

    def ask(self, controller: Any, request: ControlRequest, operation: str) -> None:
        network = self.cluster.network

        def answer(code: int, ext: dict[str, str], body: bytes) -> None:
            outcome = "ok" if code == codes.SUCCESS else "failed"
            self.world.note(f"{operation} at {controller.name}: {outcome}")
            network.reply(controller, self, lambda: self.history.count(operation, outcome))

        network.send(self, controller, lambda: controller.handle(self, self.life, request, answer))


def _place(message: PoppedMessage) -> tuple[int, int, int]:
    return message.retry_flag, message.queue_id, message.queue_offset


def make_draft(topic: str, queue_id: int, body: bytes) -> Draft:
    key = body.split(b".", 1)[0].decode()
    return Draft(topic, queue_id, body, encode_properties({"UNIQ_KEY": key, "KEYS": key, "TAGS": "a"}), 1, _HOST)


def was_refused(outcome: SendOutcome) -> bool:
    """Whether the broker said that it stored nothing. A disk that refused may have taken a part."""
    if outcome.queue_offset >= 0 or outcome.error is None:
        return False
    return not str(outcome.error).startswith("cannot ")
