"""The session with the controllers: what is asked when, and what each answer, refusal and silence means."""

from __future__ import annotations

import orjson
import pytest

from brokerd.replication.controllers.controller_session import (
    BrokerNames,
    BrokerPosition,
    ControllerSession,
    SessionRequest,
)
from brokerd.replication.controllers.identity import IDENTITY_FILE, IdentityFiles, Registration, Step
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import RoleView
from brokerd.replication.settings import ReplicationSettings
from remoting import codes
from tests.support.disks import MemoryDisk

A, B = "127.0.0.1:1", "127.0.0.1:2"
MEMBERS = codes.CONTROLLER_GET_SYNC_STATE_DATA
METADATA, BEAT = codes.CONTROLLER_GET_METADATA_INFO, codes.BROKER_HEARTBEAT
INFO, ELECT, ALTER = (
    codes.CONTROLLER_GET_REPLICA_INFO,
    codes.CONTROLLER_ELECT_MASTER,
    codes.CONTROLLER_ALTER_SYNC_STATE_SET,
)


class Sink:
    """Records what the driver would be told."""

    def __init__(self) -> None:
        self.broker_id: int | None = None
        self.views: list[RoleView] = []
        self.members: list[int] = []
        self.learners: frozenset[int] = frozenset()
        self.proposals: list[tuple] = []

    def identified(self, broker_id: int) -> None:
        self.broker_id = broker_id

    def observed(self, view: RoleView, now_ms: int) -> None:
        self.views.append(view)

    def members_known(self, broker_ids, learners, now_ms) -> None:
        self.members = sorted(broker_ids)
        self.learners = learners

    def proposal_accepted(self, token, members, set_epoch, now_ms) -> None:
        self.proposals.append(("accepted", token, sorted(members), set_epoch))

    def proposal_answered(self, token, code, now_ms) -> None:
        self.proposals.append(("answered", token, code))

    def proposal_unanswered(self, token, now_ms) -> None:
        self.proposals.append(("unanswered", token))


class Session:
    """A session whose requests a test answers one by one."""

    def __init__(self, *, known_id: int | None = 2, tail_kept: bool = True, **settings: object) -> None:
        self.now_ms = 0
        self.sink = Sink()
        self.disk = MemoryDisk()
        if known_id is not None:
            self.disk.replace_bytes(IDENTITY_FILE, b"c#b#%d" % known_id)
        registration = Registration(IdentityFiles(self.disk, "c", "b"), "127.0.0.1:9", 77)
        self.core = ControllerSession(
            ReplicationSettings(**settings), BrokerNames("c", "b", "127.0.0.1:9", "ha", "grpc"), [A, B], registration,
            self.sink, lambda: BrokerPosition(3, 5, 1000, 900), incarnation=4, now_ms=0,
            tail_kept=tail_kept,
        )  # fmt: skip
        self.waiting: list[SessionRequest] = []
        self.oneway: list[SessionRequest] = []

    def tick(self, milliseconds: int = 0) -> list[int]:
        """Let time pass; the codes of the requests that want an answer."""
        self.now_ms += milliseconds
        self.core.tick(self.now_ms, 123_456)
        new = self.core.take_requests()
        self.oneway += [request for request in new if not request.token]
        asked = [request for request in new if request.token]
        self.waiting += asked
        return [request.code for request in asked]

    def answer(
        self, code: int, ext: dict[str, str] | None = None, body: object = None, *, status: int = 0
    ) -> SessionRequest:
        """Answer the oldest waiting request of a code."""
        request = next(request for request in self.waiting if request.code == code)
        self.waiting.remove(request)
        encoded = b"" if body is None else orjson.dumps(body)
        self.core.answered(request.token, status, ext or {}, encoded, self.now_ms)
        return request

    def fail(self, code: int) -> None:
        request = next(request for request in self.waiting if request.code == code)
        self.waiting.remove(request)
        self.core.failed(request.token, "no answer", self.now_ms)

    def lead(self, address: str = A) -> None:
        """Answer the discovery."""
        if not any(request.code == METADATA for request in self.waiting):
            self.tick(100)
        self.answer(METADATA, {"controllerLeaderAddress": address})

    def register(self, master: int | None = 1) -> None:
        self.tick()
        self.lead()
        assert self.tick() == [codes.CONTROLLER_REGISTER_BROKER]
        ext, body = view_answer(master)
        self.answer(codes.CONTROLLER_REGISTER_BROKER, ext if master else {}, body)


