"""Broker groups that somebody switched off, and mounts, as the snapshot shows them."""

from __future__ import annotations

from dataclasses import replace

from tasks.snapshot.build import build
from tasks.snapshot.inputs import Memory
from tests.unit.tasks.snapshot.cluster import look, process, replica, supervisor, view


def test_a_group_that_somebody_switched_off_says_that_and_nothing_else() -> None:
    dead = [replica(number, alive=False, in_sync=False) for number in (1, 2, 3)]
    off = view(master_broker_id=None, replicas=dead)
    held = [replace(process(f"broker-a-{number}", "held"), group="broker-a") for number in (1, 2, 3)]
    snapshot, _ = build(look(view=off, states={}, supervisor=supervisor(*held)), Memory())
    (reason,) = snapshot.verdict.reasons
    assert (reason.code, "group up broker-a" in reason.text) == ("group-off", True)
    held[0] = replace(held[0], state="starting")
    snapshot, _ = build(look(view=off, states={}, supervisor=supervisor(*held)), Memory())
    assert snapshot.verdict.reasons[0].code == "no-master", "one of them is to run"


def test_a_replica_is_shown_with_the_process_that_runs_at_its_address() -> None:
    own = replace(process("broker-a-1", "held", address="127.0.0.1:10911"), pid=None)
    mount = process("mount-broker-a", address="127.0.0.1:10911")
    snapshot, _ = build(look(supervisor=supervisor(own, mount)), Memory())
    assert snapshot.groups[0].replica(1).process == "mount-broker-a"
