"""Our decoder against the library of the same name, which is the oracle."""

from __future__ import annotations

import hpack
import pytest
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.proxy.http2.hpack import HeaderListTooLarge, HpackDecoder, HpackError
from brokerd.proxy.http2.huffman import HuffmanError, decode_huffman

_NAMES = st.sampled_from([b":method", b":path", b"te", b"content-type", b"x-mq-client-id", b"x-mq-request-id", b"a"])
_FIELDS = st.lists(
    st.tuples(_NAMES | st.binary(min_size=1, max_size=20), st.binary(max_size=60), st.integers(0, 2)), max_size=12
)


@given(st.lists(_FIELDS, max_size=12), st.booleans(), st.lists(st.integers(0, 4096), max_size=3))
def test_decodes_what_the_library_encodes(blocks, huffman, sizes) -> None:
    encoder, ours = hpack.Encoder(), HpackDecoder(1 << 20)
    for number, block in enumerate(blocks):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        fields = [
            hpack.NeverIndexedHeaderTuple(name, value) if kind == 2 else hpack.HeaderTuple(name, value)
            for name, value, kind in block
        ]
        assert ours.decode(encoder.encode(fields, huffman=huffman)) == [(name, value) for name, value, _ in block]


@settings(max_examples=400)
@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_bytes_decode_as_the_library_decodes_them_or_are_refused(blocks) -> None:
    ours, library = HpackDecoder(65536), hpack.Decoder(65536)
    for block in blocks:
        try:
            expected = library.decode(block, raw=True)
        except hpack.HPACKError:
            with pytest.raises(HpackError):
                ours.decode(block)
            return
        try:
            decoded = ours.decode(block)
        except HpackError as error:
            refusal = str(error)
            break
        assert decoded == [tuple(field) for field in expected]
    else:
        return
    # the one thing that we refuse and the library does not
    assert "integer that is too long" in refusal


@given(st.binary(max_size=200))
def test_huffman_round_trip(text) -> None:
    coded = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text)
    assert decode_huffman(coded) == text


@pytest.mark.parametrize(
    "coded",
    [b"\xff\xff\xff\xff", b"\x1f\xff", b"\x18", b"\x00"],
    ids=["end of string", "eight bits of padding", "padding of zeros", "half a symbol"],
)
def test_huffman_refuses_what_is_not_a_string(coded) -> None:
    with pytest.raises(HuffmanError):
        decode_huffman(coded)


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an index beyond the empty dynamic table
        b"\x3f\xe2\x1f",  # a table of 4097 bytes
        b"\x82\x20",  # a size update after a field
        b"\x00\x05ab",  # a name that is cut off
        b"\xff",  # an integer that is cut off
        b"\xff\xff\xff\xff\xff\xff\xff\x00",  # an integer that is too long
    ],
)
def test_refuses_broken_blocks(block) -> None:
    with pytest.raises(HpackError):
        HpackDecoder(65536).decode(block)


def test_counts_only_what_changes_the_table() -> None:
    decoder = HpackDecoder(65536)
    decoder.decode(b"\x82\x84")  # static entries
    decoder.decode(b"\x00\x01a\x01b\x10\x01a\x01b")  # literals without indexing
    assert decoder.changes == 0
    decoder.decode(b"\x40\x01a\x01b")
    decoder.decode(b"\x20")
    assert decoder.changes == 2
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")  # the size update dropped the entry


def test_bounds_the_list_even_when_a_small_block_names_a_large_entry_often() -> None:
    decoder = HpackDecoder(16384)
    decoder.decode(b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000)
    with pytest.raises(HeaderListTooLarge):
        decoder.decode(b"\xbe" * 100)
