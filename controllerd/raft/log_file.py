"""What one Raft node keeps on disk: identity, snapshot, and the log file with hard state and entries.

    raft/identity          JSON {"group", "node", "voters"}: a directory belongs to one node of one group, made of these voters
                           (none: the node was brought into a group that was there already)
    raft/snapshot          magic "LBS2" · crc32 u32 · snapshot
    raft/log-<generation>  header record, then one record per write

    record   magic "LBRL" · sequence u64 · length u32 · crc32 u32 (of sequence, length and payload) · payload
    payload  header: compacted_index u64 · compacted_term u64 · hard state · entries
             write:  hard state · entries (they overwrite what the log holds from the first one's index on)

Invariants: a write is one record and is synced before `persist` returns, so at most the last record can be torn by a crash. A
damaged record with a whole one after it is therefore damage to what was synced: opening refuses, instead of forgetting entries
that this node acknowledged. Compaction writes a new generation whole and atomically, after the snapshot that covers what it
drops; an older generation is removed only then. Opening writes a new generation too: after a failed sync the kernel may show
what the disk does not hold, and nothing may count on that.

All calls block; the shell runs them in one helper thread, the simulator calls them directly. After `WriteRefused` the files are
as they were before the call, and it may be made again. After any other StorageError the object must not be used: the node stops.
"""

from __future__ import annotations

import logging
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from controllerd.raft.codec import (
    Reader,
    decode_entries,
    decode_hard_state,
    decode_snapshot,
    encode_entries,
    encode_hard_state,
    encode_snapshot,
)
from controllerd.raft.core import Compaction
from controllerd.raft.log import RaftLog
from controllerd.raft.messages import Entry, EntryKind, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration, NodeId
from remoting.disk import Disk, FileSegment
from remoting.errors import CorruptedFile, ProtocolError, SettingsError, StorageError

log = logging.getLogger(__name__)

DIRECTORY: Final = "raft"
_IDENTITY: Final = f"{DIRECTORY}/identity"
_SNAPSHOT: Final = f"{DIRECTORY}/snapshot"
_LOG_PREFIX: Final = "log-"
_RECORD_MAGIC: Final = b"LBRL"
_SNAPSHOT_MAGIC: Final = b"LBS2"
_RECORD = struct.Struct(">4sQII")
_CHECKED = struct.Struct(">QI")
_CRC = struct.Struct(">I")
_BASE = struct.Struct(">QQ")
_MAX_RECORD_BYTES: Final = 256 << 20
_READ_BYTES: Final = 1 << 20


class WriteRefused(StorageError):
    """The disk took nothing of a write (it is full, say): the files are as before, and the same write may be tried again."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a node knew when it stopped; `founders` is the membership before the log says anything about it."""

    hard_state: HardState
    log: RaftLog
    founders: Configuration


