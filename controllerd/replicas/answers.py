"""Groups as the controller protocol writes them: header fields and JSON bodies (pure)

Integer keys of maps are written quoted, which every reader of the protocol accepts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from controllerd.replicas.state import Group

Alive = Callable[[int], bool]


def master_fields(group: Group) -> dict[str, str]:
    """Who leads, under which epochs; the addresses that the original does not carry come last."""
    fields = {"masterEpoch": str(group.master_epoch), "syncStateSetEpoch": str(group.sync_state_set_epoch)}
    master = group.master
    if master is not None:
        fields |= {
            "masterBrokerId": str(master.broker_id),
            "masterAddress": master.address,
            "masterHaAddress": master.ha_address,
            "masterGrpcAddress": master.grpc_address,
        }
        if group.master_incarnation:
            fields["masterIncarnation"] = str(group.master_incarnation)
    return {key: value for key, value in fields.items() if value}


def sync_state_set_body(group: Group) -> bytes:
    """SyncStateSet."""
    return orjson.dumps({"syncStateSet": list(group.sync_state_set), "syncStateSetEpoch": group.sync_state_set_epoch})


def election_body(group: Group) -> bytes:
    """ElectMasterResponseBody: all members and their addresses, and the set.

    The original's electMaster command reads the members from the top level, its brokers from `brokerMemberGroup`: both find them.
    """
    addresses = {str(broker_id): group.replicas[broker_id].address for broker_id in sorted(group.replicas)}
    members = {"brokerAddrs": addresses, "brokerName": group.broker_name, "cluster": group.cluster_name}
    return orjson.dumps(
        {
            **members,
            "brokerMemberGroup": members,
            "syncStateSet": list(group.sync_state_set),
            "syncStateSetEpoch": group.sync_state_set_epoch,
        }
    )


def replicas_info(group: Group, alive: Alive, learner: Alive = lambda _: False) -> dict[str, Any]:
    """One entry of BrokerReplicasInfo; learners carry a field that the original does not know."""
    replicas: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for broker_id in sorted(group.replicas):
        replicas[broker_id in group.sync_state_set].append(
            {
                "alive": alive(broker_id),
                "brokerAddress": group.replicas[broker_id].address,
                "brokerId": broker_id,
                "brokerName": group.broker_name,
                **({"learner": True} if learner(broker_id) else {}),
            }
        )
    info: dict[str, Any] = {
        "inSyncReplicas": replicas[True],
        "masterEpoch": group.master_epoch,
        "notInSyncReplicas": replicas[False],
        "syncStateSetEpoch": group.sync_state_set_epoch,
    }
    if group.master is not None:
        info |= {"masterAddress": group.master.address, "masterBrokerId": group.master.broker_id}
    return info
