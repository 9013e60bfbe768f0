from __future__ import annotations

from typing import Any

import pytest

from tasks.changes import CHANGES, READ_BACK_TIMEOUT_S, Change, ChangeFailed
from tests.unit.tasks.fake_admin import REFUSAL, TIMEOUT, FakeAdmin

TOPIC = {"name": "orders", "type": "NORMAL", "queues": 4, "perm": 6, "group": None}
ELECTION = {"cluster": "DefaultCluster", "group": "broker-a", "broker_id": 2}


class Outcome:
    """Makes a change with a clock that only reading back moves, and keeps what was told."""

    def __init__(self, admin: FakeAdmin, kind: str, **parameters: Any) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, tuple[str, str]] = {}
        self.progress: list[str] = []
        self.result: dict[str, Any] | None = None
        self.failure: ChangeFailed | None = None
        change = Change(
            admin,
            parameters,
            tell_node=lambda node, outcome, detail: self.nodes.__setitem__(node, (outcome, detail)),
            tell_progress=lambda done, total, text: self.progress.append(text),
            now_s=lambda: self.now_s,
            pause=self._pause,
        )
        try:
            self.result = CHANGES[kind](change)
        except ChangeFailed as error:
            self.failure = error

    def _pause(self, seconds: float) -> None:
        self.now_s += seconds

    @property
    def outcomes(self) -> dict[str, str]:
        return {node: outcome for node, (outcome, _) in self.nodes.items()}


def test_a_topic_is_made_on_every_group_and_made_again_is_unchanged() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    first = Outcome(admin, "topic.create", **TOPIC)
    assert first.outcomes == {"broker-a": "CONFIRMED", "broker-b": "CONFIRMED"}
    assert first.result == {"outcomes": {"CONFIRMED": 2}}
    again = Outcome(admin, "topic.create", **TOPIC)
    assert again.outcomes == {"broker-a": "UNCHANGED", "broker-b": "UNCHANGED"}
    assert again.failure is None


def test_a_lost_answer_is_settled_by_reading_back() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    admin.lost = {"broker-b"}
    made = Outcome(admin, "topic.create", **TOPIC)
    assert made.nodes["broker-b"] == ("CONFIRMED", "the answer was lost; read back")
    assert made.result == {"outcomes": {"CONFIRMED": 2}}


def test_a_change_that_never_shows_is_unknown_after_the_deadline() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    admin.deaf = {"broker-b"}
    made = Outcome(admin, "topic.create", **TOPIC)
    assert made.failure is not None
    assert made.failure.code == "change-incomplete"
    assert "broker-b: UNKNOWN" in str(made.failure)
    assert made.now_s >= READ_BACK_TIMEOUT_S
    assert made.outcomes["broker-b"] == "UNKNOWN"


def test_refusals_and_groups_without_master_are_told_with_the_reason() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    admin.refusing = {"broker-a": "the disk is full"}
    refused = Outcome(admin, "topic.create", **{**TOPIC, "group": "broker-a"})
    assert refused.failure is not None
    assert refused.failure.code == "change-refused"
    assert refused.nodes == {"broker-a": ("REFUSED", "the disk is full")}
    admin.headless = {"broker-b"}
    mixed = Outcome(admin, "topic.create", **TOPIC)
    assert mixed.failure is not None
    assert mixed.failure.code == "change-incomplete"
    assert mixed.outcomes == {"broker-a": "REFUSED", "broker-b": "NOT_ATTEMPTED"}


def test_no_broker_group_is_said_and_nothing_is_waited_for() -> None:
    none = Outcome(FakeAdmin(), "topic.create", **TOPIC)
    assert none.failure is not None
    assert none.failure.code == "no-broker-group"
    unknown = Outcome(FakeAdmin("broker-a"), "topic.create", **{**TOPIC, "group": "broker-z"})
    assert "There is no broker group broker-z." in str(unknown.failure)


def test_a_cluster_that_is_silent_for_a_moment_is_asked_again() -> None:
    admin = FakeAdmin("broker-a")
    admin.reads_fail = 3
    made = Outcome(admin, "topic.create", **TOPIC)
    assert made.failure is None
    assert made.now_s > 0


