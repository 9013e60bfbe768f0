"""A client that sends in transactions, decides at once or when it is asked, and never twice differently.

What it wants of a message is settled before it begins: so a half message that was acknowledged, and everything that is asked
about later, has one right end, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brokerd.members.streams import CommandStream
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.settings import TransactionSettings
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.record.codec import decode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from tests.sim.clients import SURE_TIMEOUT_MS, Client
from tests.sim.world import World
from tests.support.open_guard import anybody_may

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

TRANSACTION_TOPIC = "TX"
# Asked as soon and as often as possible, and never given up.
TRANSACTIONS = TransactionSettings(timeout_ms=0, check_interval_ms=300, check_max=1000)
_GROUP = "transactors"
_HOST = pack_host("10.1.0.2", 40000)


class AskedThrough:
    """The connection over which a broker asks."""

    def __init__(self, broker: SimBroker, client: Transactor) -> None:
        self._broker = broker
        self._client = client

    def notify(self, code: int, ext: Mapping[str, str] | None = None, body: Bytes = b"") -> bool:
        fields = dict(ext or {})
        broker, client, encoded = self._broker, self._client, bytes(body)
        broker.network.send(broker, client, lambda: client.asked(broker, fields, encoded))
        return True


class Connected:
    """Who is connected to a broker: producers that its checks ask, and consumers that lease messages, which all live."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker

    def producer_connections(self, group: str, _topic: str) -> Sequence[AskedThrough]:
        clients = [each for each in self._broker.cluster.clients if isinstance(each, Transactor)]
        return [AskedThrough(self._broker, each) for each in clients if group == _GROUP]

    def producer_streams(self, topic: str, _topic: str) -> Sequence[CommandStream]:
        """Of stories with gRPC clients."""
        additions = getattr(self._broker.cluster, "additions", ())
        found = [each.streams_at(self._broker, topic) for each in additions if hasattr(each, "streams_at")]
        return found[0] if found else ()

    def is_alive(self, client_id: str) -> bool:
        cluster: Any = self._broker.cluster
        return client_id in cluster.living or any(each.name == client_id for each in cluster.clients)


class Transactor(Client):
    """One transaction at a time is begun; its end, and answers to checks, go on beside that."""

    def __init__(self, world: World, cluster: SimCluster, name: str) -> None:
        super().__init__(world, cluster, name)
        self._count = 0
        self._silences: dict[bytes, int] = {}  # how many checks are heard without a word

    def step(self) -> None:
        self._count += 1
        body = f"{self.name}:{self._count}:".encode() + b"." * self.rng.randrange(300)
        wanted = self.rng.choice((Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK))
        self.history.wanted[body] = wanted
        self._silences[body] = self.rng.choice((0, 0, 1, 4, 12))
        key = body.split(b".", 1)[0].decode()
        properties = encode_properties({"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": _GROUP})
        draft = Draft(TRANSACTION_TOPIC, 0, body, properties, 1, _HOST, sys_flag=SYS_TRANSACTION_PREPARED)
        broker = self.broker
        self.call(
            broker,
            lambda reply: broker.take_send([draft], reply),
            lambda outcomes: self._begun(broker, body, outcomes),
            self.rng.choice((600, 2000)),
        )

    def _begun(self, broker: SimBroker, body: bytes, outcomes: Sequence[SendOutcome] | None) -> None:
        if outcomes is None or outcomes[0].status is not PutStatus.PUT_OK:
            self.history.count("begin", "unknown" if outcomes is None else "failed")
            self.move()
        else:
            self.history.count("begin", "ok")
            self.history.begun.add(body)
            if self.rng.random() < 0.6:  # else it is silent until it is asked
                half = outcomes[0]
                request = EndTransaction(_GROUP, half.queue_offset, half.physical_offset, self.history.wanted[body])
                self._end(broker, request, repeats=self.rng.random() < 0.3)
        self.again(10, 80)

    def asked(self, broker: SimBroker, ext: Mapping[str, str], encoded: bytes) -> None:
        """A broker wants to know."""
        record = decode_record(encoded)
        body = record.body
        self.world.require(body in self.history.wanted, f"{broker.name} asks about {body[:20]!r}, which nobody began")
        self.world.require(record.topic == TRANSACTION_TOPIC, f"{broker.name} asks about a message of {record.topic}")
        self.history.count("check", "asked")
        self._silences[body] -= 1
        if self._silences[body] >= 0 and self.is_active:
            return
        offsets = int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"])
        request = EndTransaction(_GROUP, *offsets, self.history.wanted[body], from_check=True)
        self._end(broker, request, repeats=False)

    def _end(self, broker: SimBroker, request: EndTransaction, *, repeats: bool) -> None:
        def answered(answer: tuple[RequestError | None] | None) -> None:
            if answer is None:
                self.history.count("end", "unknown")
                return
            self.history.count("end", "ok" if answer[0] is None else "failed")
            if repeats:
                self._end(broker, request, repeats=False)

        self.call(
            broker,
            lambda reply: broker.core.transactions.end(request, lambda error: reply((error,)), anybody_may),
            answered,
            SURE_TIMEOUT_MS,
        )
