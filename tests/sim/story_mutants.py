"""Broken rules that only stories with an ingredient of their own find: see `ingredients`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brokerd.metadata.consumer_rules import ConsumerRules
from brokerd.pop import finishing
from brokerd.pop.requests import AckStatus
from brokerd.pop.service import PopService
from brokerd.proxy import forward
from brokerd.proxy.clients_here import ClientsHere
from brokerd.proxy.forward import Forwarder
from brokerd.proxy.held_calls import Held
from brokerd.proxy.methods.send_message import encode_response
from brokerd.proxy.protobuf import service
from brokerd.proxy.proxy_call import ProxyCall
from brokerd.replication.controllers.fixed_session import FixedSession
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.epochs.log_lineage import LogLineage
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.mastership import Mastership, Transfer
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.rocketmq_layouts import MAX_BODY_BYTES_SENT
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.store_reads import StoreReads
from brokerd.transactions import records
from controllerd.processors import replicas
from controllerd.replicas import decide, elect, heartbeat, lives
from controllerd.replicas.heartbeat import Heartbeat, HeartbeatTable
from controllerd.replicas.requests import AlterSyncStateSet, Observation
from controllerd.replicas.state import Group
from remoting.errors import LogboomError
from remoting.frame import Command
from remoting.record.codec import Record
from tests.sim.mutants import Mutant, full, scenario
from tests.sim.older_directories import NAME as OLDER_DIRECTORIES
from tests.sim.test_copied_disk import (
    ids_of_two,
    last_member_is_a_copy,
    test_nobody_is_a_member_while_another_process_claims_its_id_as_well,
)
from tests.unit.controllerd.replicas import test_heartbeat, test_lost_tail


def _every_process_is_the_same(self: HeartbeatTable, known: Heartbeat, incarnation: int, now_ms: int) -> bool:
    """W27: a process is not told from one that runs on a copy of its directory."""
    return False


def _who_is_refused_has_nothing(known: Heartbeat, twin: Heartbeat) -> Heartbeat:
    """W27: what a refused process with a copy has does not count, though another leader counted it."""
    return known


def _the_last_claim_counts(self: HeartbeatTable, beat: Heartbeat, now_ms: int) -> None:
    """W27: of several processes that claim an id, the one that did so last is remembered."""
    self._twins[beat.key] = {}
    _note_twin(self, beat, now_ms)


_note_twin = HeartbeatTable._note_twin


def _every_process_is_a_later_life(self: HeartbeatTable, known: Heartbeat, incarnation: int) -> bool:
    """W27: who takes an id over from a process that lived beside it leads as the set's last member, whatever that one had."""
    return False


def _no_directory_is_another(group: Group, seen: Observation) -> bool:
    """W27: who runs on a directory that has never seen the member's life leads like its next one."""
    return False


def _whoever_lives_is_counted(group: Group, seen: Observation) -> bool:
    """W27: the life that is heard is counted as the member, whatever its directory has seen."""
    return seen.broker_id in group.sync_state_set and group.lives.get(seen.broker_id) != seen.incarnation


def _join_uncounted(*fields: Any) -> AlterSyncStateSet:
    """W27: a replica joins though no life of it could be counted, as while two processes claim its id."""
    return replace(AlterSyncStateSet(*fields), counts_lives=False)


def _a_copy_beside(seed: int) -> None:
    with ids_of_two():
        scenario(test_nobody_is_a_member_while_another_process_claims_its_id_as_well, seed)(seed)


def _a_copy_alone(seed: int) -> None:
    with ids_of_two():
        last_member_is_a_copy(seed, counts_lives=True)


def _whoever_has_the_id(self: HeartbeatTable, group: Group, broker_id: int) -> Heartbeat | None:
    """A broker is taken for the one with its id in another group."""
    return next((beat for key, beat in sorted(self._beats.items()) if key[2] == broker_id), None)


def _nothing_is_reset(self: PopService, group: str, topic: str, queue_id: int, offset: int) -> None:
    """A group that pops is told that its offset was reset, and pops go on where they were."""


