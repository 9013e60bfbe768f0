"""A Raft log file as the releases before wrote it: records without a checksum of their header."""

from __future__ import annotations

import struct
import zlib

from controllerd.raft.codec import encode_entries, encode_hard_state
from controllerd.raft.messages import HardState, Persist


def former_log(*writes: Persist) -> bytes:
    """The file of a generation that compacted nothing, with these writes."""
    header = [struct.pack(">QQ", 0, 0), encode_hard_state(HardState()), *encode_entries(())]
    payloads = [header, *([encode_hard_state(each.hard_state), *encode_entries(each.entries)] for each in writes)]
    return b"".join(_record(sequence, b"".join(payload)) for sequence, payload in enumerate(payloads))


def _record(sequence: int, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(struct.pack(">QI", sequence, len(payload))))
    return struct.pack(">4sQII", b"LBRL", sequence, len(payload), crc) + payload
