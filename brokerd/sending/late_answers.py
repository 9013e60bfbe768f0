"""Answers to sends are laid out as if all goes well; this is for what else may come of what waits to be acknowledged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from brokerd.native.stays import Waiting
from brokerd.sending.boundary import ANSWER_OK
from brokerd.sending.counters import Counters
from brokerd.sending.outcomes import ROLE_CHANGED
from brokerd.store.put_status import PutStatus
from remoting import codes, frame
from remoting.frame import Command, decode_frames
from remoting.transport.connection import RemotingConnection

# How answers begin to what is in the log, by what became of it
OPENINGS: Final = {
    PutStatus.PUT_OK: ANSWER_OK,
    PutStatus.FLUSH_DISK_TIMEOUT: b'{"code":10,',
    PutStatus.FLUSH_SLAVE_TIMEOUT: b'{"code":12,',
}


def answer_later(connection: RemotingConnection, waiting: Waiting, counters: Counters) -> Callable[[PutStatus], None]:
    """What to call when it is known what becomes of what these answers are to; the connection owes them until then."""
    connection.owe(waiting.requests)

    def tell(status: PutStatus) -> None:
        connection.respond_encoded(_answers(waiting.answers, status), waiting.requests)
        counters.puts.add((time.monotonic_ns() - waiting.since_ns) / 1e6, waiting.messages)

    return tell


def _answers(answers: bytes, status: PutStatus) -> bytes:
    opening = OPENINGS.get(status)
    if opening is None:
        return b"".join(_unknown(each) for each in _decoded(answers))
    return answers if opening is ANSWER_OK else answers.replace(ANSWER_OK, opening)


def _decoded(answers: bytes) -> list[Command]:
    found: list[Command] = []
    decode_frames(answers, found)
    return found


def _unknown(answer: Command) -> bytes:
    return frame.encode_response(codes.SERVICE_NOT_AVAILABLE, answer.opaque, remark=ROLE_CHANGED)
