"""The original's administration tool on an appliance of ours: brokers, replication, controllers, and what is not there."""

from __future__ import annotations

import re

import orjson
import pytest

from remoting import codes
from tests.interop.appliance import CLUSTER, GROUP, Appliance, ask, rows
from tests.interop.mqadmin import Tool
from tests.support.cluster import eventually

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
    appliance.filled("figures", "figuring")
    [line] = rows(tool("statsAll", "-t", "figures"), "figures")
    assert line[1:3] == ["figuring", "0"]
    assert line[-2:] == ["4", "4"]
    assert float(line[3]) > 0, "messages per second in"
    assert rows(tool("statsAll", "-a"), "figures")


def test_broker_consume_statistics(appliance: Appliance, tool: Tool) -> None:
    appliance.filled("measured", "measurer")
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
