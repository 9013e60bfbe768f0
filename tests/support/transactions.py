"""A broker that is alone, on a real store in memory, with transactions begun and ended by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerd.members.streams import Answered
from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.settings import StoreSettings
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.records import GIVEN_UP_TOPIC, OP_TOPIC
from brokerd.transactions.settings import TransactionSettings
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import RequestError
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record, decode_record, decode_records
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_TRANSACTION_PREPARED
from remoting.record.properties import encode_properties
from remoting.settings import Live
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.open_guard import anybody_may
from tests.support.turns import Turns

HOST = pack_host("10.0.0.2", 10911)
CLIENT_HOST = pack_host("10.0.0.1", 40000)
STORE = StoreSettings(segment_size_bytes=65536, queue_file_units=64, max_record_bytes=8192)


class Producer:
    """A producer's connection: what it was asked, and whether it takes questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[Mapping[str, str], Record]] = []
        self.is_open = True

    def notify(self, code: int, ext: Mapping[str, str] | None = None, body: Bytes = b"") -> bool:
        assert code == codes.CHECK_TRANSACTION_STATE
        assert ext is not None
        if self.is_open:
            [record] = decode_records(body)
            self.asked.append((ext, record))
        return self.is_open


class Stream:
    """The telemetry stream of a gRPC producer: what it was asked, and whether it takes questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[Record, str]] = []
        self.is_open = True
        self.takes = True

    def recover_orphan(self, half: Record, transaction_id: str) -> bool:
        if self.takes:
            self.asked.append((half, transaction_id))
        return self.takes

    def verify_message(self, record: Record, timeout_ms: int, answered: Answered) -> None:
        raise AssertionError("producers consume nothing")

    def print_threads(self, timeout_ms: int, answered: Answered) -> None:
        raise AssertionError("nobody asks for threads")


class TransactionBroker(AloneBroker):
    """One broker; `producers` are who is connected, by group. `disk` may be one that another broker wrote."""

    def __init__(
        self,
        disk: MemoryDisk | None = None,
        turns: Turns | None = None,
        settings: TransactionSettings | None = None,
        role: Role = Role.MASTER,
    ) -> None:
        self.settings = settings or TransactionSettings()
        self.producers: dict[str, list[Producer]] = {}
        self.streams: dict[str, list[Stream]] = {}
        self._keys = 0
        super().__init__(
            disk or MemoryDisk(), turns or Turns(), STORE, HOST, clients=self, transactions=Live(self.settings)
        )
        self.service = self.core.transactions
        if role is Role.MASTER:
            self.replica.become(Role.MASTER)

    def producer_connections(self, group: str, _topic: str) -> Sequence[Producer]:
        return self.producers.get(group, [])

    def producer_streams(self, topic: str, _topic: str) -> Sequence[Stream]:
        return [stream for stream in self.streams.get(topic, []) if stream.is_open]

    def is_alive(self, _client_id: str) -> bool:
        return False

    def topic(self, name: str = "T", queues: int = 4) -> TransactionBroker:
        answers: list[object] = []
        self.core.metadata.put_topic(TopicConfig(name, queues, queues), answers.append)
        self.turns.run(10)
        assert answers == [None]
        return self

    def restart(self) -> TransactionBroker:
        """Stop in order; another broker starts on the disk."""
        self.core.close()
        self.core.store.close()
        return TransactionBroker(self.disk, self.turns, self.settings)

    # ---- what clients do

    def try_half(
        self, topic: str = "T", queue_id: int = 1, body: bytes = b"m", key: str = "", group: str = "pg", **more: Any
    ) -> SendOutcome:
        properties = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key or self._new_key(), "TAGS": "tag"}
        properties |= {name: str(value) for name, value in more.pop("properties", {}).items()}
        draft = Draft(
            topic,
            queue_id,
            body,
            encode_properties(properties),
            more.pop("born_timestamp_ms", self.turns.wall_ms()),
            CLIENT_HOST,
            sys_flag=more.pop("sys_flag", SYS_TRANSACTION_PREPARED),
            **more,
        )
        outcomes: list[SendOutcome] = []
        self.core.sender.send([draft], outcomes.extend)
        self.turns.run()
        [outcome] = outcomes
        return outcome

    def half(self, **given: Any) -> SendOutcome:
        """Begin a transaction."""
        outcome = self.try_half(**given)
        assert outcome.status is PutStatus.PUT_OK, outcome
        return outcome

    def end(
        self, half: SendOutcome, outcome: Outcome = Outcome.COMMIT, *, group: str = "pg", from_check: bool = False
    ) -> RequestError | None:
        """What the broker answers to a decision about what `half` names."""
        return self.decide(EndTransaction(group, half.queue_offset, half.physical_offset, outcome, from_check))

    def answer_check(
        self, question: Mapping[str, str], outcome: Outcome = Outcome.COMMIT, group: str = "pg"
    ) -> RequestError | None:
        """What a producer says when it was asked."""
        offsets = int(question["tranStateTableOffset"]), int(question["commitLogOffset"])
        return self.decide(EndTransaction(group, *offsets, outcome, from_check=True))

    def decide(self, request: EndTransaction) -> RequestError | None:
        answers: list[RequestError | None] = []
        self.service.end(request, answers.append, anybody_may)
        self.turns.run()
        [answer] = answers
        return answer

    def resume(self, physical_offset: int) -> RequestError | None:
        answers: list[RequestError | None] = []
        self.service.resume(physical_offset, answers.append, anybody_may)
        self.turns.run()
        [answer] = answers
        return answer

    # ---- what is there

    def records(self, topic: str = "T") -> list[Record]:
        """The messages of a topic that consumers see, queue by queue."""
        self.turns.run()
        store = self.core.store
        return [
            decode_record(encoded)
            for queue_id in store.queue_ids(topic)
            for encoded in store.read_messages(topic, queue_id, 0, 10_000, 1 << 30).records
        ]

    def bodies(self, topic: str = "T") -> list[bytes]:
        return [record.body for record in self.records(topic)]

    @property
    def halves(self) -> list[Record]:
        return self.records(HALF_TOPIC)

    @property
    def ops(self) -> list[Record]:
        return self.records(OP_TOPIC)

    @property
    def given_up(self) -> list[Record]:
        return self.records(GIVEN_UP_TOPIC)

    def look(self) -> None:
        """Let the time of one look at open transactions pass."""
        self.turns.run(self.settings.check_interval_ms)

    def _new_key(self) -> str:
        self._keys += 1
        return f"{self._keys:032d}"
