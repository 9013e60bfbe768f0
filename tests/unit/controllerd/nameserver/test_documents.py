"""Routes as clients see them: acting masters, zones, and the lists that tools ask for."""

from __future__ import annotations

from typing import Any

from controllerd.nameserver import documents
from controllerd.nameserver.records import DataVersion, QueueData, Registration
from controllerd.nameserver.routes import RouteTable


def register(table: RouteTable, name: str, broker_id: int, address: str, **more: Any) -> None:
    fields: dict[str, Any] = {"topics": {"T": QueueData(8, 4, 6, 0, "FIFO"), "U": QueueData(1, 1, 6)}}
    version = DataVersion(1, 1, 1)
    table.register(Registration("c", name, broker_id, address, data_version=version, **{**fields, **more}), address, 0)


def route(table: RouteTable, topic: str = "T", **view: Any) -> dict[str, Any]:
    found = documents.route(table, topic, **{"acting_master": True, **view})
    assert found is not None
    return found


def test_a_route_names_every_live_replica_and_its_queues() -> None:
    table = RouteTable()
    register(table, "broker-a", 0, "h:1", grpc_address="h:8081")
    register(table, "broker-a", 2, "h:2")
    assert route(table) == {
        "brokerDatas": [
            {
                "brokerAddrs": {"0": "h:1", "2": "h:2"},
                "brokerName": "broker-a",
                "cluster": "c",
                "enableActingMaster": False,
                "grpcAddrs": {"0": "h:8081"},
            }
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 8,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
                "messageType": "FIFO",
            }
        ],
    }
    assert documents.route(table, "none", acting_master=True) is None


def test_the_smallest_id_acts_as_master_where_that_is_wanted() -> None:
    table = RouteTable()
    for broker_id in (3, 2):
        register(table, "broker-a", broker_id, f"h:{broker_id}", acting_master=True, grpc_address=f"g:{broker_id}")
    [data] = route(table)["brokerDatas"]
    assert data["brokerAddrs"] == {"0": "h:2", "3": "h:3"}
    assert data["grpcAddrs"] == {"0": "g:2", "3": "g:3"}
    assert route(table)["queueDatas"][0]["perm"] == 4, "producers pass it by"
    assert list(table.members("broker-a")) == [2, 3], "the table itself is as it was"
    assert route(table, acting_master=False)["brokerDatas"][0]["brokerAddrs"] == {"2": "h:2", "3": "h:3"}


def test_no_acting_master_beside_a_master_or_without_consent() -> None:
    table = RouteTable()
    register(table, "broker-a", 2, "h:2", acting_master=False)
    assert route(table)["brokerDatas"][0]["brokerAddrs"] == {"2": "h:2"}
    register(table, "broker-b", 0, "h:4", acting_master=True)
    register(table, "broker-b", 1, "h:5", acting_master=True)
    assert route(table)["brokerDatas"][1]["brokerAddrs"] == {"0": "h:4", "1": "h:5"}
    membership = "rmq_sys_SYNC_BROKER_MEMBER_broker-c"
    register(
        table,
        "broker-c",
        1,
        "h:6",
        acting_master=True,
        topics={membership: QueueData(1, 1, 6), "T": QueueData(1, 1, 6)},
    )
    assert route(table, membership)["brokerDatas"][0]["brokerAddrs"] == {"1": "h:6"}


def test_a_zone_sees_its_own_groups_and_those_without_a_master() -> None:
    table = RouteTable()
    register(table, "near", 0, "h:1", zone="East")
    register(table, "far", 0, "h:2", zone="west")
    register(table, "lost", 1, "h:3", zone="west", acting_master=False)
    found = route(table, zone="east")
    assert [each["brokerName"] for each in found["brokerDatas"]] == ["near", "lost"]
    assert [each["brokerName"] for each in found["queueDatas"]] == ["near", "lost"]
    assert found["brokerDatas"][0]["zoneName"] == "East"
    assert len(route(table)["brokerDatas"]) == 3
    table.unregister("near", 0, "h:1")
    table.unregister("lost", 1, "h:3")
    assert route(table, zone="east") == {"brokerDatas": [], "filterServerTable": {}, "queueDatas": []}


def test_lists_for_tools() -> None:
    table = RouteTable()
    assert documents.system_topics(table) == {"topicList": []}
    register(table, "broker-a", 2, "h:2")
    register(
        table,
        "broker-a",
        0,
        "h:1",
        topics={"U": QueueData(1, 1, 6, 1), "S": QueueData(1, 1, 6, 2), "B": QueueData(1, 1, 6, 3)},
    )
    assert documents.topic_list(table) == {"topicList": ["B", "S", "U"]}
    assert documents.topic_list(table, cluster="c") == {"topicList": ["B", "S", "U"]}
    assert documents.topic_list(table, cluster="elsewhere") == {"topicList": []}
    assert documents.unit_topics(table, subscribed=False) == {"topicList": ["B", "U"]}
    assert documents.unit_topics(table, subscribed=True) == {"topicList": ["B", "S"]}
    assert documents.unit_topics(table, subscribed=True, ununited_only=True) == {"topicList": ["S"]}
    assert documents.system_topics(table) == {"topicList": ["broker-a", "c"], "brokerAddr": "h:1"}
    assert documents.member_group(table, "broker-a", "") == {
        "brokerMemberGroup": {"brokerAddrs": {"0": "h:1", "2": "h:2"}, "brokerName": "broker-a", "cluster": "c"}
    }
    assert documents.member_group(table, "none", "c2")["brokerMemberGroup"]["brokerAddrs"] == {}
    info = documents.cluster_info(table)
    assert info["clusterAddrTable"] == {"c": ["broker-a"]}
    assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "h:1", "2": "h:2"}
