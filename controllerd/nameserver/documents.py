"""The route table as clients and tools read it (pure)

A route is a view: what one client asks for may leave out other zones, and may show a stand-in under the master's id. The table
itself never changes for a view.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from controllerd.nameserver.records import MASTER_ID, PERM_WRITE, UNIT, UNIT_SUBSCRIBED, QueueData, Registration
from controllerd.nameserver.routes import RouteTable

_MEMBERSHIP_TOPICS: Final = "rmq_sys_SYNC_BROKER_MEMBER_"


def route(table: RouteTable, topic: str, *, acting_master: bool, zone: str | None = None) -> dict[str, Any] | None:
    """The route document of a topic; None when no live broker has it.

    `acting_master`: a group that wants it is shown with its smallest id as master while it has none and cannot be written to.
    `zone`: only groups of that zone, and those without a master, because reading there must go on wherever that is.
    """
    queues = table.queues(topic)
    if not queues:
        return None
    members = {name: table.members(name) for name in queues}
    if zone is not None:
        members = {name: each for name, each in members.items() if _is_near(each, zone)}
    brokers = []
    for name, each in members.items():
        data = _broker_data(name, each)
        if acting_master and not topic.startswith(_MEMBERSHIP_TOPICS):
            _show_acting_master(data, each, queues[name])
        brokers.append(data)
    return {
        "brokerDatas": brokers,
        "filterServerTable": {},
        "queueDatas": [_queue_data(name, queues[name]) for name in members],
    }


def cluster_info(table: RouteTable) -> dict[str, Any]:
    """Every broker group and its addresses, and which cluster it is in."""
    clusters: dict[str, list[str]] = {}
    for name in table.groups():
        clusters.setdefault(_cluster_of(table.members(name)), []).append(name)
    brokers = {name: _broker_data(name, table.members(name)) for name in table.groups()}
    return {"brokerAddrTable": brokers, "clusterAddrTable": clusters}


def member_group(table: RouteTable, broker_name: str, cluster: str) -> dict[str, Any]:
    members = table.members(broker_name)
    group = {
        "brokerAddrs": {str(each): registration.address for each, registration in members.items()},
        "brokerName": broker_name,
        "cluster": _cluster_of(members) or cluster,
    }
    return {"brokerMemberGroup": group}


def system_topics(table: RouteTable) -> dict[str, Any]:
    """The names that are topics by convention (clusters and broker groups), and any broker to ask for more."""
    names: set[str] = set()
    address = ""
    for name in table.groups():
        members = table.members(name)
        names |= {name, _cluster_of(members)}
        address = address or next(iter(members.values())).address
    return {"topicList": sorted(names), **({"brokerAddr": address} if address else {})}


def topic_list(table: RouteTable, *, cluster: str | None = None) -> dict[str, Any]:
    """All topics, or those that a cluster's brokers have."""
    clusters = {name: _cluster_of(table.members(name)) for name in table.groups()}
    chosen = [
        topic
        for topic, queues in table.topics()
        if cluster is None or any(clusters.get(name) == cluster for name in queues)
    ]
    return {"topicList": chosen}


def unit_topics(table: RouteTable, *, subscribed: bool, ununited_only: bool = False) -> dict[str, Any]:
    """Topics by the flags of geographical units: those of a unit, or those with subscribers in units (of no unit themselves)."""
    chosen = []
    for topic, queues in table.topics():
        flag = next(iter(queues.values())).topic_sys_flag
        wanted = flag & UNIT_SUBSCRIBED if subscribed else flag & UNIT
        if wanted and not (ununited_only and flag & UNIT):
            chosen.append(topic)
    return {"topicList": chosen}


def _is_near(members: Mapping[int, Registration], zone: str) -> bool:
    return MASTER_ID not in members or _zone_of(members).lower() == zone.lower()


def _show_acting_master(data: dict[str, Any], members: Mapping[int, Registration], queues: QueueData) -> None:
    if MASTER_ID in members or queues.perm & PERM_WRITE or not data["enableActingMaster"]:
        return
    for addresses in (data["brokerAddrs"], data["grpcAddrs"]):
        if (address := addresses.pop(str(min(members)), None)) is not None:
            addresses[str(MASTER_ID)] = address


def _queue_data(name: str, data: QueueData) -> dict[str, Any]:
    return {
        "brokerName": name,
        "perm": data.perm,
        "readQueueNums": data.read_queue_nums,
        "topicSysFlag": data.topic_sys_flag,
        "writeQueueNums": data.write_queue_nums,
        "messageType": data.message_type,
    }


def _broker_data(name: str, members: Mapping[int, Registration]) -> dict[str, Any]:
    zone = _zone_of(members)
    return {
        "brokerAddrs": {str(each): registration.address for each, registration in members.items()},
        "brokerName": name,
        "cluster": _cluster_of(members),
        "enableActingMaster": bool(members[min(members)].acting_master),
        "grpcAddrs": {
            str(each): registration.grpc_address for each, registration in members.items() if registration.grpc_address
        },
        **({"zoneName": zone} if zone else {}),
    }


def _cluster_of(members: Mapping[int, Registration]) -> str:
    return next(iter(members.values())).cluster if members else ""


def _zone_of(members: Mapping[int, Registration]) -> str:
    return next((each.zone for each in members.values() if each.zone), "")
