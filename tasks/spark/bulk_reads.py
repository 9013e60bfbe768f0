"""The answers to reads in bulk of one queue, one always on its way while the one before is used.

A replica that is in sync is asked first, so that reports leave masters to those who send. What it does not have, refuses, or
cannot say any more, its master is asked for from the same offset on, and from then on the master alone: an answer is taken whole
or not at all, so nothing is read twice and nothing left out. A master that does not know reads in bulk, as of an earlier version
or of Apache RocketMQ, is asked by pulls: slower, and the same otherwise.
"""

from __future__ import annotations

import logging
from typing import Final

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from tasks.spark.cluster import Cluster
from tasks.spark.planning import QueueRange

log = logging.getLogger(__name__)

READER_GROUP: Final = "TOOLS_CONSUMER"
MESSAGES: Final = 16_384  # asked for at once: the broker's limits are lower
BYTES: Final = 4 << 20
_PULL: Final = {  # what a pull has to say besides
    "sysFlag": "4",  # the subscription is in the request
    "subscription": "*",
    "expressionType": "TAG",
    "subVersion": "0",
    "commitOffset": "0",
    "suspendTimeoutMillis": "0",
}
_ANSWERS: Final = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)


class Ahead:
    """What a reader of ranges asked a broker for and did not wait for yet: an offset of one of his ranges."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        self._asked: tuple[SocketConnection, QueueRange, int] | None = None

    def note(self, connection: SocketConnection, wanted: QueueRange, offset: int) -> None:
        self._asked = connection, wanted, offset

    def take(self, connection: SocketConnection, wanted: QueueRange, offset: int) -> bool:
        """Whether it was that; nothing is asked for any more."""
        asked, self._asked = self._asked, None
        return asked == (connection, wanted, offset)


class BulkReads:
    """Reads of one range. With `turn`, a number, tasks take replicas in turn. Reads of a row of ranges share `ahead`."""

    def __init__(
        self, cluster: Cluster, wanted: QueueRange, turn: int, timeout_ms: int, ahead: Ahead | None = None
    ) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._timeout_ms = timeout_ms
        self._ahead = ahead or Ahead()
        self._last: SocketConnection | None = None
        self._code = codes.BULK_READ
        self._replica = self._chosen(turn)

    def at(self, offset: int) -> Command:
        """The answer for an offset: records of it and those behind it, or the master's word why there are none.

        Raises LogboomError when the master refuses, or is away for longer than the cluster's patience.
        """
        if self._replica is not None:
            answer = self._of_replica(self._replica, offset)
            if answer is not None:
                return answer
            self._replica = None
        return self._cluster.ask_master(
            self._wanted.topic, self._wanted.broker_name, lambda master: self._of_master(master, offset)
        )

    def ask_ahead(self, offset: int) -> None:
        """Ask whoever answered last for what is at the offset, and do not wait."""
        self._ask_last(self._wanted, offset)

    def ask_for_next(self, wanted: QueueRange) -> None:
        """The same of the range that is read behind this one."""
        if wanted.broker_name == self._wanted.broker_name and wanted.size > 0:
            self._ask_last(wanted, wanted.start)

    def _ask_last(self, wanted: QueueRange, offset: int) -> None:
        if self._last is None:
            return
        try:
            self._ask(self._last, wanted, offset)
        except LogboomError as error:  # who asks at the offset finds out what that means
            log.debug("%s was not asked ahead: %s", self._last.address, error)
        else:
            self._ahead.note(self._last, wanted, offset)

    def _chosen(self, turn: int) -> str | None:
        try:
            replicas = self._cluster.replicas(self._wanted.topic, self._wanted.broker_name)
        except LogboomError as error:  # the master is waited for, replicas are not
            log.info("the replicas of %s are not known: %s", self._wanted.broker_name, error)
            return None
        return replicas[turn % len(replicas)] if replicas else None

    def _of_replica(self, address: str, offset: int) -> Command | None:
        """The replica's records, None when it has none to give."""
        try:
            answer = self._answer(self._cluster.connection(address), offset)
        except LogboomError as error:
            log.info("%s is read from its master: %s", self._wanted, error)
            self._cluster.avoid(address)
            return None
        return answer if answer.code == codes.SUCCESS else None

    def _of_master(self, master: SocketConnection, offset: int) -> Command:
        try:
            return self._answer(master, offset)
        except RequestError as error:
            if error.code != codes.REQUEST_CODE_NOT_SUPPORTED or self._code == codes.PULL_MESSAGE:
                raise
        log.info("%s does not know reads in bulk: its messages are pulled", master.address)
        self._code = codes.PULL_MESSAGE
        return self._answer(master, offset)

    def _answer(self, connection: SocketConnection, offset: int) -> Command:
        self._last = connection
        if not self._ahead.take(connection, self._wanted, offset):
            self._ask(connection, self._wanted, offset)
        return connection.answer(timeout_ms=self._timeout_ms, accept=_ANSWERS)

    def _ask(self, connection: SocketConnection, wanted: QueueRange, offset: int) -> None:
        ext = {
            "consumerGroup": READER_GROUP,
            "topic": wanted.topic,
            "queueId": str(wanted.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(min(MESSAGES, wanted.end - offset)),
            "maxMsgBytes": str(BYTES),
        }
        if self._code == codes.PULL_MESSAGE:
            ext |= _PULL
        connection.ask(self._code, ext, timeout_ms=self._timeout_ms)