def answer_members(session: Session, learners: tuple[int, ...] = ()) -> None:
    group = {
        "inSyncReplicas": [{"brokerId": 1}],
        "notInSyncReplicas": [{"brokerId": 3, "learner": 3 in learners}],
    }
    session.answer(MEMBERS, {}, {"replicasInfoTable": {"b": group}})


def view_answer(master: int | None, epoch: int = 5, members: tuple[int, ...] = (1,), set_epoch: int = 8):
    ext = {"masterEpoch": str(epoch), "syncStateSetEpoch": str(set_epoch)}
    if master is not None:
        ext |= {
            "masterBrokerId": str(master),
            "masterAddress": "m:1",
            "masterHaAddress": "m:2",
            "masterGrpcAddress": "m:3",
        }
    return ext, {"syncStateSet": list(members), "syncStateSetEpoch": set_epoch}


def test_the_first_registration() -> None:
    session = Session(known_id=None)
    assert session.tick() == [METADATA, METADATA]
    assert session.oneway == [], "nobody can be heard without an id"
    session.lead()
    assert session.tick() == [codes.CONTROLLER_GET_NEXT_BROKER_ID]
    session.answer(codes.CONTROLLER_GET_NEXT_BROKER_ID, {"nextBrokerId": "2"})
    assert session.tick() == [codes.CONTROLLER_APPLY_BROKER_ID]
    applied = session.answer(codes.CONTROLLER_APPLY_BROKER_ID)
    assert applied.ext["appliedBrokerId"] == "2"
    assert applied.ext["registerCheckCode"] == "127.0.0.1:9;77"
    assert session.sink.broker_id == 2
    assert session.tick() == [codes.CONTROLLER_REGISTER_BROKER]
    assert [request.address for request in session.oneway] == [A], "heard before it is asked whether it lives"
    ext, body = view_answer(1)
    registered = session.answer(codes.CONTROLLER_REGISTER_BROKER, ext, body)
    assert registered.ext["haAddress"] == "ha"
    assert registered.ext["grpcAddress"] == "grpc"
    assert registered.ext["highestMasterEpoch"] == "5"
    assert session.core.registration.step is Step.REGISTERED
    assert session.sink.views == [RoleView(1, 5, frozenset({1}), 8, "m:1", "m:2", "m:3")]


def test_a_time_out_of_the_application_keeps_id_and_code() -> None:
    session = Session(known_id=None)
    session.tick()
    session.lead()
    session.tick()
    session.answer(codes.CONTROLLER_GET_NEXT_BROKER_ID, {"nextBrokerId": "2"})
    session.tick()
    session.fail(codes.CONTROLLER_APPLY_BROKER_ID)
    session.lead()
    assert session.tick(250) == [codes.CONTROLLER_APPLY_BROKER_ID]
    assert session.waiting[-1].ext["appliedBrokerId"] == "2"
    session.answer(codes.CONTROLLER_APPLY_BROKER_ID, status=codes.CONTROLLER_BROKER_ID_INVALID)
    assert session.tick(250) == [codes.CONTROLLER_GET_NEXT_BROKER_ID]


