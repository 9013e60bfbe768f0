"""The original's tool and client on a group of ours with fixed roles, also while its replica stands in for the master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.apache import Apache, CommandFailed, Session
from tests.support.cluster import eventually
from tests.support.fixed_group import TOPIC, FixedGroup


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory, apache: Apache) -> Iterator[FixedGroup]:
    with FixedGroup(tmp_path_factory.mktemp("fixed")) as group:
        group.start()
        yield group


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory, apache: Apache) -> Iterator[Session]:
    with apache.session(tmp_path_factory.mktemp("apache")) as running:
        yield running


def test_the_tool_prints_how_replication_stands(group: FixedGroup, tool: Session) -> None:
    sent = tool.mqadmin("sendMessage", "-n", group.name_server, "-t", TOPIC, "-p", "hello")
    assert "SEND_OK" in sent
    master = tool.mqadmin("haStatus", "-b", group.listen[0], "-n", group.name_server)
    assert "#InSyncSlaveNum\t1" in master
    [line] = [line.split() for line in master.splitlines() if line.startswith("127.0.0.1:")]
    end = str(group.state(0)["endOffset"])
    assert (line[1], line[2], line[4], line[5]) == (end, "0", "OK", end)
    replica = tool.mqadmin("haStatus", "-b", group.listen[1], "-n", group.name_server)
    assert f"#CommitLogMaxOffset\t{end}" in replica
    epochs = tool.mqadmin("getBrokerEpoch", "-b", "broker-a", "-n", group.name_server)
    assert "EpochEntry{epoch=1, startOffset=0" in epochs
    figures = tool.mqadmin("brokerStatus", "-b", group.listen[0], "-n", group.name_server)
    assert "brokerVersionDesc" in figures


def test_the_tool_shows_and_changes_settings(group: FixedGroup, tool: Session) -> None:
    shown = tool.mqadmin("getBrokerConfig", "-b", group.listen[0], "-n", group.name_server)
    assert "minInSyncReplicas" in shown
    changed = tool.mqadmin(
        "updateBrokerConfig", "-b", group.listen[0], "-k", "slaveTimeout", "-v", "2500", "-n", group.name_server
    )
    assert "update broker config success" in changed
    again = tool.mqadmin("getBrokerConfig", "-b", group.listen[0], "-n", group.name_server)
    [line] = [line for line in again.splitlines() if line.strip().startswith("slaveTimeout")]
    assert line.partition("=")[2].strip() == "2500"
    with pytest.raises(CommandFailed, match="cannot be changed"):
        tool.mqadmin(
            "updateBrokerConfig", "-b", group.listen[0], "-k", "storePathRootDir", "-v", "/etc", "-n", group.name_server
        )
    with pytest.raises(CommandFailed, match="by their epochs"):
        tool.mqadmin("resetMasterFlushOffset", "-b", group.listen[1], "-o", "0", "-n", group.name_server)


def test_the_client_reads_where_the_replica_stands_in(group: FixedGroup, tool: Session) -> None:
    eventually("the replica has all", lambda: group.state(1)["confirmOffset"] == group.state(0)["endOffset"])
    group.master.kill()
    eventually("the replica in the master's place", lambda: group.route()[0].get("0") == group.listen[1])
    assert "BODY: hello" in tool.mqadmin("printMsg", "-t", TOPIC, "-n", group.name_server)
    with pytest.raises(CommandFailed):
        tool.mqadmin("sendMessage", "-n", group.name_server, "-t", TOPIC, "-p", "nobody takes it")
    group.master.start()
    eventually("both brokers in the set again", group.in_sync)
    eventually("the master's route", lambda: group.route()[1] == 6)
    assert "SEND_OK" in tool.mqadmin("sendMessage", "-n", group.name_server, "-t", TOPIC, "-p", "taken again")
