"""A small made-up cluster in the controllers' and brokers' own words, to be bent by tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.facts.broker_state import (
    BrokerState,
    ChannelState,
    ConsumedQueueState,
    ConsumedTopicState,
    EpochState,
    GroupState,
    MemberState,
    PeerState,
    QueueState,
    TopicState,
    Totals,
)
from remoting.facts.cluster_view import ClusterView, ControllerView, GroupView, ReplicaView
from remoting.facts.snapshot import Process, Supervisor
from remoting.facts.words import BrokerRole, ControllerRole
from tasks.snapshot.inputs import Look

CONTROLLERS = ("127.0.0.1:9876", "127.0.0.1:9877", "127.0.0.1:9878")
NOW_MS = 1_790_000_000_000


def view(leader: int = 0, term: int = 4, **group: Any) -> ClusterView:
    """What every controller answers: the controllers and one group of three whose master is replica 1."""
    return ClusterView(
        as_of_ms=NOW_MS,
        controllers=tuple(
            ControllerView(
                id=f"n{index}",
                address=address,
                role=ControllerRole.LEADER if index == leader else ControllerRole.FOLLOWER,
                term=term,
                leader=index == leader,
                commit_index=80,
                applied_index=80,
                alive=True,
            )
            for index, address in enumerate(CONTROLLERS)
        ),
        groups=(
            GroupView(
                **{
                    "cluster_name": "DefaultCluster",
                    "broker_name": "broker-a",
                    "master_broker_id": 1,
                    "master_epoch": 3,
                    "sync_state_set": (1, 2, 3),
                    "sync_state_set_epoch": 5,
                    "replicas": (replica(1, "master"), replica(2), replica(3)),
                    **group,
                }
            ),
        ),
    )


def replica(broker_id: int, role: str = "replica", **changes: Any) -> ReplicaView:
    port = 10901 + 10 * broker_id
    told: dict[str, Any] = {
        "address": f"127.0.0.1:{port}",
        "ha_address": f"127.0.0.1:{port + 1}",
        "grpc_address": f"127.0.0.1:{8080 + broker_id}",
        "alive": True,
        "in_sync": True,
        "epoch": 3,
        "max_offset": 1000,
        "confirm_offset": 900,
        "last_heartbeat_ms": 120,
        "eligible": role != "master",
        "eligibility_reason": "in the sync-state set",
    }
    return ReplicaView(broker_id=broker_id, role=BrokerRole(role), **told | changes)


def state(broker_id: int, role: str = "replica", end_offset: int = 1000, **changes: Any) -> BrokerState:
    told: dict[str, Any] = {
        "master_epoch": 3,
        "sync_state_set": (1, 2, 3),
        "min_offset": 0,
        "end_offset": end_offset,
        "flushed_offset": end_offset,
        "confirm_offset": end_offset - 100,
        "dispatched_offset": end_offset - 100,
        "epochs": (EpochState(epoch=1, start_offset=0), EpochState(epoch=3, start_offset=500)),
        "counters": Totals(in_messages=10, in_bytes=1000, out_messages=5, out_bytes=500),
        "topics": (topic("orders", 4, 7),),
        "groups": (billing(),),
        "channel": followed_by({2: 0, 3: 0}) if role == "master" else ChannelState(),
    }
    return BrokerState(
        cluster_name="DefaultCluster",
        broker_name="broker-a",
        broker_id=broker_id,
        role=BrokerRole(role),
        **told | changes,
    )


def followed_by(gaps: Mapping[int, int | None]) -> ChannelState:
    """A master's replicas by their ids, with what each has not acknowledged."""
    return ChannelState(
        replicas=tuple(
            PeerState(broker_id=broker_id, stage="accepted" if gap is None else "streaming", gap_bytes=gap)
            for broker_id, gap in gaps.items()
        )
    )


def billing(*queues: ConsumedQueueState, **changes: Any) -> GroupState:
    """A consumer group of the topic orders."""
    consumed = queues or (ConsumedQueueState(queue_id=0, consumer_offset=1, in_flight=2),)
    told: dict[str, Any] = {
        "retry_max_times": 16,
        "topics": (ConsumedTopicState(topic="orders", queues=consumed),),
        "members": (MemberState(client_id="c1", address="127.0.0.1:5000", language="PYTHON"),),
    }
    return GroupState(name="billing", **told | changes)


def topic(
    name: str, *max_offsets: int, system: bool = False, min_offset: int = 0, young: bool | None = None
) -> TopicState:
    return TopicState(
        name=name,
        perm=6,
        read_queues=len(max_offsets),
        write_queues=len(max_offsets),
        system=system,
        queues=tuple(
            QueueState(
                queue_id=queue_id,
                min_offset=min_offset,
                max_offset=high,
                last_store_ms=NOW_MS - 5 if high else -1,
                begins_recently=young,
            )
            for queue_id, high in enumerate(max_offsets)
        ),
    )


def look(now_ms: int = NOW_MS, **changes: Any) -> Look:
    """A look at which everybody answers and all is well."""
    answer = changes.pop("view", None) or view()
    states = changes.pop("states", None)
    if states is None:
        states = {1: state(1, "master"), 2: state(2), 3: state(3)}
    by_address = {f"127.0.0.1:{10901 + 10 * broker_id}": each for broker_id, each in states.items()}
    changes.setdefault("views", dict.fromkeys(CONTROLLERS, answer))
    changes.setdefault("supervisor", supervisor(process("broker-a-1")))
    return Look(now_ms=now_ms, controllers=CONTROLLERS, states=by_address, **changes)


def supervisor(*processes: Process) -> Supervisor:
    return Supervisor(pid=16, processes=processes)


def process(name: str, state_name: str = "running", restarts: int = 0, address: str | None = None) -> Process:
    since = "2026-01-31T12:00:00.000Z"
    return Process(name=name, state=state_name, pid=17, restarts=restarts, since=since, address=address)
