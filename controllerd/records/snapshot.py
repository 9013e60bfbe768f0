"""The states of all subjects in one snapshot (pure)

    format u8 (2) · subjects u8 · (length u8 · name · length u32 · state) * subjects

A subject of which nothing is known yet is left out. One that is not known here is an UnknownFormat.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from controllerd.records.subject import Subjects, UnknownFormat
from remoting.errors import ProtocolError

FORMAT: Final = 2
_MAX_STATE_BYTES: Final = 64 << 20
_HEAD: Final = struct.Struct(">BB")
_NAME: Final = struct.Struct(">B")
_STATE: Final = struct.Struct(">I")


def encode_snapshot(states: Mapping[str, Any], subjects: Subjects) -> bytes:
    """All states as bytes; equal states give equal bytes."""
    known = [subject for subject in subjects.values() if states[subject.name] != subject.initial]
    buffers = [_HEAD.pack(FORMAT, len(known))]
    for subject in known:
        name, state = subject.name.encode(), subject.encode_state(states[subject.name])
        buffers += [_NAME.pack(len(name)), name, _STATE.pack(len(state)), state]
    return b"".join(buffers)


def decode_snapshot(content: bytes, subjects: Subjects) -> dict[str, Any]:
    """A state for each subject. Raises UnknownFormat for what a later version wrote, ProtocolError for anything else."""
    states = {name: subject.initial for name, subject in subjects.items()}
    format, count = _HEAD.unpack(_take(content, 0, _HEAD.size))
    if format > FORMAT:
        raise UnknownFormat(f"a snapshot of format {format}")
    if format < FORMAT:
        raise ProtocolError(f"a snapshot of format {format}, which was never written")
    position = _HEAD.size
    for _ in range(count):
        text, position = _section(content, position, _NAME)
        state, position = _section(content, position, _STATE)
        name = text.decode("utf-8", "replace")
        if name not in subjects:
            raise UnknownFormat(f"the subject {name!r}")
        states[name] = subjects[name].decode_state(state)
    if position != len(content):
        raise ProtocolError(f"{len(content) - position} bytes follow a snapshot")
    return states


def _section(content: bytes, position: int, length: struct.Struct) -> tuple[bytes, int]:
    start = position + length.size
    (size,) = length.unpack(_take(content, position, length.size))
    if size > _MAX_STATE_BYTES:
        raise ProtocolError(f"a state of {size} bytes in a snapshot, where {_MAX_STATE_BYTES} are the limit")
    return _take(content, start, size), start + size


def _take(content: bytes, position: int, size: int) -> bytes:
    if position + size > len(content):
        raise ProtocolError(
            f"a snapshot that is cut off: {size} bytes are announced where {len(content) - position} are left"
        )
    return content[position : position + size]
