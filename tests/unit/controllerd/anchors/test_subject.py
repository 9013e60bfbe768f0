"""What the controllers keep of chains: it goes forward, and whoever begins anew is seen to."""

from __future__ import annotations

import pytest

from controllerd.anchors.subject import LEVEL, MAX_CHAINS, KeepAnchor
from controllerd.state.features import RaiseLevel
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.errors import RequestError
from remoting.facts.anchors import Anchor

ONE, TWO = "1" * 64, "2" * 64


@pytest.fixture
def machine() -> ControllerMachine:
    machine = ControllerMachine()
    machine.apply(machine.decide(RaiseLevel((LEVEL,))))
    return machine


def keep(machine: ControllerMachine, sequence: int, digest: str, *, chain: str = "audit", anew: bool = False) -> int:
    return machine.apply(machine.decide(KeepAnchor(chain, sequence, digest, 1000 + sequence, anew))).reply.code


def test_it_goes_forward(machine: ControllerMachine) -> None:
    assert keep(machine, 5, ONE) == codes.SUCCESS
    assert keep(machine, 9, TWO) == codes.SUCCESS
    assert machine.anchors.anchors == {"audit": Anchor(9, TWO, 1009)}
    assert keep(machine, 9, TWO) == codes.SUCCESS, "asked twice"


@pytest.mark.parametrize(("sequence", "digest"), [(8, ONE), (9, ONE), (1, TWO)])
def test_what_was_cut_or_changed_is_refused(machine: ControllerMachine, sequence: int, digest: str) -> None:
    keep(machine, 9, TWO)
    assert keep(machine, sequence, digest) == codes.CONTROLLER_INVALID_REQUEST
    assert machine.anchors.anchors["audit"].sequence == 9


def test_to_begin_anew_leaves_a_trace(machine: ControllerMachine) -> None:
    keep(machine, 9, TWO)
    assert keep(machine, 3, ONE, anew=True) == codes.SUCCESS
    assert keep(machine, 4, TWO) == codes.SUCCESS
    assert machine.anchors.anchors["audit"] == Anchor(4, TWO, 1004, 1, f"9 {TWO} 1009")


@pytest.mark.parametrize(
    "request_",
    [
        KeepAnchor("", 1, ONE, 1),
        KeepAnchor("a" * 41, 1, ONE, 1),
        KeepAnchor("Audit", 1, ONE, 1),
        KeepAnchor("audit", 0, ONE, 1),
        KeepAnchor("audit", 1 << 62, ONE, 1),
        KeepAnchor("audit", 1, ONE, -1),
        KeepAnchor("audit", 1, "1" * 63, 1),
        KeepAnchor("audit", 1, "١" * 64, 1),
    ],
)
def test_what_is_no_anchor_is_refused(machine: ControllerMachine, request_: KeepAnchor) -> None:
    assert machine.apply(machine.decide(request_)).reply.code == codes.CONTROLLER_INVALID_REQUEST
    assert not machine.anchors.anchors


def test_chains_are_bounded(machine: ControllerMachine) -> None:
    for number in range(MAX_CHAINS):
        assert keep(machine, 1, ONE, chain=f"chain-{number}") == codes.SUCCESS
    assert keep(machine, 1, ONE, chain="one-more") == codes.CONTROLLER_INVALID_REQUEST
    assert keep(machine, 2, TWO, chain="chain-0") == codes.SUCCESS


def test_older_controllers_among_them_refuse(machine: ControllerMachine) -> None:
    with pytest.raises(RequestError, match="upgrade all of them first"):
        ControllerMachine().decide(KeepAnchor("audit", 1, ONE, 1))


def test_a_snapshot_has_them(machine: ControllerMachine) -> None:
    keep(machine, 9, TWO)
    other = ControllerMachine()
    other.restore(machine.snapshot())
    assert other.anchors == machine.anchors
