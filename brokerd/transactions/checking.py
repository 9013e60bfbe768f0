"""Looks after open transactions on the master: asks producers that have not decided, and gives up what nobody decides.

One look at all of them per interval. A check is a record first: the half message is appended again with its count, and when that
is acknowledged one producer of the group is asked about the new record. So the count survives every failure, and what waits
long moves along with the log. A check counts whether or not somebody was there to be asked, as in the original.

Producers of both protocols are asked in turn. Those of gRPC have no groups: a transaction that one began is of the group that is
named like its topic, and whoever publishes that topic is asked, also one that is connected to a replica.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.members.streams import CommandStream
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.transactions.decide import Due, decide_due
from brokerd.transactions.ids import SECRET_BYTES, TransactionId
from brokerd.transactions.records import PRODUCER_GROUP, SECRET, UNIQUE_KEY, Half, asked_about
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.topics import TransactionTopics
from remoting import codes
from remoting.errors import LogboomError
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record
from remoting.record.hosts import offset_message_id
from remoting.settings import Live
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_MAX_LOOKED_AT: Final = 1000  # in one turn of the loop
_MAX_RECORDS: Final = 128  # written again in one turn
_MAX_BYTES: Final = 4 << 20
_TRIES: Final = 3  # connections of a group, to find one that takes a request
_KNOWN_MS: Final = 100  # for so long who is connected is not looked up again: many may publish one topic


class Producers(Protocol):
    """Who is connected, of those who may publish a topic, so may see its messages: who says so is in any group."""

    def producer_connections(self, group: str, topic: str) -> Sequence[RemotingConnection]:
        """Of a producer group, over remoting."""

    def producer_streams(self, group: str, topic: str) -> Sequence[CommandStream]:
        """Over gRPC, whose producers' groups are named like the topics that they publish."""


class _Found(NamedTuple):
    """Who can be asked about the transactions of a group with messages of one topic."""

    streams: Sequence[CommandStream]
    connections: Sequence[RemotingConnection]