def test_a_topic_is_deleted_everywhere_and_a_lingering_route_is_only_noted() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    Outcome(admin, "topic.create", **TOPIC)
    gone = Outcome(admin, "topic.delete", name="orders")
    assert gone.failure is None
    assert gone.outcomes == {"broker-a": "CONFIRMED", "broker-b": "CONFIRMED", "127.0.0.1:9878": "UNKNOWN"}
    assert gone.result == {"outcomes": {"CONFIRMED": 2}}
    assert admin.topic_config("orders") == {}


def test_consumer_groups_are_made_changed_and_deleted() -> None:
    admin = FakeAdmin("broker-a")
    assert Outcome(admin, "group.create", name="g", fifo=True, retry_max_times=3).outcomes == {"broker-a": "CONFIRMED"}
    assert admin.consumer_groups["broker-a"]["g"].fifo is True
    assert Outcome(admin, "group.create", name="g", fifo=True, retry_max_times=3).outcomes == {"broker-a": "UNCHANGED"}
    assert Outcome(admin, "group.delete", name="g").result == {"outcomes": {"CONFIRMED": 1}}
    assert admin.consumer_groups["broker-a"] == {}


def test_an_election_is_followed_to_the_last_replica() -> None:
    admin = FakeAdmin("broker-a")
    admin.dead = {3}
    elected = Outcome(admin, "election.elect", **ELECTION)
    assert elected.result == {"master_id": 2, "master_epoch": 4}
    assert elected.outcomes == {"replica 1": "CONFIRMED", "replica 2": "CONFIRMED", "replica 3": "NOT_ATTEMPTED"}
    assert elected.nodes["replica 2"][1] == "master in epoch 4"


def test_electing_the_present_master_changes_nothing() -> None:
    admin = FakeAdmin("broker-a")
    admin.master_id = 2
    elected = Outcome(admin, "election.elect", **ELECTION)
    assert elected.outcomes == {"replica 2": "UNCHANGED"}
    assert admin.calls == []


def test_a_refused_election_gives_the_controllers_reason() -> None:
    admin = FakeAdmin("broker-a")
    admin.election = REFUSAL
    refused = Outcome(admin, "election.elect", **ELECTION)
    assert refused.failure is not None
    assert refused.failure.code == "election-refused"
    assert "not in the sync-state set" in str(refused.failure)
    assert refused.outcomes == {"replica 2": "REFUSED"}


def test_an_election_whose_answer_was_lost_is_read_back() -> None:
    admin = FakeAdmin("broker-a")
    admin.election = TIMEOUT
    elected = Outcome(admin, "election.elect", **ELECTION)
    assert elected.failure is None
    assert elected.outcomes["replica 2"] == "CONFIRMED"


def test_an_election_that_did_not_happen_is_unknown() -> None:
    admin = FakeAdmin("broker-a")
    admin.election, admin.election_happens = TIMEOUT, False
    elected = Outcome(admin, "election.elect", **ELECTION)
    assert elected.failure is not None
    assert elected.failure.code == "election-unknown"
    assert elected.outcomes == {"replica 2": "UNKNOWN"}


def test_a_replica_that_does_not_follow_yet_does_not_undo_the_election() -> None:
    admin = FakeAdmin("broker-a")
    admin.slow = {3}
    elected = Outcome(admin, "election.elect", **ELECTION)
    assert elected.failure is None
    assert elected.outcomes["replica 3"] == "UNKNOWN"
    assert elected.progress[-1] == "done; a replica does not follow yet"
    admin.slow = {1}
    stuck = Outcome(admin, "election.elect", **{**ELECTION, "broker_id": 1})
    assert stuck.failure is not None
    assert stuck.failure.code == "election-unknown"


@pytest.mark.parametrize("group", ["broker-z"])
def test_an_unknown_group_is_named(group: str) -> None:
    missing = Outcome(FakeAdmin("broker-a"), "election.elect", **{**ELECTION, "group": group})
    assert missing.failure is not None
    assert missing.failure.code == "group-not-found"