def _nothing_is_pending(self: ConsumerRules, group: str, topic: str, queue_id: int) -> int | None:
    return None


def _nothing_was_before(self: StoreReads, topic: str, queue_id: int, timestamp_ms: int) -> int:
    """A reset by time goes behind the last message."""
    return self.max_offset(topic, queue_id)


def _tell_what_is_hoped(
    self: Forwarder, connection: Any, held: Held[str], origin: ProxyCall, result: Command | LogboomError
) -> None:
    """A replica whose master did not answer takes a send for stored."""
    call = held.call
    if isinstance(result, LogboomError) and held.what == "SendMessage" and call.live:
        ids = [
            each.system_properties.message_id for each in service.SendMessageRequest.FromString(call.message).messages
        ]
        call.answer(encode_response(ids, [SendOutcome(PutStatus.PUT_OK, queue_offset=0) for _ in ids]))
    else:
        _answered(self, connection, held, origin, result)


def _nobody_is_told(self: ClientsHere, connection: Any, requests: Sequence[Command]) -> None:
    """A replica does not pass on what its master says to a client."""


def _without_its_secret(record: Record, first: int | None, checks: int | None, secret: str | None = None) -> Draft:
    """The record of a check does not keep the secret of a transaction that began over gRPC."""
    return _successor_draft(records.without_secret(record), first, checks)


_successor_draft = records.successor_draft
_answered = Forwarder._answered
_next_transfer = Mastership.next_transfer


def _across_epochs(self: Mastership, connection: int) -> Transfer | None:
    """What is sent to a replica of the original goes on across the end of an epoch."""
    transfer = _next_transfer(self, connection)
    if transfer is None or not self._followers[connection].layout.is_rocketmq:
        return transfer
    return transfer._replace(length=min(MAX_BODY_BYTES_SENT, self._log.end_offset - transfer.header.offset))


def _begin_where_it_ended(
    self: FixedSession,
    settings: ReplicationSettings,
    names: BrokerNames,
    name_servers: Sequence[str],
    driver: ReplicationDriver,
    lineage: LogLineage,
    highest_epoch: int,
) -> None:
    """A master with a fixed role that starts again is in the epoch of its last life."""
    _fixed_session(self, settings, names, name_servers, driver, lineage, highest_epoch)
    if self.is_master and highest_epoch:
        self._epoch = highest_epoch
        driver.machine.highest_epoch = driver.machine.master_epoch = highest_epoch - 1
        driver.machine.epochs.replace(driver.machine.epochs.entries[:-1])


_fixed_session = FixedSession.__init__


def _says(rule: Any) -> str:
    return " ".join((rule.__doc__ or "").split())


