"""Writes `config/*.json` for RocketMQ: the tables of topics, groups, consumer offsets and delays, derived from the log.

Each file is replaced as a whole when its table changed, every few seconds and at a clean stop, on every replica. The work is
cut in two: `begin` looks at the tables on the loop's thread, `ConfigWrite.run` encodes and writes in a helper thread.

While something waits to be taken over from these files (takeover.py) they are left alone, until a record that is newer than this
process says that a master has done so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from brokerd.config import documents
from brokerd.config.takeover import Takeover
from brokerd.consuming.progress import ConsumerProgress
from brokerd.delay.levels import SCHEDULE_GROUP
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import Change
from brokerd.pop.service import PopService
from brokerd.store.housekeeping import InThread
from brokerd.store.store import MessageStore
from remoting.disk import Disk
from remoting.errors import StorageError
from remoting.names import SCHEDULE_TOPIC

log = logging.getLogger(__name__)

_BACKUP: Final = ".bak"
_NEVER: Final = (-1, -1)
_OF_OFFSETS: Final = frozenset({documents.OFFSETS, documents.DELAYS})

Shown = tuple[int, int]  # how far the two tables that hold offsets were applied


@dataclass(frozen=True, slots=True)
class ConfigWrite:
    """Files on their way to disk: what makes each one's content, by path, and up to where the logs of offsets are in it."""

    disk: Disk
    contents: Mapping[str, Callable[[], bytes]]
    offsets_shown: Shown

    def run(self) -> None:
        """Encode and write; blocks."""
        for path, content in self.contents.items():
            self.disk.replace_bytes(path, content())
            # One of the original's would be older than ours, and the original reads it when it does not like ours.
            if self.disk.exists(path + _BACKUP):
                self.disk.remove(path + _BACKUP)


class Sources(NamedTuple):
    """What the tables are derived from."""

    store: MessageStore
    metadata: MetadataService
    pop: PopService
    progress: ConsumerProgress


class ConfigWriter:
    """Knows which files are behind; make it before anything is appended."""

    def __init__(self, disk: Disk, sources: Sources, takeover: Takeover, master_epoch: Callable[[], int]) -> None:
        self._disk = disk
        self._store, self._metadata, self._pop, self._progress = sources
        self._takeover = takeover
        self._master_epoch = master_epoch
        self._log_end = self._store.commitlog.end_offset
        self._behind = {documents.TOPICS, documents.GROUPS}
        self._offsets_shown = _NEVER
        self._forbidden: frozenset[tuple[str, str]] = frozenset()
        self._metadata.listeners.append(self._changed)

    def begin(self) -> ConfigWrite | None:
        """What is to be written now; None when all files are up to date, or there is nothing to say yet."""
        if self._takeover.is_pending and not self._is_taken_over():
            return None
        journal = self._metadata.journal
        if not journal.applied_offset:
            return None
        if self._forbidden != self._metadata.tables.rules.forbidden:
            self._behind.add(documents.GROUPS)
        offsets_now = (journal.applied_offset, self._pop.journal.applied_offset)
        behind = frozenset(self._behind)
        if offsets_now != self._offsets_shown:
            behind |= _OF_OFFSETS
        if not behind:
            return None
        version = self._metadata.data_version(self._master_epoch()).as_json()
        counted = {
            **version,
            "counter": journal.applied_offset,
        }  # grows with every change, and is the same on every replica
        makers: Mapping[str, Callable[[], Callable[[], bytes]]] = {
            documents.TOPICS: lambda: self._topics(version),
            documents.GROUPS: lambda: self._groups(counted),
            documents.OFFSETS: lambda: self._offsets(counted),
            documents.DELAYS: lambda: self._delays(counted),
        }
        self._behind -= behind
        return ConfigWrite(self._disk, {path: makers[path]() for path in sorted(behind)}, offsets_now)

    async def write_behind(self, in_thread: InThread) -> None:
        """Write what is behind. Nothing here depends on it: what a disk refuses, a full one for example, is tried again."""
        write = self.begin()
        if write is None:
            return
        try:
            await in_thread(write.run)
        except (StorageError, asyncio.CancelledError) as error:
            self._behind |= write.contents.keys() - _OF_OFFSETS
            if isinstance(error, asyncio.CancelledError):
                raise
            log.warning("the tables in config/ stay behind: %s", error)
        else:
            self._offsets_shown = write.offsets_shown

    def write(self) -> None:
        """All of it in one go; blocks."""
        write = self.begin()
        if write is not None:
            write.run()
            self._offsets_shown = write.offsets_shown

    def _changed(self, change: Change) -> None:
        if change.touches_topics:
            self._behind.add(documents.TOPICS)
        if change.rebuilt or change.groups_put or change.groups_deleted:
            self._behind.add(documents.GROUPS)

    def _is_taken_over(self) -> bool:
        newest = self._metadata.journal.applied_offset
        if not self._log_end < newest <= self._store.dispatch_offset:
            return False
        self._takeover.finished()
        return True

    def _topics(self, version: Mapping[str, int]) -> Callable[[], bytes]:
        topics = list(self._metadata.tables.topics.values())
        return lambda: documents.encode_topics(topics, version)

    def _groups(self, version: Mapping[str, int]) -> Callable[[], bytes]:
        groups = list(self._metadata.tables.groups.values())
        self._forbidden = forbidden = frozenset(self._metadata.tables.rules.forbidden)
        return lambda: documents.encode_groups(groups, version, forbidden)

    def _offsets(self, version: Mapping[str, int]) -> Callable[[], bytes]:
        offsets = {key: queues for key, queues in self._progress.all_offsets().items() if key[0] != SCHEDULE_GROUP}
        return lambda: documents.encode_offsets(offsets, version)

    def _delays(self, version: Mapping[str, int]) -> Callable[[], bytes]:
        offsets = dict(self._metadata.tables.offsets.get((SCHEDULE_GROUP, SCHEDULE_TOPIC), {}))
        return lambda: documents.encode_delays(offsets, version)
