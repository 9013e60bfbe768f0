"""Asks another broker of the group for a range of the log that is damaged here: READ_LOG_RANGE, from the asker's side.

What comes back is what the master wrote there, or an error: both ends proved themselves, both logs have the range from the same
master epoch, every record passed its checks there and here, and the bytes end exactly where the range does. Nobody's role, queues
or positions are touched; whoever asks decides what to do with the bytes.

Users: a running broker, which writes them over what is damaged (`repairer`); and a start that found its log suspect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerd.repair.log_range import Found, check_answer, check_records, encode_question, question_of
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.store.log.derive import RecordShape
from remoting import codes
from remoting.errors import ProtocolError
from remoting.transport.client import RemotingClient

MOST_RANGE_BYTES: Final = 64 << 20
_TIMEOUT_MS: Final = 5000


@dataclass(frozen=True, slots=True)
class Asking:
    """As whom a broker asks: `group` is `cluster#brokerName`, `key` the cluster's secret, `nonce` draws 32 unguessable bytes."""

    client: RemotingClient
    group: bytes
    key: bytes = field(repr=False)
    nonce: Callable[[], bytes] = field(repr=False)


async def fetch_range(
    asking: Asking, peer: str, start: int, end: int, *, shape: RecordShape, epochs: Sequence[EpochEntry]
) -> bytes:
    """What belongs at `[start, end)` of this log, as the broker at the remoting address `peer` (host:port) has it.

    `start` is a record boundary of this log, `end` where the next intact record begins, or the file, or the log ends; both are
    physical offsets of one file, at most `MOST_RANGE_BYTES` apart. `epochs` are this log's own epoch entries, oldest first, and
    `shape` is its records' (`CommitLog.shape`).

    Returns whole records and fillers, `end - start` bytes, to be written at `start`. Only a filler at the end of its file is
    given as its first 8 bytes, and the result is shorter by the rest, which nobody reads.

    Raises LogboomError, and then nothing of the range is known: ConnectionLost and RequestTimeout when the peer does not answer;
    RequestError with the peer's reason (it does not have the range, or from another epoch; it is damaged there, too; its records
    do not end where the range does; this broker did not prove itself); ProtocolError for an answer that is not what was asked
    for; NoCommonEpoch when this log knows no epoch for the range.
    """
    assert end - start <= MOST_RANGE_BYTES, "a range of that size is fetched in pieces"
    return b"".join([piece async for _, piece in fetch_pieces(asking, peer, start, end, shape=shape, epochs=epochs)])


async def fetch_pieces(
    asking: Asking, peer: str, start: int, end: int, *, shape: RecordShape, epochs: Sequence[EpochEntry]
) -> AsyncIterator[tuple[int, bytes]]:
    """The same as it comes, of a range of any size: (offset, whole records to be written there), without a hole. Raises likewise,
    perhaps behind some pieces, which are right all the same."""
    while start < end:
        question = question_of(start, end, epochs, asking.nonce())
        response = await asking.client.call(
            peer,
            codes.READ_LOG_RANGE,
            encode_question(asking.key, asking.group, question),
            timeout_ms=_TIMEOUT_MS,
        )
        try:
            found = Found(bytes(response.body), int(response.ext["nextOffset"]))
            proof = bytes.fromhex(response.ext["proof"])
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"{peer} gave no range of the log: {error}") from error
        check_answer(asking.key, asking.group, question, found, proof)
        check_records(question, found, shape)
        yield start, found.content
        start = found.next_offset
