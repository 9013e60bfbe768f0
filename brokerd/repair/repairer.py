"""Writes again what a disk has changed in the log: with the bytes of a replica that has them intact, in place, without a switch.

Only what is known to be damaged is written over: from a record boundary behind which nothing intact starts, up to where the next
intact record does. A record that was never here does not come in that way, as a range that no epoch of this log wrote is given by
nobody. While nobody can give it the damage stays, is told, and is asked for again; a read of it fails, and no other one does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from brokerd.repair.ledger import DamageLedger
from brokerd.store.log.commitlog import CommitLog
from brokerd.store.scrub.damage import Damage, find_damage, first_damage, next_intact
from brokerd.store.scrub.log_files import LogFiles
from remoting import codes
from remoting.errors import LogboomError, RequestError, StorageError

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_ENDS: Final = 8  # guesses at where a range ends that one peer is asked for

# (peer, start, end) -> pieces of the range, as `fetch.fetch_pieces` gives them
Fetch = Callable[[str, int, int], AsyncIterator[tuple[int, bytes]]]


@dataclass(frozen=True, slots=True)
class Sources:
    """Where intact bytes come from: `peers` are the remoting addresses of the group's other brokers, best first. `wall_ms` is for
    people."""

    fetch: Fetch
    peers: Callable[[], Sequence[str]]
    wall_ms: Callable[[], int]


class Repairer:
    """Repairs one range at a time; its owner sees to that. `ledger` says what was found and what became of it."""

    def __init__(self, commitlog: CommitLog, files: LogFiles, sources: Sources) -> None:
        self._log = commitlog
        self._files = files
        self._sources = sources
        self.ledger = DamageLedger()

    @property
    def limit(self) -> int:
        """What lies before it is durable and whole, so that damage there is damage."""
        return min(self._log.flushed_offset, self._log.complete_offset)

    async def examine(self, start: int) -> Damage | None:
        """What is damaged from the record boundary `start` on; None when an intact record starts there, or nothing does."""
        limit, begin = self.limit, self._log.min_offset
        if not begin <= start < limit:
            return None
        generation = self._log.generation
        found = await asyncio.to_thread(find_damage, self._files.read, start, limit, self._log.shape)
        return found if generation == self._log.generation else None

    async def repair(self, damaged: Damage) -> bool:
        """Get the range from a peer and write it; whether nothing in it is damaged any more."""
        if self.ledger.found(damaged, self._sources.wall_ms()):
            log.error("the commitlog is damaged from offset %d to %d; a replica is asked for it", *damaged)
        reasons: list[str] = []
        written, left, generation = 0, damaged, self._log.generation
        for peer in self._sources.peers():
            try:
                written += await self._take_from(peer, left)
            except StorageError as error:
                self.ledger.failed(damaged, str(error), is_written=True)
                return False
            except LogboomError as error:
                reasons.append(f"{peer}: {error}")
            still = await self._first_damage(damaged)
            if generation != self._log.generation:
                self.ledger.healed(damaged.start)  # what is there now is another log, and is looked at anew
                return False
            if still is None:
                self.ledger.repaired(damaged, written)
                log.warning(
                    "the commitlog from offset %d to %d was repaired with %d bytes of %s", *damaged, written, peer
                )
                return True
            left = still
        self.ledger.failed(damaged, "; ".join(reasons) or "no other broker of the group is known")
        return False

    async def retry(self) -> None:
        """Ask again for whatever is damaged."""
        for start, known in list(self.ledger.unrepaired.items()):
            generation = self._log.generation
            still = await self._first_damage(known.range)
            if generation != self._log.generation or start not in self.ledger.unrepaired:
                return
            if still is None and not (known.is_written and self._is_there(known.range)):
                self.ledger.healed(start)
            else:
                await self.repair(known.range)

    def _is_there(self, damaged: Damage) -> bool:
        """Whether it was neither cut off, nor went with its file."""
        return self._log.min_offset <= damaged.start and damaged.end <= self.limit

    async def _first_damage(self, within: Damage) -> Damage | None:
        limit = self.limit
        if not self._is_there(within):
            return None
        return await asyncio.to_thread(first_damage, self._files.read, within.start, within.end, limit, self._log.shape)

    async def _take_from(self, peer: str, damaged: Damage) -> int:
        """Write what the peer gives; returns how many bytes. Where its records do not end where the range seems to, a later end
        is tried. Raises LogboomError."""
        start, end = damaged
        last: RequestError | None = None
        for _ in range(_MOST_ENDS):
            try:
                return await self._write_from(peer, start, end)
            except RequestError as error:
                limit = min(self.limit, start - start % self._log.segment_size_bytes + self._log.segment_size_bytes)
                if error.code != codes.QUERY_NOT_FOUND or end >= limit:
                    raise
                last = error
            end = await asyncio.to_thread(next_intact, self._files.read, end + 1, limit, self._log.shape)
        assert last is not None
        raise last

    async def _write_from(self, peer: str, start: int, end: int) -> int:
        written, generation = 0, self._log.generation
        async for offset, content in self._sources.fetch(peer, start, end):
            if self._log.min_offset > offset or not await asyncio.to_thread(
                self._log.rewrite, offset, content, generation
            ):
                raise StorageError("the log was cut or shortened meanwhile")
            written += len(content)
        return written
