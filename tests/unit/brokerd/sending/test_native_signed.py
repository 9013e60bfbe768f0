"""What the library tells of signed sends against the twins in Python: whatever the bytes, the same or nothing."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.sending import native_signed
from brokerd.sending.native_signed import ALONE, IN_CROWDS, PLAINLY, SignedSends, read_sender, signed_agrees, tells
from remoting import codes
from remoting.access.signature import Credentials, SigningKey, is_signed_by
from remoting.errors import ProtocolError
from remoting.frame import Command, decode_frames, encode_request
from tests.support.client_bytes import encode_compact
from tests.support.native_library import native_library

GOLDEN = Path(__file__).parents[3] / "golden/sends"
SENDS = (codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE)
CREDENTIALS = Credentials("a user", b"secret")
NAMES = ("a", "b", "e", "topic", "Signature", "AccessKey", "SecurityToken", "", "aa", "\u00e9", "\U0001f600", "\uffff")
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def told(buffer: bytes, most: int = 64) -> int:
    """How many sends the library tells of, all of them as Python finds them."""
    sends = SignedSends(native_library())
    found = sends.read(buffer, most)
    requests: list[Command] = []
    try:
        decode_frames(buffer, requests)
    except ProtocolError:
        assert found <= len(requests)
    for number, request in zip(range(found), requests, strict=False):
        assert tells(sends, buffer, number, request), request
    assert found <= min(most, len(requests))
    assert_proven_alike(sends, buffer, found, requests)
    return found


def assert_proven_alike(sends: SignedSends, buffer: bytes, count: int, requests: list[Command]) -> None:
    """As many as in Python one by one, whoever signed them, in every way to check them that this processor has."""
    key = SigningKey(CREDENTIALS.secret)
    expected = next((at for at in range(count) if not is_signed_by(requests[at], key)), count)
    keys = [sends.keyed(key) for _ in sends.senders()]
    for as_of in (None, PLAINLY, ALONE, IN_CROWDS):
        assert sends.proven(buffer, count, keys, as_of) == expected, as_of


def told_alone(buffer: bytes) -> int:
    """How many frames at the beginning the library tells of when each is read for itself."""
    sends, count = SignedSends(native_library()), 0
    while len(buffer) >= 4 and sends.read(buffer[: 4 + int.from_bytes(buffer[:4])], 1):
        buffer = buffer[4 + int.from_bytes(buffer[:4]) :]
        count += 1
    return count


def framed(header: bytes, body: bytes = b"body") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def send(code: int = codes.SEND_MESSAGE_V2, **ext: str) -> Command:
    topic = {"topic": "T"} if code == codes.SEND_MESSAGE else {"b": "T"}
    return Command(code, 7, CREDENTIALS.sign({**topic, **ext}, b"body"), b"body")


def encoded(command: Command) -> bytes:
    return encode_request(command.code, command.opaque, command.ext, command.body)


def test_the_library_is_asked_before_it_is_used() -> None:
    assert signed_agrees(native_library())


@pytest.mark.parametrize("client", sorted(path.name for path in GOLDEN.iterdir()))
def test_of_what_clients_wrote_all_is_told(client: str) -> None:
    requests: list[Command] = []
    decode_frames((GOLDEN / client).read_bytes(), requests)
    sends = [each for each in requests if each.code in SENDS]
    for each in sends:
        each.ext = CREDENTIALS.sign(each.ext, each.body)
    assert sends
    for write in (encoded, encode_compact):
        for each in sends:
            assert told(write(each)) == 1, each


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from([*SENDS, 11]),
    st.dictionaries(st.one_of(st.sampled_from(NAMES), texts), texts, max_size=40),
    st.booleans(),
    st.binary(max_size=60),
    st.integers(0, 1 << 30),
    st.integers(0, 4),
)
@example(310, {"b": "T"}, False, b"", 0, 0)
@example(310, {"b": "T"}, True, b"", 0, 0)
def test_whatever_a_frame_is_the_same_is_told_of_it(
    code: int, ext: dict[str, str], is_compact: bool, body: bytes, seed: int, damages: int
) -> None:
    command = Command(code, 7, CREDENTIALS.sign(ext, body), body)
    data = bytearray((encode_compact if is_compact else encoded)(command) * 3)
    chance = Random(seed)
    for _ in range(damages):
        data[chance.randrange(len(data))] = chance.choice((0, 34, 44, 58, 92, 255, chance.randrange(256)))
    told(bytes(data))


# Texts of a header as they stand between quotes, and what is none or ends it early
INSIDE = (
    *("", "a", "T", "plain and long enough for several words", "é", "\\u0001", "a\\u00e9\\n", "\\\\", "12"),
    *('a","b":"U', '"', "\\", "\\u12", "\\ud800", "\t", "\xff", 'x"},"flag":0,"extFields":{"z":"'),
)
SKELETONS = (
    '{"code":310,"extFields":{"b":"%","i":"%","n":"%","AccessKey":"u","Signature":"%"},"flag":0,"opaque":#,"version":479}',
    '{"opaque":#,"code":310,"flag":0,"remark":"%","extFields":{"Signature":"%","AccessKey":"%","b":"T","c":5,"d":null,"i":"%"}}',
    '{"opaque": # , "code" : 310, "flag":0, "extFields" : {"Signature" : "%" , "\\u0041ccessKey" : "u", "b" : "%", "b2":"%"} } ',
    '{"code":10,"flag":0,"extFields":{"topic":"%","AccessKey":"u","Signature":"%","x":"%","y":true,"y2":"%"},"opaque":#}',
    '{"code":310,"extFields":{"b":"%","b":5,"AccessKey":"u","Signature":"%","i":"%","q":"%"},"flag":0,"opaque":#}',
    '{"code":310,"extFields":{"b":"%","topic":"%","AccessKey":"u","Signature":"%","q":"%"},"flag":0,"opaque":#}',
    '{"code":310,"flag":0,"opaque":#,"extFields":{"b":"%","Signature":"%","z":{"Signature":"%"},"AccessKey":"%"}}',
)
OPAQUES = ("0", "7", "-3", " 12", "007", "1.5", "1e3", "", "true", "99999999999", "9" * 30, '"7"', "1,2")


@st.composite
def headers_alike(draw: st.DrawFn) -> list[bytes]:
    """Headers of one connection: mostly of one skeleton, with a text or a number changed here and there, and some damaged."""
    skeletons = draw(st.lists(st.sampled_from(SKELETONS), min_size=1, max_size=2))
    headers = []
    for _ in range(draw(st.integers(2, 6))):
        text = draw(st.sampled_from(skeletons))
        signature = draw(st.sampled_from(("A" * 28, "B" * 28, "é" * 14, "A" * 27, "\\u0041" + "A" * 27)))
        text = text.replace('"Signature":"%"', f'"Signature":"{signature}"', 1)
        while "%" in text:
            inside = draw(
                st.one_of(
                    st.sampled_from(INSIDE[:9]), st.sampled_from(INSIDE), texts.map(lambda x: json.dumps(x)[1:-1])
                )
            )
            text = text.replace("%", inside.replace("%", "&"), 1)
        text = text.replace("#", draw(st.one_of(st.sampled_from(OPAQUES[:4]), st.sampled_from(OPAQUES))))
        data = bytearray(text.encode("utf-8", "surrogatepass"))
        for _ in range(draw(st.sampled_from((0, 0, 0, 0, 1, 2)))):
            at = draw(st.integers(0, len(data) - 1))
            data[at : at + draw(st.integers(0, 2))] = draw(
                st.sampled_from((b"", b" ", b'"', b",", b"\\", b"\xff", b"x"))
            )
        headers.append(bytes(data))
    return headers


@settings(deadline=None, max_examples=400)
@given(headers_alike())
def test_a_header_is_read_as_if_no_other_had_come_before(headers: list[bytes]) -> None:
    buffer = b"".join(map(framed, headers))
    assert told(buffer) == told_alone(buffer)


@pytest.mark.parametrize("skeleton", SKELETONS[:4])
def test_only_what_is_a_text_differs_in_headers_that_are_alike(skeleton: str) -> None:
    """Each byte of the second header changed to each of some others."""
    first = skeleton.replace("%", "A" * 28, 1).replace("%", "value").replace("#", "12").encode()
    first = first.replace(b'"Signature":"value"', b'"Signature":"%b"' % (b"A" * 28))
    assert told(framed(first) * 3) == 3
    for at in range(len(first)):
        for other in b'"\\,:{}[] x0-.\x00\x1f\xff':
            changed = framed(first[:at] + bytes([other]) + first[at + 1 :])
            buffer = framed(first) + changed + framed(first)
            assert told(buffer) == told_alone(buffer), changed
    for cut in range(1, len(first)):  # the whole of it is how the first one begins
        buffer = framed(first) + framed(first[:-cut]) + framed(first)
        assert told(buffer) == told_alone(buffer), cut


@pytest.mark.parametrize("text", ["plain", "a\\u00e9\\n", "\\u0001"])
@pytest.mark.parametrize("other", ["", "other", "\\u0002", "as long"])
def test_a_text_is_again_what_it_was_before_another(text: str, other: str) -> None:
    headers = [
        f'{{"code":310,"extFields":{{"b":"T","i":"{each}","n":"{text}","AccessKey":"{user}","Signature":"{signature}"}},'
        f'"flag":0,"opaque":{number}}}'
        for number, (each, user, signature) in enumerate(
            (
                (text, "u", "A" * 28),
                (other, "u", "B" * 28),
                (text, "v", "A" * 28),
                (text, "u", "A" * 28),
                (other, "v", "A" * 28),
            )
        )
    ]
    buffer = b"".join(framed(each.encode(), b"body" * number) for number, each in enumerate(headers))
    assert told(buffer) == len(headers)


def pairs(*fields: tuple[str, Any]) -> bytes:
    """A header with these fields as they are, also those that are there twice."""
    signed = [("AccessKey", "u"), ("Signature", "A" * 28)]
    ext = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in [*fields, *signed])
    return f'{{"code":310,"extFields":{{{ext}}},"flag":0,"opaque":1}}'.encode()


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ([("b", "T")], 1),
        ([("b", "T"), ("n", 12), ("o", True), ("p", None), ("q", False), ("r", -3)], 1),
        ([("b", "T"), ("b", "T")], 0),
        ([("b", "T"), ("AccessKey", "v")], 0),
        ([("b", "T"), ("Signature", "B" * 28)], 0),
        ([("b", "T"), ("_UNIQUE_KEY_QUERY", "true")], 0),
        ([("b", "T"), ("topic", "U")], 0),
        ([("b", "T"), ("n", 1.5)], 0),
        ([("b", "T"), ("n", {"m": 1})], 0),
        ([("b", "")], 0),
        ([("e", "1")], 0),
        ([("b", "T" * 127)], 1),
        ([("b", "T" * 128)], 0),
        ([("b", "T"), *((f"n{each}", "v") for each in range(29))], 1),
        ([("b", "T"), *((f"n{each}", "v") for each in range(30))], 0),
    ],
)
def test_what_is_told_and_what_is_left(fields: list[tuple[str, Any]], count: int) -> None:
    assert told(framed(pairs(*fields))) == count


def test_it_stops_at_the_first_that_it_leaves() -> None:
    good = encoded(send())
    assert told(good * 3, most=2) == 2
    assert told(good * 2 + encoded(send(_UNIQUE_KEY_QUERY="1")) + good) == 2
    assert told(good + good[:-1]) == 1
    assert told(good + b"\0\0\0\x08\0\0\0\x40" + bytes(64)) == 1
    assert told(good + good[:4] + b"\x02" + good[5:]) == 1
    unsigned = Command(codes.SEND_MESSAGE_V2, 1, {"b": "T"}, b"")
    assert told(encoded(unsigned)) == 0


def test_of_what_has_no_room_it_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(send(i="é" * 30)) * 6
    monkeypatch.setattr(native_signed, "_SENDS", 4)
    assert told(data) == 4
    assert [_with_room(monkeypatch, data, room) for room in range(400)][-1] > 1


def _with_room(monkeypatch: pytest.MonkeyPatch, data: bytes, room: int) -> int:
    monkeypatch.setattr(native_signed, "_TEXTS_BYTES", room or 1)
    return told(data)


def test_a_sender_says_who_sends_what_where() -> None:
    data = encoded(send(codes.SEND_MESSAGE))
    sends = SignedSends(native_library())
    assert sends.read(data, 1) == 1
    [(sender, first)] = sends.senders()
    name, about = read_sender(sender)
    assert first == 0
    assert (name, about.code, about.ext) == ("a user", 10, {"AccessKey": "a user", "topic": "T"})
