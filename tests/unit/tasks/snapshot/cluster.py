"""A small made-up cluster in the controllers' and brokers' own words, to be bent by tests."""

from __future__ import annotations

from typing import Any

from tasks.snapshot.inputs import Look

CONTROLLERS = ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878")
NOW_MS = 1_790_000_000_000


def view(leader: int = 0, term: int = 4, **group: Any) -> dict[str, Any]:
    """What every controller answers: the controllers and one group of three whose master is replica 1."""
    return {
        "controllers": [
            {
                "id": f"n{index}",
                "address": address,
                "role": "leader" if index == leader else "follower",
                "term": term,
                "leader": index == leader,
                "commitIndex": 80,
                "appliedIndex": 80,
                "alive": True,
            }
            for index, address in enumerate(CONTROLLERS)
        ],
        "groups": [
            {
                "clusterName": "DefaultCluster",
                "brokerName": "broker-a",
                "masterBrokerId": 1,
                "masterEpoch": 3,
                "syncStateSet": [1, 2, 3],
                "syncStateSetEpoch": 5,
                "replicas": [replica(1, "master"), replica(2), replica(3)],
                **group,
            }
        ],
        "asOf": NOW_MS,
    }


def replica(broker_id: int, role: str = "replica", **changes: Any) -> dict[str, Any]:
    port = 10901 + 10 * broker_id
    return {
        "brokerId": broker_id,
        "address": f"127.0.0.1:{port}",
        "haAddress": f"127.0.0.1:{port + 1}",
        "grpcAddress": f"127.0.0.1:{8080 + broker_id}",
        "alive": True,
        "inSync": True,
        "role": role,
        "epoch": 3,
        "maxOffset": 1000,
        "confirmOffset": 900,
        "lastHeartbeatMs": 120,
        "eligible": role != "master",
        "eligibilityReason": "in the sync-state set",
        **changes,
    }


def state(broker_id: int, role: str = "replica", end_offset: int = 1000, **changes: Any) -> dict[str, Any]:
    return {
        "clusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": broker_id,
        "role": role,
        "masterEpoch": 3,
        "syncStateSet": [1, 2, 3],
        "minOffset": 0,
        "endOffset": end_offset,
        "flushedOffset": end_offset,
        "confirmOffset": end_offset - 100,
        "dispatchedOffset": end_offset - 100,
        "epochs": [{"epoch": 1, "startOffset": 0}, {"epoch": 3, "startOffset": 500}],
        "counters": {"inMessages": 10, "inBytes": 1000, "outMessages": 5, "outBytes": 500},
        "topics": [topic("orders", 4, 7)],
        "groups": [
            {
                "name": "billing",
                "fifo": False,
                "retryMaxTimes": 16,
                "topics": [{"topic": "orders", "queues": [{"queueId": 0, "consumerOffset": 1, "inFlight": 2}]}],
                "members": [{"clientId": "c1", "address": "127.0.0.1:5000", "language": "PYTHON"}],
            }
        ],
        "connections": [],
        "lastError": None,
        **changes,
    }


def topic(name: str, *max_offsets: int, system: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "type": "NORMAL",
        "perm": 6,
        "readQueues": len(max_offsets),
        "writeQueues": len(max_offsets),
        "system": system,
        "queues": [
            {"queueId": queue_id, "minOffset": 0, "maxOffset": high, "lastStoreMs": NOW_MS - 5 if high else -1}
            for queue_id, high in enumerate(max_offsets)
        ],
    }


def look(now_ms: int = NOW_MS, **changes: Any) -> Look:
    """A look at which everybody answers and all is well."""
    answer = changes.pop("view", None) or view()
    states = changes.pop("states", None)
    if states is None:
        states = {1: state(1, "master"), 2: state(2), 3: state(3)}
    by_address = {f"127.0.0.1:{10901 + 10 * broker_id}": each for broker_id, each in states.items()}
    changes.setdefault("views", dict.fromkeys(CONTROLLERS, answer))
    changes.setdefault("supervisor", {"processes": [process("broker-a-1")]})
    return Look(now_ms=now_ms, controllers=CONTROLLERS, states=by_address, **changes)


def process(name: str, state_name: str = "running", restarts: int = 0) -> dict[str, Any]:
    return {"name": name, "state": state_name, "pid": 17, "restarts": restarts, "since": "2026-01-31T12:00:00.000Z"}
