"""One snapshot for all subjects: nothing is lost in it, and what a later version wrote is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.access.requests import CreateUser
from controllerd.records.snapshot import decode_snapshot
from controllerd.records.subject import UnknownFormat
from controllerd.replicas.requests import ApplyBrokerId
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from controllerd.state.subjects import SUBJECTS
from remoting.errors import ProtocolError
from tests.unit.controllerd.records.newer import LEVEL, NEWER, Note

REQUESTS = (
    ApplyBrokerId("c", "broker-a", 1, "127.0.0.1:1;7"),
    CreateUser("root", "sealed", "Super", "enable", by_super=True),
    RaiseLevel((LEVEL, LEVEL)),
    Note("remember"),
)


def filled(count: int = len(REQUESTS)) -> ControllerMachine:
    machine = ControllerMachine(subjects=NEWER)
    for request in REQUESTS[:count]:
        machine.apply(machine.decide(request))
    return machine


@pytest.mark.parametrize("count", range(len(REQUESTS) + 1))
def test_it_holds_every_state(count: int) -> None:
    content = filled(count).snapshot()
    copy = ControllerMachine(subjects=NEWER)
    copy.restore(content)
    assert copy.snapshot() == content
    assert (copy.replicas, copy.access, copy.features) == (
        filled(count).replicas,
        filled(count).access,
        filled(count).features,
    )


def test_before_the_level_is_raised_an_older_version_reads_it() -> None:
    copy = ControllerMachine()
    copy.restore(filled(2).snapshot())
    assert copy.access.users.keys() == {"root"}


@pytest.mark.parametrize(("count", "what"), [(3, f"feature level {LEVEL}"), (4, "the subject 'notes'")])
def test_what_a_later_version_wrote_is_refused(count: int, what: str) -> None:
    with pytest.raises(UnknownFormat, match=f"{what} is not known"):
        ControllerMachine().restore(filled(count).snapshot())


@given(st.binary(max_size=60))
def test_garbage_is_refused(content: bytes) -> None:
    try:
        found = decode_snapshot(content, SUBJECTS)
    except (ProtocolError, UnknownFormat):
        return
    assert found == {name: subject.initial for name, subject in SUBJECTS.items()}


def test_every_cut_is_noticed() -> None:
    content = filled(2).snapshot()
    for end in range(len(content)):
        with pytest.raises((ProtocolError, UnknownFormat)):
            ControllerMachine().restore(content[:end])