def test_controllers_without_memory_are_told_the_id_again() -> None:
    session = Session()
    session.tick()
    session.lead()
    session.tick()
    session.answer(codes.CONTROLLER_REGISTER_BROKER, status=codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
    assert session.tick(250) == [codes.CONTROLLER_APPLY_BROKER_ID]
    assert session.waiting[-1].ext["appliedBrokerId"] == "2"


def test_a_registration_that_names_no_living_master_is_followed_by_a_look_at_the_record() -> None:
    session = Session()
    session.register(master=None)
    assert session.sink.views == []
    assert session.tick() == [INFO]
    session.answer(INFO, *view_answer(None))
    assert session.sink.views[-1].master_id is None


def test_heartbeats_go_to_all_and_say_everything() -> None:
    session = Session()
    session.tick()
    session.oneway.clear()
    session.tick(249)
    assert session.oneway == []
    session.tick(1)
    assert [request.address for request in session.oneway] == [A, B]
    assert session.oneway[0].ext == {
        "clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:9", "brokerId": "2", "epoch": "3",
        "maxOffset": "1000", "confirmOffset": "900", "heartbeatIntervalMills": "250", "heartbeatTimeoutMills": "1500",
        "electionPriority": "2147483647", "haAddress": "ha", "grpcAddress": "grpc", "incarnation": "4",
        "highestMasterEpoch": "5",
    }  # fmt: skip
    session.oneway.clear()
    session.core.connected(B, session.now_ms)
    session.tick()
    assert [request.address for request in session.oneway] == [B]


def test_the_view_is_polled_and_asked_for_at_once_when_wished() -> None:
    session = Session()
    session.register()
    assert session.tick(249) == []
    assert session.tick(1) == [MEMBERS], "who belongs to the group, so that somebody who is missing is missed"
    answer_members(session)
    assert session.tick(749) == []
    assert session.tick(1) == [INFO]
    session.answer(INFO, *view_answer(1))
    session.core.request_sync()
    session.core.request_sync()
    assert session.tick() == [], "wishes of one moment share one request"
    assert session.tick(50) == [INFO]


def owing() -> Session:
    """The leader A took a proposal and does not answer."""
    session = Session()
    session.register()
    session.core.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    assert session.tick(10) == [ALTER]
    assert session.tick(90) == []
    assert session.tick(10) == [METADATA], "after a moment the others are asked who leads"
    assert session.waiting[-1].address == B
    return session


def test_a_frozen_leader_is_left_as_soon_as_another_controller_says_that_it_leads() -> None:
    session = owing()
    session.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "true"})
    assert session.core.leader == B
    assert session.sink.proposals == [("unanswered", 7)], "whether the proposal took effect is not known"
    session.core.propose(Proposal(8, frozenset({1, 2}), 8), 5)
    assert session.tick() == [ALTER]
    assert session.waiting[-1].address == B


def test_a_slow_leader_stays_the_leader_on_hearsay() -> None:
    session = owing()
    session.answer(METADATA, {"controllerLeaderAddress": A, "isLeader": "false"})
    assert session.tick(100) == [METADATA]
    session.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "false"})
    assert session.core.leader == A
    assert session.tick(100) == [METADATA]
    session.answer(ALTER, {"newSyncStateSetEpoch": "9"}, {"syncStateSet": [1, 2], "syncStateSetEpoch": 9})
    session.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "true"})
    assert session.core.leader == A, "it has answered: nothing is owed any more"
    assert session.sink.proposals == [("accepted", 7, [1, 2], 9)]


def test_one_request_at_a_time_the_most_urgent_first() -> None:
    session = Session()
    session.register()
    session.core.request_members()
    session.core.request_sync()
    session.core.request_election()
    session.core.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    order = []
    for _ in range(4):
        (code,) = session.tick(50)
        order.append(code)
        assert session.tick() == []
        if code == MEMBERS:
            answer_members(session)
        else:
            session.answer(code, *view_answer(2))
    assert order == [ALTER, ELECT, INFO, MEMBERS]
    assert session.sink.members == [1, 3]


def test_the_members_are_asked_for_now_and_then() -> None:
    session = Session()
    session.register()
    asked = []
    for _ in range(240):
        for code in session.tick(50):
            asked.append(code)
            if code == MEMBERS:
                answer_members(session, learners=(3,))
            else:
                session.answer(code, *view_answer(1))
    assert asked.count(MEMBERS) == 3
    assert session.sink.learners == {3}


def test_answers_to_a_proposal() -> None:
    session = Session()
    session.register()
    session.core.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    session.tick()
    request = session.answer(ALTER, {"newSyncStateSetEpoch": "9"}, {"syncStateSet": [1, 2], "syncStateSetEpoch": 9})
    assert request.ext["masterEpoch"] == "5"
    assert request.ext["masterBrokerId"] == "2"
    assert orjson.loads(request.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 8}
    session.core.propose(Proposal(8, frozenset({1}), 9), 5)
    session.tick()
    session.answer(ALTER, status=codes.CONTROLLER_BROKER_NOT_ALIVE)
    session.core.propose(Proposal(9, frozenset({1}), 9), 5)
    session.tick()
    session.answer(ALTER, status=codes.CONTROLLER_NOT_LEADER)
    assert session.core.leader is None
    session.lead(B)
    session.core.propose(Proposal(10, frozenset({1}), 9), 5)
    session.tick()
    session.fail(ALTER)
    assert session.sink.proposals == [
        ("accepted", 7, [1, 2], 9),
        ("answered", 8, codes.CONTROLLER_BROKER_NOT_ALIVE),
        ("answered", 9, codes.CONTROLLER_NOT_LEADER),
        ("unanswered", 10),
    ]


