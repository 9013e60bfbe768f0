"""SendMessage requests as frames for the send kernel, written in C (`native/grpc_sends.c`).

What is right is `mapping.to_draft`: a frame stores what the draft would. What the C leaves goes there, and so do requests that
break a rule: nothing here says why one is refused.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import Library
from brokerd.proxy.mapping import DELAY, FIFO, NORMAL, PRIORITY, TRANSACTION, to_draft
from brokerd.proxy.names import full_name
from brokerd.proxy.properties import FORBIDDEN
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Refusal
from brokerd.store.draft import Draft
from brokerd.transactions.ids import SECRET_LENGTH
from remoting import frame

TYPES: Final = (NORMAL, DELAY, FIFO, PRIORITY, TRANSACTION)  # by the kind that the C gives a message
PLAIN, TIMED, GROUPED, PRIORITIZED, HALF = range(len(TYPES))
QUEUE_DIGITS: Final = 10

_MORE_BYTES: Final = 1024  # that a frame may take beside its request
_KEPT_BYTES: Final = 1024 * 1024


class Found(NamedTuple):
    """Of a request: where its frame ends (0: it is left), its kind and priority (-1: none), where in it are its message's id and
    message group, and where in the frames are its topic, the number of its queue and, of a half message, its secret. The struct
    `found` of the C."""

    end: int
    kind: int
    topic_at: int
    topic_length: int
    id_at: int
    id_length: int
    group_at: int
    group_length: int
    queue_at: int
    priority: int
    secret_at: int


_FOUND: Final = struct.Struct(f"={len(Found._fields)}q")


class _Sends(ctypes.Structure):
    """The struct `sends` of the C."""

    _fields_ = (
        ("requests", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("forbidden", ctypes.c_void_p),
        ("forbidden_length", ctypes.c_int64),
        ("forbidden_begins", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("room", ctypes.c_int64),
        ("now_ms", ctypes.c_int64),
        ("found", ctypes.c_void_p),
    )


class SendReader:
    """Reads the requests of one batch after the other."""

    def __init__(self, library: Library) -> None:
        self._call = library.function("native_grpc_sends", None, ctypes.c_void_p)
        forbidden, begins = _pack(sorted(each.encode() for each in FORBIDDEN if each))
        self._forbidden = ctypes.create_string_buffer(forbidden, len(forbidden))
        self._begins = (ctypes.c_int64 * len(begins))(*begins)
        self._out = bytearray(_KEPT_BYTES)
        self._sends = _Sends(
            forbidden=ctypes.addressof(self._forbidden),
            forbidden_length=len(forbidden),
            forbidden_begins=ctypes.addressof(self._begins),
        )
        self._sends_at = ctypes.addressof(self._sends)

    def read(self, requests: Sequence[bytes], now_ms: int) -> tuple[bytearray, list[tuple[int, ...]]]:
        """The frames of those that are ordinary, until the next call of this, with their opaques the numbers of their requests;
        and a `Found` of each request, as a plain tuple. Who does not say when a message was born, has it born at `now_ms`."""
        count = len(requests)
        lengths = list(map(len, requests))
        room = sum(lengths) + _MORE_BYTES * count
        out = self._out if room <= _KEPT_BYTES else bytearray(room)
        found = bytearray(_FOUND.size * count)
        pointers, numbers = _arrays(count)
        requests_in_c, lengths_in_c = pointers(*requests), numbers(*lengths)
        sends = self._sends
        sends.requests, sends.lengths = ctypes.addressof(requests_in_c), ctypes.addressof(lengths_in_c)
        sends.count, sends.room, sends.now_ms = count, room, now_ms
        sends.out = ctypes.addressof(ctypes.c_char.from_buffer(out))
        sends.found = ctypes.addressof(ctypes.c_char.from_buffer(found))
        self._call(self._sends_at)
        return out, list(_FOUND.iter_unpack(found))


def _pack(names: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """Names that are in order, each behind its length, and where those begin that have each first byte (the end for none)."""
    packed = b""
    begins: dict[int, int] = {}
    for name in names:
        begins.setdefault(name[0], len(packed))
        packed += bytes((len(name),)) + name
    return packed, [begins.get(first, len(packed)) for first in range(256)]


@cache
def _arrays(count: int) -> tuple[Any, Any]:
    """The types of so many pointers and lengths: to make one takes longer than a call."""
    return ctypes.c_char_p * count, ctypes.c_int64 * count


# ---- Whether the library is right


def sends_agree(library: Library) -> bool:
    """Whether the library takes ordinary requests, and makes of them what is sent of their drafts."""
    requests = list(_examples())
    frames, found = SendReader(library).read(requests, 0)
    begins = (0, *(each[0] for each in found[:-1]))
    return all(
        frame_agrees(request, bytes(frames[begin : each[0]]), Found(*each))
        for request, begin, each in zip(requests, begins, found, strict=True)
    )


def frame_agrees(request: bytes, encoded: bytes, found: Found) -> bool:
    """Whether the frame sends what the draft of the request's one message would, into a queue that is chosen later."""
    (message,) = service.SendMessageRequest.FromString(request).messages
    kind = definition.MessageType.Name(TYPES[found.kind]) if found.end else ""
    begin = found.end - len(encoded)
    try:
        topic = full_name(message.topic)
        config = TopicConfig(topic, 4, 4, attributes={"message.type": kind})
        draft = to_draft(message, topic, config, b"", 0, 1 << 60, "0" * SECRET_LENGTH)
        commands: list[frame.Command] = []
        frame.decode_frames(encoded, commands)
        (command,) = commands
        ext = command.ext
        sent = Draft(
            *(ext["b"], draft.queue_id, bytes(command.body), ext["i"].encode(), int(ext["g"]), b""),
            *(int(ext["h"]), int(ext["f"])),
        )
    except (LookupError, ValueError, Refusal):
        return False
    texts = (
        encoded[found.topic_at - begin :][: found.topic_length],
        request[found.id_at :][: found.id_length],
        request[found.group_at :][: found.group_length],
    )
    system = message.system_properties
    return (
        _unordered(sent) == _unordered(draft)
        and texts == tuple(each.encode() for each in (topic, system.message_id, system.message_group))
        and int(ext["e"]) == (0 if found.kind in (GROUPED, PRIORITIZED) else -1)
        and (found.kind != PRIORITIZED or found.priority == system.priority)
        and (found.kind != HALF or encoded[found.secret_at - begin :].startswith(b"0" * SECRET_LENGTH + b"\x02"))
    )


