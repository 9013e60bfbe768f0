"""Remoting clients that record every operation: producers, a consumer that pulls and commits offsets, one that pops and acks."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from brokerd.pop.copies import retry_target
from brokerd.pop.handles import ReceiptHandle, decode_handle
from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.record.codec import Record, decode_records
from remoting.record.properties import encode_properties
from tests.chaos.addresses import node_at
from tests.chaos.daemons import GROUP
from tests.chaos.history import Delivery, History, Kind, Operation, Outcome, body_of, message_name
from tests.chaos.observer import Route
from tests.chaos.seat import Seat

TOPIC: Final = "Orders"
QUEUES: Final = 4
PULL_GROUP: Final = "pulling"
POP_GROUP: Final = "popping"

SEND_TIMEOUT_MS: Final = 1500
_TIMEOUT_MS: Final = 1500
PAUSE_S: Final = 0.004  # between two sends of a producer
_PAUSE_AFTER_FAILURE_S: Final = 0.02
_INVISIBLE_MS: Final = 5_000
_POLL_MS: Final = 500
_BATCH: Final = 32
_POPPED: Final = 8  # acked one by one: it has to ask again within a short fault, on a machine that is busy as well
_KEYS: Final = 3  # of each producer
_UNKNOWN_CODES: Final = (codes.FLUSH_DISK_TIMEOUT, codes.SLAVE_NOT_AVAILABLE, codes.FLUSH_SLAVE_TIMEOUT)
_NOTHING_CODES: Final = (codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)


def send_fields(name: str, key: str, queue_id: int) -> dict[str, str]:
    """The header of a send of one message to one queue of the topic."""
    properties = {"KEYS": key, "UNIQ_KEY": name, "SHARDING": key}
    return {
        **{"a": "chaos", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0"},
        **{"g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(properties).decode()},
        **{"j": "0", "k": "false", "m": "false"},
    }


def outcome_of(answer: Command) -> Outcome:
    """What an answer to a send means: codes 10, 11 and 12 leave open whether the message survives."""
    if answer.code == codes.SUCCESS:
        return Outcome.OK
    # the role changed while the message waited: it says so in words, under a code that also refuses
    return Outcome.UNKNOWN if answer.code in _UNKNOWN_CODES or "is unknown" in (answer.remark or "") else Outcome.FAILED


class Client(threading.Thread):
    """Repeats `step` until stopped; can be paused between two steps."""

    def __init__(self, name: str, history: History, brokers: Sequence[str], route: Callable[[], Route]) -> None:
        super().__init__(name=name, daemon=True)
        self.history = history
        self.seat = Seat(brokers, route)
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._idle = threading.Event()
        self._running.set()

    def pause(self) -> None:
        """Begin nothing new; returns when what was begun has ended."""
        self._running.clear()
        assert self._idle.wait(30), f"{self.name} hangs"

    def go_on(self) -> None:
        self._idle.clear()
        self._running.set()

    def stop(self) -> None:
        self._stopping.set()
        self._running.set()

    def finish(self) -> None:
        """After `stop`: wait until it ended; raises what ended it before its time."""
        self.join(30)
        assert not self.is_alive(), f"{self.name} hangs"
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._running.is_set():
                    self._idle.set()
                    self._running.wait()
                    continue
                connection = self.seat.connection()
                if connection is None:
                    self._stopping.wait(_PAUSE_AFTER_FAILURE_S)
                else:
                    self.step(connection)
        except BaseException as error:  # noqa: BLE001 - kept for `finish`, which raises it in the thread that asks
            self.failure = error
        finally:
            self._idle.set()
            self.seat.leave()

    def step(self, connection: SocketConnection) -> None:
        raise NotImplementedError

    def rest(self, seconds: float) -> None:
        self._stopping.wait(seconds)

    def record(
        self, kind: Kind, start_s: float, outcome: Outcome, connection: SocketConnection, **more: object
    ) -> None:
        operation = Operation(self.name, kind, start_s, time.monotonic(), outcome, node_at(connection.address))
        self.history.operations.append(operation._replace(**more))  # type: ignore[arg-type]

    def ask(
        self,
        kind: Kind,
        connection: SocketConnection,
        code: int,
        ext: Mapping[str, str],
        accept: tuple[int, ...],
        **more: object,
    ) -> Command | None:
        """A request whose failures are recorded; None after one."""
        start_s = time.monotonic()
        try:
            return connection.call(code, ext, timeout_ms=_TIMEOUT_MS, accept=accept)
        except RequestError as error:
            self.record(kind, start_s, Outcome.FAILED, connection, detail=f"{error.code} {error.message}", **more)
            self.seat.failed(was_silent=False)
        except (ConnectionLost, RequestTimeout) as error:
            self.record(kind, start_s, Outcome.UNKNOWN, connection, detail=str(error), **more)
            self.seat.failed(was_silent=isinstance(error, RequestTimeout))
        self.rest(_PAUSE_AFTER_FAILURE_S)
        return None


class Producer(Client):
    """One send in flight. Each key has its queue and its own numbering; a message is never sent twice."""

    def __init__(
        self, name: str, history: History, brokers: Sequence[str], route: Callable[[], Route], pause_s: float = PAUSE_S
    ) -> None:
        super().__init__(name, history, brokers, route)
        self._pause_s = pause_s
        self._keys = [f"{name}k{n}" for n in range(_KEYS)]
        self._sent = 0

    def step(self, connection: SocketConnection) -> None:
        number, key = self._sent // len(self._keys), self._keys[self._sent % len(self._keys)]
        queue_id = self._keys.index(key) % QUEUES
        self._sent += 1
        name = message_name(self.name, key, number)
        start_s = time.monotonic()
        silent = False
        try:
            answer = connection.call(
                codes.SEND_MESSAGE_V2,
                send_fields(name, key, queue_id),
                body_of(name),
                timeout_ms=SEND_TIMEOUT_MS,
                accept=(codes.SUCCESS, *_UNKNOWN_CODES),
            )
        except RequestError as error:
            unknown = "is unknown" in error.message  # the role changed while the message waited
            outcome, detail = Outcome.UNKNOWN if unknown else Outcome.FAILED, f"{error.code} {error.message}"
        except (ConnectionLost, RequestTimeout) as error:
            outcome, detail, silent = Outcome.UNKNOWN, str(error), isinstance(error, RequestTimeout)
        else:
            outcome, detail = (
                outcome_of(answer),
                "" if answer.code == codes.SUCCESS else f"{answer.code} {answer.remark}",
            )
            if outcome is Outcome.OK:
                assert int(answer.ext["queueId"]) == queue_id
                offset = int(answer.ext["queueOffset"])
                self.record(Kind.SEND, start_s, outcome, connection, message=name, queue_id=queue_id, value=offset)
                self.rest(self._pause_s)
                return
        self.record(Kind.SEND, start_s, outcome, connection, message=name, queue_id=queue_id, detail=detail)
        self.seat.failed(was_silent=silent)
        self.rest(_PAUSE_AFTER_FAILURE_S)


class PullConsumer(Client):
    """Goes through all queues; commits how far it came after each batch. After any failure it starts from what is committed."""

    def __init__(self, name: str, history: History, brokers: Sequence[str], route: Callable[[], Route]) -> None:
        super().__init__(name, history, brokers, route)
        self._next: dict[int, int] = {}
        self._turns = deque(range(QUEUES))
        self._empty = 0
        # (start, end, queue, offset) of committed offsets that somebody told who may not be the master
        self._asked: list[tuple[float, float, int, int]] = []
        self._asked_on: SocketConnection | None = None

    def step(self, connection: SocketConnection) -> None:
        if connection is not self._asked_on:
            self._start_over()
            self._asked_on = connection
        self._turns.rotate(-1)
        queue_id = self._turns[0]
        queue = {"consumerGroup": PULL_GROUP, "topic": TOPIC, "queueId": str(queue_id)}
        if queue_id not in self._next and not self._ask_committed(connection, queue_id, queue):
            return
        ext = queue | {
            **{
                "queueOffset": str(self._next[queue_id]),
                "maxMsgNums": str(_BATCH),
                "sysFlag": "4",
                "commitOffset": "0",
            },
            **{"suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0", "expressionType": "TAG"},
        }
        start_s = time.monotonic()
        answer = self.ask(
            Kind.PULL, connection, codes.PULL_MESSAGE, ext, (codes.SUCCESS, *_NOTHING_CODES), queue_id=queue_id
        )
        if answer is None:
            self._start_over()
            return
        records = list(decode_records(answer.body)) if answer.code == codes.SUCCESS else []
        self.record(Kind.PULL, start_s, Outcome.OK, connection, queue_id=queue_id, value=len(records))
        self._deliver(start_s, records)
        self._next[queue_id] = int(answer.ext["nextBeginOffset"])
        if records:
            self._empty = 0
            self._commit(connection, queue_id, queue)
        else:
            self._empty += 1
            self.rest(0.03 if self._empty >= QUEUES else 0)

    def _start_over(self) -> None:
        self._next.clear()
        self._asked.clear()

    def _confirm(self, connection: SocketConnection) -> None:
        """A broker that takes commits is the master; a replica answers for offsets too, but may not know the newest."""
        for start_s, end_s, queue_id, offset in self._asked:
            asked = Operation(self.name, Kind.COMMITTED, start_s, end_s, Outcome.OK, node_at(connection.address))
            self.history.operations.append(asked._replace(queue_id=queue_id, value=offset))
        self._asked.clear()

    def _deliver(self, start_s: float, records: Sequence[Record]) -> None:
        now_s = time.monotonic()
        self.history.deliveries += [
            Delivery(self.name, start_s, now_s, record.body, record.queue_id, record.queue_offset) for record in records
        ]

    def _ask_committed(self, connection: SocketConnection, queue_id: int, queue: Mapping[str, str]) -> bool:
        start_s = time.monotonic()
        answer = self.ask(
            Kind.COMMITTED,
            connection,
            codes.QUERY_CONSUMER_OFFSET,
            queue,
            (codes.SUCCESS, codes.QUERY_NOT_FOUND),
            queue_id=queue_id,
        )
        if answer is None:
            self._start_over()
            return False
        offset = int(answer.ext["offset"]) if answer.code == codes.SUCCESS else 0
        self._next[queue_id] = offset
        self._asked.append((start_s, time.monotonic(), queue_id, offset))
        return True

    def _commit(self, connection: SocketConnection, queue_id: int, queue: Mapping[str, str]) -> None:
        offset = self._next[queue_id]
        start_s = time.monotonic()
        ext = {**queue, "commitOffset": str(offset)}
        more = {"queue_id": queue_id, "value": offset}
        if self.ask(Kind.COMMIT, connection, codes.UPDATE_CONSUMER_OFFSET, ext, (codes.SUCCESS,), **more) is None:
            self._start_over()
        else:
            self._confirm(connection)
            self.record(Kind.COMMIT, start_s, Outcome.OK, connection, **more)


class PopConsumer(Client):
    """Takes batches and acks every message of them, one by one."""

    def step(self, connection: SocketConnection) -> None:
        ext = {
            **{
                "consumerGroup": POP_GROUP,
                "topic": TOPIC,
                "queueId": "-1",
                "maxMsgNums": str(_POPPED),
                "initMode": "0",
            },
            **{"invisibleTime": str(_INVISIBLE_MS), "pollTime": str(_POLL_MS)},
            "bornTime": str(time.time_ns() // 1_000_000),
        }
        start_s = time.monotonic()
        accept = (codes.SUCCESS, codes.POLLING_TIMEOUT, codes.POLLING_FULL)
        answer = self.ask(Kind.POP, connection, codes.POP_MESSAGE, ext, accept)
        if answer is None:
            return
        records = list(decode_records(answer.body)) if answer.code == codes.SUCCESS else []
        self.record(Kind.POP, start_s, Outcome.OK, connection, value=len(records))
        now_s = time.monotonic()
        self.history.deliveries += [
            Delivery(self.name, start_s, now_s, each.body, each.queue_id, each.queue_offset) for each in records
        ]
        if not records:
            self.rest(0.02)
        for record, handle in zip(records, handles_of(records, answer.ext), strict=True):
            if not self._ack(connection, record, handle):
                return

    def _ack(self, connection: SocketConnection, record: Record, handle: ReceiptHandle) -> bool:
        stored = retry_target(POP_GROUP, TOPIC) if handle.retry_flag else TOPIC
        ext = {
            **{"consumerGroup": POP_GROUP, "topic": stored, "queueId": str(handle.queue_id)},
            **{"extraInfo": handle.encode(), "offset": str(handle.queue_offset)},
        }
        start_s = time.monotonic()
        name = record.property_map().get("UNIQ_KEY", "")
        try:
            connection.call(codes.ACK_MESSAGE, ext, timeout_ms=_TIMEOUT_MS)
        except RequestError as error:
            self.record(
                Kind.ACK, start_s, Outcome.FAILED, connection, message=name, detail=f"{error.code} {error.message}"
            )
            if error.code in (codes.MESSAGE_ILLEGAL, codes.NO_MESSAGE):  # the handle is no longer good: it comes again
                return True
            self.seat.failed(was_silent=False)
            return False
        except LogboomError as error:
            self.record(Kind.ACK, start_s, Outcome.UNKNOWN, connection, message=name, detail=str(error))
            self.seat.failed(was_silent=isinstance(error, RequestTimeout))
            return False
        self.record(Kind.ACK, start_s, Outcome.OK, connection, message=name)
        return True


def handles_of(records: Sequence[Record], ext: Mapping[str, str]) -> list[ReceiptHandle]:
    """The handles of popped messages, in their order: from the header, as clients do, or from a returned message's property."""
    if not records:
        return []
    starts = dict(entry.rsplit(" ", 1) for entry in ext["startOffsetInfo"].split(";"))
    handles = []
    for record in records:
        returned = record.property_map().get("POP_CK")
        if returned is not None:
            handle = decode_handle(returned)
            assert handle is not None, f"a returned message has the handle {returned!r}"
        else:
            start = int(starts[f"0 {record.queue_id}"])
            times = int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"])
            handle = ReceiptHandle(start, *times, 0, GROUP, record.queue_id, record.queue_offset)
        handles.append(handle)
    return handles
