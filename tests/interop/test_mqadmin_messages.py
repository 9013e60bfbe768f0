"""The original's administration tool on an appliance of ours: messages, one by one and many."""

from __future__ import annotations

import re

import pytest

from tests.interop.appliance import CLUSTER, GROUP, Appliance, rows
from tests.interop.mqadmin import Tool

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
