"""Rules and limits change from version to version; what was decided stays, on every controller and in every replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controllerd.access import decide as access_rules
from controllerd.access.requests import CreateUser, PutEntries
from controllerd.records.decision import Decision
from controllerd.records.entry import encode_entry
from controllerd.records.subject import Subjects, UnknownFormat
from controllerd.replicas import decide as rules
from controllerd.state.features import LevelRaised
from controllerd.state.machine import ControllerMachine
from controllerd.state.subjects import FEATURES, SUBJECTS
from remoting import codes
from remoting.access.model import CUSTOM, Entry, resource
from tests.unit.controllerd.records.newer import LEVEL, NEWER, Note
from tests.unit.controllerd.replicas.builders import alter, apply_id, clean, elect, register, seen

REQUESTS: tuple[Any, ...] = (
    *(request for broker_id in (1, 2, 3) for request in (apply_id(broker_id), register(broker_id))),
    apply_id(1, name="broker-b"),
    elect(seen(1, 0, 7), seen(3, 0, 7), wanted=1),
    alter([1, 2, 3]),
    elect(seen(2, 1, 7), seen(3, 1, 9)),
    clean([1], living=True),
    CreateUser("root", "s", "Super", "enable", by_super=True),
    CreateUser("alice", "s", "Normal", "enable", by_super=True),
    PutEntries("alice", {CUSTOM: tuple(Entry(resource(f"Topic:{each}"), ("Pub",), "Allow") for each in "abc")}),
)


def written() -> tuple[list[bytes], ControllerMachine]:
    machine, log = ControllerMachine(), []
    for request in REQUESTS:
        log.append(machine.decide(request))
        assert machine.apply(log[-1]).reply.code == codes.SUCCESS, request
    return log, machine


def replayed(log: list[bytes], subjects: Subjects = SUBJECTS) -> ControllerMachine:
    machine = ControllerMachine(subjects=subjects)
    for data in log:
        machine.apply(data)
    return machine


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (rules, "MAX_REPLICAS", 2),
        (rules, "MAX_GROUPS", 1),
        (rules, "MAX_REPLICAS_IN_ALL", 1),
        (rules, "is_clean", lambda _group, observation: observation.broker_id == 2),
        (access_rules, "MAX_USERS", 1),
        (access_rules, "MAX_ENTRIES", 1),
    ],
)
def test_a_log_of_older_rules_gives_the_same_state_under_newer_ones(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, machine = written()
    monkeypatch.setattr(owner, name, value)
    assert replayed(log).snapshot() == machine.snapshot()


@pytest.mark.parametrize("name", ["MAX_REPLICAS", "MAX_USERS"])
def test_the_newer_rules_would_decide_otherwise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules if name == "MAX_REPLICAS" else access_rules, name, 1)
    with pytest.raises(AssertionError):
        written()


def test_a_replay_decides_nothing() -> None:
    def decide(_state: Any, _request: Any) -> Any:
        raise AssertionError("decided again")

    log, machine = written()
    subjects = {name: replace(subject, decide=decide) for name, subject in SUBJECTS.items()}
    assert replayed(log, subjects).snapshot() == machine.snapshot()


def test_a_later_version_replays_the_log_of_an_earlier_one() -> None:
    log, machine = written()
    assert replayed(log, NEWER).snapshot() == machine.snapshot()


def test_an_earlier_version_stops_where_a_later_one_raised_the_level() -> None:
    log, _ = written()
    raised = encode_entry(FEATURES, Decision((LevelRaised(LEVEL),)), 1)
    later = ControllerMachine(subjects=NEWER)
    later.apply(raised)
    noted = later.decide(Note("x"))
    machine = replayed(log)
    before = machine.snapshot()
    for data in (raised, noted):
        with pytest.raises(UnknownFormat, match="start a newer one with this data directory"):
            machine.apply(data)
    assert machine.snapshot() == before, "it was not skipped, and nothing of it was taken"