DECISION = {"group": "broker-a", "offset": 1, "decision": "commit", "decided_by": "ann"}


def test_a_given_up_message_is_ended_once_and_an_answer_that_is_not_sure_is_read_back() -> None:
    admin = FakeAdmin("broker-a")
    made = Outcome(admin, "transaction.decide", **DECISION)
    assert made.outcomes == {"broker-a": "CONFIRMED"}
    again = Outcome(admin, "transaction.decide", **{**DECISION, "decided_by": "bob"})
    assert again.failure is None
    other = Outcome(admin, "transaction.decide", **{**DECISION, "decision": "rollback"})
    assert other.failure is not None
    assert (other.failure.code, str(other.failure)) == (
        "decision-refused",
        "The broker refused: bob decided commit about it already",
    )
    admin.lost = {"broker-a"}
    assert Outcome(admin, "transaction.decide", **{**DECISION, "offset": 2}).outcomes == {"broker-a": "CONFIRMED"}
    admin.deaf = {"broker-a"}
    lost = Outcome(admin, "transaction.decide", **{**DECISION, "offset": 0})
    assert lost.failure is not None
    assert lost.failure.code == "change-incomplete"


GATE = {"name": "orders", "group": "broker-a", "source": "broker-z"}


def test_a_gate_is_opened_once_and_an_answer_that_is_not_sure_is_read_back() -> None:
    admin = FakeAdmin("broker-a")
    assert Outcome(admin, "topic.open-gate", **GATE).outcomes == {"broker-a": "CONFIRMED"}
    assert Outcome(admin, "topic.open-gate", **GATE).outcomes == {"broker-a": "UNCHANGED"}
    admin.lost = {"broker-a"}
    assert Outcome(admin, "topic.open-gate", **{**GATE, "source": "broker-y"}).outcomes == {"broker-a": "CONFIRMED"}


def test_a_gate_that_a_broker_does_not_open_is_refused() -> None:
    admin = FakeAdmin("broker-a")
    admin.refused = {"broker-a"}
    refused = Outcome(admin, "topic.open-gate", **GATE)
    assert refused.failure is not None
    assert refused.failure.code == "gate-refused"


def test_what_a_group_keeps_the_order_of_is_changed_and_nothing_else() -> None:
    admin = FakeAdmin("broker-a", "broker-b")
    Outcome(admin, "group.create", name="g", fifo=True, retry_max_times=3)
    made = {"broker-a": "CONFIRMED", "broker-b": "CONFIRMED"}
    assert Outcome(admin, "group.update", name="g", order_scope="QUEUE").outcomes == made
    assert [each["g"].order_scope for each in admin.consumer_groups.values()] == ["QUEUE"] * 2
    assert [each["g"].retry_max_times for each in admin.consumer_groups.values()] == [3, 3]
    admin.lost = {"broker-a"}
    assert Outcome(admin, "group.update", name="g", order_scope="MESSAGE_GROUP").outcomes == made


def test_bounds_of_a_group_are_set_and_taken_away_one_by_one() -> None:
    admin = FakeAdmin("broker-a")
    Outcome(admin, "group.create", name="g", invisible_max_ms=30_000)
    group = admin.consumer_groups["broker-a"]
    assert (group["g"].order_scope, group["g"].invisible_max_ms) == ("MESSAGE_GROUP", 30_000)
    admin.lost = {"broker-a"}
    changed = Outcome(admin, "group.update", name="g", invisible_min_ms=5, invisible_max_ms=None)
    assert changed.nodes["broker-a"] == ("CONFIRMED", "the answer was lost; read back")
    assert (group["g"].invisible_min_ms, group["g"].invisible_max_ms) == (5, None)
    admin.deaf = {"broker-a"}
    unknown = Outcome(admin, "group.update", name="g", invisible_min_ms=6)
    assert unknown.failure is not None
    assert "the settings of consumer group g" in str(unknown.failure)
