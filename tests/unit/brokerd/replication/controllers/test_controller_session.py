"""The session with the controllers: what is asked when, and what each answer, refusal and silence means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson
import pytest

from brokerd.replication.controllers.controller_session import ControllerSession
from brokerd.replication.controllers.identity import IDENTITY_FILE, IdentityFiles, Lives, Registration, Step
from brokerd.replication.controllers.request_fields import Speaker
from brokerd.replication.controllers.session import BrokerNames, SessionRequest
from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList
from brokerd.replication.log import LogPosition
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import Ask, RoleView
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.frames import Handshake
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


class Observer:
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

    def proposal_failed(self, token, code, now_ms) -> None:
        self.proposals.append(("failed", token, code))


class Talk:
    """A session whose requests a test answers one by one."""

    def __init__(
        self,
        *,
        known_id: int | None = 2,
        tail_kept: bool = True,
        controllers: Sequence[str] = (A, B),
        has_room: Callable[[], bool] | None = None,
        **fields: object,
    ) -> None:
        settings = ReplicationSettings(**fields)
        self.now_ms = 0
        self.observer = Observer()
        self.disk = MemoryDisk()
        if known_id is not None:
            self.disk.replace_bytes(IDENTITY_FILE, b"c#b#%d" % known_id)
        registration = Registration(IdentityFiles(self.disk, "c", "b"), "127.0.0.1:9", 77)
        machine = RoleMachine(settings, EpochList([EpochEntry(3, 0)]), 5, LogPosition(0, 1000, 1000), 900, 0)
        self.session = ControllerSession(
            settings,
            Speaker(
                BrokerNames("c", "b", "127.0.0.1:9", "ha", "grpc"),
                registration,
                4,
                machine,
                tail_kept,
                has_room=has_room,
                lives=Lives(self.disk, 4),
            ),
            controllers,
            self.observer,
            0,
        )
        self.machine = machine
        self.waiting: list[SessionRequest] = []
        self.oneway: list[SessionRequest] = []

    def tick(self, milliseconds: int = 0) -> list[int]:
        """Let time pass; the codes of the requests that want an answer."""
        self.now_ms += milliseconds
        self.session.tick(self.now_ms, 123_456)
        new = self.session.take_requests()
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
        self.session.answered(request.token, status, ext or {}, encoded, self.now_ms)
        return request

    def fail(self, code: int) -> None:
        request = next(request for request in self.waiting if request.code == code)
        self.waiting.remove(request)
        self.session.failed(request.token, "no answer", self.now_ms)

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


def answer_members(talk: Talk, learners: tuple[int, ...] = ()) -> None:
    group = {
        "inSyncReplicas": [{"brokerId": 1}],
        "notInSyncReplicas": [{"brokerId": 3, "learner": 3 in learners}],
    }
    talk.answer(MEMBERS, {}, {"replicasInfoTable": {"b": group}})


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
    talk = Talk(known_id=None)
    assert talk.tick() == [METADATA, METADATA]
    assert talk.oneway == [], "nobody can be heard without an id"
    talk.lead()
    assert talk.tick() == [codes.CONTROLLER_GET_NEXT_BROKER_ID]
    talk.answer(codes.CONTROLLER_GET_NEXT_BROKER_ID, {"nextBrokerId": "2"})
    assert talk.tick() == [codes.CONTROLLER_APPLY_BROKER_ID]
    applied = talk.answer(codes.CONTROLLER_APPLY_BROKER_ID)
    assert applied.ext["appliedBrokerId"] == "2"
    assert applied.ext["registerCheckCode"] == "127.0.0.1:9;77"
    assert talk.observer.broker_id == 2
    assert talk.tick() == [codes.CONTROLLER_REGISTER_BROKER]
    assert [request.address for request in talk.oneway] == [A], "heard before it is asked whether it lives"
    ext, body = view_answer(1)
    registered = talk.answer(codes.CONTROLLER_REGISTER_BROKER, ext, body)
    assert registered.ext["haAddress"] == "ha"
    assert registered.ext["grpcAddress"] == "grpc"
    assert registered.ext["highestMasterEpoch"] == "5"
    assert talk.session.registration.step is Step.REGISTERED
    assert talk.observer.views == [RoleView(1, 5, frozenset({1}), 8, "m:1", "m:2", "m:3")]


def test_a_time_out_of_the_application_keeps_id_and_code() -> None:
    talk = Talk(known_id=None)
    talk.tick()
    talk.lead()
    talk.tick()
    talk.answer(codes.CONTROLLER_GET_NEXT_BROKER_ID, {"nextBrokerId": "2"})
    talk.tick()
    talk.fail(codes.CONTROLLER_APPLY_BROKER_ID)
    talk.lead()
    assert talk.tick(250) == [codes.CONTROLLER_APPLY_BROKER_ID]
    assert talk.waiting[-1].ext["appliedBrokerId"] == "2"
    talk.answer(codes.CONTROLLER_APPLY_BROKER_ID, status=codes.CONTROLLER_BROKER_ID_INVALID)
    assert talk.tick(250) == [codes.CONTROLLER_GET_NEXT_BROKER_ID]


def test_controllers_without_memory_are_told_the_id_again() -> None:
    talk = Talk()
    talk.tick()
    talk.lead()
    talk.tick()
    talk.answer(codes.CONTROLLER_REGISTER_BROKER, status=codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED)
    assert talk.tick(250) == [codes.CONTROLLER_APPLY_BROKER_ID]
    assert talk.waiting[-1].ext["appliedBrokerId"] == "2"


def test_a_registration_that_names_no_living_master_is_followed_by_a_look_at_the_record() -> None:
    talk = Talk()
    talk.register(master=None)
    assert talk.observer.views == []
    assert talk.tick() == [INFO]
    talk.answer(INFO, *view_answer(None))
    assert talk.observer.views[-1].master_id is None


def test_heartbeats_go_to_all_and_say_everything() -> None:
    talk = Talk()
    talk.tick()
    talk.oneway.clear()
    talk.tick(224)
    assert talk.oneway == []
    talk.tick(1)
    assert [request.address for request in talk.oneway] == [A, B]
    assert talk.oneway[0].ext == {
        "clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:9", "brokerId": "2", "epoch": "3",
        "maxOffset": "1000", "confirmOffset": "900", "heartbeatIntervalMills": "250", "heartbeatTimeoutMills": "1500",
        "electionPriority": "2147483647", "haAddress": "ha", "grpcAddress": "grpc", "incarnation": "4",
        "highestMasterEpoch": "5", "lives": "4", "disk": "works",
    }  # fmt: skip
    talk.oneway.clear()
    talk.session.connected(B, talk.now_ms)
    talk.tick()
    assert [request.address for request in talk.oneway] == [B]


def test_the_view_is_polled_and_asked_for_at_once_when_wished() -> None:
    talk = Talk()
    talk.register()
    assert talk.tick(249) == []
    assert talk.tick(1) == [MEMBERS], "who belongs to the group, so that somebody who is missing is missed"
    answer_members(talk)
    assert talk.tick(749) == []
    assert talk.tick(1) == [INFO]
    talk.answer(INFO, *view_answer(1))
    talk.session.ask(Ask.SYNC)
    talk.session.ask(Ask.SYNC)
    assert talk.tick() == [], "wishes of one moment share one request"
    assert talk.tick(50) == [INFO]


def owing() -> Talk:
    """The leader A took a proposal and does not answer."""
    talk = Talk()
    talk.register()
    talk.session.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    assert talk.tick(10) == [ALTER]
    assert talk.tick(90) == []
    assert talk.tick(10) == [METADATA], "after a moment the others are asked who leads"
    assert talk.waiting[-1].address == B
    return talk


def test_a_frozen_leader_is_left_as_soon_as_another_controller_says_that_it_leads() -> None:
    talk = owing()
    talk.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "true"})
    assert talk.session.leader == B
    assert talk.observer.proposals == [("failed", 7, None)], "whether the proposal took effect is not known"
    talk.session.propose(Proposal(8, frozenset({1, 2}), 8), 5)
    assert talk.tick() == [ALTER]
    assert talk.waiting[-1].address == B


def test_clocks_of_controllers_on_other_machines_are_witnesses_for_a_minute() -> None:
    talk = Talk(controllers=("10.0.0.1:1", "10.0.0.2:1", "127.0.0.1:1", "10.0.0.3:1"))
    talk.tick(100)
    for said in ("1700000000000", "not a number", "1800000000000", ""):
        talk.answer(METADATA, {"currentTimeMillis": said} if said else {})
    assert talk.session.other_clocks_ms(talk.now_ms) == [1_700_000_000_000], "another one shares this machine's clock"
    assert talk.session.other_clocks_ms(talk.now_ms + 60_000) == [1_700_000_060_000]
    assert talk.session.other_clocks_ms(talk.now_ms + 60_001) == []


def test_a_slow_leader_stays_the_leader_on_hearsay() -> None:
    talk = owing()
    talk.answer(METADATA, {"controllerLeaderAddress": A, "isLeader": "false"})
    assert talk.tick(100) == [METADATA]
    talk.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "false"})
    assert talk.session.leader == A
    assert talk.tick(100) == [METADATA]
    talk.answer(ALTER, {"newSyncStateSetEpoch": "9"}, {"syncStateSet": [1, 2], "syncStateSetEpoch": 9})
    talk.answer(METADATA, {"controllerLeaderAddress": B, "isLeader": "true"})
    assert talk.session.leader == A, "it has answered: nothing is owed any more"
    assert talk.observer.proposals == [("accepted", 7, [1, 2], 9)]


def test_one_request_at_a_time_the_most_urgent_first() -> None:
    talk = Talk()
    talk.register()
    talk.session.ask(Ask.MEMBERS)
    talk.session.ask(Ask.SYNC)
    talk.session.ask(Ask.ELECTION)
    talk.session.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    order = []
    for _ in range(4):
        (code,) = talk.tick(50)
        order.append(code)
        assert talk.tick() == []
        if code == MEMBERS:
            answer_members(talk)
        else:
            talk.answer(code, *view_answer(2))
    assert order == [ALTER, ELECT, INFO, MEMBERS]
    assert talk.observer.members == [1, 3]


def test_the_members_are_asked_for_now_and_then() -> None:
    talk = Talk()
    talk.register()
    asked = []
    for _ in range(240):
        for code in talk.tick(50):
            asked.append(code)
            if code == MEMBERS:
                answer_members(talk, learners=(3,))
            else:
                talk.answer(code, *view_answer(1))
    assert asked.count(MEMBERS) == 3
    assert talk.observer.learners == {3}


def test_answers_to_a_proposal() -> None:
    talk = Talk()
    talk.register()
    talk.session.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    talk.tick()
    request = talk.answer(ALTER, {"newSyncStateSetEpoch": "9"}, {"syncStateSet": [1, 2], "syncStateSetEpoch": 9})
    assert request.ext["masterEpoch"] == "5"
    assert request.ext["masterBrokerId"] == "2"
    assert orjson.loads(request.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 8}
    talk.session.propose(Proposal(8, frozenset({1}), 9), 5)
    talk.tick()
    talk.answer(ALTER, status=codes.CONTROLLER_BROKER_NOT_ALIVE)
    talk.session.propose(Proposal(9, frozenset({1}), 9), 5)
    talk.tick()
    talk.answer(ALTER, status=codes.CONTROLLER_NOT_LEADER)
    assert talk.session.leader is None
    talk.lead(B)
    talk.session.propose(Proposal(10, frozenset({1}), 9), 5)
    talk.tick()
    talk.fail(ALTER)
    assert talk.observer.proposals == [
        ("accepted", 7, [1, 2], 9),
        ("failed", 8, codes.CONTROLLER_BROKER_NOT_ALIVE),
        ("failed", 9, codes.CONTROLLER_NOT_LEADER),
        ("failed", 10, None),
    ]


def test_an_answer_after_the_time_out_is_nothing() -> None:
    talk = Talk()
    talk.register()
    talk.session.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    talk.tick()
    late = talk.waiting[-1]
    talk.fail(ALTER)
    talk.session.answered(late.token, 0, {"newSyncStateSetEpoch": "9"}, b"", talk.now_ms)
    assert talk.observer.proposals == [("failed", 7, None)]


def test_an_answer_that_cannot_be_understood_is_no_answer() -> None:
    talk = Talk()
    talk.register()
    talk.session.propose(Proposal(7, frozenset({1, 2}), 8), 5)
    talk.tick()
    talk.answer(ALTER, {}, ["what is this"])
    assert talk.observer.proposals == [("failed", 7, None)]
    talk.tick(1000)
    talk.answer(INFO, {"masterEpoch": "x"})
    assert "cannot be understood" in talk.session.last_error


def test_what_was_wrong_with_the_controllers_is_told_while_it_is() -> None:
    talk = Talk()
    talk.register()
    talk.tick(1000)
    talk.fail(INFO)
    assert talk.session.last_error == "no answer"
    talk.waiting.clear()
    talk.tick(1000)
    talk.fail(METADATA)
    assert talk.session.last_error == "no controller says who leads: no answer"
    talk.lead()
    talk.tick(1000)
    talk.answer(INFO, *view_answer(1))
    assert talk.session.last_error == ""


def test_a_lost_leader_is_looked_for_everywhere() -> None:
    talk = Talk()
    talk.register()
    talk.session.disconnected(A, talk.now_ms)
    assert talk.tick() == [METADATA, METADATA]
    talk.answer(METADATA, {"controllerLeaderAddress": ""})
    assert talk.session.leader is None
    assert talk.tick(99) == []
    assert talk.tick(1) == [METADATA, METADATA]
    talk.answer(METADATA, {"controllerLeaderAddress": "203.0.113.9:1"})
    assert talk.session.leader is None, "only the addresses that were configured are believed"
    talk.lead(B)
    assert talk.session.leader == B
    assert talk.tick() == [INFO]
    assert talk.waiting[-1].address == B


def test_an_election_is_not_asked_for_in_a_hurry() -> None:
    talk = Talk()
    talk.register()
    talk.session.ask(Ask.ELECTION)
    assert talk.tick() == [ELECT]
    talk.answer(ELECT, status=codes.CONTROLLER_ELECT_MASTER_FAILED)
    talk.session.ask(Ask.ELECTION)
    assert talk.tick(199) == []
    assert talk.tick(1) == [ELECT]
    talk.answer(ELECT, *view_answer(2, 6), status=codes.CONTROLLER_MASTER_STILL_EXIST)
    assert talk.observer.views[-1].master_epoch == 6


def test_a_push_only_makes_us_ask() -> None:
    talk = Talk()
    talk.register()
    talk.session.notified(talk.now_ms)
    assert talk.tick() == [INFO]
    talk.session.notified(talk.now_ms)
    assert talk.tick() == [], "an answer is on its way"
    talk.now_ms += 100
    talk.session.notified(talk.now_ms)
    assert talk.session.leader is None, "the leader owes an answer for too long"
    assert talk.tick() == [METADATA, METADATA]


def test_a_group_that_was_cleaned_away_is_registered_again() -> None:
    talk = Talk()
    talk.register()
    talk.tick(1000)
    talk.answer(INFO, status=codes.CONTROLLER_BROKER_METADATA_NOT_EXIST)
    assert talk.tick(250) == [codes.CONTROLLER_REGISTER_BROKER]


@pytest.mark.parametrize(
    ("address", "incarnation", "again"),
    [("elsewhere:9", 4, True), ("127.0.0.1:9", 4, False), ("elsewhere:9", 5, False)],
)
def test_an_elected_process_whose_id_was_registered_elsewhere_meanwhile_says_where_it_is(
    address: str, incarnation: int, again: bool
) -> None:
    """Else its replicas look for a process that ran on a copy of its directory, and is gone."""
    talk = Talk()
    talk.register(1)
    talk.tick(2000)
    ext, body = view_answer(2)
    talk.answer(INFO, ext | {"masterAddress": address, "masterIncarnation": str(incarnation)}, body)
    assert (codes.CONTROLLER_REGISTER_BROKER in talk.tick(1)) is again
    assert talk.observer.views[-1].master_id == 2


@pytest.mark.parametrize(
    ("claims", "other"),
    [
        ({}, "the one at elsewhere:9 has it and is alive"),
        ({"twinClaims": "true"}, "the one at elsewhere:9 claims it, too, and nobody can tell which was there first"),
    ],
)
def test_a_refused_process_says_what_the_other_one_is(claims: dict[str, str], other: str) -> None:
    talk = Talk()
    talk.tick()
    talk.lead()
    assert talk.tick() == [codes.CONTROLLER_REGISTER_BROKER]
    ext = {"twinAddress": "elsewhere:9"} | claims
    talk.answer(codes.CONTROLLER_REGISTER_BROKER, ext, status=codes.CONTROLLER_INVALID_REQUEST)
    assert talk.session.last_error == (
        f"two processes have the identity of broker 2 of b: {other}, this one at 127.0.0.1:9 serves nobody until it is gone; "
        "stop the one that runs on a copy of the data directory"
    )


def test_without_a_named_replication_address_it_is_the_next_port() -> None:
    talk = Talk()
    talk.register()
    talk.tick(1000)
    talk.answer(INFO, {"masterEpoch": "5", "masterBrokerId": "1", "masterAddress": "10.0.0.1:10911"})
    assert talk.observer.views[-1].master_ha_address == "10.0.0.1:10912"


@pytest.mark.parametrize("master_id", ["-1", ""])
def test_no_master_is_written_in_several_ways(master_id: str) -> None:
    talk = Talk()
    talk.register()
    talk.tick(1000)
    talk.answer(INFO, {"masterEpoch": "5", "masterBrokerId": master_id})
    assert talk.observer.views[-1].master_id is None


def test_learners_say_so() -> None:
    talk = Talk(learner=True)
    talk.tick()
    assert talk.oneway[0].ext["learner"] == "true"


def test_a_lost_tail_is_said_until_the_set_was_judged() -> None:
    talk = Talk(tail_kept=False)
    talk.tick()
    talk.lead()
    assert talk.tick() == [codes.CONTROLLER_REGISTER_BROKER]
    assert [beat.ext.get("tailKept") for beat in talk.oneway] == ["false"] * len(talk.oneway)
    assert talk.oneway, "heartbeats leave before the registration, and must not hide it"
    ext, body = view_answer(1)
    asked = talk.answer(codes.CONTROLLER_REGISTER_BROKER, ext, body)
    assert (asked.ext["tailKept"], asked.ext["maxOffset"]) == ("false", "1000")
    talk.oneway.clear()
    talk.tick(1000)
    assert talk.oneway
    assert all("tailKept" not in beat.ext for beat in talk.oneway)


def suspect(lost_confirmed: int) -> tuple[Talk, list[str]]:
    """A broker that may lack a part of its log, and what its store hears."""
    talk, heard = Talk(tail_kept=False), []
    speaker = talk.session._speaker
    speaker.lost_confirmed = lost_confirmed
    speaker.judged_listeners.append(lambda: heard.append("judged"))
    talk.tick()
    talk.lead()
    talk.tick()
    return talk, heard


def registered(talk: Talk, *members: int) -> None:
    ext, body = view_answer(1, members=members)
    talk.answer(codes.CONTROLLER_REGISTER_BROKER, ext, body)


def test_a_suspect_that_stays_in_the_set_says_it_again_until_it_is_out() -> None:
    talk, heard = suspect(1500)
    assert talk.oneway[-1].ext["lostConfirmedOffset"] == "1500"
    registered(talk, 1, 2)
    assert codes.CONTROLLER_REGISTER_BROKER not in talk.tick(100)
    for _ in range(3):
        talk.waiting.clear()
        talk.session._pending = None
        assert codes.CONTROLLER_REGISTER_BROKER in talk.tick(3000)
        assert heard == []
        assert talk.oneway[-1].ext["tailKept"] == "false"
        registered(talk, 1, 2)
    talk.session._pending = None
    assert codes.CONTROLLER_REGISTER_BROKER in talk.tick(3000)
    registered(talk, 1)
    assert heard == ["judged"]
    talk.oneway.clear()
    talk.tick(300)
    assert all("tailKept" not in beat.ext for beat in talk.oneway)


@pytest.mark.parametrize(("lost_confirmed", "told"), [(-1, False), (900, False), (1500, True)])
def test_the_last_member_says_so_only_while_it_certainly_lacks_something(lost_confirmed: int, told: bool) -> None:
    talk, heard = suspect(lost_confirmed)
    registered(talk, 2)
    talk.oneway.clear()
    talk.tick(1000)
    assert [beat.ext.get("tailKept") == "false" for beat in talk.oneway] == [told] * len(talk.oneway)
    assert talk.oneway
    assert heard == [], "what it keeps may be the last copy"


@pytest.mark.parametrize("members", [(1, 2), (2,)])
def test_who_is_told_that_it_runs_elsewhere_says_so_until_it_is_out_of_the_set(members: tuple[int, ...]) -> None:
    """Also as the last member, who otherwise leads with what it has."""
    talk = Talk()
    talk.tick()
    talk.lead()
    talk.tick()
    ext, body = view_answer(1, members=members)
    for _ in range(2):
        talk.answer(codes.CONTROLLER_REGISTER_BROKER, ext | {"runsElsewhere": "true"}, body)
        talk.oneway.clear()
        talk.waiting.clear()
        talk.session._pending = None
        assert codes.CONTROLLER_REGISTER_BROKER in talk.tick(3000)
        assert {beat.ext.get("tailKept") for beat in talk.oneway} == {"false"}
    registered(talk, 1)
    talk.oneway.clear()
    talk.tick(300)
    assert {beat.ext.get("tailKept") for beat in talk.oneway} == {None}


def test_a_registered_life_is_the_one_that_the_directory_remembers() -> None:
    talk = Talk()
    assert Lives(talk.disk, 5).all == (4, 5)
    talk.register()
    assert Lives(talk.disk, 6).all == (4, 6), "the fifth one nobody heard of"


def test_who_kept_everything_says_nothing_of_it() -> None:
    talk = Talk()
    talk.register()
    assert all("tailKept" not in beat.ext for beat in talk.oneway)


def test_heartbeats_say_whether_the_disk_takes_messages() -> None:
    room = [True]
    talk = Talk(has_room=lambda: room[0])
    talk.tick()
    room[0] = False
    talk.oneway.clear()
    talk.tick(1000)
    assert {beat.ext["hasRoom"] for beat in talk.oneway} == {"false"}
    talk = Talk()
    talk.tick()
    assert all("hasRoom" not in beat.ext for beat in talk.oneway), "nobody asks the disk"


def test_heartbeats_say_at_once_how_the_log_becomes_durable() -> None:
    talk = Talk()
    talk.tick()
    assert {beat.ext["disk"] for beat in talk.oneway} == {"works"}
    talk.machine.log.end_offset += 10
    said = []
    for _ in range(40):
        talk.oneway.clear()
        talk.machine.tick(talk.now_ms + 50, 50)
        talk.tick(50)
        said.append([beat.ext["disk"] for beat in talk.oneway])
    told = [words for words in said if words]
    assert ["slow", "slow"] in told, "each controller hears it"
    standing = said.index(["stands", "stands"])
    settings = talk.machine.settings
    assert 50 * (standing + 1) - settings.disk_stands_ms <= 100, "it does not wait for the next heartbeat"


def test_a_master_that_acknowledged_what_a_member_lacks_is_slow_and_not_said_to_stand() -> None:
    """Another one would be elected, and what was acknowledged be cut, while the only disk that has it may go on in a moment."""
    talk = Talk(all_ack_in_sync_state_set=False, in_sync_replicas=1)
    talk.register()
    machine = talk.machine
    machine.identify(2)
    machine.observe(RoleView(2, 6, frozenset({1, 2}), 1, "b2", "b2"), talk.now_ms)
    machine.log_settled(1000, talk.now_ms)
    machine.members_known(frozenset({1, 2}), frozenset(), talk.now_ms)
    machine.accepted(7, talk.now_ms)
    machine.handshake(7, Handshake(1), talk.now_ms)
    machine.acked(7, 1000, talk.now_ms)
    machine.appended(1010)
    machine.flushed(1010, talk.now_ms)
    assert machine.acknowledged_offset == 1010
    machine.appended(1020)
    for _ in range(40):
        machine.acked(7, 1000, talk.now_ms)
        machine.tick(talk.now_ms + 50, 50)
        talk.tick(50)
    assert machine.disk.stands
    assert talk.oneway[-1].ext["disk"] == "slow"
    assert machine.mastership is not None
    assert machine.mastership.next_transfer(7) is not None
    machine.mastership.transferred(7, 10, talk.now_ms)
    machine.acked(7, 1010, talk.now_ms)
    talk.tick(50)
    assert talk.oneway[-1].ext["disk"] == "stands", "they have all of it"


@pytest.mark.parametrize("settings", [{"ack_after": "append"}, {"disk_stands_ms": 0}])
def test_who_waits_for_no_disk_says_nothing_of_it(settings: dict[str, object]) -> None:
    talk = Talk(**settings)
    talk.tick()
    assert talk.oneway
    assert all("disk" not in beat.ext for beat in talk.oneway)
