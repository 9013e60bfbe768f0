"""Broken rules of who may drop a log, lead or answer for a broker id, what the end of a transaction is answered, and what a start
says of its log: W26 to W30."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from brokerd.replication.required_set.replica_progress import ConnectionStage, Follower
from brokerd.replication.required_set.sync_state import SyncState
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.effects import SendRelease
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.store.start import decisions, log_recovery
from brokerd.transactions import service
from brokerd.transactions.given_up import GivenUpMessages
from controllerd.replicas import decide, elect
from controllerd.replicas.heartbeat import HeartbeatTable
from controllerd.replicas.requests import Observation, RegisterBroker
from controllerd.replicas.state import Group, ReplicasState
from remoting.errors import StorageError
from tests.sim import test_copied_disk, test_suspects, test_transaction_ends
from tests.sim.mutants import Mutant, light, patched_scenario, scenario
from tests.support.transactions import TransactionBroker
from tests.unit.brokerd.replication.required_set.test_sync_state_model import Game
from tests.unit.brokerd.replication.roles import test_driver, test_followership, test_rocketmq_peers
from tests.unit.brokerd.store import test_suspicion
from tests.unit.brokerd.transactions import test_service
from tests.unit.controllerd.replicas import test_staying

_register = decide._register_broker
_begin_set = SyncState.__init__
_update = Followership.update


def _release_those_outside(self: Mastership, now_ms: int) -> None:
    for follower in self.followers:
        if follower.stage is ConnectionStage.LEAVING and follower.broker_id not in self.sync.local:
            self._outbox.append(SendRelease(follower.connection))
            self._greet(follower, now_ms)


def _update_and_believe(self: Followership, address: str, *, in_set: bool, now_ms: int) -> None:
    self._may_count = in_set
    _update(self, address, in_set=in_set, now_ms=now_ms)


def _take_the_later_one(self: Mastership, follower: Follower, older: Follower, broker_id: int, now_ms: int) -> None:
    self._drop(older, f"broker {broker_id} has connected again", now_ms)


def _never(*_: Any, **__: Any) -> bool:
    return False


def _always(*_: Any, **__: Any) -> bool:
    return True


def _none(*_: Any) -> None:
    return None


def _begin_alone(self: SyncState, self_id: int, members: Iterable[int], set_epoch: int, **rest: int) -> None:
    _begin_set(self, self_id, frozenset({self_id}), set_epoch, **rest)


def _winner_alone(group: Group, elected: Observation, observed: Iterable[Observation]) -> tuple[int, ...]:
    return (elected.broker_id,)


def _fail_whatever_it_was(self: ReplicationDriver, connection: int, error: StorageError, now_ms: int) -> None:
    self._failed(error, now_ms)


def _freshest_of_those_here(group: Group, live: Mapping[int, Observation]) -> int | None:
    members = [live[each] for each in group.sync_state_set if each in live]
    return max(members, key=elect._freshness).broker_id if members else None


def _register_and_leave(state: ReplicasState, request: RegisterBroker) -> decide.Decided:
    return _register(state, replace(request, others_have_all=None))


def _two_processes(seed: int) -> None:
    """A broker runs on a copy of another one's disk."""
    with test_copied_disk.ids_of_two():
        most = test_copied_disk.most_masters_of_one_epoch(seed)
    assert most < 2, f"{most} processes are master of one epoch"


def _released(seed: int) -> None:
    """The sync-state set alone, as a game of a master, its replicas and the controllers."""
    Game(seed, replicas=3).play(80)


def _by_hand(seed: int) -> None:
    """Two people decide about the same message."""
    scenario(test_service.test_a_given_up_message_is_committed_by_hand_exactly_once, TransactionBroker().topic())(seed)


MUTANTS = (
    Mutant(
        "releases whom it proposed",
        "W26",
        "A master lets everybody drop its log who is not in the set, whatever it has proposed.",
        ((Mastership, "_release_leaving", _release_those_outside),),
        _released,
        within=500,
    ),
    Mutant(
        "the controllers release",
        "W26",
        "A replica drops its log when the controllers say that it is not in the set.",
        ((Followership, "update", _update_and_believe),),
        scenario(test_followership.test_the_controllers_word_alone_drops_no_log),
        within=1,
    ),
    Mutant(
        "a copy is the next life",
        "W27",
        "Who comes with the id of a living process is taken for its next start, and serves what the other was elected for.",
        ((HeartbeatTable, "_has_other", _never), (RoleMachine, "_names_twin", _never)),
        _two_processes,
        within=4,
    ),
    Mutant(
        "the later one has the id",
        "W27",
        "A master that two replicas of one id connect to takes the second one for the next start of the first.",
        ((Mastership, "_refuse_twin", _take_the_later_one),),
        scenario(test_rocketmq_peers.test_a_connected_process_keeps_its_broker_id),
        within=1,
    ),
    Mutant(
        "a time-out is answered OK",
        "W28",
        "The end of a transaction is answered OK when it is in the master's log, whoever else has it.",
        ((service, "_unless_acknowledged", _none),),
        patched_scenario(test_transaction_ends.test_a_commit_that_the_next_master_does_not_have_is_not_answered_ok),
        within=1,
    ),
    Mutant(
        "decided by hand twice",
        "W28",
        "Who decides about a message that was given up does not look whether somebody did so before.",
        ((GivenUpMessages, "decision_about", _none),),
        _by_hand,
        within=1,
    ),
    Mutant(
        "the winner alone",
        "W29",
        "The set of an election is its winner, who may end at a rotten record whenever it starts.",
        ((decide, "members_after", _winner_alone),),
        scenario(test_staying.test_a_winner_that_fails_is_followed_by_one_who_stayed),
        within=1,
    ),
    Mutant(
        "begins without those who stay",
        "W29",
        "A new master requires itself, and not those that the controllers left in the set.",
        ((SyncState, "__init__", _begin_alone),),
        light(),
    ),
    Mutant(
        "a sector ends a mastership",
        "W29",
        "A master fails by what it cannot read for a replica, also when every member has it.",
        ((ReplicationDriver, "_not_read", _fail_whatever_it_was),),
        scenario(test_driver.test_a_sector_that_only_a_replica_asks_for_ends_no_mastership),
        within=1,
    ),
    Mutant(
        "the last record is torn",
        "W30",
        "A start takes what is no intact record at the log's end for what a crash left of a write, be all of its bytes there.",
        ((decisions, "lacks_bytes", _always),),
        scenario(test_suspicion.test_rot_behind_the_durable_checkpoint_makes_the_log_suspect, 39, 30),
        within=1,
    ),
    Mutant(
        "a start suspects nothing",
        "W30",
        "Behind the durable checkpoint a log ends where its first damage is, whatever comes after that.",
        ((log_recovery, "_suspicion", _none),),
        test_suspects.tell,
        within=3,
    ),
    Mutant(
        "the first suspect leads",
        "W30",
        "Who is freshest of the suspect members that are there leads, however few they are.",
        ((elect, "freshest_of_the_suspect", _freshest_of_those_here),),
        scenario(
            test_staying.test_who_leads_when_logs_may_have_lost_their_ends,
            (1, 2, 3),
            [test_staying.suspect(1, 90)],
            None,
        ),
        within=1,
    ),
    Mutant(
        "suspects leave one by one",
        "W30",
        "A suspect leaves the set at once, until the last one is there, which may have least.",
        ((decide, "_register_broker", _register_and_leave),),
        scenario(test_staying.test_the_set_is_not_left_one_after_the_other_until_the_last_one_may_lead),
        within=1,
    ),
)
