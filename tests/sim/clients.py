"""Clients that record every outcome: ok, failed, or unknown when no answer came.

Producers with keys, one of them repeating what failed, and consumers that pull and commit; `poppers` and `administration` have
the others. Each goes on with its next step when the last one ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting.errors import ProtocolError, RequestError
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.sim.records import look_at
from tests.sim.world import Node, World

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster
    from tests.sim.side_group import SideGroup

TOPIC = "T"
QUEUES = 2
_HOST = pack_host("10.1.0.1", 40000)
# Longer than any delay of the network plus any freeze: when it is over, the request is too.
SURE_TIMEOUT_MS = 4500

Reply = Callable[[Any], None]


class Client(Node):
    """Talks to whom it believes to be the master; clients do not fail, but the network between does."""

    def __init__(self, world: World, cluster: SimCluster | SideGroup, name: str) -> None:
        super().__init__(world, name)
        self.rng = world.random(name)
        self.cluster: Any = cluster  # most kinds of clients are of a `SimCluster`
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
        return self.cluster.offered[self._target]

    def move(self) -> None:
        """Try another broker from now on."""
        self._target = self.rng.randrange(len(self.cluster.offered))

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

        def arrive() -> None:
            if broker.is_up:  # else nobody listens there yet
                run(reply)

        network.send(self, broker, broker.guarded(arrive))
        self.after(timeout_ms, lambda: finish(None))


class Producer(Client):
    """One send of a few messages in flight. One that `repeats` sends again what it does not know to be stored."""

    def __init__(
        self, world: World, cluster: SimCluster | SideGroup, name: str, queue_id: int, *, repeats: bool
    ) -> None:
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


class Puller(Client):
    """Reads a queue in order, from any replica, and commits how far it came."""

    def __init__(self, world: World, cluster: SimCluster | SideGroup, name: str, queue_id: int) -> None:
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
                store.dispatch_offset <= broker.driver.machine.confirm_offset or not broker.driver.is_master,
                f"{broker.name} shows messages beyond its confirm offset",
            )
            try:
                result = store.read_messages(TOPIC, self._queue_id, start, 32, 1 << 20)
            except RequestError:  # the tier does not give what is asked of it
                reply(None)
                return
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
        try:
            record, is_intact = look_at(encoded)
        except ProtocolError as error:
            # A flipped length of the topic or the properties, which no checksum covers: the consumer sees it.
            self.world.require(
                self.cluster.may_serve_damage(broker), f"{broker.name} served what is no message: {error}"
            )
            self.history.count("pull", "damage detected")
            return
        wanted, broken = _key_of(record.body), self.world.broken
        if not (self.cluster.may_serve_damage(broker) or record.property_map().get("KEYS") == wanted):
            broken(f"{broker.name} served {record.body[:20]!r} with other properties than it was sent with")
        if not is_intact:
            broken(f"{broker.name} served a damaged message to a pull")
        if record.queue_offset != offset:
            broken(f"{broker.name} gave offset {record.queue_offset} for {offset}")
        if record.body not in self.history.attempts:
            broken(f"{broker.name} shows {record.body[:20]!r}, which nobody sent")
        before = self.history.seen.setdefault((self._queue_id, offset), record.body)
        if before != record.body:
            broken(
                f"{broker.name} shows {record.body[:20]!r} at offset {offset} of queue {self._queue_id}; "
                f"seen was {before[:20]!r}"
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
            SURE_TIMEOUT_MS,
        )


def make_draft(topic: str, queue_id: int, body: bytes) -> Draft:
    key = _key_of(body)
    return Draft(topic, queue_id, body, encode_properties({"UNIQ_KEY": key, "KEYS": key, "TAGS": "a"}), 1, _HOST)


def _key_of(body: bytes) -> str:
    return body.split(b".", 1)[0].decode(errors="replace")


def was_refused(outcome: SendOutcome) -> bool:
    """Whether the broker said that it stored nothing. A disk that refused may have taken a part."""
    if outcome.queue_offset >= 0 or outcome.error is None:
        return False
    return not str(outcome.error).startswith("cannot ")
