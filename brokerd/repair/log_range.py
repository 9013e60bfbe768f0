"""A range of the log that one broker asks of another one: what is said, how both sides prove themselves, what is checked (pure).

    asker -> answerer   start, end, the epoch that wrote the range's last byte and where that epoch begins, 32 random bytes,
                        HMAC-SHA256 under the cluster's secret over all of it and the group's name
    answerer -> asker   whole records from `start` on, `nextOffset` where the next one starts,
                        HMAC-SHA256 under the same secret over the question, `nextOffset` and the records

Two logs that both have an entry (epoch, start offset) are byte for byte the same up to the nearer one of that epoch's two ends
(`replication/epochs/epoch_list.py`), and both sides check that the range ends before it. So what comes is what was here, and the
records' own checks (`RecordShape.checked`) say, on both sides, that no disk has changed it there.

A filler is given as its first 8 bytes: what is behind them in its file is read by nobody. A range lies in one file.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.store.log.derive import RecordShape, derive
from brokerd.store.log.layout import file_start
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import InvalidParameter, ProtocolError, RequestError
from remoting.record.codec import encode_filler
from remoting.record.layout import BORDER, FILLER_BYTES
from remoting.record.walk import Stop, walk

NONCE_BYTES: Final = 32
# Small records of one answer: so many take a few milliseconds to check. A record that is larger is an answer of its own.
MOST_ANSWER_BYTES: Final = 1 << 16
_PLACE: Final = struct.Struct(">qqqq")
_OFFSET: Final = struct.Struct(">q")
_MAX_OFFSET: Final = (1 << 63) - 1

Read = Callable[[int, int], bytes]  # up to so many bytes at an offset of the log, never across a file's end


class Question(NamedTuple):
    """The records of `[start, end)`, of a log in which `epoch` wrote the byte before `end`."""

    start: int
    end: int
    epoch: EpochEntry
    nonce: bytes


@dataclass(frozen=True, slots=True)
class Holding:
    """What the asked broker has: `[begin, end)` of the log are durable, whole records, written by these epochs."""

    read: Read
    begin: int
    end: int
    shape: RecordShape
    epochs: Sequence[EpochEntry]


class Found(NamedTuple):
    """Records back to back, and where the next one starts; behind a filler's first 8 bytes that is the next file."""

    content: bytes
    next_offset: int


class NoCommonEpoch(ProtocolError):
    """This log does not know which epoch wrote the range, so nobody can be asked for it."""


def question_of(start: int, end: int, epochs: Sequence[EpochEntry], nonce: bytes) -> Question:
    """What to ask for a range of a log that these epochs wrote. Raises NoCommonEpoch."""
    assert start < end, "a range is not empty"
    found = EpochList(epochs).find(end - 1)
    if found is None:
        raise NoCommonEpoch(f"no epoch of this log is known at offset {end - 1}")
    return Question(start, end, found[0], nonce)


# ---- on the wire


def encode_question(key: bytes, group: bytes, question: Question) -> dict[str, str]:
    """The fields of the request."""
    start, end, epoch, nonce = question
    return {
        "startOffset": str(start),
        "endOffset": str(end),
        "masterEpoch": str(epoch.epoch),
        "epochStartOffset": str(epoch.start_offset),
        "nonce": nonce.hex(),
        "proof": _question_proof(key, group, question).hex(),
    }


def decode_question(ext: Mapping[str, str]) -> tuple[Question, bytes]:
    """The question, and its proof. Raises InvalidParameter."""
    start, end, epoch, epoch_start = (
        _number(ext, name) for name in ("startOffset", "endOffset", "masterEpoch", "epochStartOffset")
    )
    try:
        nonce, proof = bytes.fromhex(ext["nonce"]), bytes.fromhex(ext["proof"])
    except (KeyError, ValueError) as error:
        raise InvalidParameter("the fields nonce and proof must be hexadecimal digits") from error
    if start >= end or len(nonce) != NONCE_BYTES:
        raise InvalidParameter(f"startOffset must be below endOffset, and nonce have {NONCE_BYTES} bytes")
    return Question(start, end, EpochEntry(epoch, epoch_start), nonce), proof


def key_of(keys: Sequence[bytes], group: bytes, question: Question, proof: bytes) -> bytes:
    """The secret that the asker proved to know; takes the same time whatever the proof is. Raises RequestError NO_PERMISSION."""
    known = [key for key in keys if hmac.compare_digest(_question_proof(key, group, question), proof)]
    if not known:
        raise RequestError(
            codes.NO_PERMISSION,
            "ranges of the log are for brokers of this group alone, which know this cluster's secret",
        )
    return known[0]


def prove_answer(key: bytes, group: bytes, question: Question, found: Found) -> bytes:
    """What shows that the answer is to this question, and of somebody who knows the secret."""
    return hmac.digest(
        key, b"log range given" + _said(group, question) + _OFFSET.pack(found.next_offset) + found.content, "sha256"
    )


