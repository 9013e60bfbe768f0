"""Frames of sends in every way that a client may write them, for the load program to send (pure).

Each row has frames that differ in one thing from the ordinary ones beside them, whose body and number of messages are the same.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from remoting import codes
from remoting.frame import Command, decode_frames
from remoting.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.batch import decode_batch_body
from tests.support.client_bytes import encode_batch_body, encode_compact

MARK: Final = 1_000_000_007  # stands for the request's number, ten digits wherever they are written
_DIGITS: Final = b"%d" % MARK
_HEAD: Final = struct.Struct("=IIII")
_PLACE: Final = struct.Struct("=II")
_PREFIX: Final = struct.Struct(">iI")
_COMPACT_NUMBER_AT: Final = 13  # of the request, behind the prefix, code, language and version
_KEY: Final = f"UNIQ_KEY\x017F00000100002A9F00{MARK:014d}\x02"
ORDINARY_PROPERTIES: Final = f"{_KEY}WAIT\x01true\x02"
TOPIC: Final = "Bench"
LONG_TOPIC: Final = "Bench-" + "long" * 29
_UNKNOWN: Final[Mapping[str, Any]] = {"remark": None, "trace": {"parents": [1, 2.5, {"a": None}]}, "sampled": True}
_LONG_NAMES: Final = {
    **{"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"},
    **{"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode"},
    **{"m": "batch"},
}
_BATCH: Final = 32

Write = Callable[[int, int, Mapping[str, Any], bytes], bytes]  # code, flag of the frame, fields, body


@dataclass(frozen=True)
class Frame:
    """A frame as it is sent, the number in it being MARK."""

    data: bytes
    messages: int = 1
    is_oneway: bool = False

    def packed(self) -> bytes:
        """As the load program reads it."""
        header_end = _PREFIX.size + (_PREFIX.unpack_from(self.data)[1] & 0xFFFFFF)
        places = [(at, 0) for at in _found(self.data, header_end)]
        if self.data[4] == 1:
            places.append((_COMPACT_NUMBER_AT, 1))
        head = _HEAD.pack(self.messages, self.is_oneway, len(places), len(self.data))
        return head + b"".join(_PLACE.pack(*place) for place in places) + self.data


def _found(data: bytes, end: int) -> Iterator[int]:
    at = data.find(_DIGITS, 0, end)
    while at >= 0:
        yield at
        at = data.find(_DIGITS, at + 1, end)


@dataclass(frozen=True)
class Variant:
    """One row: its frames, the ordinary ones to compare them with, and the topic in which they are stored."""

    name: str
    frames: Sequence[Frame]
    ordinary: Sequence[Frame]
    stored_in: str = TOPIC


def as_json(
    *,
    order: Sequence[str] = (),
    separators: tuple[str, str] = (",", ":"),
    more: Mapping[str, Any] | None = None,
    is_backward: bool = False,
) -> Write:
    """Writes JSON headers, what is in the header in this order; with `is_backward` the send's fields from the last on."""

    def write(code: int, flag: int, fields: Mapping[str, Any], body: bytes) -> bytes:
        ext = dict(reversed(fields.items())) if is_backward else dict(fields)
        header = {"code": code, "extFields": ext, "flag": flag, "language": "JAVA", "opaque": MARK}
        header |= {"serializeTypeCurrentRPC": "JSON", "version": 479, **(more or {})}
        ordered = {name: header[name] for name in (*order, *(name for name in header if name not in order))}
        return _framed(json.dumps(ordered, separators=separators).encode(), body)

    return write


def compact(code: int, flag: int, fields: Mapping[str, Any], body: bytes) -> bytes:
    """Writes headers in the original's own encoding."""
    return encode_compact(Command(code, MARK, dict(fields), body, flag, None, 479, "JAVA"))


def _escaped(code: int, flag: int, fields: Mapping[str, Any], body: bytes) -> bytes:
    """Every letter of the properties that needs no escape has one."""
    header = as_json()(code, flag, {**fields, "i": ""}, b"")[_PREFIX.size :]
    text = "".join(each if each.isdigit() else f"\\u{ord(each):04x}" for each in fields["i"])
    return _framed(header.replace(b'"i":""', b'"i":"%b"' % text.encode()), body)


def _framed(header: bytes, body: bytes) -> bytes:
    return _PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body


