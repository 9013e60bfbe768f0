"""Sends in every way that clients write them, and in ways that none should: those that the library lays out, and others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from brokerd.sending.reading import _LONG_NAMES
from remoting.frame import Command
from tests.support.client_bytes import encode_batch_body, encode_compact

NOW_MS = 1_700_000_000_000
FIELDS = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(NOW_MS), "h": "0", "j": "0"}
PROPERTIES = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02TAGS\x01{}\x02"


def framed(header: bytes, body: bytes, encoding: int = 0) -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4) + (encoding << 24 | len(header)).to_bytes(4) + header + body


def json_send(fields: Mapping[str, Any], body: bytes = b"b", opaque: Any = 1, **top: Any) -> bytes:
    return framed(json_header(fields, opaque, **top), body)


def json_header(
    fields: Mapping[str, Any], opaque: Any = 1, *, ascii: bool = False, spaced: bool = False, **top: Any
) -> bytes:
    header = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque, "version": 455, **top}
    separators = None if spaced else (",", ":")
    return json.dumps(header, ensure_ascii=ascii, separators=separators).encode("utf-8", "surrogatepass")


def item(number: int, body: bytes = b"body", tag: str = "t", flag: int = 0) -> tuple[int, bytes, bytes]:
    return flag, body, PROPERTIES.format(number, tag).encode()


def long_named(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {_LONG_NAMES[name]: value for name, value in fields.items()}


SINGLE = {**FIELDS, "i": PROPERTIES.format(7, "t")}
BATCH = {**SINGLE, "m": "true"}


def half_left_alone(immunity: str) -> bytes:
    properties = f"{SINGLE['i']}TRAN_MSG\x01true\x02PGROUP\x01g\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity}\x02"
    return json_send({**SINGLE, "i": properties})


ORDINARY: dict[str, bytes] = {
    "single": json_send(SINGLE),
    "escapes of ASCII": json_send({**SINGLE, "i": PROPERTIES.format(7, "größe-数")}, ascii=True),
    "characters of four bytes": json_send({**SINGLE, "i": PROPERTIES.format(7, "größe-数-😀")}),
    "spaces": json_send(SINGLE, spaced=True),
    "another order": json_send(dict(reversed(SINGLE.items()))),
    "unknown fields": json_send({**SINGLE, "zz": "1", "n": ""}, remark=None, extra=True, serialize="JSON"),
    "properties of its own": json_send({**SINGLE, "i": SINGLE["i"] + 'mine\x01"a\\b"\t\x02KEYS\x01k\x02'}),
    "one-way": json_send(SINGLE, flag=2),
    "compressed": json_send({**SINGLE, "f": "257", "h": "-5", "j": "3"}, b"x" * 5000),
    "without a count of attempts": json_send({name: value for name, value in SINGLE.items() if name != "j"}),
    "compact": encode_compact(Command(310, 9, SINGLE, b"compact")),
    "longest topic": json_send({**SINGLE, "b": "L" * 127, "e": "0"}),
    "large": json_send(SINGLE, b"y" * 100_000),
    "batch": json_send(BATCH, encode_batch_body([item(n) for n in range(40)]), code=320),
    "mixed batch": json_send(BATCH, encode_batch_body([item(n, b"b" * (n + 1), f"t{n}", n) for n in range(40)])),
    "compressed batch": json_send({**BATCH, "f": "1"}, encode_batch_body([item(1)])),
    "a moment": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELIVER_MS\x01{NOW_MS + 4321}\x02"}),
    "a moment alone": json_send({**SINGLE, "i": "TIMER_DELAY_SEC\x013\x02" + SINGLE["i"]}),
    "a moment of several": json_send({**SINGLE, "i": "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x017\x02" + SINGLE["i"]}),
    "a moment far ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01200000\x02mine\x01größe\x02"}),
    "a moment farther ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01400000\x02"}),
    "a moment of the longest topic": json_send(
        {**SINGLE, "b": "L" * 127, "e": "0", "i": SINGLE["i"] + "TIMER_DELAY_MS\x017\x02"}
    ),
    "a moment one-way": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x017\x02"}, flag=2),
    "a moment and a long key": json_send({**SINGLE, "i": f"UNIQ_KEY\x01{'k' * 256}\x02TIMER_DELAY_MS\x017\x02"}),
    "a tag that seems special": json_send(
        {**SINGLE, "i": PROPERTIES.format(7, "DELAY") + "mine\x01m\x02TIMER_DELAY_MS\x017\x02"}
    ),
    "a batch with a moment": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x013\x02"), item(2)])
    ),
    "a batch of moments": json_send(
        BATCH, encode_batch_body([(0, b"x", item(n)[2] + b"TIMER_DELAY_MS\x01%d\x02" % (3 + n // 2)) for n in range(9)])
    ),
    "long names": json_send(long_named(SINGLE), code=10),
    "long names of a batch": json_send(long_named(BATCH), encode_batch_body([item(1), item(2)]), code=10),
    "compact long names": encode_compact(Command(10, 9, long_named(SINGLE), b"compact")),
    "a code behind all": framed(json.dumps({"opaque": 3, "extFields": SINGLE, "flag": 0, "code": 310}).encode(), b"b"),
    "fields that are no texts": json_send({**SINGLE, "e": 1, "h": -5, "k": False, "m": False, "j": None}),
    "no properties": json_send(FIELDS),
    "empty properties": json_send({**SINGLE, "i": ""}),
    "no key": json_send({**SINGLE, "i": "TAGS\x01t\x02"}),
    "no key and no separator": json_send({**SINGLE, "i": "TAGS\x01größe"}),
    "no separator at the end": json_send({**SINGLE, "i": SINGLE["i"][:-1]}),
    "a value like a name of the broker's": json_send({**SINGLE, "i": SINGLE["i"] + "note\x01no DELAY, TRAN_MSG\x02"}),
    "a FIFO key": json_send({**SINGLE, "i": SINGLE["i"] + "__SHARDINGKEY\x01order\x02"}),
    "a FIFO key and no separator": json_send({**SINGLE, "i": SINGLE["i"] + "__SHARDINGKEY\x01order"}),
    "level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02"}),
    "a moment at level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02TIMER_DELAY_MS\x017\x02"}),
    "half at level 0": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x010\x02TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "a batch with an empty value as a whole": json_send({**BATCH, "i": "KEYS\x01\x02"}, encode_batch_body([item(1)])),
    "a batch at level 0": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"DELAY\x010")])),
    "a level": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x013\x02"}),
    "the last level": json_send({**SINGLE, "i": "DELAY\x0118\x02" + SINGLE["i"][:-1]}),
    "a level without a key": json_send({**SINGLE, "i": "DELAY\x011"}),
    "a level of the longest topic": json_send({**SINGLE, "b": "L" * 127, "e": "0", "i": "DELAY\x012\x02"}),
    "half": json_send({**SINGLE, "f": "4", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02"}),
    "half without a flag": json_send({**SINGLE, "g": str(NOW_MS + 9), "i": "PGROUP\x01g\x02TRAN_MSG\x01true"}),
    "half of the longest topic": json_send(
        {**SINGLE, "b": "L" * 127, "e": "0", "i": "PGROUP\x01g\x02TRAN_MSG\x01true"}
    ),
    "half and compressed": json_send({**SINGLE, "f": "261", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "half one-way": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}, flag=2),
    **{
        f"half and its immunity of {text!r}": half_left_alone(text)
        for text in ("9", "0", "007", "-0", "-7", "soon", "1.5", "9" * 9, "8\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130")
    },
    "an immunity of no transaction": json_send(
        {**SINGLE, "i": SINGLE["i"][:-1] + "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x019"}
    ),
    "a moment that has come": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x010\x02"}),
    "a moment that is now": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELIVER_MS\x01{NOW_MS}\x02"}),
    "a moment that has passed": json_send({**SINGLE, "i": f"TIMER_DELIVER_MS\x01{NOW_MS - 86_400_000}"}),
    "a moment that has passed, and names twice": json_send(
        {**SINGLE, "e": "-1", "i": SINGLE["i"] + "TIMER_DELIVER_MS\x011\x02a\x01b\x02a\x01größe\x02DELAY\x010\x02"}
    ),
    "a moment that has passed, one-way": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELIVER_MS\x011\x02"}, flag=2),
    "a moment that has passed, and no wait": json_send({**SINGLE, "i": "TIMER_DELIVER_MS\x011\x02WAIT\x01false"}),
    "a moment that has passed, before one ahead": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELIVER_MS\x01{NOW_MS + 9}\x02TIMER_DELAY_SEC\x010\x02"}
    ),
    "a negative moment": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01-100000000000000000\x02"}),
    "a batch with a moment that has come": json_send(
        BATCH,
        encode_batch_body(
            [
                item(1),
                (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x010\x02"),
                (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x019\x02"),
            ]
        ),
    ),
    "a moment and no separator": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x017"}),
    "a moment and no key": json_send({**SINGLE, "i": "TIMER_DELAY_MS\x017\x02"}),
    "a batch without properties": json_send(BATCH, encode_batch_body([(n, b"x" * (n + 1), b"") for n in range(9)])),
    "a batch of alike without properties": json_send(BATCH, encode_batch_body([(0, b"x", b"")] * 9)),
    "a batch without separators": json_send(BATCH, encode_batch_body([(0, b"x", item(n)[2][:-1]) for n in range(9)])),
    "a request": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02"}),
    "a request without a key": json_send({**SINGLE, "i": "REPLY_TO_CLIENT\x01c\x02"}),
    "a request at a level": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02DELAY\x012"}),
    "half and a request": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02REPLY_TO_CLIENT\x01c"}
    ),
    "no wait": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02"}),
    "no wait, a level": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02DELAY\x011\x02"}),
    "no wait, one-way": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01false\x02"}, flag=2),
    "a batch without wait": json_send(BATCH, encode_batch_body([(0, b"x", b"WAIT\x01false")] * 3)),
    "a batch with and without wait": json_send(BATCH, encode_batch_body([(0, b"x", b"WAIT\x01false"), item(1)])),
    "a key with a hyphen": json_send({**SINGLE, "i": "UNIQ_KEY\x01a-b c\x02"}),
    "a moment and a key with a hyphen": json_send({**SINGLE, "i": "UNIQ_KEY\x01a-b\x02TIMER_DELAY_MS\x013\x02"}),
    "half and a key with a hyphen": json_send(
        {**SINGLE, "i": "UNIQ_KEY\x01a-b\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"}
    ),
    "a batch of all": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", b""), (1, b"y", item(2)[2][:-1]), (0, b"z", b"own\x01v"), item(3)])
    ),
    "a batch with a moment without properties": json_send(
        BATCH, encode_batch_body([(0, b"x", b""), (0, b"y", b"TIMER_DELAY_MS\x013\x02"), (0, b"z", b"a\x01b")])
    ),
    "large opaque": json_send(SINGLE, opaque=-(10**17)),
    "no queue": json_send({**SINGLE, "e": "-1"}),
    "no queue, compact": encode_compact(Command(310, 9, {**SINGLE, "e": "-7"}, b"compact")),
    "no queue of a batch": json_send({**BATCH, "e": "-1"}, encode_batch_body([item(1), item(2)])),
    "no queue at a level": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "DELAY\x013\x02"}),
    "no queue of half": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g"}),
    "open and a name twice": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x02a\x01c"}),
    "open and names twice": json_send(
        {**SINGLE, "i": "a\x01b\x02KEYS\x011\x02" + SINGLE["i"] + "a\x01cc\x02b\x01c\x02a\x01d"}
    ),
    "a level and a name twice": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02a\x01bbb\x02a\x01c\x02"}),
    "half and a name twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "a\x01b\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02a\x01größe"}
    ),
    "no key and a name twice": json_send({**SINGLE, "i": "a\x01b\x02a\x01c\x02"}),
    "a name twice that is stored as it came": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x02a\x01c\x02"}),
    "a moment and keys twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02KEYS\x01a\x02KEYS\x01a\x02"}
    ),
    "a batch with names twice": json_send(
        BATCH, encode_batch_body([(0, b"x", b"a\x01b\x02a\x01c"), item(1), (0, b"x", b"a\x01b\x02a\x01c\x02b\x01c")])
    ),
    "values in values": json_send(
        SINGLE, more={"a": [1, {"b": [], "c": {}}, "d", None, -1.5, 0.25, True, [[[]]]], "é": "\n"}, n=-0.5, m=[]
    ),
}
OTHER: dict[str, bytes] = {
    "long names and short ones": json_send({**long_named(SINGLE), "b": "Tu", "i": "x"}, code=10),
    "another code": json_send(SINGLE, code=11),
    "short names of long ones": json_send(SINGLE, code=10),
    "long names of short ones": json_send(long_named(SINGLE)),
    "a level that is none": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01soon\x02"}),
    "a negative level": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01-1\x02"}),
    "a level with a sign": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01+3\x02"}),
    "a level with zeros": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x01003\x02"}),
    "a level beyond": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x0119\x02"}),
    "a level twice": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02DELAY\x012\x02"}),
    "a level and a place": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02REAL_TOPIC\x01U\x02"}),
    "a level and a stamp": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02TRACE_ON\x01false\x02"}),
    "a level of one who does not wait": json_send({**SINGLE, "i": SINGLE["i"] + "DELAY\x011\x02WAIT\x01false\x02"}),
    "a level in a batch": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"DELAY\x011\x02")])),
    "a level without room": json_send({**SINGLE, "i": SINGLE["i"] + f"DELAY\x011\x02mine\x01{'v' * 32_580}\x02"}),
    "half and a level": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x013\x02"}),
    "half and a moment": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02TIMER_DELAY_MS\x013\x02"}
    ),
    "half without a group": json_send({**SINGLE, "f": "4", "i": SINGLE["i"] + "TRAN_MSG\x01true\x02"}),
    "half by its flag alone": json_send({**SINGLE, "f": "4"}),
    "half by its flag alone, and open": json_send({**SINGLE, "f": "8", "i": SINGLE["i"][:-1]}),
    "half in capitals": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01TRUE\x02PGROUP\x01g\x02"}),
    "not half": json_send({**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01false\x02PGROUP\x01g\x02"}),
    "half and its checks": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TRAN_MSG\x01true\x02PGROUP\x01g\x02TRANSACTION_CHECK_TIMES\x013\x02"}
    ),
    **{
        f"half and its immunity of {text!r}": half_left_alone(text)
        for text in ("9" * 10, "9" * 18, "9" * 19, "9\x02TAGS\x01u", "9\x02REAL_QID\x013")
    },
    "half in a batch": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", b"TRAN_MSG\x01true\x02PGROUP\x01g\x02")])
    ),
    "a half batch": json_send({**BATCH, "f": "4"}, encode_batch_body([item(1)])),
    "half without room": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TRAN_MSG\x01true\x02PGROUP\x01g\x02mine\x01{'v' * 32_300}\x02"}
    ),
    "open and a name twice that says something": json_send(
        {**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01b\x02REPLY_TO_CLIENT\x01c"}
    ),
    "half by its flag alone, and a name twice": json_send(
        {**SINGLE, "f": "8", "i": SINGLE["i"] + "a\x01b\x02a\x01c\x02"}
    ),
    "open, many, and one twice": json_send(
        {**SINGLE, "i": SINGLE["i"] + "".join(f"n{n}\x01v\x02" for n in range(62)) + "n5\x01w\x02n6\x01u"}
    ),
    "open and no UTF-8": json_send(BATCH, encode_batch_body([(0, b"x", b"a\x01\xff")])),
    "open and an entry without a value": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01"}),
    "open and an entry without a name": json_send({**SINGLE, "i": SINGLE["i"] + "\x01a"}),
    "open and many": json_send({**SINGLE, "i": SINGLE["i"] + "".join(f"n{n}\x01v\x02" for n in range(80)) + "a\x01b"}),
    "open and a handle of POP": json_send({**SINGLE, "i": SINGLE["i"] + "POP_CK\x011 2\x02a\x01b"}),
    "a request and a cluster": json_send({**SINGLE, "i": SINGLE["i"] + "REPLY_TO_CLIENT\x01c\x02CLUSTER\x01d\x02"}),
    "a key with a quote": json_send({**SINGLE, "i": 'UNIQ_KEY\x01a"b\x02'}),
    "a key that is no ASCII": json_send({**SINGLE, "i": "UNIQ_KEY\x01größe\x02"}),
    "WAIT that is neither": json_send({**SINGLE, "i": "UNIQ_KEY\x01A\x02WAIT\x01perhaps\x02"}),
    "other flags": json_send({**SINGLE, "f": "16"}),
    "flags of batches kept as one": json_send({**SINGLE, "f": "128"}),
    "a field that is a fraction": json_send({**SINGLE, "e": 1.0}),
    "a field that is a list": json_send({**SINGLE, "zz": []}),
    "an answer": json_send(SINGLE, flag=1),
    "no queue and two keys": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "UNIQ_KEY\x01other\x02"}),
    "no queue and no topic": json_send({**SINGLE, "e": "-1", "b": "Tu"}),
    "no queue without room": json_send({**SINGLE, "e": "-1", "i": SINGLE["i"] + "a\x01" + "b" * 32_700 + "\x02"}),
    "a queue beyond": json_send({**SINGLE, "e": "4"}),
    "an unknown topic": json_send({**SINGLE, "b": "Tu"}),
    "no topic": json_send({**SINGLE, "b": ""}),
    "a number with a space": json_send({**SINGLE, "e": " 1"}),
    "a number of other digits": json_send({**SINGLE, "e": "１"}),
    "a long number": json_send({**SINGLE, "g": "1" * 30}),
    "a number as such": json_send({**SINGLE, "e": 1}),
    "an opaque that is a text": json_send(SINGLE, opaque="1"),
    "an opaque that is no integer": json_send(SINGLE, opaque=1.0),
    "a large opaque": json_send(SINGLE, opaque=10**18),
    "no extFields": json_send({}),
    "extFields twice": framed(json_header(SINGLE)[:-1] + b',"extFields":{"b":"U"}}', b"b"),
    "a code twice": framed(json_header(SINGLE)[:-1] + b',"code":10}', b"b"),
    "a field twice": framed(json_header(SINGLE).replace(b'"b":"T"', b'"b":"T","b":"U","e":"0"'), b"b"),
    "more behind the header": framed(json_header(SINGLE) + b" x", b"b"),
    "values in values in values": json_send(SINGLE, more=[[[[[[[[[[1]]]]]]]]]]),
    "a value with an exponent": json_send(SINGLE, more=1e300),
    "a value of many digits": json_send(SINGLE, more=10**40),
    "a fraction of many digits": framed(json_header(SINGLE)[:-1] + b',"more":1.%b}' % (b"1" * 40), b"b"),
    **{
        f"no value: {text!r}": framed(json_header(SINGLE)[:-1] + b',"more":%b}' % text, b"b")
        for text in (
            b"1.",
            b".5",
            b"-",
            b"-a",
            b"00",
            b"1.5.5",
            b"[1,]",
            b"[",
            b"{",
            b"{1:2}",
            b'{"a"}',
            b'{"a":}',
            b"]",
            b"1.-5",
        )
    },
    "minus zero elsewhere": framed(json_header(SINGLE)[:-1] + b',"more":-0,"most":[-0.0]}', b"b"),
    "a surrogate": json_send({**SINGLE, "zz": "\ud800"}, ascii=True),
    "a pair of surrogates": json_send({**SINGLE, "i": PROPERTIES.format(1, "😀")}, ascii=True),
    "a raw surrogate": json_send({**SINGLE, "zz": "\ud800"}),
    "a raw control": framed(json_header(SINGLE).replace(b"pg", b"p\x01"), b"b"),
    "no UTF-8": framed(json_header(SINGLE).replace(b"pg", b"p\xff"), b"b"),
    "too long UTF-8": framed(json_header(SINGLE).replace(b"pg", b"\xc0\x80"), b"b"),
    "an unknown escape": framed(json_header(SINGLE).replace(b"pg", b"\\q"), b"b"),
    "a cut escape": framed(json_header(SINGLE).replace(b"pg", b"\\u00"), b"b"),
    "a leading zero": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":01'), b"b"),
    "minus zero": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":-0'), b"b"),
    "a minus": framed(json_header(SINGLE).replace(b'"opaque":1', b'"opaque":-'), b"b"),
    "an unknown encoding": framed(json_header(SINGLE), b"b", 2),
    "no body": json_send(SINGLE, b""),
    "a header that is too long": b"\0\0\0\x08\0\0\0\x40" + bytes(64),
    "a negative length": b"\xff\xff\xff\xf0\0\0\0\x40" + bytes(64),
    "two keys": json_send({**SINGLE, "i": SINGLE["i"] + "UNIQ_KEY\x01other\x02"}),
    "two tags": json_send({**SINGLE, "i": SINGLE["i"] + "TAGS\x01other\x02"}),
    "a value with a separator": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\x01c\x02"}),
    "an entry without a value": json_send({**SINGLE, "i": SINGLE["i"] + "abc\x02"}),
    "an empty value": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01\x02"}),
    "a NUL": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01b\0\x02"}),
    "a moment too far ahead": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELIVER_MS\x011763600000000\x02"}),
    "a moment that has come and a place": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x010\x02REAL_QID\x014\x02"}
    ),
    "a moment that has come and a level": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x010\x02DELAY\x013\x02"}
    ),
    "a moment that has come and another": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x010\x02TIMER_DELAY_MS\x013\x02"}
    ),
    "a moment that has come of half": half_left_alone("9\x02TIMER_DELAY_SEC\x010"),
    "a moment that has come and no room": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x010\x02mine\x01{'v' * 32_650}\x02"}
    ),
    "a moment with a plus": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x01+0\x02"}),
    "a moment of many digits": json_send({**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x01{'9' * 18}\x02"}),
    "a moment and a level": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02DELAY\x013\x02"}),
    "a moment twice": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_SEC\x014\x02"}),
    "a moment and a place": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02REAL_QID\x014\x02"}),
    "a moment among many": json_send(
        {**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_SEC\x013\x02" + "".join(f"n{n}\x01v\x02" for n in range(40))}
    ),
    "a moment without room for the wait": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x013\x02mine\x01{'v' * 32_500}\x02"}
    ),
    "a moment without room for legs": json_send(
        {**SINGLE, "i": SINGLE["i"] + f"TIMER_DELAY_SEC\x01400000\x02mine\x01{'v' * 32_430}\x02"}
    ),
    "a recall": json_send({**SINGLE, "i": SINGLE["i"] + "TIMER_DELAY_MS\x013\x02TIMER_DEL_UNIQKEY\x01T+A\x02"}),
    "a batch that asks as a whole": json_send(
        {**BATCH, "i": SINGLE["i"] + "TIMER_DELAY_MS\x013\x02"}, encode_batch_body([item(1)])
    ),
    "a batch with an odd moment": json_send(
        BATCH, encode_batch_body([item(1), (0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x01x\x02")])
    ),
    "a batch with a moment amid no UTF-8": json_send(
        BATCH, encode_batch_body([(0, b"x", item(1)[2] + b"TIMER_DELAY_MS\x013\x02mine\x01\xff\x02")])
    ),
    "no wait": json_send({**SINGLE, "i": SINGLE["i"] + "WAIT\x01false\x02"}),
    "too many properties": json_send({**SINGLE, "i": SINGLE["i"] + "a\x01" + "b" * 32_700 + "\x02"}),
    "an empty batch": json_send(BATCH, b"\0" * 22),
    "a batch with an odd message": json_send(BATCH, encode_batch_body([item(1), (0, b"x", b"K\x01v\x02")])),
    "a batch with a message of nothing": json_send(BATCH, encode_batch_body([item(1), (0, b"", item(1)[2])])),
    "a batch with a tag that is no UTF-8": json_send(
        BATCH, encode_batch_body([(0, b"x", b"UNIQ_KEY\x01a\x02TAGS\x01\xff\xfe\x02")])
    ),
    "a batch that is cut": json_send(BATCH, encode_batch_body([item(1), item(2)])[:-1]),
    "a compact header that is cut": framed(encode_compact(Command(310, 9, SINGLE))[8:40], b"b", 1),
}
