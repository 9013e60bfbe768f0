"""The original's administration tool on an appliance of ours: topics, name servers, consumer groups and offsets.

Every check runs a command as an administrator would and reads what it prints; many read back through another command, or through
our own client, that it also happened.
"""

from __future__ import annotations

import re

import orjson
import pytest

from remoting import codes
from tests.interop.appliance import CLUSTER, GROUP, Appliance, ask, progress, rows
from tests.interop.mqadmin import Tool
from tests.support.cluster import eventually

# ---- topics


def test_update_topic_creates_and_changes(appliance: Appliance, tool: Tool) -> None:
    made = appliance.topic("made", 4, "-a", "+message.type=FIFO", "-o", "true", "-u", "true")
    assert f"create topic to {appliance.master} success." in made
    assert "set cluster orderConf. isOrder=true, orderConf=[broker-a:4]" in made
    route = tool("topicRoute", "-t", "made")
    assert '"writeQueueNums":4' in route
    assert '"topicSysFlag":1' in route
    tool("updateTopic", "-t", "made", "-c", CLUSTER, "-r", "8", "-w", "8", "-p", "4", "-a", "-message.type")
    eventually("the change is routed", lambda: '"writeQueueNums":8' in tool("topicRoute", "-t", "made"))
    assert '"perm":4' in tool("topicRoute", "-t", "made")


def test_update_topic_says_how_long_messages_stay_in_files(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("long", 1, "-a", "+local.reserve.time=240")
    admin, word = appliance.cluster.admin, "local.reserve.time"
    assert [each["attributes"][word] for each in admin.topic_config("long").values()] == ["240"]
    tool("updateTopic", "-t", "long", "-c", CLUSTER, "-r", "1", "-w", "1", "-a", f"-{word}")
    assert [word in each["attributes"] for each in admin.topic_config("long").values()] == [False]


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("-t", "TBW102"), 29, "system topic"),
        (("-t", "made of wood"), 29, "letters, digits"),
        (("-t", "sizes", "-r", "0", "-w", "0"), 29, "from 1 to"),
        (("-t", "kinds", "-a", "+message.type=QUICK"), 1, "message.type must be one of"),
        (("-t", "kinds", "-a", "+colour=red"), 1, "unsupported topic attribute"),
        (("-t", "kinds", "-a", "+local.reserve.time=0"), 1, "local.reserve.time must be -1 or a number of hours"),
    ],
)
def test_update_topic_refuses(tool: Tool, words: tuple[str, ...], code: int, sentence: str) -> None:
    printed = tool.refused("updateTopic", "-c", CLUSTER, *words)
    assert f"CODE: {code} " in printed
    assert sentence in printed


def test_update_topic_list_makes_all(appliance: Appliance, tool: Tool) -> None:
    file = appliance.session.directory / "topics.json"
    names = ["many-1", "many-2"]
    configs = [{"topicName": name, "readQueueNums": 3, "writeQueueNums": 3, "perm": 6} for name in names]
    file.write_bytes(orjson.dumps(configs))
    assert "success" in tool("updateTopicList", "-c", CLUSTER, "-f", str(file))
    for name in names:
        appliance.wait_routed(name)
        assert len(rows(tool("topicStatus", "-t", name), GROUP)) == 3