class CheckBack:
    """Runs between `start` and `stop`."""

    def __init__(
        self,
        topics: TransactionTopics,
        producers: Producers,
        broker_name: str,
        scheduler: Scheduler,
        settings: Live[TransactionSettings],
        move_up_bytes: int,
    ) -> None:
        """`move_up_bytes`: see `decide_due`."""
        self._topics = topics
        self._producers = producers
        self._broker_name = broker_name
        self._scheduler = scheduler
        self._settings = settings
        self._move_up_bytes = move_up_bytes
        self._timer: Timer | None = None
        self._left: list[int] = []  # of the present look, the last first
        self._look = 0  # which look it is; what belongs to an earlier one is dropped
        self._turn = 0
        self._found: dict[tuple[str, str], _Found] = {}
        self._found_at_ms = 0

    def start(self) -> None:
        self._arm()

    def stop(self) -> None:
        self._look += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- inside

    def _arm(self) -> None:
        self._timer = self._scheduler.call_later(self._settings.value.check_interval_ms / 1000, self._begin_look)

    def _begin_look(self) -> None:
        self._timer = None
        self._look += 1
        self._left = [half.first for half in self._topics.table]
        self._left.reverse()
        self._continue_look(self._look)

    def _continue_look(self, look: int) -> None:
        """A part of a look; the next one follows when what this one wrote is acknowledged."""

        def go_on(_status: PutStatus) -> None:
            self._scheduler.call_soon(self._continue_look, look)

        if look != self._look:
            return
        end_offset = None
        looked_at = records = size = 0
        try:
            while self._left and looked_at < _MAX_LOOKED_AT and records < _MAX_RECORDS and size < _MAX_BYTES:
                looked_at += 1
                half = self._topics.table.get(self._left.pop())
                if half is None:
                    continue
                place = self._handle_half(half)
                if place is not None:
                    end_offset = place.end_offset
                    records += 1
                    size += half.size
        except LogboomError as error:
            log.info("open transactions are looked at later: %s", error)
            self._left.clear()
        if not self._left:
            self._topics.commit_progress()
            self._arm()
        elif end_offset is None:
            self._scheduler.call_soon(self._continue_look, look)
        else:
            self._topics.log.when_acknowledged(end_offset, go_on)

    def _handle_half(self, half: Half) -> AppendResult | None:
        now_ms = self._topics.now_ms()
        half = self._topics.table.begun_by(half, now_ms)
        due = decide_due(half, now_ms, self._topics.log.end_offset, self._move_up_bytes, self._settings.value)
        if due is Due.NOTHING:
            return None
        record = self._topics.read(half.physical_offset)
        if record is None:
            log.error("the half message at %d cannot be read; it stays open", half.physical_offset)
            return None
        if due is Due.GIVE_UP:
            log.warning(
                "a transaction of %s was not decided in %d checks and is given up: %s",
                record.property_map().get(PRODUCER_GROUP),
                half.checks,
                half.unique_key,
            )
            return self._topics.give_up(half, record)
        if due is Due.MOVE_UP:
            return self._topics.replace(half, record, None)
        place = self._topics.replace(half, record, half.checks + 1, self._new_secret(record))
        look = self._look

        def acknowledged(status: PutStatus) -> None:
            if status is PutStatus.PUT_OK and look == self._look:
                self._ask(place.physical_offset)

        self._topics.log.when_acknowledged(place.end_offset, acknowledged)
        return place

    def _ask(self, physical_offset: int) -> None:
        """Send the question to one producer, the next in turn that takes it."""
        record = self._topics.read(physical_offset)
        if record is None:
            return
        found = self._ways_to_ask(record)
        self._turn += 1
        for attempt in range(min(_TRIES, len(found))):
            if found[(self._turn + attempt) % len(found)]():
                self._topics.counters.checks += 1
                return
        self._topics.counters.unasked += 1

    def _ways_to_ask(self, record: Record) -> list[Callable[[], bool]]:
        """One per producer; each says whether the question was sent. Without a secret nobody could answer over gRPC."""
        properties = record.property_map()
        group, secret = properties.get(PRODUCER_GROUP, ""), properties.get(SECRET, "")
        identity = ""
        if secret:
            identity = str(TransactionId(record.physical_offset, record.queue_offset, secret, self._broker_name))
        question = asked_about(record)
        streams, connections = self._find(group, question.topic)
        ext = self._question_ext(record, properties.get(UNIQUE_KEY, ""), identity) if connections else {}
        body = question.encode() if connections else b""
        return [
            *(partial(stream.recover_orphan, question, identity) for stream in streams if secret),
            *(partial(each.notify, codes.CHECK_TRANSACTION_STATE, ext, body) for each in connections),
        ]

    def _find(self, group: str, topic: str) -> _Found:
        now_ms = self._topics.now_ms()
        if abs(now_ms - self._found_at_ms) >= _KNOWN_MS:
            self._found.clear()
            self._found_at_ms = now_ms
        found = self._found.get((group, topic))
        if found is None:
            found = _Found(
                self._producers.producer_streams(group, topic), self._producers.producer_connections(group, topic)
            )
            self._found[group, topic] = found
        return found

    def _new_secret(self, record: Record) -> str | None:
        """A secret for a half message that was begun through a proxy of the original, which kept none: without one the producers,
        who are connected over gRPC only, could not be asked."""
        properties = record.property_map()
        if SECRET in properties:
            return None
        streams, connections = self._find(properties.get(PRODUCER_GROUP, ""), asked_about(record).topic)
        return secrets.token_hex(SECRET_BYTES) if streams and not connections else None

    def _question_ext(self, record: Record, unique_key: str, identity: str) -> Mapping[str, str]:
        """Clients give the transaction's id back as they were told it; it proves who began over gRPC."""
        return {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(record.queue_offset),
            "commitLogOffset": str(record.physical_offset),
            "msgId": unique_key,
            "transactionId": identity or unique_key,
            "offsetMsgId": offset_message_id(record.store_host, record.physical_offset),
            "bname": self._broker_name,
        }
