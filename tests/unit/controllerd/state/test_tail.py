"""The leader decides against everything in its log, committed or not; a leader no more, it knows what is committed only."""

from __future__ import annotations

from typing import Any

import pytest

from controllerd.access.requests import CreateUser
from controllerd.raft.leading import CoreSettings
from controllerd.raft.messages import Entry, EntryKind, Message, MessageKind, Snapshot
from controllerd.raft.node import OutcomeUnknown, RaftNode
from controllerd.raft.proposals import ProposalRefused
from controllerd.raft.quorum import Configuration
from controllerd.records.decision import Applied, Reply
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.errors import NotLeader, RequestError
from tests.unit.controllerd.raft.test_core import acknowledge, elect, make_core
from tests.unit.controllerd.raft.test_node import work
from tests.unit.controllerd.records.newer import LEVEL, NEWER, Note
from tests.unit.controllerd.replicas.builders import NAME, alter, apply_id, group_of_three, register, seen
from tests.unit.controllerd.replicas.builders import elect as elect_master


class Leader:
    """The node n1 of three, which leads; n2 acknowledges when it is told to."""

    def __init__(self, machine: ControllerMachine | None = None, settings: CoreSettings | None = None) -> None:
        self.machine = machine or ControllerMachine()
        core = make_core(settings=settings)
        self.node = RaftNode(core, self.machine, compact_after_entries=1000, keep_entries=2)
        self.answers: list[Any] = []
        self.lead()

    def lead(self) -> None:
        elect(self.node.core)
        work(self.node)
        self.commit()
        assert self.node.is_serving

    def propose(self, request: Any) -> None:
        self.node.propose(request, self.answers.append)
        work(self.node)

    def commit(self) -> None:
        acknowledge(self.node.core, self.node.core.log.last_index)
        work(self.node)

    def hear(self, kind: MessageKind, **fields: Any) -> None:
        """Another leader, of the next term."""
        self.node.step(Message(kind, "n3", "n1", self.node.core.term + 1, **fields))
        work(self.node)

    @property
    def replies(self) -> list[Reply]:
        assert all(isinstance(each, Applied) for each in self.answers)
        return [each.reply for each in self.answers]


def test_two_brokers_that_ask_for_one_id_before_anything_is_committed() -> None:
    leader = Leader()
    leader.propose(apply_id(1, "a:1;1"))
    leader.propose(apply_id(1, "b:1;1"))
    leader.propose(apply_id(2, "b:1;1"))
    assert (leader.answers, leader.machine.replicas.groups) == ([], {})
    leader.commit()
    assert [each.code for each in leader.replies] == [codes.SUCCESS, codes.CONTROLLER_BROKER_ID_INVALID, codes.SUCCESS]
    replicas = leader.machine.replicas.groups[NAME].replicas
    assert {each.broker_id: each.address for each in replicas.values()} == {1: "a:1", 2: "b:1"}


def test_an_election_sees_an_alter_that_is_not_committed_yet() -> None:
    leader = Leader(group_of_three())
    leader.propose(alter([1, 2], set_epoch=2))
    leader.propose(elect_master(seen(2, max_offset=1), seen(3, max_offset=9)))
    leader.commit()
    assert [each.code for each in leader.replies] == [codes.SUCCESS, codes.SUCCESS]
    assert leader.machine.replicas.groups[NAME].master_broker_id == 2, "the fresher one had left the set"


def test_an_alter_of_the_old_master_behind_an_election_is_fenced() -> None:
    leader = Leader(group_of_three())
    leader.propose(elect_master(seen(2)))
    leader.propose(alter([1, 2], set_epoch=2))
    leader.commit()
    assert [each.code for each in leader.replies] == [codes.SUCCESS, codes.CONTROLLER_INVALID_MASTER]


def test_of_two_first_users_one_is_made() -> None:
    leader = Leader()
    for name in ("one", "two"):
        leader.propose(CreateUser(name, "s", "Super", "enable", by_super=True, only_first=True))
    leader.commit()
    assert [each.remark for each in leader.replies] == [None, "unchanged"]
    assert leader.machine.access.users.keys() == {"one"}


