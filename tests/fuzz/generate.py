"""What hostile and broken clients send, from one seed: frames of every kind, and bytes that are no frames (pure).

Half of it is structured: requests that are right but for some field, because those get further in than noise does.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from remoting import codes, frame
from remoting.frame import Command
from remoting.record.properties import encode_properties
from tests.support.client_bytes import encode_batch_body, encode_compact

TOPIC: Final = "Fuzzed"
GROUP: Final = "fuzzed"

_NUMBERS: Final = (
    "0",
    "1",
    "-1",
    "7",
    "2147483647",
    "2147483648",
    "-2147483649",
    str(2**63),
    "-" + "9" * 30,
    "1e3",
    "0x1",
    "²",
    "",
    " 1",
    "true",
)
_TEXTS: Final = (
    *("", TOPIC, GROUP, "*", "TAG", "SQL92", "A || B", "a > 5 AND b IN ('x')", "%RETRY%fuzzed", "%DLQ%fuzzed"),
    *("rmq_sys_x", "TBW102"),
    *("\x00", "\x01\x02", "ä" * 60, "\ud800", "../../etc", "x" * 300, "y" * 70_000, "null", '{"a":', "0 1 2 3 4 b 6 7"),
)  # fmt: skip
_PROPERTY_NAMES: Final = (
    "UNIQ_KEY",
    "KEYS",
    "TAGS",
    "WAIT",
    "POP_CK",
    "DELAY",
    "TRAN_MSG",
    "TIMER_DELAY_MS",
    "INNER_NUM",
    "__CRC32#",
    "PGROUP",
    "a",
)

_SEND: Final[Mapping[str, str]] = {
    **{"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0"},
    **{"i": "UNIQ_KEY\x01FUZZ\x02WAIT\x01true\x02", "j": "0", "k": "false", "l": "16", "m": "false", "n": "broker-a"},
}  # fmt: skip
_LONG_SEND: Final[Mapping[str, str]] = {
    **{"producerGroup": "p", "topic": TOPIC, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0"},
    **{"sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "UNIQ_KEY\x01FUZZ\x02", "batch": "false"},
}  # fmt: skip
_QUEUE: Final[Mapping[str, str]] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0"}
_PULL: Final[Mapping[str, str]] = {
    **_QUEUE,
    **{"queueOffset": "0", "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
    **{"subscription": "*", "subVersion": "0", "expressionType": "TAG"},
}  # fmt: skip
_POP: Final[Mapping[str, str]] = {
    **_QUEUE,
    **{"maxMsgNums": "8", "invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0"},
}
_ACK: Final[Mapping[str, str]] = {**_QUEUE, "extraInfo": "0 1 2 0 0 broker-a 0 0", "offset": "0"}
_END: Final[Mapping[str, str]] = {
    **{
        "producerGroup": "p",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "msgId": "x",
    },
}
_QUERY: Final[Mapping[str, str]] = {
    **{"topic": TOPIC, "key": "FUZZ", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**62)},
}

# What clients send most, by weight; any other request of a client comes beside them with fields of these.
_SHAPES: Final[Sequence[tuple[int, int, Mapping[str, str]]]] = (
    (6, codes.SEND_MESSAGE_V2, _SEND),
    (4, codes.SEND_BATCH_MESSAGE, {**_SEND, "m": "true"}),
    (3, codes.SEND_MESSAGE, _LONG_SEND),
    (6, codes.PULL_MESSAGE, _PULL),
    (2, codes.LITE_PULL_MESSAGE, _PULL),
    (2, codes.BULK_READ, {**_PULL, "maxMsgBytes": "4194304"}),
    (2, codes.QUERY_CONSUMER_OFFSET, {**_QUEUE, "setZeroIfNotFound": "true"}),
    (3, codes.UPDATE_CONSUMER_OFFSET, {**_QUEUE, "commitOffset": "1"}),
    (1, codes.SEARCH_OFFSET_BY_TIMESTAMP, {**_QUEUE, "timestamp": "1700000000000", "boundaryType": "UPPER"}),
    (1, codes.GET_MAX_OFFSET, _QUEUE),
    (1, codes.GET_MIN_OFFSET, _QUEUE),
    (1, codes.GET_EARLIEST_MSG_STORETIME, _QUEUE),
    (1, codes.VIEW_MESSAGE_BY_ID, {"offset": "0"}),
    (1, codes.QUERY_MESSAGE, _QUERY),
    (2, codes.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": GROUP, "delayLevel": "-1"}),
    (1, codes.END_TRANSACTION, _END),
    (2, codes.POP_MESSAGE, _POP),
    (1, codes.ACK_MESSAGE, _ACK),
    (1, codes.CHANGE_MESSAGE_INVISIBLETIME, {**_ACK, "invisibleTime": "1"}),
    (1, codes.HEART_BEAT, {}),
    (1, codes.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": GROUP}),
)  # fmt: skip
# Requests that would end the experiment because they do what they say: roles, configuration, deletion of what it stands on.
_LEFT_OUT: Final = frozenset(
    {
        *(codes.UPDATE_BROKER_CONFIG, codes.DELETE_TOPIC_IN_BROKER, codes.CLEAN_UNUSED_TOPIC),
        *(codes.DELETE_EXPIRED_COMMITLOG, codes.CLEAN_EXPIRED_CONSUMEQUEUE),
        *(codes.UPDATE_AND_CREATE_TOPIC, codes.UPDATE_AND_CREATE_TOPIC_LIST),
    }
)  # fmt: skip
OTHER_CODES: Final = tuple(
    sorted(
        {
            value
            for name, value in vars(codes).items()
            if name.isupper() and isinstance(value, int) and (10 < value < 403 or value > 200_000)
        }
        - _LEFT_OUT
    )
)
_ALL_FIELDS: Final = tuple(sorted({name for _, _, fields in _SHAPES for name in fields}))


class Thrown(NamedTuple):
    """Bytes for one connection; `opaque` is set when they are a whole two-way request, which must be answered."""

    data: bytes
    opaque: int | None


class Generator:
    """An endless stream of requests and noise."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._opaque = 0
        self._weights = [weight for weight, _, _ in _SHAPES]

    def next(self) -> Thrown:
        kind = self._random.random()
        if kind < 0.70:
            return self._request()
        if kind < 0.90:
            return Thrown(self._damaged(self._request().data), None)
        return Thrown(self._random.randbytes(self._random.randrange(1, 200)), None)

    def _request(self) -> Thrown:
        rng = self._random
        self._opaque = (self._opaque + 1) & 0x7FFFFFFF
        if rng.random() < 0.8:
            _, code, fields = rng.choices(_SHAPES, self._weights)[0]
        else:
            code, fields = (
                rng.choice(OTHER_CODES),
                {name: rng.choice(_TEXTS[:6]) for name in rng.sample(_ALL_FIELDS, 5)},
            )
        ext = dict(fields)
        for _ in range(rng.choice((0, 0, 1, 1, 1, 2, 5))):
            self._spoil(ext)
        body = self._body(code)
        if rng.random() < 0.1 and code < 0x8000:
            encoded = {name: value.encode("utf-8", "replace").decode()[:30_000] for name, value in ext.items()}
            return Thrown(encode_compact(Command(code, self._opaque, encoded, body, 0)), self._opaque)
        encoded = {name: value.encode("utf-8", "replace").decode() for name, value in ext.items()}
        return Thrown(frame.encode_request(code, self._opaque, encoded, body), self._opaque)

    def _spoil(self, ext: dict[str, str]) -> None:
        """Remove, replace or add a field."""
        rng = self._random
        name = rng.choice(list(ext)) if ext and rng.random() < 0.8 else rng.choice(_ALL_FIELDS)
        how = rng.random()
        if how < 0.2:
            ext.pop(name, None)
        elif name in ("i", "properties") or how < 0.3:
            ext[name] = self._properties()
        else:
            ext[name] = rng.choice(_NUMBERS if rng.random() < 0.6 else _TEXTS)

    def _properties(self) -> str:
        rng = self._random
        if rng.random() < 0.2:
            return rng.choice(_TEXTS)
        chosen = {
            rng.choice(_PROPERTY_NAMES): rng.choice((*_NUMBERS, *_TEXTS[:10], "true")) for _ in range(rng.randrange(4))
        }
        text = encode_properties({name: value.replace("\ud800", "?") for name, value in chosen.items()}).decode()
        return text if rng.random() < 0.8 else text[: rng.randrange(len(text) + 1)]

    def _body(self, code: int) -> bytes:
        rng = self._random
        if code == codes.SEND_BATCH_MESSAGE:
            items = [(0, rng.randbytes(rng.randrange(20)), b"UNIQ_KEY\x01B\x02") for _ in range(rng.randrange(5))]
            body = encode_batch_body(items)
            return body if rng.random() < 0.5 else self._damaged(body)
        if code == codes.HEART_BEAT or (code >= codes.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP and rng.random() < 0.5):
            return rng.choice(
                (
                    b"",
                    b"{",
                    b"[]",
                    b"null",
                    b"{}",
                    b'{"clientID":"c","consumerDataSet":[{"groupName":"fuzzed","subscriptionDataSet":[{}]}]}',
                )
            )
        return rng.choice((b"", b"x", rng.randbytes(rng.randrange(3000))))

    def _damaged(self, data: bytes) -> bytes:
        rng = self._random
        changed = bytearray(data)
        ways: Sequence[Callable[[], None]] = (
            lambda: changed.__setitem__(rng.randrange(len(changed)), rng.randrange(256)),
            lambda: changed.__delitem__(slice(rng.randrange(len(changed)), None)),
            lambda: changed.extend(rng.randbytes(5)),
            lambda: changed.__setitem__(
                slice(0, 4), struct.pack(">i", rng.choice((-1, 0, 3, 2**31 - 1, 1 << 24, len(data))))
            ),
            lambda: changed.__setitem__(
                slice(4, 8), struct.pack(">I", rng.choice((0, 1 << 24 | 5, 2**32 - 1, len(data) - 4)))
            ),
        )
        for _ in range(rng.choice((1, 1, 2, 4))):
            if changed:
                rng.choice(ways)()
        return bytes(changed)
