"""Broken rules of the tier, found by stories of whole clusters with an object store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from brokerd.composition.local_queues import StoreQueues
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.wanted_files import WantedFiles
from brokerd.tiers.commits import Commits
from brokerd.tiers.objects.interface import ObjectStoreError
from brokerd.tiers.service import TierService
from brokerd.tiers.stowage import Stowage
from brokerd.tiers.upload.batches import Batch
from brokerd.tiers.upload.uploader import Stored, Uploader
from brokerd.transactions.table import OpenTransactions
from remoting.tier.contents import Change
from remoting.tier.names import ENTRY_BYTES
from remoting.tier.segments import Segment
from remoting.tier.stowed import StowedObject, describe, encode_block, encode_head, in_blocks
from tests.sim.mutants import Mutant, full, scenario
from tests.sim.stowed_timers import STOWED_TIMERS
from tests.sim.tiered import TIERED
from tests.unit.brokerd.store import test_consume_queues

_tier = full("tier", fault_ms=4500, ingredients=(TIERED,))
_tier_with_many_heartbeats = full("tier", fault_ms=4500, ingredients=(TIERED,), heartbeat_ticks=1)
_stowed = full("tier", fault_ms=4500, ingredients=(STOWED_TIMERS,))


def _nobody_waits(self: TierService) -> int | None:
    """Local files go before they are uploaded."""
    return None


async def _entries_later(self: Uploader, batch: Batch) -> Stored:
    """A segment counts as uploaded when its messages are there."""
    segment = batch.segment(self._target.epoch, self._target.next_number())
    await self._objects.put(segment.messages_name(*batch.queue), [batch.messages])
    return Stored(segment, batch.index_items)


async def _as_if_all_were_there(self: Uploader, batch: Batch, last: Segment) -> None:
    """An append counts as done, however it ended."""
    messages, entries = last.names(*batch.queue)
    with suppress(ObjectStoreError):
        await self._objects.append(messages, last.stored_bytes, [batch.messages])
        await self._objects.append(entries, last.messages * ENTRY_BYTES, batch.entries)


_local_range = StoreQueues.local_range


def _one_less(self: StoreQueues, topic: str, queue_id: int) -> tuple[int, int]:
    """The first message of the local files is taken for one that is not there."""
    low, high = _local_range(self, topic, queue_id)
    return (low + 1 if high > low else low), high


async def _ahead_of_the_manifest(self: Commits, changes: list[Change]) -> bool:
    """The log is told what the manifest does not say yet."""
    return True


def _go_on_anywhere(self: TierService, queues: Any) -> None:
    """A queue that only the tier has begins anew."""


def _as_if_all_were_seen(self: OpenTransactions, queue_offset: int) -> None:
    """A replica whose log begins in the middle takes a transaction that began before it for one that has ended."""


def _as_they_stand(self: ConsumeQueues, entries: Any, log_min_offset: int) -> None:
    """A new master takes its queues for where they were before the log's first files went."""


def _is_found_nowhere(self: WantedFiles, queue: Any, file: Any, begin: int) -> int:
    """A file goes while a topic wants a message in it."""
    return -1


_fetch = Stowage._fetch


async def _gone_when_asked_for(self: Stowage, objects: Any, entry: StowedObject, done: Any) -> None:
    """An object of timers is removed before the log says that they are back, and who asked must ask again."""
    with suppress(ObjectStoreError):
        await objects.get(entry.name, 0, entry.head_bytes)
        await objects.remove([entry.name])
    await _fetch(self, objects, entry, done)


def _named_at_once(self: Stowage, timers: Any, before: int, done: Any) -> None:
    """The log names an object of timers before it is there."""
    head = encode_head([encode_block(part) for part in in_blocks(timers)])
    if self._owner is None:
        done(None)
    else:
        done(describe(head, self._owner.epoch, self._owner.next_number(), before))


MUTANTS = (
    Mutant(
        "an object of timers goes before they are back",
        "timers",
        _gone_when_asked_for.__doc__ or "",
        ((Stowage, "_fetch", _gone_when_asked_for),),
        _stowed,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "an object of timers is named before it is there",
        "timers",
        _named_at_once.__doc__ or "",
        ((Stowage, "store", _named_at_once),),
        _stowed,
        within=4,
        is_quick=False,
    ),
    Mutant(
        "local files go before the upload",
        "tier",
        _nobody_waits.__doc__ or "",
        ((TierService, "waiting_offset", _nobody_waits),),
        _tier,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "commit ahead of the upload",
        "tier",
        _entries_later.__doc__ or "",
        ((Uploader, "_put_both", _entries_later),),
        _tier,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "an append counts as done however it ended",
        "tier",
        _as_if_all_were_there.__doc__ or "",
        ((Uploader, "_append_both", _as_if_all_were_there),),
        _tier,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "boundary off by one",
        "tier",
        _one_less.__doc__ or "",
        ((StoreQueues, "local_range", _one_less),),
        _tier,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "log ahead of the manifest",
        "tier",
        _ahead_of_the_manifest.__doc__ or "",
        ((Commits, "write", _ahead_of_the_manifest),),
        _tier,
        within=10,
        is_quick=False,
    ),
    Mutant(
        "a queue of the tier begins anew",
        "tier",
        _go_on_anywhere.__doc__ or "",
        ((TierService, "_go_on_behind", _go_on_anywhere),),
        _tier_with_many_heartbeats,
        within=40,
        first=20,
        is_quick=False,
    ),
    Mutant(
        "what began before the log is over",
        "transactions",
        _as_if_all_were_seen.__doc__ or "",
        ((OpenTransactions, "_begin_later", _as_if_all_were_seen),),
        _tier,
        within=6,
        first=76,
        is_quick=False,
    ),
    Mutant(
        "what topics want is found nowhere",
        "retention",
        _is_found_nowhere.__doc__ or "",
        ((WantedFiles, "_last_stored_ms", _is_found_nowhere),),
        _tier,
        within=8,
        first=24,
        is_quick=False,
    ),
    Mutant(
        "queues begin where they were long ago",
        "tier",
        _as_they_stand.__doc__ or "",
        ((ConsumeQueues, "begin_later", _as_they_stand),),
        scenario(test_consume_queues.test_queues_begin_where_the_log_has_their_first_message),
        within=1,
    ),
)
