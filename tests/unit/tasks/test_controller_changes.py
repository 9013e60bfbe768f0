"""Changes of the group of controllers: made once, found made, refused, lost and read back."""

from __future__ import annotations

from typing import Any

import pytest

from remoting import codes
from remoting.errors import RequestError
from tasks import changes
from tasks.controller_changes import CONTROLLER_CHANGES
from tests.unit.tasks.fake_admin import TIMEOUT, FakeAdmin
from tests.unit.tasks.test_changes import Outcome

NEW = {"id": "n3", "address": "127.0.0.1:9879"}
EVERY = [
    ("controller.add", NEW),
    ("controller.promote", {"id": "n3"}),
    ("controller.transfer", {"id": "n1"}),
    ("controller.remove", {"id": "n2"}),
]


@pytest.fixture(autouse=True)
def _all_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.tasks.test_changes.CHANGES", {**changes.CHANGES, **CONTROLLER_CHANGES})


def admin_for(kind: str) -> FakeAdmin:
    admin = FakeAdmin("broker-a")
    if kind == "controller.promote":
        admin.controllers["n3"] = ("127.0.0.1:9879", "learner")
    return admin


@pytest.mark.parametrize(("kind", "parameters"), EVERY)
def test_made_once_and_found_made(kind: str, parameters: dict[str, Any]) -> None:
    admin = admin_for(kind)
    assert Outcome(admin, kind, **parameters).outcomes == {parameters["id"]: "CONFIRMED"}
    again = Outcome(admin, kind, **parameters)
    assert (again.outcomes, again.failure) == ({parameters["id"]: "UNCHANGED"}, None)
    assert len(admin.calls) == 1


@pytest.mark.parametrize(("kind", "parameters"), EVERY)
def test_a_refusal_is_told_as_it_is(kind: str, parameters: dict[str, Any]) -> None:
    admin = admin_for(kind)
    admin.election_happens = False
    admin.election = RequestError(codes.CONTROLLER_INVALID_REQUEST, "the group would lose its majority")
    made = Outcome(admin, kind, **parameters)
    assert made.nodes[parameters["id"]] == ("REFUSED", "the group would lose its majority")
    assert made.failure is not None
    assert made.failure.code == "change-refused"


@pytest.mark.parametrize(("kind", "parameters"), EVERY)
@pytest.mark.parametrize("error", [TIMEOUT, RequestError(codes.SYSTEM_ERROR, "leadership was lost")])
def test_an_unknown_outcome_is_read_back(kind: str, parameters: dict[str, Any], error: Exception) -> None:
    admin = admin_for(kind)
    admin.election = error
    made = Outcome(admin, kind, **parameters)
    assert made.nodes[parameters["id"]] == ("CONFIRMED", "the answer was lost; read back")
    admin = admin_for(kind)
    admin.election, admin.election_happens = error, False
    lost = Outcome(admin, kind, **parameters)
    assert lost.outcomes == {parameters["id"]: "UNKNOWN"}
    assert lost.failure is not None
    assert lost.failure.code == "change-unknown"