MUTANTS = (
    Mutant(
        "copies of a process",
        "W27",
        _says(_every_process_is_the_same),
        ((HeartbeatTable, "_has_other", _every_process_is_the_same),),
        full("calm", ingredients=("copied directories",)),
        within=6,
        first=1,
        is_quick=False,
    ),
    Mutant(
        "what a copy acknowledged",
        "W27",
        _says(_who_is_refused_has_nothing),
        ((heartbeat, "_with_what_twin_has", _who_is_refused_has_nothing),),
        scenario(test_heartbeat.test_what_another_process_with_the_id_has_is_missing_in_a_log_that_has_less),
        within=1,
    ),
    Mutant(
        "the last claim to an id",
        "W27",
        _says(_the_last_claim_counts),
        ((HeartbeatTable, "_note_twin", _the_last_claim_counts),),
        scenario(test_heartbeat.test_several_that_wait_for_an_id_contest_it_when_one_of_them_has_it),
        within=1,
    ),
    Mutant(
        "what a copy alone had",
        "W27",
        _says(_every_process_is_a_later_life),
        ((HeartbeatTable, "_lived_beside", _every_process_is_a_later_life),),
        scenario(test_lost_tail.test_nobody_leads_without_what_another_process_with_its_id_acknowledged),
        within=1,
    ),
    Mutant(
        "a copy behind controllers that forgot",
        "W27",
        _says(_no_directory_is_another),
        tuple((module, "runs_elsewhere", _no_directory_is_another) for module in (elect, decide, lives, replicas)),
        _a_copy_alone,
        within=2,
    ),
    Mutant(
        "the life that is heard is counted",
        "W27",
        _says(_whoever_lives_is_counted),
        ((lives, "_is_to_be_counted", _whoever_lives_is_counted),),
        full("calm", ingredients=(OLDER_DIRECTORIES,), fault_ms=4500),
        within=20,
        is_quick=False,
    ),
    Mutant(
        "joins uncounted",
        "W27",
        _says(_join_uncounted),
        ((replicas, "AlterSyncStateSet", _join_uncounted),),
        _a_copy_beside,
        within=1,
    ),
    Mutant(
        "groups mixed up",
        "several groups",
        _says(_whoever_has_the_id),
        ((HeartbeatTable, "get", _whoever_has_the_id),),
        full("calm", ingredients=("second group",)),
        within=4,
        is_quick=False,
    ),
    Mutant(
        "pops go on after a reset",
        "offset resets",
        _says(_nothing_is_reset),
        ((PopService, "reset_offset", _nothing_is_reset),),
        full("calm", ingredients=("offset resets",)),
        within=4,
        is_quick=False,
    ),
    Mutant(
        "pulls go on after a reset",
        "offset resets",
        "A group that pulls is not told that its offset was reset.",
        ((ConsumerRules, "pending_reset", _nothing_is_pending),),
        full("calm", ingredients=("offset resets",)),
        within=4,
        is_quick=False,
    ),
    Mutant(
        "resets by time go to the end",
        "offset resets",
        _says(_nothing_was_before),
        ((StoreReads, "offset_by_time", _nothing_was_before),),
        full("calm", ingredients=("offset resets",)),
        within=6,
        is_quick=False,
    ),
    Mutant(
        "acks of the dead",
        "leases",
        "An ack by the handle of a lease that ended is answered like any other.",
        ((finishing, "_INVALID", AckStatus.OK),),
        full("calm", ingredients=("lease holders that die",)),
        within=2,
        is_quick=False,
    ),
    Mutant(
        "answered before the master",
        "forwarded calls",
        _says(_tell_what_is_hoped),
        ((Forwarder, "_answered", _tell_what_is_hoped),),
        full("processes", ingredients=("gRPC through replicas",)),
        within=10,
        first=15,
        is_quick=False,
    ),
    Mutant(
        "forwarded again",
        "forwarded calls",
        "A send whose outcome is not known is asked again.",
        ((forward, "REPEATABLE", forward.REPEATABLE | {"SendMessage"}),),
        full("processes", ingredients=("gRPC through replicas",)),
        within=20,
        first=12,
        is_quick=False,
    ),
    Mutant(
        "pushes dropped",
        "transactions over gRPC",
        _says(_nobody_is_told),
        ((ClientsHere, "handle_pushes", _nobody_is_told),),
        full("calm", ingredients=("gRPC through replicas",)),
        within=6,
        is_quick=False,
    ),
    Mutant(
        "secret lost",
        "transactions over gRPC",
        _says(_without_its_secret),
        ((records, "successor_draft", _without_its_secret),),
        full("calm", ingredients=("gRPC through replicas",)),
        within=2,
        is_quick=False,
    ),
    Mutant(
        "across epochs",
        "replicas of the original",
        _says(_across_epochs),
        ((Mastership, "next_transfer", _across_epochs),),
        full("processes", ingredients=("replica of the original",)),
        within=10,
        first=2,
        is_quick=False,
    ),
    Mutant(
        "the same epoch after a start",
        "fixed roles",
        _says(_begin_where_it_ended),
        ((FixedSession, "__init__", _begin_where_it_ended),),
        full("power", ingredients=("fixed roles",)),
        within=10,
        is_quick=False,
    ),
)
