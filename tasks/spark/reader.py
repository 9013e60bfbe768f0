"""Ranges of queue offsets -> Arrow record batches, read from brokers over one socket each, and what is old from their tier.

The one reader behind every way to look at stored messages in bulk. It runs inside Spark's Python workers, so it imports neither
Django nor Celery. A master that moves in the middle is found again; records are trimmed to the range, whatever a broker answers.
Each answer becomes a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import pyarrow as pa

from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError, RequestError
from remoting.frame import Command
from tasks.spark import records
from tasks.spark.bulk_reads import Ahead, BulkReads
from tasks.spark.cluster import Cluster, Patience
from tasks.spark.cold import ColdRanges, Sized
from tasks.spark.meter import Meter, ReadFrom
from tasks.spark.planning import QueueRange


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
    turn: int = 0,
    cold: ColdRanges | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of all ranges, range by range in offset order. Tasks of different `turn` read from different replicas."""
    ahead = Ahead()

    def of_brokers(wanted: QueueRange, next_range: QueueRange | None = None) -> Iterator[Sized]:
        reads = BulkReads(cluster, wanted, turn, timeout_ms, ahead)
        for body in _read_all(cluster, wanted, next_range, reads, fail_on_data_loss):
            yield Sized(_batch(wanted, body, columns), len(body), ReadFrom.BROKERS)

    def decode(wanted: QueueRange, body: bytes) -> pa.RecordBatch:
        return _batch(wanted, body, columns)

    for each, next_range in zip_longest(ranges, ranges[1:]):
        for batch, size, read_from in (
            of_brokers(each, next_range) if cold is None else cold.read(each, columns, decode, of_brokers)
        ):
            if not batch.num_rows:
                continue
            if meter is not None:
                meter.add(batch.num_rows, size, read_from)
            yield batch


def _batch(wanted: QueueRange, body: Bytes, columns: Sequence[str]) -> pa.RecordBatch:
    """The records of the range that are in an answer. Raises ProtocolError, with the place, for what are none."""
    try:
        starts = records.scan(body)
        offsets = records.queue_offsets(body, starts)
        starts = starts[(offsets >= wanted.start) & (offsets < wanted.end)]
        return records.decode(body, starts, wanted.broker_name, columns)
    except ProtocolError as error:
        place = f"{wanted.topic}, {wanted.broker_name}, queue {wanted.queue_id}"
        raise ProtocolError(f"messages of {place} cannot be read: {error}") from error


def _read_all(
    cluster: Cluster, wanted: QueueRange, next_range: QueueRange | None, reads: BulkReads, fail_on_data_loss: bool
) -> Iterator[Bytes]:
    """The records of each answer until the range is read or known to be gone. `next_range` is read behind it."""
    offset = wanted.start
    patience: Patience | None = None
    while offset < wanted.end:
        answer = reads.at(offset)
        following = int(answer.ext["nextBeginOffset"])
        if answer.code == codes.SUCCESS:
            if following <= offset:
                raise ProtocolError(f"{wanted.broker_name} answers messages but does not go on from {offset}")
            if following < wanted.end:
                reads.ask_ahead(following)
            elif next_range is not None:
                reads.ask_for_next(next_range)
            yield answer.body
        elif answer.code == codes.PULL_OFFSET_MOVED or following <= offset:
            if offset >= int(answer.ext["maxOffset"]):
                # A master that was elected a moment ago shows its tail once its followers confirmed it.
                patience = patience or cluster.patience()
                if patience.wait():
                    continue
            following = _after_gap(wanted, offset, answer, fail_on_data_loss)
        patience = None
        offset = following


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
