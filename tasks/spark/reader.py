"""Ranges of queue offsets -> Arrow record batches, read from brokers over one socket each.

The one reader behind every way to look at stored messages in bulk. It runs inside Spark's Python workers, so it imports neither
Django nor Celery. A master that moves in the middle is found again; records are trimmed to the range, whatever a broker answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.errors import ProtocolError, RequestError
from remoting.frame import Command
from tasks.spark import records
from tasks.spark.cluster import Cluster, Patience
from tasks.spark.meter import Meter
from tasks.spark.planning import QueueRange

READER_GROUP: Final = "TOOLS_CONSUMER"
BATCH_ROWS: Final = 8192
BATCH_BYTES: Final = 8 * 1024 * 1024
PULL_COUNT: Final = 1024
_SUBSCRIPTION_INCLUDED: Final = 4
_ANSWERS: Final = (codes.SUCCESS, codes.PULL_NOT_FOUND, codes.PULL_RETRY_IMMEDIATELY, codes.PULL_OFFSET_MOVED)


class DataLoss(RequestError):
    """Messages of the range are gone, and the reader was told to fail then."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.PULL_OFFSET_MOVED, f"{message}; set failOnDataLoss=false to skip them")


def read_ranges(
    cluster: Cluster,
    ranges: Sequence[QueueRange],
    columns: Sequence[str],
    *,
    fail_on_data_loss: bool = True,
    timeout_ms: int = 10_000,
    meter: Meter | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of all ranges, range by range in offset order."""
    for each in ranges:
        for body in _gather(_pull_all(cluster, each, fail_on_data_loss, timeout_ms)):
            starts = records.scan(body)
            offsets = records.queue_offsets(body, starts)
            starts = starts[(offsets >= each.start) & (offsets < each.end)]
            if not len(starts):
                continue
            if meter is not None:
                meter.add(len(starts), len(body))
            yield records.decode(body, starts, each.broker_name, columns)


def _gather(bodies: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
    """Join small answers: decoding has a cost per batch, brokers answer a few dozen records at a time."""
    parts: list[bytes] = []
    size = rows = 0
    for body, covered in bodies:
        parts.append(body)
        size += len(body)
        rows += covered
        if size >= BATCH_BYTES or rows >= BATCH_ROWS:
            yield b"".join(parts)
            parts, size, rows = [], 0, 0
    if parts:
        yield b"".join(parts)


def _pull_all(
    cluster: Cluster, wanted: QueueRange, fail_on_data_loss: bool, timeout_ms: int
) -> Iterator[tuple[bytes, int]]:
    """(records, offsets covered) of each answer until the range is read or known to be gone."""
    offset = wanted.start
    patience: Patience | None = None
    while offset < wanted.end:
        answer = _pull(cluster, wanted, offset, timeout_ms)
        following = int(answer.ext["nextBeginOffset"])
        if answer.code == codes.SUCCESS:
            if following <= offset:
                raise ProtocolError(f"{wanted.broker_name} answers messages but does not go on from {offset}")
            yield bytes(answer.body), following - offset
        elif answer.code == codes.PULL_OFFSET_MOVED or following <= offset:
            if offset >= int(answer.ext["maxOffset"]):
                # A master that was elected a moment ago shows its tail once its followers confirmed it.
                patience = patience or cluster.patience()
                if patience.wait():
                    continue
            following = _after_gap(wanted, offset, answer, fail_on_data_loss)
        patience = None
        offset = following


def _pull(cluster: Cluster, wanted: QueueRange, offset: int, timeout_ms: int) -> Command:
    ext = {
        "consumerGroup": READER_GROUP,
        "topic": wanted.topic,
        "queueId": str(wanted.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(min(PULL_COUNT, wanted.end - offset)),
        "sysFlag": str(_SUBSCRIPTION_INCLUDED),
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }

    def ask(master: SocketConnection) -> Command:
        return master.call(codes.PULL_MESSAGE, ext, timeout_ms=timeout_ms, accept=_ANSWERS)

    return cluster.ask_master(wanted.topic, wanted.broker_name, ask)


def _after_gap(wanted: QueueRange, offset: int, answer: Command, fail_on_data_loss: bool) -> int:
    """Where to go on when the broker has no message at `offset` though the range was there when it was planned."""
    low, high = int(answer.ext["minOffset"]), int(answer.ext["maxOffset"])
    where = f"{wanted.topic}, {wanted.broker_name}, queue {wanted.queue_id}"
    if offset < low:
        if fail_on_data_loss:
            raise DataLoss(
                f"messages {offset} to {min(low, wanted.end)} of {where} were removed while they were to be read"
            )
        return low
    if fail_on_data_loss:
        raise DataLoss(f"{where} ends at {high}, but messages up to {wanted.end} were there when the read was planned")
    return wanted.end