def single(
    properties: str = ORDINARY_PROPERTIES,
    *,
    write: Write | None = None,
    code: int = codes.SEND_MESSAGE_V2,
    flag: int = 0,
    body: bytes = b"x" * 1024,
    fields: Mapping[str, Any] | None = None,
    messages: int = 1,
) -> Frame:
    """A send of one message, or with that body of several."""
    every: dict[str, Any] = {
        **{"a": "bench", "b": TOPIC, "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0"},
        **{"i": properties, "j": "0", "k": "false", "m": "false", "n": "broker-a", **(fields or {})},
    }
    if code == codes.SEND_MESSAGE:
        every = {_LONG_NAMES[name]: value for name, value in every.items() if name in _LONG_NAMES}
    return Frame((write or as_json())(code, flag, every, body), messages, bool(flag & codes.FLAG_ONEWAY))


def batch(properties: Callable[[int], str], *, mixed: bool = False, body_bytes: int = 1024) -> Frame:
    """A send of a batch; `properties` are those of each message."""
    items = [
        (0, b"x" * (body_bytes + mixed * (each * 37 % 256 - 128)), properties(each).encode()) for each in range(_BATCH)
    ]
    code = codes.SEND_BATCH_MESSAGE
    return single(code=code, body=encode_batch_body(items), fields={"m": "true"}, messages=_BATCH)


def _key_of(number: int) -> str:
    return f"UNIQ_KEY\x01{number:032d}\x02WAIT\x01true\x02"


def variants(now_ms: int) -> list[Variant]:
    """All that the generator has; timers are due a day after `now_ms`."""
    ordinary = [single()]
    small = [single(body=b"x" * 100)]
    batches = [batch(_key_of)]
    day = f"{_KEY}WAIT\x01true\x02TIMER_DELIVER_MS\x01{now_ms + 86_400_000}\x02"
    half = f"{_KEY}WAIT\x01true\x02TRAN_MSG\x01true\x02PGROUP\x01bench\x02"
    own = "".join(f"name-{each}\x01value of {each}\x02" for each in range(20))
    oneway = [single(flag=codes.FLAG_ONEWAY)] * 15
    last_first = ("version", "opaque", "language", "flag", "extFields", "code")
    rows: list[tuple[str, list[Frame], list[Frame], str]] = [
        ("no separator at the end of the properties", [single(ORDINARY_PROPERTIES[:-1])], ordinary, TOPIC),
        ("no properties", [single("")], ordinary, TOPIC),
        ("no unique key", [single("WAIT\x01true\x02TAGS\x01tag\x02")], ordinary, TOPIC),
        ("20 properties of its own", [single(ORDINARY_PROPERTIES + own)], ordinary, TOPIC),
        ("a value that reads like a name of the broker's", [single(f"{_KEY}note\x01no DELAY\x02")], ordinary, TOPIC),
        ("delay level", [single(ORDINARY_PROPERTIES + "DELAY\x0118\x02")], ordinary, SCHEDULE_TOPIC),
        ("delivery time", [single(day)], ordinary, TIMER_TOPIC),
        ("half message", [single(half, fields={"f": "4"})], ordinary, HALF_TOPIC),
        ("FIFO key", [single(ORDINARY_PROPERTIES + "__SHARDINGKEY\x01order 17\x02")], ordinary, TOPIC),
        ("compressed", [single(fields={"f": "769"})], ordinary, TOPIC),
        ("one-way, 15 of 16", [*oneway, *ordinary], ordinary, TOPIC),
        ("long names", [single(code=codes.SEND_MESSAGE)], ordinary, TOPIC),
        ("long names, no separator", [single(ORDINARY_PROPERTIES[:-1], code=codes.SEND_MESSAGE)], ordinary, TOPIC),
        ("header written from its end", [single(write=as_json(order=last_first))], ordinary, TOPIC),
        ("fields in another order", [single(write=as_json(is_backward=True))], ordinary, TOPIC),
        ("spaces in the header", [single(write=as_json(separators=(" , ", " : ")))], ordinary, TOPIC),
        ("escapes in the header", [single(write=_escaped)], ordinary, TOPIC),
        ("fields that nobody knows", [single(fields={"zz": "1"}, write=as_json(more=_UNKNOWN))], ordinary, TOPIC),
        ("fields that are numbers", [single(fields={"e": 3, "f": 0, "h": 0, "j": 0, "k": False, "m": False})], ordinary, TOPIC),
        ("binary header", [single(write=compact)], ordinary, TOPIC),
        ("binary header, long names", [single(write=compact, code=codes.SEND_MESSAGE)], ordinary, TOPIC),
        ("100 bytes", small, ordinary, TOPIC),
        ("100 bytes, no separator", [single(ORDINARY_PROPERTIES[:-1], body=b"x" * 100)], small, TOPIC),
        ("topic of 122 characters", [single(fields={"b": LONG_TOPIC})], ordinary, LONG_TOPIC),
        ("queue that the broker chooses", [single(fields={"e": "-1"})], ordinary, TOPIC),
        ("answer before it is stored everywhere", [single(f"{_KEY}WAIT\x01false\x02")], ordinary, TOPIC),
        ("request for a reply", [single(f"{_KEY}REPLY_TO_CLIENT\x01a@b\x02CORRELATION_ID\x01c\x02")], ordinary, TOPIC),
        ("property twice", [single(ORDINARY_PROPERTIES[:-1] + "\x02note\x01a\x02note\x01b")], ordinary, TOPIC),
        ("unique key with a hyphen", [single(ORDINARY_PROPERTIES.replace("7F", "7-F"))], ordinary, TOPIC),
        ("batches of 32 without properties", [batch(lambda _: "")], batches, TOPIC),
        ("batches of 32, no separator", [batch(lambda each: _key_of(each)[:-1])], batches, TOPIC),
        ("batches of 32, mixed sizes", [batch(_key_of, mixed=True)], batches, TOPIC),
        ("batches of 32, 100 bytes", [batch(_key_of, body_bytes=100)], batches, TOPIC),
    ]  # fmt: skip
    return [Variant(*row) for row in rows]