def test_an_answer_after_the_time_out_is_nothing() -> None:
    session = Session()
    session.register()
    session.core.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    session.tick()
    late = session.waiting[-1]
    session.fail(ALTER)
    session.core.answered(late.token, 0, {"newSyncStateSetEpoch": "9"}, b"", session.now_ms)
    assert session.sink.proposals == [("unanswered", 7)]


def test_an_answer_that_cannot_be_understood_is_no_answer() -> None:
    session = Session()
    session.register()
    session.core.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    session.tick()
    session.answer(ALTER, {}, ["what is this"])
    assert session.sink.proposals == [("unanswered", 7)]
    session.tick(1000)
    session.answer(INFO, {"masterEpoch": "x"})
    assert "cannot be understood" in session.core.last_error


def test_a_lost_leader_is_looked_for_everywhere() -> None:
    session = Session()
    session.register()
    session.core.disconnected(A, session.now_ms)
    assert session.tick() == [METADATA, METADATA]
    session.answer(METADATA, {"controllerLeaderAddress": ""})
    assert session.core.leader is None
    assert session.tick(99) == []
    assert session.tick(1) == [METADATA, METADATA]
    session.answer(METADATA, {"controllerLeaderAddress": "203.0.113.9:1"})
    assert session.core.leader is None, "only the addresses that were configured are believed"
    session.lead(B)
    assert session.core.leader == B
    assert session.tick() == [INFO]
    assert session.waiting[-1].address == B


def test_an_election_is_not_asked_for_in_a_hurry() -> None:
    session = Session()
    session.register()
    session.core.request_election()
    assert session.tick() == [ELECT]
    session.answer(ELECT, status=codes.CONTROLLER_ELECT_MASTER_FAILED)
    session.core.request_election()
    assert session.tick(199) == []
    assert session.tick(1) == [ELECT]
    session.answer(ELECT, *view_answer(2, 6), status=codes.CONTROLLER_MASTER_STILL_EXIST)
    assert session.sink.views[-1].master_epoch == 6


def test_a_push_only_makes_us_ask() -> None:
    session = Session()
    session.register()
    session.core.notified(session.now_ms)
    assert session.tick() == [INFO]
    session.core.notified(session.now_ms)
    assert session.tick() == [], "an answer is on its way"
    session.now_ms += 100
    session.core.notified(session.now_ms)
    assert session.core.leader is None, "the leader owes an answer for too long"
    assert session.tick() == [METADATA, METADATA]


def test_a_group_that_was_cleaned_away_is_registered_again() -> None:
    session = Session()
    session.register()
    session.tick(1000)
    session.answer(INFO, status=codes.CONTROLLER_BROKER_METADATA_NOT_EXIST)
    assert session.tick(250) == [codes.CONTROLLER_REGISTER_BROKER]


def test_without_a_named_replication_address_it_is_the_next_port() -> None:
    session = Session()
    session.register()
    session.tick(1000)
    session.answer(INFO, {"masterEpoch": "5", "masterBrokerId": "1", "masterAddress": "10.0.0.1:10911"})
    assert session.sink.views[-1].master_ha_address == "10.0.0.1:10912"


@pytest.mark.parametrize("master_id", ["-1", ""])
def test_no_master_is_written_in_several_ways(master_id: str) -> None:
    session = Session()
    session.register()
    session.tick(1000)
    session.answer(INFO, {"masterEpoch": "5", "masterBrokerId": master_id})
    assert session.sink.views[-1].master_id is None


def test_learners_say_so() -> None:
    session = Session(learner=True)
    session.tick()
    assert session.oneway[0].ext["learner"] == "true"


def test_a_lost_tail_is_said_until_the_set_was_judged() -> None:
    session = Session(tail_kept=False)
    session.tick()
    session.lead()
    assert session.tick() == [codes.CONTROLLER_REGISTER_BROKER]
    assert [beat.ext.get("tailKept") for beat in session.oneway] == ["false"] * len(session.oneway)
    assert session.oneway, "heartbeats leave before the registration, and must not hide it"
    ext, body = view_answer(1)
    asked = session.answer(codes.CONTROLLER_REGISTER_BROKER, ext, body)
    assert (asked.ext["tailKept"], asked.ext["maxOffset"]) == ("false", "1000")
    session.oneway.clear()
    session.tick(1000)
    assert session.oneway
    assert all("tailKept" not in beat.ext for beat in session.oneway)


def test_who_kept_everything_says_nothing_of_it() -> None:
    session = Session()
    session.register()
    assert all("tailKept" not in beat.ext for beat in session.oneway)