def test_update_topic_permission(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("readable")
    assert "update topic perm from 6 to 4" in tool("updateTopicPerm", "-t", "readable", "-c", CLUSTER, "-p", "4")
    eventually("it is routed", lambda: '"perm":4' in tool("topicRoute", "-t", "readable"))


def test_delete_topic(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("doomed")
    appliance.send("doomed", "gone")
    deleted = tool("deleteTopic", "-t", "doomed", "-c", CLUSTER)
    assert f"delete topic [doomed] from cluster [{CLUSTER}] success." in deleted
    assert "delete topic [doomed] from NameServer success." in deleted
    assert "CODE: 17 " in tool.refused("topicRoute", "-t", "doomed")
    appliance.topic("doomed")
    assert {row[3] for row in rows(tool("topicStatus", "-t", "doomed"), GROUP)} == {"0"}, "a new one begins empty"


def test_topic_list_by_name_and_by_cluster(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("listed")
    appliance.group("listener")
    appliance.consume("listener", "listed")
    assert {"listed", GROUP, CLUSTER} <= set(tool("topicList").split())
    assert [CLUSTER, "listed", "listener"] in rows(tool("topicList", "-c"), CLUSTER)


def test_topic_route_names_all_replicas(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("routed", 2)
    route = tool("topicRoute", "-t", "routed")
    addresses = dict(re.findall(r'(\d+):"(127\.0\.0\.1:\d+)"', route))
    assert set(addresses.values()) == set(appliance.cluster.broker_addresses)
    assert addresses["0"] == appliance.master
    [line] = rows(tool("topicRoute", "-t", "routed", "-l"), CLUSTER)
    assert line[1] == GROUP


def test_topic_status_counts_messages(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("counted", 2)
    for queue_id in ("0", "0", "1"):
        appliance.send("counted", "x", "-b", GROUP, "-i", queue_id)
    printed = tool("topicStatus", "-t", "counted")
    assert [row[1:4] for row in rows(printed, GROUP)] == [["0", "0", "2"], ["1", "0", "1"]]
    assert re.search(r"\d{4}-\d\d-\d\d ", rows(printed, GROUP)[0][4] + " ")
    assert "Topic Put TPS:" in printed


def test_topic_cluster_list(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("somewhere")
    assert tool("topicClusterList", "-t", "somewhere").split() == [CLUSTER]


def test_allocate_queues(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("allotted", 4)
    printed = tool("allocateMQ", "-t", "allotted", "-i", "127.0.0.1,127.0.0.2")
    shares = orjson.loads(printed[printed.index("{") : printed.rindex("}") + 1])["result"]
    assert sorted(len(each) for each in shares.values()) == [2, 2]


def test_order_configuration_is_routed(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("ordered", 4)
    put = tool("updateOrderConf", "-t", "ordered", "-m", "put", "-v", "broker-a:4")
    assert "update orderConf success. topic=[ordered], orderConf=[broker-a:4]" in put
    assert "orderConf=[broker-a:4]" in tool("updateOrderConf", "-t", "ordered", "-m", "get")
    assert '"orderTopicConf":"broker-a:4"' in tool("topicRoute", "-t", "ordered")
    assert "delete orderConf success" in tool("updateOrderConf", "-t", "ordered", "-m", "delete")
    assert "orderTopicConf" not in tool("topicRoute", "-t", "ordered")


# ---- name servers


def test_write_permission_is_wiped_and_added(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("writable")
    wiped = tool("wipeWritePerm", "-b", GROUP)
    assert len(re.findall(rf"wipe write perm of broker\[{GROUP}\] in name server\[\S+\] OK, \d+", wiped)) == 3
    for _ in range(3):  # whichever name server answers
        assert '"perm":4' in tool("topicRoute", "-t", "writable")
    added = tool("addWritePerm", "-b", GROUP)
    assert len(re.findall(rf"add write perm of broker\[{GROUP}\] in name server\[\S+\] OK, \d+", added)) == 3
    assert '"perm":6' in tool("topicRoute", "-t", "writable")


def test_key_value_configuration_is_on_all_name_servers(appliance: Appliance, tool: Tool) -> None:
    assert "success" in tool("updateKvConfig", "-s", "space", "-k", "key", "-v", "value = 1")
    addresses = appliance.cluster.controller_addresses
    for address in addresses:
        assert ask(address, codes.GET_KV_CONFIG, namespace="space", key="key").ext == {"value": "value = 1"}
    assert "success" in tool("deleteKvConfig", "-s", "space", "-k", "key")
    for address in addresses:
        assert ask(address, codes.GET_KV_CONFIG, namespace="space", key="key").code == codes.QUERY_NOT_FOUND


def test_name_server_settings(appliance: Appliance, tool: Tool) -> None:
    assert "update name server config success" in tool(
        "updateNamesrvConfig", "-k", "supportActingMaster", "-v", "false"
    )
    printed = tool("getNamesrvConfig")
    assert len(re.findall(r"supportActingMaster\s+=\s+false", printed)) == 3
    tool("updateNamesrvConfig", "-k", "supportActingMaster", "-v", "true")
    assert "CODE: 16 " in tool.refused("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/etc/passwd")


# ---- consumer groups


def test_groups_are_made_shown_and_deleted(appliance: Appliance, tool: Tool) -> None:
    made = tool(
        "updateSubGroup", "-g", "kept", "-c", CLUSTER, "-s", "true", "-r", "5", "-q", "2", "-w", "3", "-a", "false"
    )
    assert f"create subscription group to {appliance.master} success." in made
    shown = dict(re.findall(r"^(\w+)\s+=\s+(.*)$", tool("getConsumerConfig", "-g", "kept"), re.MULTILINE))
    assert (shown["groupName"], shown["retryMaxTimes"], shown["retryQueueNums"]) == ("kept", "5", "2")
    assert (shown["whichBrokerWhenConsumeSlowly"], shown["notifyConsumerIdsChangedEnable"]) == ("3", "false")
    appliance.topic("eaten")
    appliance.consume("kept", "eaten")
    tool.stop_clients()
    deleted = tool("deleteSubGroup", "-g", "kept", "-c", CLUSTER, "-r", "true")
    assert (
        f"delete subscription group [kept] from broker [{appliance.master}] in cluster [{CLUSTER}] success." in deleted
    )
    assert "getConsumerConfig" not in tool("getConsumerConfig", "-g", "kept")
    assert "%RETRY%kept" not in tool("topicList").split()


def test_group_lists_are_made(appliance: Appliance, tool: Tool) -> None:
    file = appliance.session.directory / "groups.json"
    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1000, "max": 9000, "multiplier": 3}}
    file.write_bytes(orjson.dumps([{"groupName": "many-a"}, {"groupName": "many-b", "groupRetryPolicy": policy}]))
    assert "success" in tool("updateSubGroupList", "-c", CLUSTER, "-f", str(file))
    shown = tool("getConsumerConfig", "-g", "many-b")
    assert "type=EXPONENTIAL" in shown
    assert "multiplier=3" in shown


def test_consumer_progress(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("progressing", 2)
    appliance.group("reader")
    for _ in range(3):
        appliance.send("progressing", "x", "-b", GROUP, "-i", "0")
    appliance.consume("reader", "progressing")
    printed = tool("consumerProgress", "-g", "reader")
    table = progress(tool, "reader")
    assert [(row.queue_id, row.end, row.consumed) for row in table["progressing"]] == [(0, 3, 3), (1, 0, 0)]
    eventually("it has an offset in its retry topic", lambda: progress(tool, "reader")["%RETRY%reader"], 60)
    assert "Consume Diff Total: 0" in printed
    [line] = rows(tool("consumerProgress"), "reader")
    assert line[1:5] == ["1", "V5_3_3", "PUSH", "CLUSTERING"]
    tool.stop_clients()
    appliance.send("progressing", "x", "-b", GROUP, "-i", "1")
    eventually("the fourth is missing", lambda: "Consume Diff Total: 1" in tool("consumerProgress", "-g", "reader"))


def test_consumer_status_asks_the_client(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("watched")
    appliance.group("watcher")
    appliance.consume("watcher", "watched")
    printed = tool("consumerStatus", "-g", "watcher")
    [line] = [line.split() for line in printed.splitlines() if "@watcher" in line]
    assert line[2] == "V5_3_3"
    assert "Same subscription in the same group of consumer" in printed
    assert "Rebalance OK" in printed
    one = tool("consumerStatus", "-g", "watcher", "-i", line[1], "-s")
    assert "#Consumer Subscription#" in one
    assert "watched" in one
    assert "#Consumer jstack#" in one


def test_consumer_connection(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("connected")
    appliance.group("connector")
    appliance.consume("connector", "connected")
    printed = tool("consumerConnection", "-g", "connector")
    [line] = [line.split() for line in printed.splitlines() if "@connector" in line]
    assert line[2:] == ["JAVA", "V5_3_3"]
    assert rows(printed, "connected") == [["connected", "*"]]
    assert "ConsumeType: CONSUME_PASSIVELY" in printed
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in printed
    tool.stop_clients()
    assert "CODE: 206 " in tool.refused("consumerConnection", "-g", "connector")


def test_producer_connection(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("produced")
    assert "CODE: 1 " in tool.refused("producerConnection", "-g", "maker", "-t", "produced")
    tool.producer("maker", "produced")

    def connected() -> str:
        printed = tool.printed("producerConnection", "-g", "maker", "-t", "produced", "-n", tool.name_servers)
        return printed if "@maker" in printed else ""

    [line] = [
        line.split() for line in eventually("it sent a heartbeat", connected, 60).splitlines() if "@maker" in line
    ]
    assert line[3:5] == ["JAVA", "V5_3_3"]
    assert "@maker" in tool("producer", "-b", appliance.master)


def test_set_consume_mode(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("modal")
    appliance.group("modals")
    printed = tool("setConsumeMode", "-c", CLUSTER, "-t", "modal", "-g", "modals", "-m", "POP", "-q", "2")
    assert f"set consume mode to {appliance.master} success." in printed
    assert "topic[modal] group[modals] consume mode[POP] popShareQueueNum[2]" in printed


# ---- offsets


def _offsets(printed: str) -> dict[int, int]:
    return {int(row[1]): int(row[2]) for row in rows(printed, GROUP)}


def test_reset_offset_by_time(appliance: Appliance, tool: Tool) -> None:
    appliance.filled("rewound", "rewinder")
    before = "2020-01-01#00:00:00:000"
    assert _offsets(tool("resetOffsetByTime", "-g", "rewinder", "-t", "rewound", "-s", before)) == {0: 0, 1: 0}
    tool.consumer("rewinder", "rewound")
    eventually(
        "everything is consumed again",
        lambda: rows(tool("statsAll", "-t", "rewound"), "rewound")[0][-1] == "8",
        60,
    )
    tool.stop_clients()
    assert _offsets(tool("resetOffsetByTime", "-g", "rewinder", "-t", "rewound", "-s", "-1")) == {0: 2, 1: 2}


def test_skip_accumulated_messages(appliance: Appliance, tool: Tool) -> None:
    appliance.filled("skipped", "skipper")
    appliance.send("skipped", "x", "-b", GROUP, "-i", "1")
    assert _offsets(tool("skipAccumulatedMessage", "-g", "skipper", "-t", "skipped")) == {0: 2, 1: 3}
    assert [row.difference for row in progress(tool, "skipper")["skipped"]] == [0, 0]


def test_clone_group_offsets(appliance: Appliance, tool: Tool) -> None:
    appliance.filled("cloned", "original")
    appliance.group("copy")
    printed = tool("cloneGroupOffset", "-s", "original", "-d", "copy", "-t", "cloned")
    assert "clone group offset success. srcGroup[original], destGroup=[copy], topic[cloned]" in printed
    for queue_id in ("0", "1"):
        asked = {"consumerGroup": "copy", "topic": "cloned", "queueId": queue_id, "setZeroIfNotFound": "false"}
        assert ask(appliance.master, codes.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "2"


def test_reset_the_offset_of_one_queue(appliance: Appliance, tool: Tool) -> None:
    appliance.filled("one-queue", "precise")
    words = ("-g", "precise", "-t", "one-queue", "-s", "-1", "-b", appliance.master, "-q", "1")
    assert "reset consumer offset to 1" in tool("resetOffsetByTime", *words, "-o", "1")
    tool.consumer("precise", "one-queue")
    eventually(
        "one message is consumed again",
        lambda: rows(tool("statsAll", "-t", "one-queue"), "one-queue")[0][-1] == "5",
        60,
    )
    refused = tool.printed("resetOffsetByTime", *words, "-o", "9", "-n", tool.name_servers)
    assert "CODE: 1 " in refused
