"""Broken rules of what a disk or a clock does to a log that is there: rot, full disks, threads, retention. W31 to W37."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from brokerd.composition.mending import Mender
from brokerd.loop.believed_clock import BelievedClock
from brokerd.repair import log_range
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.required_set.log_hold import LogHold
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.store import housekeeping
from brokerd.store.derived.dispatcher import Dispatcher
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.log.derive import Derived, derive, derive_range
from brokerd.store.log.layout import file_start
from brokerd.store.log.retention import FileAge
from brokerd.store.log.segment import Segment
from brokerd.store.log.verified_reads import VerifiedReads
from brokerd.store.queues import consume_queues
from brokerd.store.queues.consume_queue import ConsumeQueue, QueueFiles
from brokerd.store.queues.consume_queues import ConsumeQueues
from brokerd.store.scrub.inspection import Inspection, Inspector
from brokerd.store.start import log_recovery
from brokerd.store.start.mending import DamagedLog
from brokerd.store.store import MessageStore
from controllerd.raft.acquaintances import Acquaintances
from remoting.checksum import crc32
from remoting.disk import Bytes
from remoting.record import checksum
from remoting.record.fields import measure
from remoting.record.layout import Field, heads
from remoting.record.walk import Stop
from tests.sim import test_raft_rot
from tests.sim.mutants import Mutant, rotting, scenario
from tests.unit.brokerd.repair import test_fetch, test_scrubber
from tests.unit.brokerd.replication.roles import test_full_disks
from tests.unit.brokerd.store import (
    test_commitlog,
    test_consume_queues,
    test_housekeeping,
    test_queue_offsets,
    test_rot_and_replicas,
    test_rotten_units,
    test_threads,
)

_HEAD = heads(Field.SIZE, Field.MAGIC, Field.BODY_CRC, Field.SYS_FLAG, Field.BODY_LENGTH)[0]


def _nothing(*_: Any) -> None:
    return None


def _never(*_: Any) -> bool:
    return False


def _always(*_: Any) -> bool:
    return True


def _always(*_: Any) -> bool:
    return True


# ---- rot in the log


def _has_an_intact_body(data: memoryview, begin: int, end: int) -> bool:
    size, magic, said, sys_flag, body_length = _HEAD.unpack_from(data, begin)
    places = measure(data, begin, end, magic, sys_flag, body_length)
    return size == end - begin and places is not None and crc32(data[places[0] : places[1]]) & 0x7FFFFFFF == said


def _read_as_it_is(self: VerifiedReads, offset: int, length: int) -> bytes:
    return self._log.read(offset, length)


def _inspect_what_is_derived(self: Inspector, data: bytes, start: int) -> Inspection:
    derived = derive(data, start, self._log.shape, self._rules)
    whole = data[: derived.end_offset - start]
    return Inspection(derived, list(self._wrong_units(derived.entries)), self._wrong_index(whole, start))


async def _mend_nothing(*_: Any) -> int:
    return 0


def _up_to_the_damage(self: Dispatcher) -> Iterator[Derived]:
    for derived in self._derive(self.dispatch_offset, self._commitlog.complete_offset):
        yield derived
        if derived.stop is not Stop.END:
            return


def _derive_unchecked(self: Dispatcher, start: int, end: int) -> Iterator[Derived]:
    log = self._commitlog
    return derive_range(log.read, start, end, log.shape, self._chunk_bytes, self._rules)


# ---- full disks


def _failures_are_forgotten(self: CommitLog) -> SyncMark:
    """A sync counts that the disk says was done, though an earlier one dropped pages of the file."""
    self._failed_sync = None
    return _sync(self)


_sync = CommitLog.sync


def _forget_what_was_refused(self: CommitLog, segment: Segment) -> None:
    self._unclean_end = 0


# ---- threads


def _sync_and_look(self: CommitLog) -> SyncMark:
    with self.turns.contents:
        end, generation = self.end_offset, self.generation
        first = max(file_start(min(self._synced_offset, end), self._size), self.min_offset)
        for start in range(first, end, self._size):
            segment = self._segments.get(start)
            if segment is not None:
                self._sync_segment(segment)
        self._synced_offset = end
        return SyncMark(end, self._tracker.complete_offset, generation)


def _prepare_beside_the_loop(self: CommitLog) -> None:
    current = self._current
    if current is not None and self._spare is None and not self.keeps_rest:
        self._spare = self._open(current.end, create=True)


def _look_then_write(self: CommitLog, offset: int, data: Bytes, generation: int) -> bool:
    segment = self._segments.get(file_start(offset, self._size))
    if segment is None or generation != self.generation:
        return False
    with self.turns.contents:
        segment.file.write(offset - segment.start, (data,))
        segment.file.sync()
    return True


def _remove_by_name(self: MessageStore, paths: Sequence[str]) -> list[Callable[[], None]]:
    return [partial(self._disk.remove, path) for path in paths]


# ---- retention


def _believe_at_once(self: BelievedClock, left_ms: float, witnessed_ms: int, expected_ms: float) -> float:
    self._trial_left_ms = None
    return float(witnessed_ms)


def _ages_as_stored(files: Sequence[FileAge], written_ms: Mapping[int, int | None], now_ms: int) -> list[FileAge]:
    return list(files)


# What is put in place of the log's own is interrupted like that.
_INTERRUPTED = (test_threads, "LOG", {*test_threads.LOG, __name__})

MUTANTS = (
    Mutant(
        "judged by the body",
        "W31",
        "A record is intact when its body is, also when it has a checksum over the whole.",
        ((checksum, "_is_intact", _has_an_intact_body),),
        rotting(),
        within=10,
    ),
    Mutant(
        "a replica takes what it gets",
        "W31",
        "A replica does not look at the records that its master sends.",
        ((CommitLog, "_check_received", _nothing),),
        rotting(),
        within=20,
    ),
    Mutant(
        "a master sends what it reads",
        "W31",
        "A master does not look at the records that it reads from its disk for a replica.",
        ((VerifiedReads, "read", _read_as_it_is),),
        scenario(test_rot_and_replicas.test_a_master_sends_what_precedes_damage_and_names_it, 100, None),
        within=1,
    ),
    Mutant(
        "a checksum without its name",
        "W31",
        "A record whose checksum lost its name is one without.",
        ((checksum, "_LEAST_LIKE", 10),),
        rotting(),
        within=80,
        first=26,
    ),
    Mutant(
        "numbers up to the damage",
        "W31",
        "A new master takes the numbers of its queues from the records before the first one that is damaged.",
        ((Dispatcher, "undispatched", _up_to_the_damage),),
        rotting(),
        within=30,
    ),
    Mutant(
        "derived as it is",
        "W31",
        "Dispatch makes units of records that it does not look at.",
        ((Dispatcher, "_derive", _derive_unchecked),),
        scenario(test_queue_offsets.test_no_unit_is_made_of_a_record_that_rots_before_it_is_dispatched, -30),
        within=1,
    ),
    Mutant(
        "nobody mends a start",
        "W34",
        "A start takes nothing from others for what is damaged.",
        ((Mender, "_mend_range", _mend_nothing),),
        rotting(),
        within=10,
    ),
    Mutant(
        "rot is torn",
        "W34",
        "A start takes a rotten end of its log for a torn one.",
        ((log_recovery, "_suspicion", _nothing),),
        rotting(),
        within=40,
    ),
    Mutant(
        "a role changes at the told end",
        "W32",
        "A role changes at the end that was told last, be there a filler behind it whose record found no room.",
        ((ReplicationDriver, "_take_real_end", _nothing),),
        scenario(test_full_disks.test_a_role_changes_at_the_real_end_of_the_log, 2),
        within=1,
    ),
    Mutant(
        "what was refused stays",
        "W32",
        "What a full disk took of a batch that it refused stays behind the log's end, and is overwritten as messages come.",
        ((CommitLog, "_clean", _forget_what_was_refused),),
        scenario(test_commitlog.test_a_record_that_was_refused_is_not_found_after_a_power_loss),
        within=1,
    ),
    Mutant(
        "a sync after one that failed",
        "W32",
        _failures_are_forgotten.__doc__ or "",
        ((CommitLog, "sync", _failures_are_forgotten),),
        scenario(
            test_commitlog.test_no_sync_counts_after_one_that_failed_while_the_rest_of_a_refused_append_was_cleaned
        ),
        within=1,
    ),
    Mutant(
        "a boundary of later",
        "W33",
        "The flusher looks where the last whole record ends when its sync is over, and tells the end of before.",
        ((CommitLog, "sync", _sync_and_look), _INTERRUPTED),
        scenario(test_threads.test_a_sync_beside_a_copy_tells_a_record_boundary_that_it_made_durable, True),
        within=1,
    ),
    Mutant(
        "a file beside a cut",
        "W33",
        "The helper thread makes the next file without its turn.",
        ((CommitLog, "prepare_next", _prepare_beside_the_loop), _INTERRUPTED),
        scenario(test_threads.test_the_next_file_that_is_made_beside_a_cut_leaves_no_hole, False),
        within=1,
    ),
    Mutant(
        "looked at before its turn",
        "W33",
        "The scrubber looks whether the log was cut, and then waits for its turn to write.",
        ((CommitLog, "rewrite", _look_then_write), _INTERRUPTED),
        scenario(test_threads.test_what_is_written_again_beside_a_cut_does_not_come_back_behind_it, False),
        within=1,
    ),
    Mutant(
        "removed by name",
        "W33",
        "A file that retention took out is removed by its name, whoever has it by then.",
        ((MessageStore, "removals_of", _remove_by_name),),
        scenario(
            test_threads.test_queue_files_that_retention_removes_late_are_not_those_that_a_new_copy_has_made_in_their_place
        ),
        within=1,
    ),
    Mutant(
        "a round without checksums",
        "W34",
        "The scrubber reads records as a dispatch does, which looks at their marks and lengths alone.",
        ((Inspector, "inspect", _inspect_what_is_derived),),
        rotting(),
        within=60,
    ),
    Mutant(
        "repaired from another epoch",
        "W34",
        "Who is asked for a range gives what it has there, whichever epoch wrote it.",
        ((log_range, "_is_common", _always),),
        scenario(test_fetch.test_a_range_of_another_epoch_is_refused, [EpochEntry(1, 0)], [EpochEntry(2, 0)]),
        within=1,
    ),
    Mutant(
        "the clock of a boot",
        "W35",
        "A start believes the clock of its machine at once.",
        ((BelievedClock, "_try", _believe_at_once),),
        scenario(test_housekeeping.test_a_boot_with_a_clock_days_ahead_removes_nothing_and_says_so, False),
        within=1,
    ),
    Mutant(
        "as old as it says",
        "W35",
        "A file is as old as the newest time in it, also when that is in the future.",
        ((housekeeping, "believe_ages", _ages_as_stored),),
        scenario(test_housekeeping.test_one_message_of_the_future_keeps_no_file_for_ever),
        within=1,
    ),
    Mutant(
        "nobody is waited for",
        "W36",
        "The log is kept for replicas that are connected, and for no others.",
        ((LogHold, "offset", lambda *_, **__: None),),
        scenario(
            test_full_disks.test_a_new_replica_whose_connection_breaks_again_and_again_copies_the_log_once_under_disk_pressure
        ),
        within=1,
    ),
    Mutant(
        "units are believed",
        "W37",
        "A read of a consume queue does not look at what covers the units.",
        ((QueueFiles, "read_checked", QueueFiles.read),),
        scenario(test_scrubber.test_units_are_not_believed_that_do_not_pass_their_check, 19),
        within=1,
    ),
    Mutant(
        "a search believes units",
        "W37",
        "The first message that is left in the log is searched for among units as they are.",
        ((ConsumeQueue, "_is_credible", _always),),
        scenario(test_rotten_units.test_a_queue_does_not_begin_behind_a_unit_that_rots, 25),
        within=1,
    ),
    Mutant(
        "the log is blamed for a unit",
        "W37",
        "A start that follows a rotten unit takes the log for damaged, and asks others for a record where none begins.",
        ((DamagedLog, "blame_queue", _never),),
        scenario(test_rotten_units.test_a_unit_that_names_no_record_is_blamed_and_queues_are_derived_again, 7, 5),
        within=1,
    ),
    Mutant(
        "a rotten unit is the end",
        "W37",
        "A start takes the first unit that the log does not bear out for the queue's end.",
        ((ConsumeQueues, "_is_rotten", _never), (ConsumeQueues, "_lacks_end", _never)),
        rotting(),
        within=60,
    ),
    Mutant(
        "a lone rotten unit is the end",
        "W37",
        "A start takes a unit that is one bit off for what a crash left, when its check is gone and none follows.",
        ((consume_queues, "is_one_bit_off", _never),),
        scenario(test_consume_queues.test_a_last_unit_with_one_wrong_bit_is_rot_also_when_its_check_is_gone, 1, 2),
        within=1,
    ),
    Mutant(
        "a round without the index",
        "W37",
        "The scrubber leaves the index of keys alone.",
        ((Inspector, "_wrong_index", _nothing),),
        scenario(test_scrubber.test_a_flip_in_an_item_of_the_index_has_it_made_again, 3),
        within=1,
    ),
    Mutant(
        "lives are forgotten",
        "W38",
        "Nobody remembers in which life a controller was met.",
        ((Acquaintances, "life", _nothing),),
        scenario(test_raft_rot.test_a_decided_entry_outlives_the_controller_that_forgot_it, 0, test_raft_rot.put_back),
        within=1,
    ),
)
