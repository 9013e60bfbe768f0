"""Looks after open transactions on the master: asks producers that have not decided, and gives up what nobody decides.

One look at all of them per interval. A check is a record first: the half message is appended again with its count, and when that
is acknowledged one producer of the group is asked about the new record. So the count survives every failure, and what waits
long moves along with the log. A check counts whether or not somebody was there to be asked, as in the original.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from brokerd.loop.scheduler import Scheduler, Timer
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.transactions.decide import Due, decide_due
from brokerd.transactions.records import HALF_TOPIC, PRODUCER_GROUP, UNIQUE_KEY, Half, check_body
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.topics import TransactionTopics
from remoting import codes
from remoting.errors import LogboomError
from remoting.record.hosts import offset_message_id
from remoting.settings import Live
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_MAX_LOOKED_AT: Final = 1000  # in one turn of the loop
_MAX_RECORDS: Final = 128  # written again in one turn
_MAX_BYTES: Final = 4 << 20
_TRIES: Final = 3  # connections of a group, to find one that takes a request


class Producers(Protocol):
    """Who is connected."""

    def producer_connections(self, group: str) -> Sequence[RemotingConnection]: ...


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
        due = decide_due(
            half, self._topics.now_ms(), self._topics.log.end_offset, self._move_up_bytes, self._settings.value
        )
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
        place = self._topics.replace(half, record, half.checks + 1)
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
        properties = record.property_map()
        unique_key = properties.get(UNIQUE_KEY, "")
        ext = {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(record.queue_offset),
            "commitLogOffset": str(record.physical_offset),
            "msgId": unique_key,
            "transactionId": unique_key,
            "offsetMsgId": offset_message_id(record.store_host, record.physical_offset),
            "bname": self._broker_name,
        }
        body = check_body(record)
        found = self._producers.producer_connections(properties.get(PRODUCER_GROUP, ""))
        self._turn += 1
        for attempt in range(min(_TRIES, len(found))):
            if found[(self._turn + attempt) % len(found)].notify(codes.CHECK_TRANSACTION_STATE, ext, body):
                self._topics.counters.checks += 1
                return
        self._topics.counters.unasked += 1