class RaftLogFile:
    """The files of one node. `open` first; then `persist` and `compact` in the order the core asks for them."""

    def __init__(self, disk: Disk, group: str, node: NodeId, voters: Iterable[NodeId]) -> None:
        self._disk = disk
        self._group = group
        self._node = node
        self._voters = sorted(set(voters))
        self._generation = 0
        self._sequence = 0
        self._position = 0
        self._commit = 0
        self._segment: FileSegment | None = None

    @property
    def size_bytes(self) -> int:
        """Length of the present log file, as a measure for when to compact."""
        return self._position

    def open(self) -> Recovered:
        """Read everything back.

        Raises SettingsError when the directory is another node's and CorruptedFile when synced content is damaged.
        """
        founders = self._check_identity()
        snapshot = self._read_snapshot()
        generations = sorted(
            int(name.removeprefix(_LOG_PREFIX))
            for name in self._disk.names(DIRECTORY)
            if name.startswith(_LOG_PREFIX) and name.removeprefix(_LOG_PREFIX).isdecimal()
        )
        if not generations:
            if snapshot is not None:
                raise CorruptedFile(
                    f"{_SNAPSHOT} is there but no log file; restore the directory or start with an empty one"
                )
            self._start_generation(HardState(), 0, 0, ())
            self._check_founders(founders, is_recorded=False)
            return Recovered(HardState(), RaftLog(), Configuration.of(founders))
        self._generation = generations[-1]
        for older in generations[:-1]:
            self._disk.remove(_path(older))
        found = self._read_log()
        hard_state, raft_log = self._combine(snapshot, found)
        self._check_founders(
            founders,
            is_recorded=(snapshot is not None and bool(snapshot.configuration.cluster))
            or any(entry.kind is EntryKind.MEMBERSHIP for entry in found.entries),
        )
        self._start_generation(hard_state, raft_log.compacted_index, raft_log.compacted_term, raft_log.kept_entries())
        return Recovered(hard_state, raft_log, Configuration.of(founders))

    def persist(self, persist: Persist) -> None:
        """Make one write of the core durable. Raises WriteRefused, or StorageError for good."""
        if persist.snapshot is not None:
            # Term and vote first: a snapshot of a term that the node does not remember could not be opened again. But not its
            # commit index: that is about the snapshot's entries, and those that are here may be others.
            self._append(HardState(persist.hard_state.term, persist.hard_state.vote, self._commit), ())
            self._write_snapshot(persist.snapshot)
            self._start_generation(persist.hard_state, persist.snapshot.index, persist.snapshot.term, persist.entries)
        else:
            self._append(persist.hard_state, persist.entries)

    def compact(self, compaction: Compaction) -> None:
        """Keep the snapshot and the entries behind it; what it covers is dropped.

        Raises as `persist` does; after WriteRefused ask the core for a new compaction, this one may lack what was written since.
        """
        self._write_snapshot(compaction.snapshot)
        self._start_generation(
            compaction.hard_state, compaction.compacted_index, compaction.compacted_term, compaction.entries
        )

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    # Identity and snapshot

    def _check_identity(self) -> tuple[NodeId, ...]:
        content = self._disk.read_bytes(_IDENTITY)
        if content is None:
            if any(not name.endswith(".new") for name in self._disk.names(DIRECTORY)):
                raise CorruptedFile(f"{_IDENTITY} is missing from a directory with raft files; restore it from a copy")
            own = {"group": self._group, "node": self._node, "voters": self._voters}
            self._disk.replace_bytes(_IDENTITY, orjson.dumps(own))
            return tuple(self._voters)
        try:
            identity = orjson.loads(content)
            group, node, voters = identity["group"], identity["node"], tuple(map(str, identity["voters"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptedFile(f"{_IDENTITY} is damaged: {error}") from error
        if (group, node) != (self._group, self._node):
            raise SettingsError(
                f"this data directory belongs to controller {node!r} of group {group!r}, not to {self._node!r} of "
                f"{self._group!r}; start it with that id and group or choose another directory"
            )
        return voters

    def _check_founders(self, founders: tuple[NodeId, ...], *, is_recorded: bool) -> None:
        """The membership that the log records is what counts; as long as it records none, everybody must start with the same."""
        if tuple(self._voters) == founders or not founders:
            return
        made_of, said = ", ".join(founders), ", ".join(self._voters) or "a group to join"
        if not is_recorded:
            # Two groups of members could each have a majority and decide differently.
            raise SettingsError(
                f"this controller's group was made of {made_of} and is now said to be {said}; start all of them with the "
                "members that it was made of (addresses may change)"
            )
        log.info("the group was made of %s and is now said to be %s: the log says who its members are", made_of, said)

    def _read_snapshot(self) -> Snapshot | None:
        content = self._disk.read_bytes(_SNAPSHOT)
        if content is None:
            return None
        head = len(_SNAPSHOT_MAGIC) + _CRC.size
        body = content[head:]
        if content[:head] != _SNAPSHOT_MAGIC + _CRC.pack(zlib.crc32(body)):
            raise CorruptedFile(f"{_SNAPSHOT} does not match its checksum; restore it from another copy")
        try:
            reader = Reader(body)
            snapshot = decode_snapshot(reader)
            reader.finish()
        except ProtocolError as error:
            raise CorruptedFile(f"{_SNAPSHOT} is damaged: {error}") from error
        return snapshot

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        body = b"".join(encode_snapshot(snapshot))
        self._replace(_SNAPSHOT, b"".join((_SNAPSHOT_MAGIC, _CRC.pack(zlib.crc32(body)), body)))

    # Writing

    def _append(self, hard_state: HardState, entries: tuple[Entry, ...]) -> None:
        assert self._segment is not None, "the log file is not open"
        buffers = _record(self._sequence, [encode_hard_state(hard_state), *encode_entries(entries)])
        try:
            written = self._segment.write(self._position, buffers)
        except StorageError as error:
            # What reached the file is cut off; if that fails too, nobody knows what the file holds.
            self._segment.truncate(self._position)
            raise WriteRefused(str(error)) from error
        self._segment.sync()
        self._position += written
        self._sequence += 1
        self._commit = hard_state.commit

    def _replace(self, path: str, content: bytes) -> None:
        """Put a file in place whole; a failure leaves the old one, and the next attempt writes everything again."""
        try:
            self._disk.replace_bytes(path, content)
        except StorageError as error:
            raise WriteRefused(str(error)) from error

    def _start_generation(
        self, hard_state: HardState, compacted_index: int, compacted_term: int, entries: tuple[Entry, ...]
    ) -> None:
        base = _BASE.pack(compacted_index, compacted_term)
        content = b"".join(_record(0, [base, encode_hard_state(hard_state), *encode_entries(entries)]))
        self._replace(_path(self._generation + 1), content)
        # From here on the new generation is the log: nothing may be appended to the old one.
        self.close()
        self._generation += 1
        self._segment = self._disk.open(_path(self._generation))
        self._position = len(content)
        self._sequence = 1
        self._commit = hard_state.commit
        self._disk.remove(_path(self._generation - 1))

    # Reading

    def _read_log(self) -> _LogContent:
        path = _path(self._generation)
        segment = self._disk.open(path)
        content = b"".join(_chunks(segment))
        segment.close()
        records = _Records(path, content)
        header = records.next()
        if header is None:
            raise CorruptedFile(f"{path} does not start with a whole header; restore it from another copy")
        try:
            compacted_index, compacted_term = header.unpack(_BASE)
            hard_state = decode_hard_state(header)
            entries = list(decode_entries(header))
            header.finish()
            while (payload := records.next()) is not None:
                hard_state = decode_hard_state(payload)
                _overwrite(path, entries, compacted_index, decode_entries(payload))
                payload.finish()
        except ProtocolError as error:
            raise CorruptedFile(f"{path} is damaged before {records.position}: {error}") from error
        if records.position < len(content):
            log.warning("dropping the torn end of %s: %d bytes", path, len(content) - records.position)
        found = _LogContent(hard_state, compacted_index, compacted_term, entries)
        if found.last_term > hard_state.term:
            raise CorruptedFile(
                f"{path} has entries of term {found.last_term} but remembers only term {hard_state.term}"
            )
        return found

    def _combine(self, snapshot: Snapshot | None, found: _LogContent) -> tuple[HardState, RaftLog]:
        hard_state = found.hard_state
        if snapshot is None:
            if found.compacted_index:
                raise CorruptedFile(
                    f"{_path(self._generation)} starts behind entry {found.compacted_index} and no snapshot is there"
                )
        elif snapshot.index < found.compacted_index:
            raise CorruptedFile(
                f"{_SNAPSHOT} ends at {snapshot.index}, before the log starts at {found.compacted_index}"
            )
        elif found.term(snapshot.index) != snapshot.term:
            # A snapshot was received and the crash came before the log was started anew behind it.
            hard_state = HardState(hard_state.term, hard_state.vote, snapshot.index)
            return hard_state, RaftLog(snapshot, snapshot.index, snapshot.term)
        raft_log = RaftLog(
            snapshot,
            found.compacted_index,
            found.compacted_term,
            found.entries,
            min(hard_state.commit, found.compacted_index + len(found.entries)),
        )
        return HardState(hard_state.term, hard_state.vote, raft_log.committed), raft_log


@dataclass(frozen=True, slots=True)
class _LogContent:
    hard_state: HardState
    compacted_index: int
    compacted_term: int
    entries: list[Entry]

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.compacted_term

    def term(self, index: int) -> int | None:
        if index == self.compacted_index:
            return self.compacted_term
        place = index - self.compacted_index - 1
        return self.entries[place].term if 0 <= place < len(self.entries) else None


class _Records:
    """The whole records of a log file, in order; stops before a torn one and refuses a damaged one."""

    def __init__(self, path: str, content: bytes) -> None:
        self._path = path
        self._content = content
        self.position = 0
        self.sequence = 0

    def next(self) -> Reader | None:
        payload = self._whole_record(self.position, self.sequence)
        if payload is None:
            self._refuse_hole()
            return None
        self.position += _RECORD.size + len(payload)
        self.sequence += 1
        return Reader(payload)

    def _whole_record(self, position: int, sequence: int | None) -> memoryview | None:
        if len(self._content) - position < _RECORD.size:
            return None
        magic, found_sequence, length, crc = _RECORD.unpack_from(self._content, position)
        start = position + _RECORD.size
        if magic != _RECORD_MAGIC or length > _MAX_RECORD_BYTES or start + length > len(self._content):
            return None
        payload = memoryview(self._content)[start : start + length]
        if crc != zlib.crc32(payload, zlib.crc32(_CHECKED.pack(found_sequence, length))):
            return None
        return payload if sequence is None or found_sequence == sequence else None

    def _refuse_hole(self) -> None:
        position = self.position - 1
        while (position := self._content.find(_RECORD_MAGIC, position + 1)) >= 0:
            if self._whole_record(position, None) is not None:
                raise CorruptedFile(
                    f"{self._path} is damaged at {self.position}, before a whole record at {position}: entries that this "
                    "controller acknowledged are lost; restore the file, or remove the controller from the group and add it "
                    "again with an empty directory"
                )


def _record(sequence: int, payload: list[bytes]) -> list[bytes]:
    length = sum(map(len, payload))
    crc = zlib.crc32(_CHECKED.pack(sequence, length))
    for buffer in payload:
        crc = zlib.crc32(buffer, crc)
    return [_RECORD.pack(_RECORD_MAGIC, sequence, length, crc), *payload]


def _overwrite(path: str, entries: list[Entry], compacted_index: int, written: tuple[Entry, ...]) -> None:
    if not written:
        return
    place = written[0].index - compacted_index - 1
    if not 0 <= place <= len(entries):
        raise CorruptedFile(f"{path} continues with entry {written[0].index} behind {compacted_index + len(entries)}")
    entries[place:] = written


def _path(generation: int) -> str:
    return f"{DIRECTORY}/{_LOG_PREFIX}{generation:08d}"


def _chunks(segment: FileSegment) -> Iterator[bytes]:
    for position in range(0, segment.size_bytes, _READ_BYTES):
        yield segment.read(position, _READ_BYTES)
