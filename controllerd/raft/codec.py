"""Raft values as bytes, for the wire and for the log file (pure)

Whatever a peer or a disk hands in is checked before it becomes a value: every length against what is left, every kind against
its table, entries for consecutive indexes. A violation is a ProtocolError; the shells decide what that means for them.

    configuration  flags u8 (1: leave a joint configuration without being asked) · cluster (length u8 · text)
              · voters, outgoing, learners, next learners, retired: count u16 · (length u8 · name) * count
              · addresses: count u16 · (length u8 · name · length u8 · address) * count
    entry     index u64 · term u64 · kind u8 · length u32 · data
    snapshot  index u64 · term u64 · configuration · length u32 · data
    message   version u8 · kind u8 · flags u8 (1: reject, 2: forced) · term, index, log_term, commit, reject_hint, context u64
              · sender, to (length u8 · name) · entries u32 · entry * entries · has_snapshot u8 · snapshot?
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from controllerd.raft.messages import Entry, EntryKind, HardState, Message, MessageKind, Snapshot
from controllerd.raft.quorum import MAX_RETIRED, Configuration, NodeId
from remoting.errors import ProtocolError

_VERSION = 3  # 2: the same bytes, of nodes that decide what entries hold by themselves
_ENTRY = struct.Struct(">QQBI")
_SNAPSHOT = struct.Struct(">QQ")
_MESSAGE = struct.Struct(">BBBQQQQQQ")
_COUNT = struct.Struct(">I")
_NAMES = struct.Struct(">H")
_HARD_STATE = struct.Struct(">QQ")
_AUTO_LEAVE = 1
_REJECT = 1
_FORCED = 2
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
        entry = Entry(index, term, reader.take(length), EntryKind(kind))
        if entry.kind is EntryKind.MEMBERSHIP:
            decode_configuration(entry.data)  # refused here, where it can be, and not where it is applied
        entries.append(entry)
    return tuple(entries)


def encode_snapshot(snapshot: Snapshot) -> list[bytes]:
    return [
        _SNAPSHOT.pack(snapshot.index, snapshot.term),
        encode_configuration(snapshot.configuration),
        _COUNT.pack(len(snapshot.data)),
        snapshot.data,
    ]


def decode_snapshot(reader: Reader) -> Snapshot:
    index, term = reader.unpack(_SNAPSHOT)
    if index < 1 or term < 1:
        raise ProtocolError(f"a raft snapshot of index {index} and term {term}")
    configuration = read_configuration(reader)
    (length,) = reader.unpack(_COUNT)
    return Snapshot(index, term, configuration, reader.take(length))


def encode_configuration(configuration: Configuration) -> bytes:
    """A membership, as an entry carries it."""
    buffers = [bytes([_AUTO_LEAVE if configuration.auto_leave else 0]), encode_name(configuration.cluster)]
    for names in (
        configuration.voters,
        configuration.outgoing,
        configuration.learners,
        configuration.learners_next,
        configuration.retired,
    ):
        buffers.append(_NAMES.pack(len(names)))
        buffers.extend(encode_name(name) for name in names)
    buffers.append(_NAMES.pack(len(configuration.addresses)))
    for name, address in configuration.addresses:
        buffers += [encode_name(name), encode_name(address)]
    return b"".join(buffers)


def decode_configuration(content: bytes) -> Configuration:
    """A membership as written by `encode_configuration`; raises ProtocolError for one that cannot be."""
    reader = Reader(content)
    configuration = read_configuration(reader)
    reader.finish()
    return configuration


def read_configuration(reader: Reader) -> Configuration:
    """A membership inside of something else."""
    flags = reader.byte()
    if flags & ~_AUTO_LEAVE:
        raise ProtocolError(f"a raft membership with the unknown flags {flags}")
    cluster = reader.name()
    voters, outgoing, learners, learners_next, retired = (_read_names(reader) for _ in range(5))
    addresses = tuple((reader.name(), reader.name()) for _ in range(_read_count(reader)))
    try:
        return Configuration(
            voters, outgoing, learners, learners_next, bool(flags & _AUTO_LEAVE), addresses, retired, cluster
        )
    except ValueError as error:
        raise ProtocolError(f"{error}") from error


def _read_count(reader: Reader) -> int:
    (count,) = reader.unpack(_NAMES)
    if count > MAX_RETIRED or count > reader.left:
        raise ProtocolError(f"a raft membership announces {count} names where {reader.left} bytes are left")
    return count


def _read_names(reader: Reader) -> tuple[NodeId, ...]:
    return tuple(reader.name() for _ in range(_read_count(reader)))


def encode_hard_state(hard_state: HardState) -> bytes:
    return _HARD_STATE.pack(hard_state.term, hard_state.commit) + encode_name(hard_state.vote or "")


def decode_hard_state(reader: Reader) -> HardState:
    term, commit = reader.unpack(_HARD_STATE)
    return HardState(term, reader.name() or None, commit)


def encode_message(message: Message) -> bytes:
    """One message as the body of a request."""
    buffers = [
        _MESSAGE.pack(
            _VERSION,
            message.kind,
            (_REJECT if message.reject else 0) | (_FORCED if message.forced else 0),
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
    version, kind, flags, term, index, log_term, commit, reject_hint, context = reader.unpack(_MESSAGE)
    if version != _VERSION:
        raise ProtocolError(f"raft messages of version {version} are not understood, only {_VERSION}")
    if kind not in _MESSAGE_KINDS:
        raise ProtocolError(f"a raft message of the unknown kind {kind}")
    if flags & ~(_REJECT | _FORCED):
        raise ProtocolError(f"a raft message with the unknown flags {flags}")
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
        bool(flags & _REJECT),
        reject_hint,
        context,
        entries,
        snapshot,
        bool(flags & _FORCED),
    )
