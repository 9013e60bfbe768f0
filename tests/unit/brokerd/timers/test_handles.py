"""Recall handles: clients find the broker in them, and nobody makes one or changes one."""

from __future__ import annotations

import base64
import random

import pytest

from brokerd.timers.handles import (
    MAX_UNIQUE_KEY_BYTES,
    Recallable,
    broker_of_handle,
    decode_handle,
    encode_handle,
    has_handle,
)

KEY = bytes(range(32))
MESSAGE = Recallable("Orders", "broker-a", 1_763_600_123_457, "0A000001000078BF0000000000000001", 42)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_="


def test_a_handle_names_the_message_that_it_was_made_for() -> None:
    assert decode_handle(encode_handle(MESSAGE, KEY), KEY) == MESSAGE
    assert broker_of_handle(encode_handle(MESSAGE, KEY)) == "broker-a"


@pytest.mark.parametrize("unique_key", ["a b", " a ", "v1", "ключ 1 2", "a\nb", "0 1", "é" * 127])
def test_a_key_may_be_any_text(unique_key) -> None:
    message = MESSAGE._replace(unique_key=unique_key)
    assert has_handle(unique_key)
    assert decode_handle(encode_handle(message, KEY), KEY) == message
    assert broker_of_handle(encode_handle(message, KEY)) == "broker-a"


def test_a_key_that_is_missing_or_too_long_makes_no_handle() -> None:
    assert not has_handle("")
    assert has_handle("x" * MAX_UNIQUE_KEY_BYTES)
    assert not has_handle("x" * (MAX_UNIQUE_KEY_BYTES + 1))


def test_official_clients_read_the_topic_the_broker_the_time_and_the_key() -> None:
    """They decode strictly, with padding, split at spaces, and look at the first five words of five or more."""
    handle = encode_handle(MESSAGE._replace(unique_key="K" * 30), KEY)
    assert len(handle) % 4 == 0
    words = base64.urlsafe_b64decode(handle).decode().split(" ")
    assert words[:5] == ["v1", "Orders", "broker-a", "1763600123457", "K" * 30]


def test_a_hundred_thousand_altered_handles_are_refused() -> None:
    rng = random.Random(18)
    handle = encode_handle(MESSAGE, KEY)
    altered = 0
    while altered < 100_000:
        changed = list(handle)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            kind, at = rng.randrange(4), rng.randrange(len(changed))
            if kind == 0 and len(changed) > 1:
                del changed[at]
            elif kind == 1:
                changed.insert(at, rng.choice(ALPHABET))
            elif kind == 2:
                changed[at] = rng.choice(ALPHABET)
            else:
                other = rng.randrange(len(changed))
                changed[at], changed[other] = changed[other], changed[at]
        text = "".join(changed)
        if text != handle:
            altered += 1
            assert decode_handle(text, KEY) is None, text


def test_every_single_character_counts() -> None:
    handle = encode_handle(MESSAGE._replace(unique_key="short"), KEY)  # two bytes of the last group are padding
    for at, was in enumerate(handle):
        for other in ALPHABET.replace(was, ""):
            assert decode_handle(handle[:at] + other + handle[at + 1 :], KEY) is None


@pytest.mark.parametrize(
    "changed",
    [
        MESSAGE._replace(topic="Others"),
        MESSAGE._replace(broker_name="broker-b"),
        MESSAGE._replace(due_ms=MESSAGE.due_ms + 1),
        MESSAGE._replace(unique_key="0A000001000078BF0000000000000002"),
        MESSAGE._replace(place=43),
    ],
)
def test_the_tag_of_one_message_fits_no_other(changed) -> None:
    def text(message: Recallable) -> bytes:
        return base64.urlsafe_b64decode(encode_handle(message, KEY))

    tag = text(MESSAGE).rpartition(b" ")[2]
    forged = text(changed).rpartition(b" ")[0] + b" " + tag
    assert decode_handle(base64.urlsafe_b64encode(forged).decode(), KEY) is None


def test_another_broker_groups_key_makes_no_handle_of_this_one() -> None:
    assert decode_handle(encode_handle(MESSAGE, bytes(32)), KEY) is None


@pytest.mark.parametrize(
    "text", ["", "=", "djE", "djE=", "not base64!", "ü", "A" * 5000, base64.b64encode(b"v1 a b").decode()]
)
def test_what_is_no_handle_names_no_broker_either(text) -> None:
    assert decode_handle(text, KEY) is None
    assert broker_of_handle(text) is None


def test_a_handle_of_the_original_names_its_broker_and_recalls_nothing_here() -> None:
    theirs = base64.urlsafe_b64encode(b"v1 Orders broker-a 1763600123457 0A0000010000").decode()
    assert broker_of_handle(theirs) == "broker-a"
    assert decode_handle(theirs, KEY) is None
