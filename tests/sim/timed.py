"""Messages for a moment of their own: clients that send them, some ms to several roll windows ahead, and take some back.

Each message is sent under a name of its own. What was asked for is kept here; what must have become of it is read from the log,
as it grows and at the end (`timer_checks`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from brokerd.metadata.configs import TopicConfig
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.timers.codes import DELETE_KEY
from brokerd.timers.rules import DELAY_MS, DELAY_SEC, DELIVER_MS
from remoting import codes
from remoting.errors import NotMaster, RequestError
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.sim.administration import Maker
from tests.sim.clients import SURE_TIMEOUT_MS, Client, Reply, was_refused
from tests.sim.world import World

if TYPE_CHECKING:
    from tests.sim.cluster import SimCluster

TIMED_TOPIC: Final = "W"
_HOST: Final = pack_host("10.1.0.4", 40000)
_SHARE_RECALLED: Final = 0.4
_SHARE_NAMED: Final = 0.2


class Asked(NamedTuple):
    """What somebody wants to be delivered: not before `deliver_ms` by the wall, or `delay_ms` after it was sent."""

    began_ms: float
    deliver_ms: int | None
    delay_ms: int


@dataclass
class Wanted:
    """What clients asked for and were answered."""

    asked: dict[bytes, Asked] = field(default_factory=dict)
    attempts: Counter[bytes] = field(default_factory=Counter)
    acknowledged: list[tuple[bytes, int]] = field(default_factory=list)  # body and physical offset
    recalled: dict[bytes, int] = field(default_factory=dict)  # body -> where it is stored: its recall was acknowledged
    perhaps_recalled: set[bytes] = field(default_factory=set)


class TimedClient(Client):
    """Has some messages of one moment under way at a time."""

    def __init__(self, world: World, cluster: SimCluster, name: str, wanted: Wanted) -> None:
        super().__init__(world, cluster, name)
        self._wanted = wanted
        self._count = 0

    def step(self) -> None:
        rng = self.rng
        delay_ms = self.choose_delay_ms()
        kind = rng.choice((DELIVER_MS, DELIVER_MS, DELAY_MS, DELAY_SEC))
        if kind == DELAY_SEC:
            delay_ms = -(-delay_ms // 1000) * 1000 if delay_ms >= 4000 else rng.choice((1000, 2000))
        deliver_ms = self.wall_ms() + delay_ms if kind == DELIVER_MS else None
        value = {DELIVER_MS: deliver_ms, DELAY_MS: delay_ms, DELAY_SEC: delay_ms // 1000}[kind]
        drafts = []
        for _ in range(rng.choice((1, 1, 2, 5))):
            self._count += 1
            body = f"{self.name}:{self._count}:".encode() + b"." * rng.randrange(200)
            self._wanted.asked[body] = Asked(self.world.now_ms, deliver_ms, delay_ms)
            drafts.append(_draft(body, {kind: str(value)}))
        self._send(drafts, rng.choice((1, 2)))

    def choose_delay_ms(self) -> int:
        rng = self.rng
        return rng.choice((1, 2, rng.randrange(1, 60), rng.randrange(100, 900), rng.randrange(1000, 4000)))

    def _send(self, drafts: list[Draft], attempts: int) -> None:
        broker = self.broker
        bodies = [bytes(each.body) for each in drafts]
        self._wanted.attempts.update(bodies)

        def sent(outcomes: Sequence[SendOutcome] | None) -> None:
            if outcomes is None:
                self._failed("unknown", drafts, attempts)
                return
            for body, outcome in zip(bodies, outcomes, strict=True):
                if outcome.status is PutStatus.PUT_OK:
                    self._stored(body, outcome)
                elif was_refused(outcome):
                    self._wanted.attempts[body] -= 1
            if outcomes[0].status is not PutStatus.PUT_OK:
                self._failed("failed", drafts, attempts)
                return
            self.again(5, 60)

        self.call(broker, lambda reply: broker.take_send(drafts, reply), sent, self.rng.choice((600, 2000)))

    def _failed(self, how: str, drafts: list[Draft], attempts: int) -> None:
        self.history.count("timer", how)
        self.move()
        if attempts > 1 and self.is_active:
            self._send(drafts, attempts - 1)
        else:
            self.again(5, 60)

    def _stored(self, body: bytes, outcome: SendOutcome) -> None:
        self.history.count("timer", "ok")
        self._wanted.acknowledged.append((body, outcome.physical_offset))
        asked = self._wanted.asked[body]
        choice = self.rng.random()
        in_ms = self.rng.uniform(0, 1.1 * asked.delay_ms)
        if choice < _SHARE_RECALLED and outcome.recall_handle:
            self.after(in_ms, lambda: self._recall(body, outcome))
        elif choice < _SHARE_RECALLED + _SHARE_NAMED and asked.deliver_ms is not None:
            self.after(in_ms, lambda: self._name(body, asked.deliver_ms))

    def _recall(self, body: bytes, outcome: SendOutcome) -> None:
        """By its handle."""
        broker, began_life = self.broker, self.broker.life
        self._wanted.perhaps_recalled.add(body)

        def answered(result: tuple[str | RequestError] | None) -> None:
            answer = None if result is None else result[0]
            if answer == _key(body):
                self.history.count("recall", "ok")
                self._wanted.recalled[body] = outcome.physical_offset
                return
            self.history.count("recall", "unknown" if answer is None else "failed")
            self.world.require(
                "no such delayed message" not in str(answer),
                f"{broker.name} (life {began_life}) does not know {body[:20]!r}, which was acknowledged",
            )
            if not isinstance(answer, RequestError) or answer.code != codes.ILLEGAL_OPERATION:
                self.move()

        def run(reply: Reply) -> None:
            if not broker.driver.is_master:
                reply((NotMaster(),))
                return
            try:
                broker.core.timed.recall(TIMED_TOPIC, outcome.recall_handle, lambda result: reply((result,)))
            except RequestError as error:
                reply((error,))

        self.call(broker, run, answered, SURE_TIMEOUT_MS)

    def _name(self, body: bytes, deliver_ms: int | None) -> None:
        """By a message that names it: the original's way. The one that is to be taken back may be stored more than once."""
        marker = b"marker of " + body
        self._wanted.perhaps_recalled.add(body)
        draft = _draft(marker, {DELIVER_MS: str(deliver_ms), DELETE_KEY: f"{TIMED_TOPIC}+{_key(body)}"})
        broker = self.broker

        def sent(outcomes: Sequence[SendOutcome] | None) -> None:
            is_stored = outcomes is not None and outcomes[0].status is PutStatus.PUT_OK
            self.history.count("marker", "ok" if is_stored else "unknown" if outcomes is None else "failed")

        self.call(broker, lambda reply: broker.take_send([draft], reply), sent, SURE_TIMEOUT_MS)


class FarTimedClient(TimedClient):
    """Some of its messages are due so long after that files of the log go before."""

    def choose_delay_ms(self) -> int:
        return self.rng.choice((super().choose_delay_ms(), self.rng.randrange(4000, 9000)))


def make_clients(cluster: SimCluster, wanted: Wanted, kind: type[TimedClient] = TimedClient) -> list[Client]:
    """Two of them, and who makes the topic."""
    topic = TopicConfig(TIMED_TOPIC, 1, 1, 6)
    return [
        Maker(cluster.world, cluster, "timed-maker", lambda metadata, done: metadata.put_topic(topic, done)),
        *(kind(cluster.world, cluster, f"timed{n}", wanted) for n in range(2)),
    ]


def _key(body: bytes) -> str:
    return body.split(b".", 1)[0].decode().replace(":", "K")


def _draft(body: bytes, properties: dict[str, str]) -> Draft:
    return Draft(TIMED_TOPIC, 0, body, encode_properties({"UNIQ_KEY": _key(body), **properties}), 1, _HOST)
