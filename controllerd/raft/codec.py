"""Raft values as bytes, for the wire and for the log file (pure)

Whatever a peer or a disk hands in is checked before it becomes a value: every length against what is left, every kind against
its table, entries for consecutive indexes. A violation is a ProtocolError; the shells decide what that means for them.

    entry     index u64 · term u64 · kind u8 · length u32 · data
    snapshot  index u64 · term u64 · voters u16 · (length u8 · name) * voters · length u32 · data
    message   version u8 · kind u8 · reject u8 · term, index, log_term, commit, reject_hint, context u64
              · sender, to (length u8 · name) · entries u32 · entry * entries · has_snapshot u8 · snapshot?
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from controllerd.raft.messages import Entry, EntryKind, HardState, Message, MessageKind, NodeId, Snapshot
from remoting.errors import ProtocolError

_VERSION = 1
_ENTRY = struct.Struct(">QQBI")
_SNAPSHOT = struct.Struct(">QQH")
_MESSAGE = struct.Struct(">BBBQQQQQQ")
_COUNT = struct.Struct(">I")
_HARD_STATE = struct.Struct(">QQ")
_MAX_VOTERS = 64
_ENTRY_KINDS = frozenset(EntryKind)
_MESSAGE_KINDS = frozenset(MessageKind)


class Reader:
    """A cursor over bytes that were not made here."""

    __slots__ = ("_content", "_position")

    def __init__(self, content: bytes | memoryview) -> None:
        self._content = memoryview(content)
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._position

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise ProtocolError(f"a raft value of {length} bytes is announced where {self.left} are left")
        start = self._position
        self._position += length
        return bytes(self._content[start : self._position])

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack(self.take(layout.size))

    def byte(self) -> int:
        return self.take(1)[0]

    def name(self) -> str:
        try:
            return self.take(self.byte()).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("a raft node name is not UTF-8") from error

    def finish(self) -> None:
        if self.left:
            raise ProtocolError(f"{self.left} bytes follow a raft value")


def encode_name(name: str) -> bytes:
    """A short text with its length in front."""
    content = name.encode()
    assert len(content) < 256
    return bytes([len(content)]) + content


def encode_entries(entries: Sequence[Entry]) -> list[bytes]:
    """Count and entries as buffers."""
    buffers = [_COUNT.pack(len(entries))]
    for entry in entries:
        buffers.append(_ENTRY.pack(entry.index, entry.term, entry.kind, len(entry.data)))
        buffers.append(entry.data)
    return buffers


def decode_entries(reader: Reader) -> tuple[Entry, ...]:
    """Entries as written by `encode_entries`: consecutive, terms never going back."""
    (count,) = reader.unpack(_COUNT)
    if count * _ENTRY.size > reader.left:
        raise ProtocolError(f"{count} raft entries are announced where {reader.left} bytes are left")
    entries: list[Entry] = []
    for _ in range(count):
        index, term, kind, length = reader.unpack(_ENTRY)
        if kind not in _ENTRY_KINDS:
            raise ProtocolError(f"raft entry {index} has the unknown kind {kind}")
        if entries and (index != entries[-1].index + 1 or term < entries[-1].term):
            raise ProtocolError(f"raft entry {index} of term {term} does not follow the one before it")
        entries.append(Entry(index, term, reader.take(length), EntryKind(kind)))
    return tuple(entries)


def encode_snapshot(snapshot: Snapshot) -> list[bytes]:
    """A snapshot as buffers."""
    buffers = [_SNAPSHOT.pack(snapshot.index, snapshot.term, len(snapshot.voters))]
    buffers.extend(encode_name(voter) for voter in snapshot.voters)
    buffers.append(_COUNT.pack(len(snapshot.data)))
    buffers.append(snapshot.data)
    return buffers


def decode_snapshot(reader: Reader) -> Snapshot:
    """A snapshot as written by `encode_snapshot`."""
    index, term, voter_count = reader.unpack(_SNAPSHOT)
    if index < 1 or term < 1 or not 1 <= voter_count <= _MAX_VOTERS:
        raise ProtocolError(f"a raft snapshot of index {index}, term {term} and {voter_count} voters")
    voters = tuple(reader.name() for _ in range(voter_count))
    (length,) = reader.unpack(_COUNT)
    return Snapshot(index, term, voters, reader.take(length))


def encode_hard_state(hard_state: HardState) -> bytes:
    """Term, commit index and vote."""
    return _HARD_STATE.pack(hard_state.term, hard_state.commit) + encode_name(hard_state.vote or "")


def decode_hard_state(reader: Reader) -> HardState:
    """Hard state as written by `encode_hard_state`."""
    term, commit = reader.unpack(_HARD_STATE)
    return HardState(term, reader.name() or None, commit)


def encode_message(message: Message) -> bytes:
    """One message as the body of a request."""
    buffers = [
        _MESSAGE.pack(
            _VERSION,
            message.kind,
            message.reject,
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.reject_hint,
            message.context,
        ),
        encode_name(message.sender),
        encode_name(message.to),
        *encode_entries(message.entries),
        b"\x01" if message.snapshot else b"\x00",
    ]
    if message.snapshot:
        buffers.extend(encode_snapshot(message.snapshot))
    return b"".join(buffers)


def decode_message(content: bytes | memoryview) -> Message:
    """One message; raises ProtocolError for anything that `encode_message` does not write."""
    reader = Reader(content)
    version, kind, reject, term, index, log_term, commit, reject_hint, context = reader.unpack(_MESSAGE)
    if version != _VERSION:
        raise ProtocolError(f"raft messages of version {version} are not understood, only {_VERSION}")
    if kind not in _MESSAGE_KINDS:
        raise ProtocolError(f"a raft message of the unknown kind {kind}")
    sender: NodeId = reader.name()
    to: NodeId = reader.name()
    entries = decode_entries(reader)
    snapshot = decode_snapshot(reader) if reader.byte() else None
    reader.finish()
    if entries and (entries[0].index != index + 1 or entries[0].term < log_term or entries[-1].term > term):
        raise ProtocolError(
            f"raft entries from {entries[0].index} do not follow entry {index} of a message of term {term}"
        )
    if (kind == MessageKind.SNAPSHOT) != (snapshot is not None) or (snapshot is not None and snapshot.term > term):
        raise ProtocolError("a raft snapshot message without its snapshot, or a snapshot in another message")
    return Message(
        MessageKind(kind),
        sender,
        to,
        term,
        index,
        log_term,
        commit,
        bool(reject),
        reject_hint,
        context,
        entries,
        snapshot,
    )
