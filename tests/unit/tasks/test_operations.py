from __future__ import annotations

import uuid
from typing import Any

import pytest

from remoting.errors import ConnectionLost
from tasks import operations
from tasks.claims import Claims
from tests.unit.tasks.fake_admin import FakeAdmin
from tests.unit.tasks.fake_redis import FakeRedis
from webapp.operations import progress
from webapp.operations.models import Operation

pytestmark = pytest.mark.django_db

TOPIC = {"name": "orders", "type": "NORMAL", "queues": 4, "perm": 6, "group": None}


def operation(kind: str = "topic.create", **parameters: Any) -> Operation:
    return Operation.objects.create(kind=kind, target="orders", parameters=parameters or TOPIC, requested_by_name="ann")


def run(made: Operation, admin: FakeAdmin) -> Operation:
    operations.carry_out(str(made.pk), admin)
    made.refresh_from_db()
    return made


@pytest.fixture(autouse=True)
def _redis(redis: FakeRedis) -> None:
    """No test here reaches a real Redis."""


def test_an_operation_is_carried_out_and_each_nodes_word_is_kept(redis: FakeRedis) -> None:
    done = run(operation(), FakeAdmin("broker-a", "broker-b"))
    assert done.state == "succeeded"
    assert {each["node"]: each["outcome"] for each in done.nodes} == {"broker-a": "CONFIRMED", "broker-b": "CONFIRMED"}
    assert done.result == {"outcomes": {"CONFIRMED": 2}}
    assert redis.published == [("logboom:refresh", "1")]


def test_a_topic_says_of_how_it_is_kept_what_was_asked_for_and_nothing_else() -> None:
    admin = FakeAdmin("broker-a")
    done = run(
        operation(
            **TOPIC,
            local_reserve_time=72,
            tier_enable=False,
            tier_reserve_time=-1,
            tier_archive=True,
            tier_export="parquet",
        ),
        admin,
    )
    assert done.state == "succeeded"
    assert admin.topics["broker-a"]["orders"]["attributes"] == {
        "local.reserve.time": "72",
        "tier.enable": "false",
        "tier.reserve.time": "-1",
        "tier.archive": "true",
        "tier.export": "parquet",
    }
    plain = FakeAdmin("broker-a")
    run(operation(), plain)
    assert "attributes" not in plain.topics["broker-a"]["orders"]


def test_a_second_delivery_changes_nothing() -> None:
    made = operation()
    admin = FakeAdmin("broker-a")
    run(made, admin)
    finished_at = made.finished_at
    again = run(made, admin)
    assert (again.state, again.finished_at) == ("succeeded", finished_at)
    assert admin.calls == ["broker-a"]


def test_work_whose_worker_died_in_the_middle_is_done_again() -> None:
    made = operation()
    progress.start(made.pk)
    admin = FakeAdmin("broker-a")
    admin.create_topic("orders", 4)
    done = run(made, admin)
    assert done.state == "succeeded"
    assert done.nodes == [{"node": "broker-a", "outcome": "UNCHANGED", "detail": ""}]


def test_who_finds_it_claimed_leaves_it_alone(redis: FakeRedis) -> None:
    made = operation()
    assert Claims(redis).take(operations.claim_name(made.pk), 10) is not None
    operations.run(str(made.pk))
    made.refresh_from_db()
    assert made.state == "queued"


def test_a_failure_says_which_and_what_to_do() -> None:
    admin = FakeAdmin("broker-a")
    admin.refusing = {"broker-a": "a topic has at most 1024 queues"}
    failed = run(operation(), admin)
    assert (failed.state, failed.error_code) == ("failed", "change-refused")
    assert "at most 1024 queues" in failed.error


def test_a_cluster_that_does_not_answer_fails_the_operation() -> None:
    class Gone(FakeAdmin):
        def create_topic(self, *_: Any, **__: Any) -> Any:
            raise ConnectionLost("no controller answers")

    failed = run(operation(), Gone("broker-a"))
    assert (failed.state, failed.error_code) == ("failed", "cluster-unavailable")


def test_an_error_of_ours_never_leaves_the_row_running(caplog: pytest.LogCaptureFixture) -> None:
    failed = run(operation(kind="topic.create", name="orders"), FakeAdmin("broker-a"))
    assert (failed.state, failed.error_code) == ("failed", "internal-error")
    assert "broke" in caplog.text


def test_an_unknown_kind_and_a_missing_row_are_said(caplog: pytest.LogCaptureFixture) -> None:
    failed = run(operation(kind="moon.launch"), FakeAdmin("broker-a"))
    assert (failed.state, failed.error_code) == ("failed", "unknown-kind")
    operations.carry_out(str(uuid.uuid4()), FakeAdmin("broker-a"))
    operations.carry_out("not an id", FakeAdmin("broker-a"))
    assert caplog.text.count("there is no operation") == 2


def test_every_kind_that_the_console_leaves_to_the_worker_has_a_change() -> None:
    from webapp.operations.registry import KINDS

    assert {name for name, kind in KINDS.items() if kind.by_worker} == set(operations.KINDS)
