"""The original's administration tool on a whole appliance of ours: three controllers, and a group of three brokers.

Every check runs a command as an administrator would and reads what it prints; many read back through another command, or through
our own client, that it also happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from tests.interop.apache import Apache, Session
from tests.interop.mqadmin import Tool
from tests.support.cluster import Cluster, eventually

CLUSTER = "DefaultCluster"
GROUP = "broker-a"


class Appliance:
    """The running cluster, the tool, and what the checks share."""

    def __init__(self, cluster: Cluster, session: Session, tool: Tool) -> None:
        self.cluster = cluster
        self.session = session
        self.tool = tool

    @property
    def master(self) -> str:
        return self.cluster.broker_addresses[self.cluster.master()]

    @property
    def controller(self) -> str:
        return self.cluster.controller_addresses[0]

    def topic(self, name: str, queues: int = 4, *options: str) -> str:
        """Make a topic and wait until every name server routes it."""
        made = self.tool("updateTopic", "-t", name, "-c", CLUSTER, "-r", str(queues), "-w", str(queues), *options)
        self.wait_routed(name)
        return made

    def wait_routed(self, name: str) -> None:
        def routed() -> bool:
            return all(self._knows(address, name) for address in self.cluster.controller_addresses)

        eventually(f"{name} is routed", routed)

    @staticmethod
    def _knows(name_server: str, topic: str) -> bool:
        return ask(name_server, codes.GET_ROUTEINFO_BY_TOPIC, topic=topic).code == codes.SUCCESS

    def group(self, name: str) -> str:
        return self.tool("updateSubGroup", "-g", name, "-c", CLUSTER, "-s", "true")

    def send(self, topic: str, body: str, *options: str) -> str:
        """Send one message through the tool; its unique id."""
        printed = self.tool("sendMessage", "-t", topic, "-p", body, *options)
        [line] = rows(printed, GROUP)
        assert line[2] == "SEND_OK"
        return line[3]

    def consume(self, group: str, topic: str) -> None:
        """A push consumer of the group consumes the topic to its end and commits that."""
        self.tool.consumer(group, topic)

        def done() -> bool:
            table = progress(self.tool, group)
            return bool(table[topic]) and all(row.difference == 0 for row in table[topic])

        eventually(f"{group} consumed {topic}", done, 60)


_ANY_ANSWER = tuple(range(4096))


def ask(address: str, code: int, **fields: str) -> Command:
    """One request of our own client; its answer, whatever that says."""
    with SocketConnection(address) as connection:
        return connection.call(code, fields, accept=_ANY_ANSWER)


class Queue:
    """A row of consumerProgress."""

    def __init__(self, words: list[str]) -> None:
        self.queue_id, self.end, self.consumed, self.difference = (int(word) for word in words[2:6])


def rows(printed: str, first: str) -> list[list[str]]:
    """The words of the printed lines whose first word is given."""
    return [words for line in printed.splitlines() if (words := line.split()) and words[0] == first]


def progress(tool: Tool, group: str) -> dict[str, list[Queue]]:
    """consumerProgress by topic; a topic that is not there has no rows."""
    found: dict[str, list[Queue]] = _Rows()
    for line in tool.printed("consumerProgress", "-g", group, "-n", tool.name_servers).splitlines():
        words = line.split()
        if len(words) > 5 and words[1] == GROUP:
            found[words[0]].append(Queue(words))
    return found


class _Rows(dict[str, list[Queue]]):
    def __missing__(self, topic: str) -> list[Queue]:
        return self.setdefault(topic, [])


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory, apache: Apache) -> Iterator[Appliance]:
    root: Path = tmp_path_factory.mktemp("appliance")
    with Cluster(root / "cluster") as cluster, apache.session(root / "apache") as session:
        cluster.start()
        with Tool.start(session, ";".join(cluster.controller_addresses)) as tool:
            yield Appliance(cluster, session, tool)


@pytest.fixture
def tool(appliance: Appliance) -> Iterator[Tool]:
    yield appliance.tool
    appliance.tool.stop_clients()


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


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("-t", "TBW102"), 29, "system topic"),
        (("-t", "made of wood"), 29, "letters, digits"),
        (("-t", "sizes", "-r", "0", "-w", "0"), 29, "from 1 to"),
        (("-t", "kinds", "-a", "+message.type=QUICK"), 1, "message.type must be one of"),
        (("-t", "kinds", "-a", "+colour=red"), 1, "unsupported topic attribute"),
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


def _filled(appliance: Appliance, topic: str, group: str) -> None:
    """A topic of two queues with two messages in each, which the group has consumed."""
    appliance.topic(topic, 2)
    appliance.group(group)
    for queue_id in ("0", "1", "0", "1"):
        appliance.send(topic, "x", "-b", GROUP, "-i", queue_id)
    appliance.consume(group, topic)
    appliance.tool.stop_clients()


def test_reset_offset_by_time(appliance: Appliance, tool: Tool) -> None:
    _filled(appliance, "rewound", "rewinder")
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
    _filled(appliance, "skipped", "skipper")
    appliance.send("skipped", "x", "-b", GROUP, "-i", "1")
    assert _offsets(tool("skipAccumulatedMessage", "-g", "skipper", "-t", "skipped")) == {0: 2, 1: 3}
    assert [row.difference for row in progress(tool, "skipper")["skipped"]] == [0, 0]


def test_clone_group_offsets(appliance: Appliance, tool: Tool) -> None:
    _filled(appliance, "cloned", "original")
    appliance.group("copy")
    printed = tool("cloneGroupOffset", "-s", "original", "-d", "copy", "-t", "cloned")
    assert "clone group offset success. srcGroup[original], destGroup=[copy], topic[cloned]" in printed
    for queue_id in ("0", "1"):
        asked = {"consumerGroup": "copy", "topic": "cloned", "queueId": queue_id, "setZeroIfNotFound": "false"}
        assert ask(appliance.master, codes.QUERY_CONSUMER_OFFSET, **asked).ext["offset"] == "2"


def test_reset_the_offset_of_one_queue(appliance: Appliance, tool: Tool) -> None:
    _filled(appliance, "one-queue", "precise")
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


# ---- messages


@pytest.fixture(scope="module")
def stored(appliance: Appliance) -> str:
    """The unique id of a message with key and tag, the first of queue 1 of its topic."""
    appliance.topic("stored", 2)
    unique_id = appliance.send("stored", "a body", "-k", "a-key", "-c", "a-tag", "-b", GROUP, "-i", "1")
    appliance.send("stored", "another", "-k", "another-key", "-b", GROUP, "-i", "0")
    return unique_id


def _shows_it(printed: str, unique_id: str) -> None:
    assert re.search(r"^Tags:\s+\[a-tag\]", printed, re.MULTILINE)
    assert re.search(r"^Keys:\s+\[a-key\]", printed, re.MULTILINE)
    assert re.search(r"^Queue ID:\s+1$", printed, re.MULTILINE)
    assert f"UNIQ_KEY={unique_id}" in printed


def test_send_message(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("sent", 2)
    printed = tool("sendMessage", "-t", "sent", "-p", "hello", "-b", GROUP, "-i", "1")
    assert rows(printed, GROUP)[0][:3] == [GROUP, "1", "SEND_OK"]


def test_query_message_by_offset(tool: Tool, stored: str) -> None:
    _shows_it(tool("queryMsgByOffset", "-t", "stored", "-b", GROUP, "-i", "1", "-o", "0"), stored)


def test_query_message_by_id(tool: Tool, stored: str) -> None:
    printed = tool("queryMsgByOffset", "-t", "stored", "-b", GROUP, "-i", "1", "-o", "0")
    [offset_id] = re.findall(r"^OffsetID:\s+([0-9A-F]{32})$", printed, re.MULTILINE)
    _shows_it(tool("queryMsgById", "-t", "stored", "-i", offset_id), stored)


def test_a_message_is_consumed_directly_and_sent_again(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("direct", 1)
    appliance.group("directed")
    appliance.send("direct", "x")
    appliance.consume("directed", "direct")
    printed = tool("queryMsgByOffset", "-t", "direct", "-b", GROUP, "-i", "0", "-o", "0")
    assert "MessageTrack [consumerGroup=directed, trackType=CONSUMED" in printed
    [offset_id] = re.findall(r"^OffsetID:\s+([0-9A-F]{32})$", printed, re.MULTILINE)
    connection = tool("consumerConnection", "-g", "directed")
    [client] = [line.split()[0] for line in connection.splitlines() if "@directed" in line]
    consumed = tool("queryMsgById", "-t", "direct", "-i", offset_id, "-g", "directed", "-d", client)
    assert "consumeResult=CR_SUCCESS" in consumed
    assert "sendStatus=SEND_OK" in tool("queryMsgById", "-t", "direct", "-i", offset_id, "-s", "true")
    assert rows(tool("topicStatus", "-t", "direct"), GROUP)[0][3] == "2"


def test_query_message_by_key(tool: Tool, stored: str) -> None:
    printed = tool("queryMsgByKey", "-t", "stored", "-k", "a-key")
    assert rows(printed, stored) == [[stored, "1", "0"]]


def test_query_message_by_unique_key(tool: Tool, stored: str) -> None:
    _shows_it(tool("queryMsgByUniqueKey", "-t", "stored", "-i", stored), stored)


def test_print_messages(tool: Tool, stored: str) -> None:
    printed = tool("printMsg", "-t", "stored")
    assert {"BODY: a body", "BODY: another"} == set(re.findall(r"BODY: .*$", printed, re.MULTILINE))
    tagged = tool("printMsg", "-t", "stored", "-s", "a-tag")
    assert re.findall(r"BODY: .*$", tagged, re.MULTILINE) == ["BODY: a body"]
    queue = tool("printMsgByQueue", "-t", "stored", "-a", GROUP, "-i", "1", "-p", "true", "-d", "true", "-f", "true")
    assert stored in queue
    assert re.findall(r"^Tag: (\S+)\s+Count: (\d+)", queue, re.MULTILINE) == [("a-tag", "1")]


def test_consume_messages(tool: Tool, stored: str) -> None:
    printed = tool("consumeMessage", "-t", "stored", "-g", "tasters", "-b", GROUP, "-i", "1", "-o", "0")
    assert "Consume ok" in printed
    assert f"MSGID: {stored}" in printed
    assert "BODY: a body" in printed


def test_query_consume_queue(tool: Tool, stored: str) -> None:
    printed = tool("queryCq", "-t", "stored", "-q", "1", "-i", "0", "-g", "nobody")
    assert "max: 1, min: 0" in printed
    assert "nobody@stored is not online!" in printed
    assert re.search(r"physicOffset=\d+, physicSize=\d+, tagsCode=\d+", printed)


def test_message_round_trip_times(appliance: Appliance) -> None:
    words = ("clusterRT", "-c", CLUSTER, "-a", "4", "-i", "1", "-n", appliance.tool.name_servers)
    printed = appliance.tool.endless(appliance.session, lambda text: len(rows(text, CLUSTER)) >= 2, *words)
    for line in rows(printed, CLUSTER):
        assert line[:2] == [CLUSTER, GROUP]
        assert line[3:] == ["4", "0"], "all sent, none failed"


def test_check_round_trip_times(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("timed", 2)
    printed = tool("checkMsgSendRT", "-t", "timed", "-a", "4")
    assert [line[2] for line in rows(printed, GROUP)] == ["true"] * 4
    assert "Avg RT:" in printed


def test_send_message_status(tool: Tool) -> None:
    printed = tool("sendMsgStatus", "-b", GROUP, "-c", "2")
    assert len(re.findall(r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK", printed)) >= 2


# ---- brokers


def test_broker_status(appliance: Appliance, tool: Tool) -> None:
    printed = tool("brokerStatus", "-b", appliance.master)
    figures = dict(re.findall(r"^(\w+)\s*: (.*)$", printed, re.MULTILINE))
    assert figures["brokerVersionDesc"] == "V5_3_3"
    assert figures["brokerActive"] == "true"
    assert int(figures["msgPutTotalTodayNow"]) >= 0
    assert 0 < float(figures["commitLogDiskRatio"]) < 1
    assert len(figures) > 50


def test_cluster_list(appliance: Appliance, tool: Tool) -> None:
    lines = rows(tool("clusterList"), CLUSTER)
    assert lines[0][1:3] == [GROUP, "0"]
    assert {line[3] for line in lines} == set(appliance.cluster.broker_addresses)
    assert {(line[4], line[-1]) for line in lines} == {("V5_3_3", "true")}
    appliance.topic("totals")
    appliance.send("totals", "x")
    counts = rows(tool("clusterList", "-m"), CLUSTER)
    assert len(counts) == 3
    assert max(int(line[4]) for line in counts) > 0, "messages in today"


def test_statistics_of_all_topics(appliance: Appliance, tool: Tool) -> None:
    _filled(appliance, "figures", "figuring")
    [line] = rows(tool("statsAll", "-t", "figures"), "figures")
    assert line[1:3] == ["figuring", "0"]
    assert line[-2:] == ["4", "4"]
    assert float(line[3]) > 0, "messages per second in"
    assert rows(tool("statsAll", "-a"), "figures")


def test_broker_consume_statistics(appliance: Appliance, tool: Tool) -> None:
    _filled(appliance, "measured", "measurer")
    lines = rows(tool("brokerConsumeStats", "-b", appliance.master), "measured")
    assert [line[1:7] for line in lines] == [["measurer", GROUP, str(n), "2", "2", "0"] for n in (0, 1)]


def test_broker_settings_are_shown_and_changed(appliance: Appliance, tool: Tool) -> None:
    def shown() -> dict[str, str]:
        return dict(re.findall(r"^([\w.]+)\s+=\s+(.*)$", tool("getBrokerConfig", "-b", appliance.master), re.MULTILINE))

    assert (shown()["brokerName"], shown()["brokerClusterName"]) == (GROUP, CLUSTER)
    assert shown()["fileReservedTime"] == "72"
    for key, value in (("fileReservedTime", "48"), ("slaveTimeout", "4000")):
        changed = tool("updateBrokerConfig", "-b", appliance.master, "-k", key, "-v", value)
        assert f"update broker config success, {appliance.master}" in changed
        assert shown()[key] == value
    for key in ("storePathRootDir", "brokerConfigPath", "namesrvAddr"):
        refused = tool.refused("updateBrokerConfig", "-b", appliance.master, "-k", key, "-v", "/tmp")
        assert "CODE: 16 " in refused
        assert f"{key} cannot be changed while this process runs" in refused
    refused = tool.refused("updateBrokerConfig", "-b", appliance.master, "-k", "slaveTimeout", "-v", "soon")
    assert "CODE: 1 " in refused


def test_cleaning_is_accepted(appliance: Appliance, tool: Tool) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic", "deleteExpiredCommitLog"):
        assert "success" in tool(command, "-b", appliance.master)


def test_everything_is_exported(appliance: Appliance, tool: Tool) -> None:
    appliance.topic("exported", 3)
    appliance.group("exporters")
    target = appliance.session.directory / "exports"
    target.mkdir(exist_ok=True)
    for command in ("exportMetadata", "exportConfigs", "exportMetrics"):
        assert "success" in tool(command, "-c", CLUSTER, "-f", str(target))
    metadata = orjson.loads((target / "metadata.json").read_bytes())
    assert metadata["topicConfigTable"]["exported"]["readQueueNums"] == 3
    assert metadata["subscriptionGroupTable"]["exporters"]["retryMaxTimes"] == 16
    configs = orjson.loads((target / "configs.json").read_bytes())
    assert configs["brokerConfigs"][GROUP]["fileReservedTime"].isdecimal()
    metrics = orjson.loads((target / "metrics.json").read_bytes())
    assert metrics["evaluateReport"][GROUP]["runtimeQuota"]["diskRatio"]


# ---- replication and controllers


def test_sync_state_set_and_epochs(appliance: Appliance, tool: Tool) -> None:
    printed = tool("getSyncStateSet", "-a", appliance.controller, "-b", GROUP)
    assert f"#MasterAddr\t{appliance.master}" in printed
    assert "#SyncStateSetNums\t3" in printed
    assert len(re.findall(r"^InSyncReplica:.*alive=true", printed, re.MULTILINE)) == 3
    epochs = tool("getBrokerEpoch", "-b", GROUP)
    assert len(re.findall(r"^#Epoch: EpochEntry\{epoch=1, startOffset=0", epochs, re.MULTILINE)) == 3


def test_controllers_describe_themselves(appliance: Appliance, tool: Tool) -> None:
    printed = tool("getControllerMetaData", "-a", appliance.controller)
    leader = appliance.cluster.controller_addresses[appliance.cluster.leader()]
    assert f"#ControllerLeaderAddress\t{leader}" in printed
    assert len(re.findall(r"^#Peer:\tn\d:127\.0\.0\.1:\d+$", printed, re.MULTILINE)) == 3
    settings = tool("getControllerConfig", "-a", appliance.controller)
    assert re.search(r"^enableElectUncleanMaster\s+=\s+false$", settings, re.MULTILINE)
    changed = tool("updateControllerConfig", "-a", appliance.controller, "-k", "notifyBrokerRoleChanged", "-v", "true")
    assert "update controller config success" in changed


def test_cleaning_what_controllers_know_of_a_broker(appliance: Appliance, tool: Tool) -> None:
    words = ("-a", appliance.controller, "-bn", GROUP, "-c", CLUSTER, "-b")
    assert f"clear broker {GROUP} metadata from controller success!" in tool("cleanBrokerMetadata", *words, "7")
    group = appliance.cluster.wait_in_sync(3)
    alive = tool.refused("cleanBrokerMetadata", *words, str(group["masterBrokerId"]))
    assert "CODE: 2009 " in alive
    assert len(appliance.cluster.wait_in_sync(3)["replicas"]) == 3


def test_replication_status(appliance: Appliance, tool: Tool) -> None:
    printed = tool("haStatus", "-b", appliance.master)
    assert f"#MasterAddr\t{appliance.master}" in printed
    assert "#InSyncSlaveNum\t2" in printed
    assert [line[4] for line in (each.split() for each in printed.splitlines()) if len(line) == 6][-2:] == ["OK", "OK"]
    assert tool("haStatus", "-c", CLUSTER).count("#MasterAddr") == 1
    replica = next(each for each in appliance.cluster.broker_addresses if each != appliance.master)
    followed = tool("haStatus", "-b", replica)
    assert re.search(r"^#MasterAddr\t127\.0\.0\.1:\d+$", followed, re.MULTILINE)
    assert int(re.findall(r"^#CommitLogMaxOffset\t(\d+)$", followed, re.MULTILINE)[0]) > 0


def test_elect_master(appliance: Appliance, tool: Tool) -> None:
    cluster = appliance.cluster
    group = cluster.wait_in_sync(3)
    successor = next(each for each in group["syncStateSet"] if each != group["masterBrokerId"])
    words = ("-a", appliance.controller, "-bn", GROUP, "-c", CLUSTER, "-b", str(successor))
    printed = tool("electMaster", *words)
    [address] = [each["address"] for each in group["replicas"] if each["brokerId"] == successor]
    assert f"#BrokerMasterAddr\t{address}" in printed
    assert f"#MasterEpoch\t{group['masterEpoch'] + 1}" in printed
    eventually("the new master is routed", lambda: f'0:"{address}"' in tool("topicRoute", "-t", GROUP))
    cluster.wait_in_sync(3)
    appliance.topic("afterwards")
    appliance.send("afterwards", "to the new master")


# ---- what is not there


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("getColdDataFlowCtrInfo",), 2003),
        (("updateColdDataFlowCtrGroupConfig", "-g", "g", "-v", "1"), 2001),
        (("removeColdDataFlowCtrGroupConfig", "-g", "g"), 2002),
        (("setCommitLogReadAheadMode", "-m", "0"), 2004),
        (("addBroker", "-c", "here"), 902),
    ],
)
def test_requests_that_are_not_supported_say_so_at_once(
    appliance: Appliance, tool: Tool, words: tuple[str, ...], code: int
) -> None:
    words = tuple(appliance.master if word == "here" else word for word in words)
    printed = tool.refused(*words, "-b", appliance.master)
    assert f"CODE: 3  DESC:  request type {code} not supported" in printed


def test_rocksdb_is_not_supported(tool: Tool) -> None:
    assert "request type 354 not supported" in tool.refused("checkRocksdbCqWriteProgress", "-c", CLUSTER, "-cf", "0")


def test_an_unknown_command(tool: Tool) -> None:
    assert "The sub command nosuch not exist." in tool("nosuch")


@pytest.mark.parametrize("listener", ["controllers", "brokers"])
@pytest.mark.parametrize("code", [13, 218, 999, 513, 902, 200056, 987654])
def test_unknown_requests_are_answered_by_every_listener(appliance: Appliance, listener: str, code: int) -> None:
    cluster = appliance.cluster
    addresses = cluster.controller_addresses if listener == "controllers" else cluster.broker_addresses
    for address in addresses:
        answer = ask(address, code, topic="t")
        assert answer.code == codes.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == f" request type {code} not supported"
