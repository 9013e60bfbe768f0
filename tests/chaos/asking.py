"""What scripts ask the cluster on a stage, and have it do."""

from __future__ import annotations

from typing import Any

from tests.chaos.addresses import broker_address
from tests.chaos.daemons import GROUP
from tests.chaos.stage import Stage
from tests.support.cluster import eventually
from tests.support.documents import document


def members(stage: Stage) -> set[str]:
    """The sync-state set, by the brokers' names."""
    group = stage.cluster.group()
    assert group is not None
    by_id = {each["brokerId"]: each["address"] for each in group["replicas"]}
    names = dict(zip(stage.cluster.broker_addresses, stage.cluster.broker_names, strict=True))
    return {names[by_id[each]] for each in group["syncStateSet"]}


def id_of(stage: Stage, name: str) -> int:
    group = stage.cluster.group()
    assert group is not None
    return next(int(each["brokerId"]) for each in group["replicas"] if each["address"] == broker_address(name))


def state_of(stage: Stage, name: str) -> dict[str, Any]:
    return document(stage.cluster.admin.broker_state(broker_address(name)))


def elect(stage: Stage, name: str) -> None:
    """Have a broker elected; returns when it leads."""
    stage.cluster.admin.elect_master("DefaultCluster", GROUP, id_of(stage, name))
    eventually(f"{name} leads", lambda: stage.cluster.master_name() == name, 10)
    stage.mark(f"{name} elected")
