"""What one Raft node keeps on disk: identity, snapshot, the log file with hard state and entries, and the log's seal.

    raft/identity          who the directory belongs to (see `identity`)
    raft/snapshot          magic "LBS2" · crc32 u32 · snapshot
    raft/log-<generation>  header record, then one record per write (see `record_format`)
    raft/seal              up to where the log is durable for certain (see `seal`)

    payload  header: compacted_index u64 · compacted_term u64 · hard state · entries
             write:  hard state · entries (they overwrite what the log holds from the first one's index on)

Invariants: a write is one record and is synced before `persist` returns, so at most the last record can be torn by a crash, and
only a torn one is dropped. Anything else that is damaged or missing was promised to somebody: opening raises LostLog, and never
forgets. From then on the node's id counts no more; `renounce` notes the incarnation that it asks to come back as, `begin_anew`
empties the directory for that one when the group has taken it. Compaction writes a new generation whole and atomically, after the
snapshot that covers what it drops; an older generation is removed only then. Opening writes a new generation too: after a failed
sync the kernel may show what the disk does not hold, and nothing may count on that.

All calls block; the shell runs them in one helper thread, the simulator calls them directly. After `WriteRefused` the files are
as they were before the call, and it may be made again. After any other StorageError the object must not be used: the node stops.
"""

from __future__ import annotations

import logging
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from controllerd.raft import identity
from controllerd.raft.codec import (
    Reader,
    decode_configuration,
    decode_entries,
    decode_hard_state,
    decode_snapshot,
    encode_entries,
    encode_hard_state,
    encode_snapshot,
)
from controllerd.raft.core import Compaction
from controllerd.raft.identity import DIRECTORY, Identity
from controllerd.raft.log import LostLog, RaftLog
from controllerd.raft.messages import Entry, EntryKind, HardState, Persist, Snapshot
from controllerd.raft.quorum import Configuration, NodeId
from controllerd.raft.record_format import Records, encode_record
from controllerd.raft.seal import Seal, Sealed
from remoting.disk import Disk, FileSegment
from remoting.errors import CorruptedFile, ProtocolError, SettingsError, StorageError

log = logging.getLogger(__name__)

_SNAPSHOT: Final = f"{DIRECTORY}/snapshot"
_LOG_PREFIX: Final = "log-"
_SNAPSHOT_MAGIC: Final = b"LBS2"
_CRC = struct.Struct(">I")
_BASE = struct.Struct(">QQ")
_READ_BYTES: Final = 1 << 20


def _draw() -> str:
    return secrets.token_hex(4)


class WriteRefused(StorageError):
    """The disk took nothing of a write (it is full, say): the files are as before, and the same write may be tried again."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a node knew when it stopped, and who it is; `founders` is the membership before the log says anything about it."""

    identity: Identity
    hard_state: HardState
    log: RaftLog
    founders: Configuration


