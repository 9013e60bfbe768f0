"""Requests to send that C writes as frames send what their drafts would, and no others are taken, whatever their bytes are."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from brokerd.proxy.native_sends import Found, SendReader, frame_agrees, sends_agree
from brokerd.proxy.properties import FORBIDDEN
from brokerd.proxy.protobuf import definition, service
from tests.support.native_library import native_library

NAMES = (*sorted(FORBIDDEN), "color", "n" * 90, "größe", "DELAYED", "a", "\x01", "x\x7f", "x\x85", "x\xa0")
TEXTS = (
    *("", " ", "\t", "v", "a b", "a|b", "x" * 127, "x" * 128, "x" * 255, "x" * 256, "x" * 17_000),
    *("ä", "\u2003", "\x00", "x\x02", "x\x1f", "x\x7f", "x\x80", "x\x9f", "x\xa0", "\U0001f600", "\ufffd"),
)
TYPES = tuple(definition.MessageType.values())


def text(rng: Random, usual: str) -> str:
    return usual if rng.random() < 0.97 else rng.choice(TEXTS)


def fill(rng: Random, message: Any) -> None:
    message.topic.name = text(rng, rng.choice(("Orders", "T", "ns%T")))
    if rng.random() < 0.03:
        message.topic.resource_namespace = rng.choice((*TEXTS, "a%b", "ns"))
    message.body = rng.randbytes(rng.choice((0, 1, 1, 5, 127, 128, 1024, 70_000)))
    for _ in range(rng.choice((0, 0, 0, 1, 3, 12, 70))):
        usual = f"name{rng.randrange(100)}"
        message.user_properties[usual if rng.random() < 0.97 else rng.choice(NAMES)] = text(rng, "value")
    system = message.system_properties
    system.message_id = text(rng, "01AABBCCDDEEFF0123456789ABCDEF0123")
    for name, usual in (("tag", "tag"), ("born_host", "host"), ("trace_context", "trace"), ("store_host", "")):
        if rng.random() < 0.4 and (value := text(rng, usual)):
            setattr(system, name, value)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 4, 40))):
        system.keys.append(text(rng, "key"))
    system.message_type = rng.choice((*TYPES[:5], TYPES[6])) if rng.random() < 0.95 else rng.choice(TYPES)
    system.body_encoding = rng.choice((0, 1, 1, 2))
    system.queue_id = rng.choice((0, 0, 3, -1))
    if rng.random() < 0.97:
        system.born_timestamp.seconds = rng.choice((1_700_000_000, 1_700_000_000, 253402300799, 1))
        system.born_timestamp.nanos = rng.choice((0, 1_000_000, 999_999_999))
    else:
        system.born_timestamp.seconds, system.born_timestamp.nanos = rng.choice(
            ((0, 5), (-1, 0), (1 << 40, 0), (9, -1))
        )
    if rng.random() < 0.5:
        system.body_digest.type, system.body_digest.checksum = rng.choice((0, 1, 3)), text(rng, "ABCDEF")
    if rng.random() < 0.2:
        system.message_group = text(rng, "group")
    if rng.random() < 0.2:
        system.delivery_timestamp.FromMilliseconds(rng.choice((1_700_000_060_000, 1, 0)))
    if rng.random() < 0.1:
        system.priority = rng.choice((0, 5, -1, (1 << 31) - 1))
    if rng.random() < 0.2:
        system.delivery_attempt = rng.choice((0, 2, -1, 0x7FFF, 0x8000))
    if rng.random() < 0.1:
        recovery = system.orphaned_transaction_recovery_duration
        recovery.seconds, recovery.nanos = rng.choice((0, 5, 3600, 3601)), rng.choice((0, 5))
    if rng.random() < 0.1:
        system.store_timestamp.seconds, system.queue_offset = 5, rng.choice((0, 5, -1))
        system.receipt_handle, system.invisible_duration.seconds = text(rng, "handle"), 30


def request(rng: Random) -> bytes:
    sent = service.SendMessageRequest()
    for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 1, 2, 0))):
        fill(rng, sent.messages.add())
    encoded: bytes = sent.SerializeToString()
    return encoded


def damaged(rng: Random, encoded: bytes) -> bytes:
    """Bytes that are others, that are gone, or that come twice."""
    found = bytearray(encoded)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(min(len(found), 300) or 1)
        match rng.randrange(4):
            case 0 if found:
                found[at] = rng.getrandbits(8)
            case 1:
                del found[at : at + rng.choice((1, 2, 20))]
            case 2:
                found[at:at] = rng.randbytes(rng.choice((1, 2, 5)))
            case _:
                found += found[: rng.choice((3, 30, len(found)))]
    return bytes(found)


def check(requests: list[bytes]) -> int:
    """How many are taken."""
    frames, found = SendReader(native_library()).read(requests, 0)
    begin = 0
    for encoded, each in zip(requests, found, strict=True):
        if each[0]:
            assert frame_agrees(encoded, bytes(frames[begin : each[0]]), Found(*each)), encoded
            begin = each[0]
    return sum(each[0] > 0 for each in found)


@pytest.mark.parametrize("seed", range(8))
def test_what_is_taken_is_sent_as_its_draft_would_be(seed: int) -> None:
    rng = Random(seed)
    taken = sum(check([request(rng) for _ in range(rng.choice((1, 7, 40)))]) for _ in range(30))
    assert taken > 40


@pytest.mark.parametrize("seed", range(8))
def test_of_damaged_requests_nothing_is_taken_that_the_draft_would_not_be(seed: int) -> None:
    rng = Random(seed)
    usual = [request(rng) for _ in range(60)]
    for _ in range(40):
        check([damaged(rng, rng.choice(usual)) for _ in range(20)])


def ordinary(**changes: Any) -> Any:
    sent = service.SendMessageRequest()
    message = sent.messages.add()
    message.topic.name, message.body = "Orders", b"body"
    message.system_properties.message_id = "01"
    message.system_properties.born_timestamp.seconds = 1
    for name, value in changes.items():
        setattr(message.system_properties, name, value)
    return sent


def test_ordinary_requests_are_not_left_to_python() -> None:
    assert sends_agree(native_library())
    several = ordinary()
    several.messages[0].user_properties.update({f"name{n}": "v" * 200 for n in range(64)})
    several.messages[0].topic.resource_namespace = "ns"
    several.messages[0].system_properties.keys.extend(f"key{n}" for n in range(32))
    large = ordinary()
    large.messages[0].body = bytes(4 * 1024 * 1024)
    usual = [ordinary(), ordinary(tag="ä", message_group="g"), ordinary(message_id="x" * 255), several, large]
    assert check([each.SerializeToString() for each in usual] * 3) == 15


@pytest.mark.parametrize(
    "changes",
    [
        *({"tag": ""}, {"tag": "a|b"}, {"message_id": " "}, {"message_group": "x" * 64}, {"priority": -1}),
        *({"message_type": 5}, {"priority": 0, "message_type": 4}, {"priority": 0, "message_group": "g"}),
        *({"delivery_attempt": 0x8000}, {"lite_topic": "l"}, {"message_id": "\x85"}),
    ],
)
def test_what_breaks_a_rule_or_is_unusual_is_left(changes: dict[str, Any]) -> None:
    assert check([ordinary(**changes).SerializeToString()]) == 0
    assert check([b"", b"\x0a", b"\x0a\x00", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"]) == 0


def test_a_field_that_is_there_twice_is_left() -> None:
    (message,) = ordinary().messages
    twice = service.SendMessageRequest()
    twice.messages.add().MergeFromString(message.SerializeToString())
    encoded = message.SerializeToString() + b"\x22\x01x"  # the body again
    assert check([b"\x0a" + bytes((len(encoded),)) + encoded]) == 0
    assert check([twice.SerializeToString()]) == 1


def test_as_many_properties_as_there_may_be_and_none_twice() -> None:
    """Whatever their names are, of one length and first byte, say, and where the one is that is there again."""
    for name in ("name{:03d}", "{:03d}", "TTL{}", "ä{}"):
        full = ordinary()
        full.messages[0].user_properties.update({name.format(n): "v" for n in range(128)})
        assert check([full.SerializeToString()]) == 1
        (message,) = full.messages
        for again in (0, 64, 127):
            entry = service.SendMessageRequest.FromString(ordinary().SerializeToString()).messages[0]
            entry.Clear()
            entry.user_properties[name.format(again)] = "w"
            message.user_properties.pop(name.format(1), None)
            encoded = message.SerializeToString() + entry.SerializeToString()
            length = bytes((len(encoded) & 0x7F | 0x80, len(encoded) >> 7))
            assert (check([b"\x0a" + length + encoded]) == 1) == (again == 1)
            message.user_properties[name.format(1)] = "v"


@pytest.mark.parametrize("name", sorted(FORBIDDEN - {""}))
def test_no_name_that_means_something_is_taken(name: str) -> None:
    for property_name, is_taken in (
        (name, False),
        (name + "x", name + "x" not in FORBIDDEN),
        (name[:-1], name[:-1] not in FORBIDDEN),
    ):
        sent = ordinary()
        sent.messages[0].user_properties[property_name] = "v"
        assert check([sent.SerializeToString()]) == is_taken


def with_property(entry: bytes) -> bytes:
    """An ordinary request with the bytes of one user property."""
    sent = ordinary()
    message: bytes = (
        sent.messages[0].SerializeToString() + b"\x12" + bytes((len(entry) & 0x7F | 0x80, len(entry) >> 7)) + entry
    )
    return b"\x0a" + bytes((len(message) & 0x7F | 0x80, len(message) >> 7)) + message


def part(field: int, text: bytes) -> bytes:
    length = bytes((len(text),)) if len(text) < 128 else bytes((len(text) & 0x7F | 0x80, len(text) >> 7))
    return bytes((field << 3 | 2,)) + length + text


def test_a_character_that_is_none_is_seen_wherever_it_is() -> None:
    good, bad = [], []
    for length in range(1, 19):
        for at in range(length):
            for character in ("\0", "\x01", "\x1f", "\x7f", "\x80", "\x9f"):
                bad.append("~" * at + character + " " * (length - at - 1))
            for character in (" ", "~", "\xa0", "ä", "\U0001f600"):
                good.append("~" * at + character + " " * (length - at - 1))
    requests = [with_property(part(1, b"name") + part(2, value.encode())) for value in good]
    assert check(requests) == len(good)
    assert check([with_property(part(1, value.encode()) + part(2, b"value")) for value in good]) == len(good)
    for value in bad:
        assert check([with_property(part(1, b"name") + part(2, value.encode()))]) == 0, value
        assert check([with_property(part(1, value.encode()) + part(2, b"value"))]) == 0, value
    for cut in range(18):
        assert check([with_property(part(1, b"name") + part(2, b"x" * cut + b"\xff" + b"x" * (17 - cut)))]) == 0


def test_a_property_is_read_in_whatever_way_it_is_written() -> None:
    for length in (1, 126, 127, 128, 129, 300):
        text = b"t" * length
        for entry in (part(1, text) + part(2, b"v"), part(1, b"n") + part(2, text), part(2, text) + part(1, b"n")):
            assert check([with_property(entry)]) == 1, entry
            for cut in range(1, len(entry)):
                check([with_property(entry[:cut])])  # what is taken of it is as its draft says
    for entry in (b"", part(1, b"n"), part(2, b"v"), part(1, b"n") + part(2, b"v") + part(2, b"w"), part(3, b"n")):
        assert check([with_property(entry)]) == 0, entry


def test_names_that_differ_in_little_are_told_apart() -> None:
    names = ["n" * length for length in range(1, 40)] + [f"{'n' * at}m{'n' * (16 - at)}" for at in range(17)]
    sent = ordinary()
    for name in names:
        sent.messages[0].user_properties[name] = "v"
    assert check([sent.SerializeToString()]) == 1
    for name in names:
        twice = (
            sent.messages[0].SerializeToString()
            + b"\x12"
            + bytes((len(name) + 5,))
            + part(1, name.encode())
            + part(2, b"w")
        )
        assert check([b"\x0a" + bytes((len(twice) & 0x7F | 0x80, len(twice) >> 7)) + twice]) == 0, name
