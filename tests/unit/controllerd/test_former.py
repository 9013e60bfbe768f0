"""A data directory of the time when the log held requests is read as it was meant."""

from __future__ import annotations

import pytest

from controllerd.former import former_request, former_states
from controllerd.machine import ControllerMachine
from controllerd.replicas.requests import ElectMaster, Observation, Trigger
from controllerd.replicas.state import encode_state
from remoting.access.model import encode_state as encode_access
from remoting.errors import ProtocolError

CODE = b'"register_check_code":"127.0.0.1:1;7"'
LOG = (
    b'{"format":1,"kind":"apply_broker_id","cluster_name":"c","broker_name":"a","broker_id":1,' + CODE + b"}",
    b'{"format":1,"kind":"apply_broker_id","cluster_name":"c","broker_name":"a","broker_id":1,"register_check_code":"h:1;8"}',
    b'{"format":1,"kind":"register_broker","cluster_name":"c","broker_name":"a","broker_id":1,"address":"h:2","ha_address":"",'
    b'"grpc_address":"","known_epoch":4,"lost_tail":false,"max_offset":-1}',
    b'{"format":1,"kind":"elect_master","cluster_name":"c","broker_name":"a","trigger":"broker","observed":[{"broker_id":1,'
    b'"epoch":0,"max_offset":7,"election_priority":1,"incarnation":3,"is_learner":false,"lost_tail":false}],"broker_id":1,'
    b'"designate":false,"unclean":false,"seen_master_epoch":null,"last_known":[],"at_ms":0}',
    b'\x01{"format":1,"kind":"CreateUser","name":"root","sealed":"s","user_type":"Super","status":"enable","by_super":true,'
    b'"only_first":true}',
    b'\x01{"format":1,"kind":"PutEntries","name":"root","policies":[{"policyType":"Custom","entries":[{"resource":"Topic:a",'
    b'"actions":["Pub"],"decision":"Allow"},{"resource":"Topic:b","actions":["Sub"],"decision":"Deny"}]}]}',
    b'\x01{"format":1,"kind":"RemoveEntries","name":"root","policy":"Custom","resource":"Topic:b"}',
)


def replayed() -> ControllerMachine:
    machine = ControllerMachine()
    for data in LOG:
        machine.apply(data)
    return machine


def test_its_log_is_decided_as_it_was() -> None:
    machine = replayed()
    group = machine.replicas.groups["a"]
    assert (group.master_broker_id, group.master_epoch, group.master_incarnation) == (1, 5, 3)
    assert [each.address for each in group.replicas.values()] == ["h:2"]
    assert [str(each.resource) for each in machine.access.acls["root"]["Custom"]] == ["Topic:a"]


def test_a_request_has_all_that_the_leader_saw() -> None:
    assert former_request(LOG[3]) == ElectMaster("c", "a", Trigger.BROKER, (Observation(1, 0, 7, 1, 3),), 1)


def test_its_snapshots_are_read() -> None:
    machine = replayed()
    replicas, access = encode_state(machine.replicas), encode_access(machine.access)
    for content, restored in (
        (replicas, ControllerMachine().access),
        (b"LBM1" + len(replicas).to_bytes(4) + replicas + access, machine.access),
    ):
        copy = ControllerMachine()
        copy.restore(content)
        assert (copy.replicas, copy.access) == (machine.replicas, restored)


def test_what_is_written_now_is_none_of_it() -> None:
    assert former_request(b'{"format":2,"subject":"replicas","records":[],"reply":[0,null]}') is None
    assert former_states(replayed().snapshot()) is None


@pytest.mark.parametrize("content", [LOG[0][:-2], b'{"format":1,"kind":"x"}', b"\x01", b"\x01[]", b'\x01{"format":1}'])
def test_damage_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        ControllerMachine().apply(content)


@pytest.mark.parametrize("content", [b"LBM1", b"LBM1\0\0\0\1xyz", b"\x78\x9cx"])
def test_a_damaged_snapshot_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        ControllerMachine().restore(content)