def _unordered(draft: Draft) -> tuple[object, ...]:
    """User properties come in any order from protobuf."""
    return (*draft._replace(properties=b""), sorted(draft.properties.split(b"\x02")))


def _examples() -> list[bytes]:
    requests = []
    for kind in TYPES:
        for size in (1, 200):
            request = service.SendMessageRequest()
            message = request.messages.add()
            message.topic.name = "Orders"
            message.body = b"b" * size
            system = message.system_properties
            system.message_id = "01AABBCCDDEEFF0123456789ABCDEF0123"
            system.message_type = kind
            system.born_timestamp.FromMilliseconds(1_700_000_000_123)
            system.body_encoding = definition.Encoding.Value("GZIP" if size > 1 else "IDENTITY")
            if size > 1:
                system.tag, system.born_host, system.trace_context, system.queue_id = "täg", "host", "trace", 3
                system.keys.extend(["one", "two"])
                message.user_properties["color"] = "blue"
                message.user_properties["größe"] = "9" * size
                system.body_digest.checksum, system.delivery_attempt = "00", 2
                message.topic.resource_namespace = "ns"
            if kind == FIFO:
                system.message_group = "group"
            if kind == PRIORITY:
                system.priority = size
            if kind == TRANSACTION and size > 1:
                system.orphaned_transaction_recovery_duration.seconds = 30
            if kind == DELAY:
                system.delivery_timestamp.FromMilliseconds(1_700_000_060_000)
            requests.append(request.SerializeToString())
    return requests