class RaftLogFile:
    """The files of one node. `open` first; then `persist` and `compact` in the order the core asks for them."""

    def __init__(
        self,
        disk: Disk,
        group: str,
        name: str,
        voters: Iterable[NodeId],
        draw: Callable[[], str] = _draw,
    ) -> None:
        """`name` is the controller's, for people; `draw` gives a text that nobody gave before."""
        self._disk = disk
        self._group = group
        self._name = name
        self._voters = sorted(set(voters))
        self._draw = draw
        self._generation = 0
        self._sequence = 0
        self._position = 0
        self._commit = 0
        self._segment: FileSegment | None = None
        self._seal = Seal(disk)

    @property
    def size_bytes(self) -> int:
        """Length of the present log file, as a measure for when to compact."""
        return self._position

    def open(self) -> Recovered:
        """Read everything back, in a new life.

        Raises SettingsError when the directory is another node's, LostLog when what this node promised cannot be read any more,
        and CorruptedFile when nothing says whose the files are.
        """
        own = self._own_identity()
        if own.next:
            raise LostLog(own.reason)
        own = own.started(self._draw())
        if not own.begun:
            return self._begin(own)
        hard_state, raft_log, is_recorded = self._read()
        self._check_founders(own.voters, is_recorded=is_recorded)
        self._start_generation(hard_state, raft_log.compacted_index, raft_log.compacted_term, raft_log.kept_entries())
        identity.write(self._disk, own)
        return Recovered(own, hard_state, raft_log, Configuration.of(own.voters))

    def renounce(self, reason: str) -> Identity:
        """What this node promised is lost: note so, and as whom it asks to come back; always the same until it is back."""
        own = self._own_identity(even_damaged=True)
        if not own.next:
            own = replace(own, next=self._draw(), reason=reason)
            identity.write(self._disk, own)
        return own

    def begin_anew(self) -> None:
        """The group has taken the next incarnation: nothing of the former one is needed any more."""
        own = self._own_identity()
        assert own.next, "this incarnation was not renounced"
        identity.write(self._disk, Identity(own.group, own.node, (), own.next))

    def readable_members(self) -> dict[NodeId, str]:
        """Who the members were and where, as far as damaged files still say so; for asking them, and for nothing else."""
        found = Configuration()
        try:
            snapshot = self._read_snapshot()
            if snapshot is not None:
                found = snapshot.configuration
            for entry in self._readable_entries():
                if entry.kind is EntryKind.MEMBERSHIP:
                    found = decode_configuration(entry.data)
        except StorageError as error:
            log.info("the members are known only as far as %s", error)
        return dict(found.addresses)

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
        self._close_log()
        self._seal.close()

    def _close_log(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    # Identity and snapshot

    def _own_identity(self, *, even_damaged: bool = False) -> Identity:
        own = self._read_identity(even_damaged=even_damaged)
        if own is None:
            if any(not name.endswith(".new") for name in self._disk.names(DIRECTORY)):
                raise CorruptedFile(
                    f"{identity.PATH} is missing from a directory with raft files; restore it from a copy"
                )
            own = Identity(self._group, self._name, tuple(self._voters))
            identity.write(self._disk, own)
        elif (own.group, own.node) != (self._group, self._name):
            raise SettingsError(
                f"this data directory belongs to controller {own.node!r} of group {own.group!r}, not to {self._name!r} of "
                f"{self._group!r}; start it with that id and group or choose another directory"
            )
        return own

    def _read_identity(self, *, even_damaged: bool) -> Identity | None:
        try:
            return identity.read(self._disk)
        except CorruptedFile as error:
            if not even_damaged:
                raise LostLog(f"{error}: nothing says which votes and entries are this controller's") from error
            return Identity(self._group, self._name, (), begun=True)

    def _begin(self, own: Identity) -> Recovered:
        """The first start of an incarnation. Until it has begun it promises nothing, so all that is here is of a former one."""
        for name in self._disk.names(DIRECTORY):
            if f"{DIRECTORY}/{name}" != identity.PATH:
                self._disk.remove(f"{DIRECTORY}/{name}")
        self._seal.open(Sealed())
        self._start_generation(HardState(), 0, 0, ())
        self._check_founders(own.voters, is_recorded=False)
        identity.write(self._disk, replace(own, begun=True))
        return Recovered(own, HardState(), RaftLog(), Configuration.of(own.voters))

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
            raise LostLog(f"{_SNAPSHOT} does not match its checksum")
        try:
            reader = Reader(body)
            snapshot = decode_snapshot(reader)
            reader.finish()
        except ProtocolError as error:
            raise LostLog(f"{_SNAPSHOT} is damaged: {error}") from error
        return snapshot

    def _write_snapshot(self, snapshot: Snapshot) -> None:
        body = b"".join(encode_snapshot(snapshot))
        self._replace(_SNAPSHOT, b"".join((_SNAPSHOT_MAGIC, _CRC.pack(zlib.crc32(body)), body)))

    # Writing

    def _append(self, hard_state: HardState, entries: tuple[Entry, ...]) -> None:
        assert self._segment is not None, "the log file is not open"
        buffers = encode_record(self._sequence, [encode_hard_state(hard_state), *encode_entries(entries)])
        try:
            written = self._segment.write(self._position, buffers)
        except StorageError as error:
            # What reached the file is cut off; if that fails too, nobody knows what the file holds.
            self._segment.truncate(self._position)
            raise WriteRefused(str(error)) from error
        self._segment.sync()
        self._position += written
        self._seal.write(Sealed(self._generation, self._position))
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
        content = b"".join(encode_record(0, [base, encode_hard_state(hard_state), *encode_entries(entries)]))
        self._replace(_path(self._generation + 1), content)
        # From here on the new generation is the log: nothing may be appended to the old one.
        self._close_log()
        self._generation += 1
        self._segment = self._disk.open(_path(self._generation))
        self._position = len(content)
        self._seal.write(Sealed(self._generation, self._position))
        self._sequence = 1
        self._commit = hard_state.commit
        self._disk.remove(_path(self._generation - 1))

    # Reading

    def _read(self) -> tuple[HardState, RaftLog, bool]:
        """Hard state and log, and whether they say who the members are. Raises LostLog."""
        try:
            snapshot = self._read_snapshot()
            generations = self._generations()
            sealed = self._seal.read()
            if not generations or generations[-1] < sealed.generation:
                raise LostLog(f"the raft log is missing: generation {max(sealed.generation, 1)} was begun here")
            self._generation = generations[-1]
            found = self._read_log(sealed.length if sealed.generation == self._generation else 0)
            hard_state, raft_log = self._combine(snapshot, found)
        except LostLog:
            raise
        except CorruptedFile as error:
            raise LostLog(str(error)) from error
        for older in generations[:-1]:
            self._disk.remove(_path(older))
        self._seal.open(sealed)
        is_recorded = (snapshot is not None and bool(snapshot.configuration.cluster)) or any(
            entry.kind is EntryKind.MEMBERSHIP for entry in found.entries
        )
        return hard_state, raft_log, is_recorded

    def _generations(self) -> list[int]:
        return sorted(
            int(name.removeprefix(_LOG_PREFIX))
            for name in self._disk.names(DIRECTORY)
            if name.startswith(_LOG_PREFIX) and name.removeprefix(_LOG_PREFIX).isdecimal()
        )

    def _read_log(self, sealed_bytes: int) -> _LogContent:
        path = _path(self._generation)
        content = self._content(path)
        records = Records(path, content, sealed_bytes)
        header = records.next()
        if header is None:
            raise LostLog(f"{path} does not start with a whole header")
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
            raise LostLog(f"{path} is damaged before {records.position}: {error}") from error
        if records.position < len(content):
            log.warning("dropping the torn end of %s: %d bytes", path, len(content) - records.position)
        found = _LogContent(hard_state, compacted_index, compacted_term, entries)
        if found.last_term > hard_state.term:
            raise LostLog(f"{path} has entries of term {found.last_term} but remembers only term {hard_state.term}")
        return found

    def _content(self, path: str) -> bytes:
        segment = self._disk.open(path)
        content = b"".join(_chunks(segment))
        segment.close()
        return content

    def _readable_entries(self) -> Iterator[Entry]:
        """The entries of the log file before its first damage; raises what ends them."""
        for generation in self._generations()[-1:]:
            records = Records(_path(generation), self._content(_path(generation)))
            is_header = True
            while (payload := records.next()) is not None:
                if is_header:
                    payload.unpack(_BASE)
                    is_header = False
                decode_hard_state(payload)
                yield from decode_entries(payload)

    def _combine(self, snapshot: Snapshot | None, found: _LogContent) -> tuple[HardState, RaftLog]:
        hard_state = found.hard_state
        if snapshot is None:
            if found.compacted_index:
                raise LostLog(
                    f"{_path(self._generation)} starts behind entry {found.compacted_index} and no snapshot is there"
                )
        elif snapshot.index < found.compacted_index:
            raise LostLog(f"{_SNAPSHOT} ends at {snapshot.index}, before the log starts at {found.compacted_index}")
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


def _overwrite(path: str, entries: list[Entry], compacted_index: int, written: tuple[Entry, ...]) -> None:
    if not written:
        return
    place = written[0].index - compacted_index - 1
    if not 0 <= place <= len(entries):
        raise LostLog(f"{path} continues with entry {written[0].index} behind {compacted_index + len(entries)}")
    entries[place:] = written


def _path(generation: int) -> str:
    return f"{DIRECTORY}/{_LOG_PREFIX}{generation:08d}"


def _chunks(segment: FileSegment) -> Iterator[bytes]:
    for position in range(0, segment.size_bytes, _READ_BYTES):
        yield segment.read(position, _READ_BYTES)
