"""Broken rules that only a whole cluster breaks by: what is durable, found by a start, told to clients, derived from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

from brokerd.composition.core import BrokerCore
from brokerd.composition.deleted_topics import DeletedTopics
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.delay.deliverer import Deliverer
from brokerd.delay.waiting import WaitingLevel
from brokerd.journal.journal import Journal
from brokerd.metadata import records as metadata_records
from brokerd.metadata.service import MetadataService
from brokerd.pop.batch import Batch
from brokerd.pop.finishing import Finishing
from brokerd.pop.ledger import PopLedger
from brokerd.pop.reviver import Reviver
from brokerd.pop.service import PopService
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.log.commitlog import CommitLog, SyncMark
from brokerd.store.put_status import PutStatus
from brokerd.store.start.durable_positions import DurablePositions
from brokerd.store.store import MessageStore
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.service import TransactionService
from brokerd.transactions.table import OpenTransactions
from brokerd.transactions.topics import TransactionTopics
from controllerd.raft.log_file import RaftLogFile
from controllerd.replicas import decide as replicas_rules
from controllerd.replicas import heartbeat as heartbeats
from controllerd.replicas.state import ReplicasState
from controllerd.state.machine import ControllerMachine
from remoting.names import HALF_TOPIC
from remoting.record.codec import Record
from tests.sim.mutants import Mutant, full, rotting, scenario
from tests.support.disks import MemorySegment
from tests.unit.brokerd.delay import test_delivery
from tests.unit.brokerd.pop import test_masters
from tests.unit.brokerd.store import test_recovery
from tests.unit.controllerd.replicas import test_lost_tail
from tests.unit.controllerd.state import test_tail


def _by_the_wall_clock(self: WaitingLevel, offset: int, due_ms: int, steady_ms: int, wall_ms: int) -> int:
    return steady_ms + due_ms - wall_ms


def _progress_first(self: MetadataService, messages: Sequence[Any], offsets: Mapping[Any, int]) -> int:
    return self.journal.append_leading(*metadata_records.offsets(offsets, 0), messages)


_commit_behind = MetadataService.commit_behind


def _progress_seldom(self: MetadataService, messages: Sequence[Any], offsets: Mapping[Any, int]) -> int:
    if all(offset % 9 for offset in offsets.values()):
        return self.journal._log.append_messages(messages)
    return _commit_behind(self, messages, offsets)


def _at_once(self: Journal, end_offset: int, done: Callable[[PutStatus], None]) -> None:
    done(PutStatus.PUT_OK)


def _whole_log(self: MessageStore, confirm_offset: int) -> Any:
    return self.dispatcher.dispatch(self.commitlog.end_offset)


def _no_sync(self: CommitLog) -> SyncMark:
    return SyncMark(self.end_offset, self._tracker.complete_offset, self.generation)


def _highest_and_one(self: ReplicasState, broker_name: str) -> int:
    group = self.groups.get(broker_name)
    return max(group.replicas, default=0) + 1 if group is not None else 1


_append_to_raft_log = RaftLogFile._append


def _append_without_sync(self: RaftLogFile, *arguments: Any) -> None:
    with patch.object(MemorySegment, "sync", lambda segment: None):
        _append_to_raft_log(self, *arguments)


def _nothing(*_: Any) -> None:
    return None


_decide = ControllerMachine.decide
_apply = ControllerMachine.apply
_REQUESTS: dict[bytes, Any] = {}  # what each entry came of


def _decide_and_tell(self: ControllerMachine, request: Any) -> bytes:
    entry = _decide(self, request)
    _REQUESTS[entry] = request
    return entry


def _decide_again(self: ControllerMachine, data: bytes) -> Any:
    """Who did not decide an entry itself does so when it applies it, by the limits of another version."""
    request = _REQUESTS.get(data)
    if request is None or self._tail is not None:
        return _apply(self, data)
    with patch.object(replicas_rules, "MAX_REPLICAS", 2):
        return _apply(self, _decide(self, request))


def _decide_by_what_is_committed(self: ControllerMachine, request: Any) -> bytes:
    self.forget()
    return _decide(self, request)


def _keeps_tail(self: StoreReplicatedLog, *, acked_after_flush: bool) -> bool:
    return True


def _whatever_it_had(
    beat: heartbeats.Heartbeat, known: heartbeats.Heartbeat, *, elsewhere: bool = False
) -> heartbeats.Heartbeat:
    return beat


def _only_what_is_dispatched(self: MessageStore) -> None:
    self.queue_offsets.rebuild(self.queues.max_offsets())


def _cut_the_log_alone(self: DurablePositions, offset: int) -> None:
    self._commitlog.truncate(offset)


def _end_without_reading_again(self: BrokerCore) -> None:
    self.store.set_appendable(False)
    for resident in reversed(self._residents):
        resident.step_down()


def _without_holders(self: MessageStore) -> int:
    return min(self.dispatch_offset, self.commitlog.flushed_offset)


_flush_acks = Finishing._flush


def _answer_acks_at_once(self: Finishing) -> None:
    with patch.object(Journal, "when_acknowledged", _at_once):
        _flush_acks(self)


_place_of = Batch.place_of


def _next_place(self: Batch, offset: int) -> int:
    return _place_of(self, offset + 1)


def _when_due(self: Batch, now_ms: int) -> bool:
    return self.due_ms <= now_ms


_end_transaction = TransactionService._end


def _commit_all(self: TransactionService, request: EndTransaction, may_use: Callable[[Record], None]) -> int:
    return _end_transaction(
        self,
        EndTransaction(
            request.producer_group,
            request.queue_offset,
            request.physical_offset,
            Outcome.COMMIT,
            from_check=request.from_check,
        ),
        may_use,
    )


def _begin_at_the_end(self: TransactionTopics) -> None:
    self.table.restart(self.log.queue_range(HALF_TOPIC, 0)[1])


_release_ms = WaitingLevel.release_ms


def _half_the_time(self: WaitingLevel, offset: int, due_ms: int, steady_ms: int, wall_ms: int) -> int:
    return _release_ms(self, offset, due_ms, steady_ms, wall_ms) - self.delay_ms // 2


_lead_deliverer = Deliverer.lead


def _lead_from_the_end(self: Deliverer) -> None:
    _lead_deliverer(self)
    for level in self._levels:
        level.move(level.end)


MUTANTS = (
    Mutant(
        "weak mode",
        "W14",
        "Acknowledgements mean memory, as they may be told to by a setting.",
        (),
        full("power", settings=ReplicationSettings(ack_after="append")),
        within=60,
        first=9,
        is_quick=False,
    ),
    Mutant(
        "no sync",
        "W14",
        "The log's sync does nothing.",
        ((CommitLog, "sync", _no_sync),),
        full("disk"),
        within=20,
    ),
    Mutant(
        "dispatch beyond confirm",
        "W7",
        "Consumers see what no other replica has.",
        ((MessageStore, "dispatch", _whole_log),),
        full("processes"),
        within=20,
    ),
    Mutant(
        "records answered at once",
        "W18",
        "Pops, acks and commits are answered before their records are acknowledged.",
        ((Journal, "when_acknowledged", _at_once),),
        full("processes"),
        within=60,
        first=17,
    ),
    Mutant(
        "an id again",
        "W25",
        "The id of a broker that was cleaned away is given out again.",
        ((ReplicasState, "next_broker_id", _highest_and_one),),
        full("machines"),
        within=60,
        is_quick=False,
    ),
    Mutant(
        "a follower decides again",
        "decisions",
        "Entries of the controllers' log are decided once more where they are applied, by a version that has another limit.",
        ((ControllerMachine, "decide", _decide_and_tell), (ControllerMachine, "apply", _decide_again)),
        full("processes"),
        within=20,
    ),
    Mutant(
        "decides by what is committed",
        "decisions",
        "A leader among the controllers does not see what it decided before, as long as that is not committed.",
        ((ControllerMachine, "decide", _decide_by_what_is_committed),),
        full("processes"),
        within=60,
        first=4,
    ),
    Mutant(
        "a tail that stays",
        "decisions",
        "A leader among the controllers that was replaced goes on to decide by what it had appended.",
        ((ControllerMachine, "forget", _nothing),),
        scenario(test_tail.test_a_leader_that_is_replaced_forgets_what_it_appended),
        within=1,
    ),
    Mutant(
        "raft without sync",
        "raft",
        "A controller votes and acknowledges before its disk has it.",
        ((RaftLogFile, "_append", _append_without_sync),),
        full("disk"),
        within=60,
    ),
    Mutant(
        "trusts a failed sync",
        "W14",
        "A start takes for durable what can be read.",
        ((CommitLog, "write_again", _nothing),),
        scenario(test_recovery.test_what_a_failed_sync_left_readable_is_durable_before_it_counts),
        within=1,
    ),
    Mutant(
        "transactions forgotten",
        "transactions",
        "The progress that a start reads from passes over open transactions.",
        ((OpenTransactions, "done_before", property(lambda table: table.next_offset)),),
        full("processes"),
        within=40,
        first=17,
    ),
    Mutant(
        "ends twice",
        "transactions",
        "Who ends a transaction does not look whether it is open.",
        ((OpenTransactions, "find", lambda _, half: half),),
        full("network"),
        within=20,
    ),
    Mutant(
        "a clock is believed",
        "delay",
        "Delayed messages are due when their entry says so by the wall clock of the present master.",
        ((WaitingLevel, "release_ms", _by_the_wall_clock),),
        full("processes"),
        within=30,
        first=1,
        is_quick=False,
    ),
    Mutant(
        "progress first",
        "delay",
        "How far a delay level is delivered is in the log before the messages are.",
        ((MetadataService, "commit_behind", _progress_first),),
        scenario(test_delivery.test_wherever_the_log_of_a_delivery_is_cut_the_next_master_delivers_what_is_missing),
        within=1,
    ),
    Mutant(
        "progress seldom",
        "delay",
        "Several batches of a delay level share the record that says how far it is delivered.",
        ((MetadataService, "commit_behind", _progress_seldom),),
        scenario(test_delivery.test_after_a_switch_only_the_last_batch_comes_again_however_many_are_in_flight),
        within=1,
    ),
    Mutant(
        "deleted queues come back",
        "deletion",
        "Queues that are derived anew keep what deleted topics held.",
        ((DeletedTopics, "_remove_stale_queues", _nothing),),
        full("machines"),
        within=60,
        first=5,
        is_quick=False,
    ),
    Mutant(
        "a lost tail is not told",
        "W15",
        "A broker that acknowledges from memory starts without what it had, and tells nobody.",
        ((StoreReplicatedLog, "keeps_tail", _keeps_tail),),
        scenario(test_recovery.test_who_acknowledges_from_memory_says_after_a_power_loss_that_its_tail_may_be_gone),
        within=1,
    ),
    Mutant(
        "a lost tail is not found out",
        "W15",
        "The controllers do not compare what a broker has with what it said that it had.",
        ((heartbeats, "_compared", _whatever_it_had),),
        scenario(test_lost_tail.test_a_disk_that_lied_is_found_out_by_what_was_confirmed),
        within=1,
    ),
    Mutant(
        "numbers given again",
        "W16",
        "A new master numbers messages from what was dispatched, not from what its log holds.",
        ((MessageStore, "_take_queue_offsets", _only_what_is_dispatched),),
        full("processes"),
        within=40,
        first=2,
    ),
    Mutant(
        "unconfirmed records unknown",
        "W18",
        "A new master does not read the records of topics, groups and offsets that are in its log and not confirmed yet.",
        ((MetadataService, "catch_up", _nothing),),
        full("processes"),
        within=60,
        first=3,
    ),
    Mutant(
        "tables not cut",
        "W19",
        "Topics, groups and consumer offsets stay as they were, when a mastership ends and when the log under them is cut.",
        ((MetadataService, "truncated", _nothing), (BrokerCore, "_end_leading", _end_without_reading_again)),
        full("network"),
        within=60,
        first=6,
        is_quick=False,
    ),
    Mutant(
        "page not lowered",
        "W13",
        "The checkpoint still calls durable what is being cut.",
        ((DurablePositions, "truncate", _cut_the_log_alone),),
        rotting(),
        within=100,
        first=30,
    ),
    Mutant(
        "tables not rebuilt",
        "derived",
        "The pop state stays as it was, when a mastership ends and when the log under it is cut.",
        ((PopService, "truncated", _nothing), (BrokerCore, "_end_leading", _end_without_reading_again)),
        full("processes"),
        within=40,
        first=6,
        is_quick=False,
    ),
    Mutant(
        "removes what is held",
        "retention",
        "Files are removed although somebody holds a position in them.",
        ((MessageStore, "held_offset", _without_holders),),
        full("disk"),
        within=60,
        first=3,
    ),
    Mutant(
        "pop: acks answered at once",
        "POP",
        "An ack is answered before its record is acknowledged.",
        ((Finishing, "_flush", _answer_acks_at_once),),
        full("power"),
        within=60,
        first=1,
    ),
    Mutant(
        "pop: leases end",
        "POP",
        "The messages of a consumer that lives are given to others when their invisible time is over.",
        ((Reviver, "_renew", lambda self, batch, now_ms: False),),
        full("calm"),
        within=10,
        first=2,
    ),
    Mutant(
        "pop: a lease ends by the clock",
        "leases",
        "A lease that is due is over for who acks, although it is about to be renewed.",
        ((Batch, "is_over", _when_due),),
        scenario(test_masters.test_a_lease_whose_renewal_is_late_is_one),
        within=1,
    ),
    Mutant(
        "pop: a timer is lost",
        "POP",
        "A batch that cannot be brought back at once is never looked at again.",
        ((PopLedger, "defer", _nothing),),
        full("processes"),
        within=60,
        first=9,
        is_quick=False,
    ),
    Mutant(
        "pop: place off by one",
        "POP",
        "An ack finishes the message before the one that it names.",
        ((Batch, "place_of", _next_place),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "rolled back is delivered",
        "transactions",
        "A rollback is carried out as a commit.",
        ((TransactionService, "_end", _commit_all),),
        full("calm"),
        within=10,
        first=2,
    ),
    Mutant(
        "open ones are forgotten",
        "transactions",
        "Transactions that are open are not looked for in the log, at a start and when a mastership ends.",
        ((TransactionTopics, "rebuild", _begin_at_the_end),),
        full("processes"),
        within=40,
        first=7,
    ),
    Mutant(
        "delivered early",
        "delay",
        "A delayed message comes after half of its time.",
        ((WaitingLevel, "release_ms", _half_the_time),),
        full("calm"),
        within=10,
    ),
    Mutant(
        "a level's place is lost",
        "delay",
        "A new master begins each delay level at its end.",
        ((Deliverer, "lead", _lead_from_the_end),),
        full("processes"),
        within=40,
    ),
)
