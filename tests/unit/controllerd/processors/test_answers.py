"""The controller protocol's shapes, and the fields of its requests."""

from __future__ import annotations

import orjson
import pytest

from controllerd.processors import fields
from controllerd.processors.answers import election_body, master_fields, replicas_info, sync_state_set_body
from controllerd.replicas.requests import Trigger
from remoting.errors import InvalidParameter
from remoting.frame import Command
from tests.unit.controllerd.replicas.builders import elect, group_of, group_of_three, run


def test_master_fields_carry_the_addresses_that_the_original_lacks() -> None:
    assert master_fields(group_of(group_of_three())) == {
        "masterBrokerId": "1",
        "masterAddress": "127.0.0.1:10901",
        "masterEpoch": "1",
        "syncStateSetEpoch": "2",
        "masterHaAddress": "127.0.0.1:109012",
        "masterGrpcAddress": "127.0.0.1:109013",
    }


def test_without_a_master_only_the_epochs_are_told() -> None:
    machine = group_of_three()
    run(machine, elect(trigger=Trigger.CONTROLLER))
    assert master_fields(group_of(machine)) == {"masterEpoch": "2", "syncStateSetEpoch": "2"}


def test_bodies() -> None:
    group = group_of(group_of_three())
    assert sync_state_set_body(group) == b'{"syncStateSet":[1,2,3],"syncStateSetEpoch":2}'
    body = orjson.loads(election_body(group))
    assert body["brokerMemberGroup"]["brokerAddrs"] == {
        "1": "127.0.0.1:10901",
        "2": "127.0.0.1:10902",
        "3": "127.0.0.1:10903",
    }
    assert body["syncStateSet"] == [1, 2, 3]
    info = replicas_info(group, lambda broker_id: broker_id == 2)
    assert (info["masterBrokerId"], info["masterAddress"]) == (1, "127.0.0.1:10901")
    assert [each["alive"] for each in info["inSyncReplicas"]] == [False, True, False]
    assert info["notInSyncReplicas"] == []
    told = replicas_info(group, lambda _: True, lambda broker_id: broker_id == 3)
    assert [each.get("learner") for each in told["inSyncReplicas"]] == [None, None, True]


def request(**ext: str) -> Command:
    return Command(1002, ext=ext)


def test_fields() -> None:
    asked = request(a="broker-a", n="-7", t="TRUE", empty="")
    assert fields.name(asked, "a") == "broker-a"
    assert fields.number(asked, "n") == -7
    assert fields.number(asked, "empty", 5) == 5
    assert fields.flag(asked, "t")
    assert not fields.flag(asked, "absent")
    assert fields.text(asked, "empty", "default") == "default"
    assert fields.optional({"x": 1, "y": None}) == {"x": "1"}


@pytest.mark.parametrize("name", ["", "a b", "a\n", "a#b", "a;b", "x" * 128])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidParameter, match="brokerName must have"):
        fields.name(request(brokerName=name), "brokerName")


@pytest.mark.parametrize("value", ["x", "1.5", str(2**63), "9" * 5000])
def test_bad_numbers(value: str) -> None:
    with pytest.raises(InvalidParameter, match="must be a whole number"):
        fields.number(request(n=value), "n")


def test_missing_and_long_fields() -> None:
    with pytest.raises(InvalidParameter, match="needs the field n"):
        fields.number(request(), "n")
    with pytest.raises(InvalidParameter, match="needs the field t"):
        fields.text(request(t=""), "t")
    with pytest.raises(InvalidParameter, match="512 characters"):
        fields.text(request(t="x" * 513), "t")
