"""Header blocks read in C are read as in Python: what encoders make, odd ones, hostile ones, and whatever bytes there may be."""

from __future__ import annotations

from random import Random

import hpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.native.library import Library
from brokerd.proxy.http2 import native_hpack
from brokerd.proxy.http2.blocks import OWN_FIELDS, Block, BlockReader, PlainBlockReader, block_of, fields_of
from brokerd.proxy.http2.hpack import HpackError
from brokerd.proxy.http2.native_hpack import block_readers_agree, native_block_readers
from tests.support.native_library import native_library

NAMES = (*OWN_FIELDS, b":method", b":path", b"te", b"user-agent", b"x-mq-client-i", b"x-mq-client-ids", b"a", b"")
VALUES = (b"", b"a", b" ", b"a b", b" a", b"a ", b"\ta", b"a\x01", b"\0", b"a\r\nb", b"25S", b"\xff\xfe", b"v" * 5000)
MAX_LIST_BYTES = 32 * 1024


def said_by(reader: BlockReader, block: bytes) -> Block | tuple[object, str]:
    try:
        return reader.read(block)
    except HpackError as error:
        return type(error), str(error)


def compare(blocks: list[bytes], max_list_bytes: int = MAX_LIST_BYTES) -> None:
    """Both say the same of the blocks of one connection, which ends with the first that has a fault."""
    in_c, plain = native_block_readers(native_library())(max_list_bytes), PlainBlockReader(max_list_bytes)
    for block in blocks:
        expected = said_by(plain, block)
        assert said_by(in_c, block) == expected
        assert in_c.changes == plain.changes
        if not isinstance(expected, Block):
            return


def one_block(rng: Random, encoder: hpack.Encoder) -> bytes:
    if rng.random() < 0.1:
        encoder.header_table_size = rng.choice((0, 32, 100, 1000, 4096))
    fields = []
    for _ in range(rng.randrange(12)):
        value = rng.choice(VALUES) if rng.random() < 0.5 else rng.randbytes(rng.randrange(60))
        kind = hpack.HeaderTuple if rng.random() < 0.7 else hpack.NeverIndexedHeaderTuple
        fields.append(kind(rng.choice(NAMES), value))
    return encoder.encode(fields, huffman=rng.random() < 0.5)


def damaged(rng: Random, block: bytes) -> bytes:
    made = bytearray(block)
    for _ in range(rng.randrange(1, 4)):
        place = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0:
                made[place:place] = rng.randbytes(rng.randrange(1, 4))
            case 1:
                del made[place : place + rng.randrange(1, 6)]
            case 2:
                made[place : place + 1] = bytes((rng.getrandbits(8),))
            case 3:
                made[place:place] = rng.choice((b"\x20", b"\x3f\xe1\x1f", b"\x7f\xff\xff\xff\xff\x0f", b"\xff\x80\x80"))
    return bytes(made)


@pytest.mark.parametrize("seed", range(40))
def test_both_read_the_same_of_encoded_and_of_damaged_blocks(seed) -> None:
    rng = Random(seed)
    for _ in range(25):
        encoder = hpack.Encoder()
        blocks = [one_block(rng, encoder) for _ in range(rng.randrange(1, 40))]
        if rng.random() < 0.7:
            place = rng.randrange(len(blocks))
            blocks[place] = damaged(rng, blocks[place])
        compare(blocks, rng.choice((100, 2000, MAX_LIST_BYTES)))


@settings(max_examples=400)
@given(st.lists(st.binary(max_size=60), max_size=8))
def test_both_read_the_same_of_any_bytes(blocks) -> None:
    compare(blocks)


@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=40))
def test_both_read_the_same_of_any_huffman_coded_string(coded) -> None:
    compare([b"\x00\x01a" + bytes((0x80 | len(coded),)) + coded])


def test_a_table_is_full_to_its_last_byte_and_entry() -> None:
    """Of 32 bytes each, a table has 128 entries, all of them empty; of one entry, all of it."""
    compare([b"\x40\x00\x00" * 300, b"\xfe\xfe" + b"\xff\x3f", b"\xff\x40"])
    longest = b"\x40\x01a\x7f" + b"\xe0\x1e" + b"v" * 4063  # 4,096 bytes with what each entry counts
    compare([longest, b"\xbe", longest + b"\xbe" * 7, b"\x40\x01a\x7f\xe1\x1e" + b"v" * 4064, b"\xbe"])


def test_no_list_and_no_string_is_longer_than_the_room() -> None:
    for length in (30_000, 33_000, 48_000):
        number = length - 127
        coded = bytes((0xFF, number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
        compare([b"\x00\x01a" + coded + b"\x00" * length], MAX_LIST_BYTES)  # five bits a symbol
    compare([b"\x40\x01a\x7f\xa1\x1e" + b"v" * 4000, b"\xbe" * 16384])


def test_the_names_of_own_fields_are_known_whole() -> None:
    fields = [(b":path", b"/"), (b"x-mq-client-id", b"c"), (b"x-mq-client-ids", b"d"), (b"grpc-timeout", b"1S")]
    block = block_of(fields)
    assert block.own == [None, None, None, b"c", b"1S"]
    assert b"x-mq-client-idsd" in block.key
    assert fields_of(block) == fields
    compare([hpack.Encoder().encode(fields)])


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8))
def test_key_and_own_values_are_all_that_was_there(fields) -> None:
    assert fields_of(block_of(fields)) == fields


def test_what_is_compared_at_load(monkeypatch) -> None:
    assert block_readers_agree(native_library())

    def forgetful(library: Library) -> native_hpack.NewBlockReader:
        return lambda max_list_bytes: _Forgetful(max_list_bytes)

    monkeypatch.setattr(native_hpack, "native_block_readers", forgetful)
    assert not block_readers_agree(native_library())


class _Forgetful(PlainBlockReader):
    """It forgets its table."""

    def read(self, block: bytes) -> Block:
        return PlainBlockReader(1000).read(block)
