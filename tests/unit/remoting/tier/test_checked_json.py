"""The objects of a tier that are JSON: the bytes that they have, and what is said of others."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

import pytest
import zstandard

from remoting.checksum import crc32
from remoting.tier.checked_json import MAX_JSON_BYTES, Layout, encode_json
from remoting.tier.manifest import ManifestPart, Position, decode_part, encode_part
from remoting.tier.states import decode_state, encode_state

_PART: Final = ManifestPart(Position(3, 7), True, [(1, 0), (3, 4096)], [["begun", "log"], ["dropped", "Orders"]])
_STORED_PART: Final = bytes.fromhex(
    "4c42544945520001018af4fc000000000000007328b52ffd20730d030082861519706975fedb12b3559026ca6e59785df50f697e8e11abfa3f"
    "840bc42af99484bae9ceb54c3dc6aa86a8cb9e7ad22b5658a8460c0c0c809163347c9c63aaf82f17d385199a3ba02f540b4cf349e2b11a315d"
    "a8b957110200fb14036a507a"
)
_STORED_PIECE: Final = bytes.fromhex(
    "4c42544945520002fd4322e4000000000000008a28b52ffd208a8d0300b2c7181a704975fe6c592b6a9c3bb28ec9ebaa77b1c8783d0306a0ea"
    "09018b8dec1cd4321ee607d48b36798e701334f84efb9e83c9e5c6ca31df6daa45bcaa9d857c63060543f0a3dc180794a28edf09a55ab6c43d"
    "04da857c821a2e9298cd3fd40bb9b756040300a22ade3eef801a941e"
)
_ROWS: Final = [["topic", "Orders", {"queues": 4}], ["offset", "Orders", 0, 17]]
_STORED_ROWS: Final = bytes.fromhex(
    "4c42535441540001c24b6d18000000000000003a28b52ffd203abd0100f4025b5b22746f706963222c224f7264657273222c7b227175657565"
    "73223a347d5d2c5b226f6666736574302c31375d5d010021862a03"
)
_BOTH: Final = pytest.mark.parametrize(
    ("decode", "stored"), [(decode_part, _STORED_PART), (decode_state, _STORED_ROWS)]
)


def test_a_part_of_a_manifest_has_the_bytes_that_it_always_had() -> None:
    assert encode_part(_PART) == _STORED_PART
    assert decode_part(_STORED_PART, "part") == _PART


def test_so_has_a_piece_of_a_checkpoint() -> None:
    piece = _PART._replace(piece=2, is_last=False)
    assert encode_part(piece) == _STORED_PIECE
    assert decode_part(_STORED_PIECE, "piece") == piece


@pytest.mark.parametrize("wrong", [{"piece": -1}, {"piece": True}, {"last": 1}, {"checkpoint": False}])
def test_what_is_no_piece_of_a_checkpoint_is_none(wrong: dict[str, Any]) -> None:
    document = {"epoch": 1, "number": 0, "checkpoint": True, "epochs": [], "changes": [], "piece": 1, "last": False}
    stored = encode_json(Layout(b"LBTIER\x00\x02", "manifest"), document | wrong)
    with pytest.raises(ValueError, match="no piece of a checkpoint"):
        decode_part(stored, "part")


def test_a_state_has_the_bytes_that_it_always_had() -> None:
    assert encode_state(_ROWS) == _STORED_ROWS
    assert decode_state(_STORED_ROWS, "state") == _ROWS


@_BOTH
def test_no_byte_of_it_can_be_another_one(decode: Callable[[bytes, str], Any], stored: bytes) -> None:
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        with pytest.raises(ValueError, match=r"^the object "):
            decode(bytes(damaged), "the object")


@_BOTH
def test_what_is_none_says_why(decode: Callable[[bytes, str], Any], stored: bytes) -> None:
    with pytest.raises(ValueError, match="cut off: 19 bytes"):
        decode(stored[:19], "the object")
    with pytest.raises(ValueError, match="a newer version wrote it"):
        decode(stored[:7] + b"\x03" + stored[8:], "the object")
    with pytest.raises(ValueError, match="it is no "):
        decode(b"LBOTHER\x01" + stored[8:], "the object")
    with pytest.raises(ValueError, match="damaged: its checksum"):
        decode(stored[:-1], "the object")


@_BOTH
def test_its_lengths_are_bounded_before_anything_is_unpacked(
    decode: Callable[[bytes, str], Any], stored: bytes
) -> None:
    frame = zstandard.compress(b"[" + b" " * 10_000 + b"]")
    with pytest.raises(ValueError, match="its lengths contradict each other"):
        decode(_checked(stored[:8], 100, frame), "the object")
    with pytest.raises(ValueError, match=f"at most {MAX_JSON_BYTES} are read"):
        decode(_checked(stored[:8], MAX_JSON_BYTES + 1, frame), "the object")


def _checked(magic: bytes, length: int, frame: bytes) -> bytes:
    checked = struct.pack(">Q", length) + frame
    return magic + struct.pack(">I", crc32(checked)) + checked
