"""Sends that a replica forwards together: many calls in one request to the master, and their answers (pure).

The request is an internal one (`proxy_call.py`) with the method SENDS and an id of its own. Its body has, for each call, the
lengths of its description and of its message, then these; the description is the `ext` that it would be forwarded with alone, as
JSON. What a client's calls have in common in it comes last, behind the id and the time of each, so that it is written and read
once; a description in another order is read by itself. The body of an answer has those that there are, each behind the id of its
call, its outcome and its length. While calls are left that were not answered, `more` is set, and the replica asks for more with
the bundle's id: so none waits for another one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

import orjson

from brokerd.proxy.proxy_call import ProxyCall
from remoting.errors import ProtocolError

SENDS: Final = "$sends"
MAX_CALLS: Final = 256  # of a bundle

_LENGTHS: Final = struct.Struct(">II")
_ANSWER: Final = struct.Struct(">QBI")
_OWN: Final = re.compile(rb'\{"callId":"([0-9]{1,18})",(?:"timeoutMs":"([0-9]{1,12})",)?')


class Outcome(IntEnum):
    """What a call came to: its response, a failure with a text, or nothing, as who was asked is no master any more."""

    ANSWERED = 0
    FAILED = 1
    GIVEN_BACK = 2


class BundledAnswer(NamedTuple):
    """Of the call with this id."""

    call_id: int
    outcome: Outcome
    content: bytes


def encode_calls(calls: Iterable[tuple[ProxyCall, bytes]]) -> bytes:
    """The body of a request, of calls and their messages."""
    parts: list[bytes] = []
    shared: dict[tuple[str, int, int], bytes] = {}  # by the method, the client and the headers
    kept: list[ProxyCall] = []  # whose headers those are: no others have their ids meanwhile
    for origin, message in calls:
        key = origin.method, origin.client, id(origin.metadata)
        common = shared.get(key)
        if common is None:
            common = shared[key] = orjson.dumps(origin.common_ext())[1:]
            kept.append(origin)
        if origin.timeout_ms:
            ext = b'{"callId":"%d","timeoutMs":"%d",' % (origin.call_id, origin.timeout_ms) + common
        else:
            ext = b'{"callId":"%d",' % origin.call_id + common
        parts += (_LENGTHS.pack(len(ext), len(message)), ext, message)
    return b"".join(parts)


def decode_calls(body: bytes) -> list[tuple[ProxyCall, bytes]]:
    """The calls of a request's body. Raises ProtocolError."""
    calls: list[tuple[ProxyCall, bytes]] = []
    shared: dict[bytes, ProxyCall] = {}  # by what several have in common
    position = 0
    while position < len(body):
        begin = position + _LENGTHS.size
        if begin > len(body) or len(calls) == MAX_CALLS:
            raise ProtocolError(f"a bundle of forwarded calls is cut off, or of more than {MAX_CALLS}")
        ext_bytes, message_bytes = _LENGTHS.unpack_from(body, position)
        middle, position = begin + ext_bytes, begin + ext_bytes + message_bytes
        if position > len(body):
            raise ProtocolError("a bundle of forwarded calls is cut off")
        calls.append((_origin_of(body[begin:middle], shared), body[middle:position]))
    return calls


def encode_answers(answers: Iterable[BundledAnswer]) -> bytes:
    parts: list[bytes] = []
    for call_id, outcome, content in answers:
        parts += (_ANSWER.pack(call_id, outcome, len(content)), content)
    return b"".join(parts)


def decode_answers(body: bytes) -> list[BundledAnswer]:
    """Raises ProtocolError."""
    answers = []
    position = 0
    while position < len(body):
        begin = position + _ANSWER.size
        if begin > len(body):
            raise ProtocolError("the answers to a bundle of forwarded calls are cut off")
        call_id, outcome, length = _ANSWER.unpack_from(body, position)
        position = begin + length
        if position > len(body) or outcome > Outcome.GIVEN_BACK:
            raise ProtocolError(
                "the answers to a bundle of forwarded calls are cut off, or of a kind that is not known"
            )
        answers.append(BundledAnswer(call_id, Outcome(outcome), body[begin:position]))
    return answers


def _origin_of(encoded: bytes, shared: dict[bytes, ProxyCall]) -> ProxyCall:
    own = _OWN.match(encoded)
    if own is None:
        return _described(encoded)
    rest = encoded[own.end() :]
    common = shared.get(rest)
    if common is None:
        common = shared[rest] = _described(b'{"callId":"0",' + rest)
    timeout_ms = int(own[2]) if own[2] else common.timeout_ms
    return ProxyCall(common.method, int(own[1]), timeout_ms, common.peer, common.client, common.metadata)


def _described(encoded: bytes) -> ProxyCall:
    try:
        ext = orjson.loads(encoded)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"a forwarded call whose description is no JSON: {error}") from error
    if not isinstance(ext, dict) or not all(isinstance(value, str) for value in ext.values()):
        raise ProtocolError("a forwarded call whose description is no object of texts")
    return ProxyCall.from_ext(ext)