def test_a_reply_has_the_state_of_its_moment() -> None:
    leader = Leader()
    leader.propose(apply_id(1))
    leader.propose(register(1))
    leader.propose(apply_id(2))
    leader.commit()
    assert [sorted(each.state.groups[NAME].replicas) for each in leader.answers] == [[1], [1], [1, 2]]


def test_who_is_refused_is_answered_only_when_what_it_was_refused_for_is_committed() -> None:
    leader = Leader()
    leader.propose(apply_id(1, "a:1;1"))
    leader.propose(apply_id(1, "b:1;1"))
    leader.hear(MessageKind.HEARTBEAT)
    assert [type(each) for each in leader.answers] == [OutcomeUnknown, OutcomeUnknown]


def test_a_leader_that_is_replaced_forgets_what_it_appended() -> None:
    leader = Leader()
    leader.propose(apply_id(1, "a:1;1"))
    leader.hear(MessageKind.APPEND, index=1, log_term=1, commit=2, entries=(Entry(2, 2, b"", EntryKind.EMPTY),))
    assert isinstance(leader.answers.pop(), NotLeader)
    leader.lead()
    leader.propose(apply_id(1, "b:1;1"))
    leader.commit()
    assert leader.replies == [Reply()], "the id is free again"
    assert leader.machine.replicas.groups[NAME].replicas[1].address == "b:1"


def test_a_leader_that_comes_back_before_it_noticed_decides_by_what_is_committed() -> None:
    """Another term began and ended between two rounds of work; what it appended before is in its log still, and counts."""
    leader = Leader()
    leader.node.propose(apply_id(1, "a:1;1"), leader.answers.append)
    leader.node.core.step_down()
    elect(leader.node.core)
    with pytest.raises(NotLeader):
        leader.node.propose(apply_id(1, "b:1;1"), leader.answers.append)
    work(leader.node)
    leader.commit()
    assert [type(each) for each in leader.answers] == [OutcomeUnknown]
    leader.answers.clear()
    leader.propose(apply_id(1, "b:1;1"))
    leader.commit()
    assert [each.code for each in leader.replies] == [codes.CONTROLLER_BROKER_ID_INVALID]


def test_a_snapshot_of_another_leader_takes_the_place_of_the_tail() -> None:
    leader, other = Leader(), group_of_three()
    leader.propose(apply_id(1, "a:1;1"))
    snapshot = Snapshot(9, 2, Configuration.of(("n1", "n2", "n3")), other.snapshot())
    leader.hear(MessageKind.SNAPSHOT, snapshot=snapshot)
    leader.lead()
    leader.propose(apply_id(4))
    leader.commit()
    assert sorted(leader.machine.replicas.groups[NAME].replicas) == [1, 2, 3, 4]


def test_what_the_log_did_not_take_is_not_in_the_tail() -> None:
    size = len(ControllerMachine().decide(apply_id(1, "a:1;1"))) + 10
    leader = Leader(settings=CoreSettings(max_entry_bytes=size, max_uncommitted_bytes=size))
    leader.propose(apply_id(1, "a:1;1"))
    with pytest.raises(ProposalRefused):
        leader.propose(apply_id(2, "b:1;1"))
    leader.commit()
    leader.propose(apply_id(2, "c:1;1"))
    leader.commit()
    assert leader.replies == [Reply(), Reply()]
    assert leader.machine.replicas.groups[NAME].replicas[2].address == "c:1"


def test_records_of_a_higher_level_follow_its_raising_at_once_and_not_before() -> None:
    leader = Leader(ControllerMachine(subjects=NEWER))
    with pytest.raises(RequestError, match="upgrade all of them first"):
        leader.propose(Note("early"))
    leader.propose(RaiseLevel((LEVEL, 1, LEVEL)))
    with pytest.raises(RequestError, match="upgrade all of them first"):
        leader.propose(Note("one of them is old"))
    leader.propose(RaiseLevel((LEVEL, LEVEL, LEVEL)))
    leader.propose(Note("now"))
    leader.propose(RaiseLevel((LEVEL, LEVEL, LEVEL)))
    leader.commit()
    assert [each.remark for each in leader.replies] == [
        "the level is 1 already",
        None,
        None,
        f"the level is {LEVEL} already",
    ]
    assert leader.machine.features.level == LEVEL