def check_answer(key: bytes, group: bytes, question: Question, found: Found, proof: bytes) -> None:
    """Raise ProtocolError unless the answer is to this question and of somebody who knows the secret."""
    if not hmac.compare_digest(prove_answer(key, group, question, found), proof):
        raise ProtocolError("the answer is not of a broker that knows this cluster's secret")


def _question_proof(key: bytes, group: bytes, question: Question) -> bytes:
    return hmac.digest(key, b"log range asked" + _said(group, question), "sha256")


def _said(group: bytes, question: Question) -> bytes:
    start, end, epoch, nonce = question
    return nonce + _PLACE.pack(start, end, epoch.epoch, epoch.start_offset) + group


def _number(ext: Mapping[str, str], name: str) -> int:
    text = ext.get(name, "")
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or int(text) > _MAX_OFFSET:
        raise InvalidParameter(f"the field {name} must be a number from 0 to {_MAX_OFFSET}")
    return int(text)


# ---- on the asked broker


def answer(question: Question, holding: Holding) -> Found:
    """The records from the range's start on, about `MOST_ANSWER_BYTES` of them, at least one. Raises RequestError when they are
    not there, not the asker's, damaged here as well, or do not end where the range does."""
    start, end, shape = question.start, question.end, holding.shape
    file_end = file_start(start, shape.file_size) + shape.file_size
    if not holding.begin <= start < end <= min(holding.end, file_end):
        raise _refused(
            question, f"this broker has {holding.begin} to {holding.end}, in files of {shape.file_size} bytes"
        )
    if not _is_common(question, holding):
        raise _refused(question, "its epoch wrote something else in this broker's log")
    data = holding.read(start, min(MOST_ANSWER_BYTES, end - start))
    found = _whole_records(data, question, shape)
    if isinstance(found, int):
        found = _whole_records(holding.read(start, found), question, shape)
    if isinstance(found, int):
        raise _refused(question, "no record ends there in this broker's log")
    return found


def _is_common(question: Question, holding: Holding) -> bool:
    mine = EpochList(holding.epochs).find(question.end - 1)
    return mine is not None and mine[0] == question.epoch and (mine[1] is None or question.end <= mine[1])


def _whole_records(data: bytes, question: Question, shape: RecordShape) -> Found | int:
    """The whole records that the data begins with; how many bytes the first one has, when it is longer than that."""
    start, end, _, _ = question
    records, _, stop, needs = walk(data, 0, start, shape.file_size, shape.max_record_bytes)
    behind = records[-1] + BORDER.unpack_from(data, records[-1])[0] if records else 0
    if behind:
        derived = derive(data[:behind], start, shape.checked())
        if derived.stop is Stop.END:
            return _with_filler(data, behind, start, shape)
        behind = derived.end_offset - start
        if behind:  # the asker gets what precedes the damage, and is refused when he asks for the rest
            return Found(data[:behind], start + behind)
    elif _is_filler(data, 0, start, shape):
        return _with_filler(data, 0, start, shape)
    elif stop is Stop.PARTIAL and len(data) < needs <= end - start:
        return needs
    if stop is Stop.PARTIAL and not records:
        raise _refused(question, "no record ends there in this broker's log")
    raise RequestError(codes.SYSTEM_ERROR, f"the log is damaged here, too: no intact record starts at {start}")


def _with_filler(data: bytes, behind: int, start: int, shape: RecordShape) -> Found:
    if _is_filler(data, behind, start, shape):
        return Found(data[: behind + FILLER_BYTES], file_start(start, shape.file_size) + shape.file_size)
    return Found(data[:behind], start + behind)


def _is_filler(data: Bytes, position: int, start: int, shape: RecordShape) -> bool:
    rest = shape.file_size - (start + position) % shape.file_size
    return rest >= FILLER_BYTES and bytes(data[position : position + FILLER_BYTES]) == encode_filler(rest)


def _refused(question: Question, why: str) -> RequestError:
    return RequestError(
        codes.QUERY_NOT_FOUND, f"the range {question.start} to {question.end} of the log is not given: {why}"
    )


# ---- on the asking broker


def check_records(question: Question, found: Found, shape: RecordShape) -> None:
    """Raise ProtocolError unless the answer is what it claims: whole, intact records and at most one filler behind them, that
    begin and end where they should."""
    content, next_offset = found
    start, end, _, _ = question
    derived = derive(content, start, shape.checked())
    behind = derived.end_offset
    if derived.stop is Stop.PARTIAL and _is_filler(content, behind - start, start, shape):
        given, behind = behind + FILLER_BYTES, file_start(start, shape.file_size) + shape.file_size
    else:
        given = behind
    if given != start + len(content) or behind != next_offset or not start < next_offset <= end:
        raise ProtocolError(f"the records given for {start} to {end} of the log are not whole or not intact")