def recorded(client: str, data: bytes) -> list[Variant]:
    """A row for each send that a client wrote: the frame with our number in it, and an ordinary send of as much."""
    rows = []
    position = 0
    while position < len(data):
        end = position + _PREFIX.unpack_from(data, position)[0] + 4
        commands: list[Command] = []
        decode_frames(data[position:end], commands)
        rows.append(_recorded(client, data[position:end], commands[0]))
        position = end
    return rows


def topic_of(command: Command) -> str:
    """Of a send, under whichever name."""
    return command.ext.get("b") or command.ext["topic"]


def _recorded(client: str, data: bytes, command: Command) -> Variant:
    topic, body = topic_of(command), bytes(command.body)
    properties = (command.ext.get("i") or command.ext.get("properties", "")).encode()
    is_batch = command.code == codes.SEND_BATCH_MESSAGE or "true" in (command.ext.get("m"), command.ext.get("batch"))
    messages = len(decode_batch_body(body)) if is_batch else 1
    ordinary = single(body=body)
    if is_batch:
        items = [(0, bytes(item.body), _key_of(each).encode()) for each, item in enumerate(decode_batch_body(body))]
        fields = {"m": "true"}
        ordinary = single(
            code=codes.SEND_BATCH_MESSAGE, body=encode_batch_body(items), fields=fields, messages=messages
        )
    frame = Frame(_numbered(data, command), messages, command.is_oneway)
    frames = [*[frame] * 15, ordinary] if command.is_oneway else [frame]
    stored_in = SCHEDULE_TOPIC if b"DELAY\x01" in properties else HALF_TOPIC if b"TRAN_MSG" in properties else topic
    return Variant(f"recorded: {topic}", frames, [ordinary], stored_in)


def _numbered(data: bytes, command: Command) -> bytes:
    """The frame with MARK as its number, and what it asks to wait for so long that nothing is delivered meanwhile."""
    header_end = _PREFIX.size + (_PREFIX.unpack_from(data)[1] & 0xFFFFFF)
    header, body = _LEVEL.sub(rb"\g<1>9", data[_PREFIX.size : header_end]), data[header_end:]
    if data[4] == 0:
        return _framed(re.sub(rb'("opaque"\s*:\s*)%d\b' % command.opaque, rb"\g<1>%d" % MARK, header), body)
    return data[: _PREFIX.size] + header + body


_LEVEL: Final = re.compile(rb"(DELAY(?:\\u0001|\x01))[0-9](?![0-9])")
