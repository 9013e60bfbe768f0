import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.pop.handles import (
    ReceiptHandle,
    decode_handle,
    is_place,
    proof_of,
    proves,
    retry_topic,
    retry_topic_v1,
    split_retry_topic,
    stored_topic,
)

_INTS = st.integers(0, 2**63 - 1)
_TAGS = st.integers(0, 2**64 - 1)


def test_both_lengths_are_read() -> None:
    short = decode_handle("120 1763600000123 60000 3 0 broker-a 5 123")
    assert short == ReceiptHandle(120, 1763600000123, 60000, 3, 0, "broker-a", 5, 123)
    assert short.encode() == "120 1763600000123 60000 3 0 broker-a 5 123"
    placed = decode_handle("120 1763600000123 60000 3 0 broker-a 5 123 884213")
    assert placed is not None
    assert (placed.proof, is_place(placed.proof)) == ("884213", True)
    assert placed.encode() == "120 1763600000123 60000 3 0 broker-a 5 123 884213"
    tagged = decode_handle("120 1763600000123 60000 3 0 broker-a 5 123 00000000000000ff")
    assert tagged is not None
    assert (tagged.proof, is_place(tagged.proof)) == (proof_of(255), False)
    assert tagged.encode() == "120 1763600000123 60000 3 0 broker-a 5 123 00000000000000ff"


@given(_INTS, _INTS, _INTS, st.integers(0, 999), st.integers(0, 2), st.integers(0, 65535), _INTS, _TAGS)
def test_round_trip(start: int, pop: int, inv: int, revive: int, flag: int, queue: int, offset: int, tag: int) -> None:
    handle = ReceiptHandle(start, pop, inv, revive, flag, "broker-a", queue, offset, proof_of(tag))
    assert decode_handle(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "1 2 3 4 0 b 5",
        "1 2 3 4 0 b 5 6 7 8",
        "1 2 3 4 3 b 5 6",
        "-1 2 3 4 0 b 5 6",
        "1 2 3 4 0  5 6",
        "1 2 3 4 0 b 5 " + "9" * 20,
        "1 2 3 4 0 b 5 ²",
        "1 2 3 4 0 b 5 " + "6" * 600,
        "1 2 3 4 0 b 5 \u0666",
        "1 2 3 4 0 b 5 06",
        "01 2 3 4 0 b 5 6",
        "1 2 3 4 00 b 5 6",
        "1 2 3 4 0 b 5 6 ",
        " 1 2 3 4 0 b 5 6",
        "1 2 3 4 0 b 5 6\n",
        "1 2 3 4 0 b 5 6 07",
        "1 2 3 4 0 b 5 6 \u0667",
        "1 2 3 4 0 b 5 6 ff",
        "1 2 3 4 0 b 5 6 00000000000000FF",
        "1 2 3 4 0 b 5 6 000000000000000ff",
        "1 2 3 4 0 b 5 6 00000000000000ff 7",
        "1 2 3 4 0 b b 5 6",
        "+1 2 3 4 0 b 5 6",
        "1_0 2 3 4 0 b 5 6",
    ],
)
def test_anything_else_is_no_handle(text: str) -> None:
    assert decode_handle(text) is None


@given(_TAGS, _TAGS)
def test_one_proof_fits_one_tag(tag: int, other: int) -> None:
    """So the tag is found by one guess of 2^64 - 1: a million of them find it once in 10^13 times."""
    assert proves(proof_of(tag), tag)
    assert proves(proof_of(other), tag) is (tag == other)
    assert not tag or not proves("", tag), "no handle without a proof names a batch with a tag"


@given(st.text(max_size=60))
def test_decoding_never_raises(text: str) -> None:
    decode_handle(text)


def test_retry_topics_split_again() -> None:
    assert split_retry_topic(retry_topic("a_b", "c")) == ("a_b", "c")
    assert split_retry_topic(retry_topic_v1("a_b", "c")) is None
    assert split_retry_topic("%RETRY%group") is None
    assert retry_topic("a_b", "c") != retry_topic("a", "b_c")
    assert retry_topic_v1("a_b", "c") == retry_topic_v1("a", "b_c")
    assert stored_topic("g", "t", 0) == "t"
    assert stored_topic("g", "t", 1) == "%RETRY%g_t"
    assert stored_topic("g", "t", 2) == "%RETRY%g+t"
