"""A group with fixed roles as real processes: the master dies and its replica serves reads in its place until it is back."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from remoting import codes, properties_text
from remoting.errors import LogboomError, RequestError
from remoting.record.codec import decode_records
from tests.support.cluster import eventually
from tests.support.fixed_group import TOPIC, FixedGroup
from tests.support.pulling import pull_fields

pytestmark = pytest.mark.slow


@pytest.fixture
def group(tmp_path: Path) -> Iterator[FixedGroup]:
    with FixedGroup(tmp_path) as group:
        group.start()
        yield group


def test_reads_go_on_at_the_replica_and_writes_when_the_master_is_back(group: FixedGroup) -> None:
    for number in range(20):
        group.admin.send(TOPIC, b"message %d" % number, group="broker-a")
    offset = {"consumerGroup": "TOOLS_CONSUMER", "topic": TOPIC, "queueId": "0"}
    group.call(0, codes.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "7"})
    eventually("the replica has all", lambda: group.state(1)["confirmOffset"] == group.state(0)["endOffset"])
    with pytest.raises(RequestError, match="slave_read"):
        group.call(1, codes.PULL_MESSAGE, pull_fields(TOPIC, 0, 0))
    # who reads in bulk is served where the replica is in the set: it asks its master for the set now and then
    eventually("a bulk read at the replica", lambda: group.call(1, codes.BULK_READ, pull_fields(TOPIC, 0, 0)).body)

    group.master.kill()
    _, perm = eventually(
        "a route with the replica in the master's place",
        lambda: found if (found := group.route())[0].get("0") == group.listen[1] else None,
    )
    assert perm & 2 == 0, "nobody can write there"
    for code in (codes.PULL_MESSAGE, codes.BULK_READ):
        # the name servers know it a moment before the replica hears that it stands in
        answer = eventually(
            f"request {code} is served", lambda code=code: group.call(1, code, pull_fields(TOPIC, 0, 0))
        )
        found = [record.body for record in decode_records(answer.body)]
        assert found == [b"message %d" % number for number in range(20)]
    assert group.call(1, codes.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "7"
    assert group.call(1, codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}).ext["offset"] == "20"
    queue = {"topic": TOPIC, "brokerName": "broker-a", "queueId": 0}
    wanted = orjson.dumps({"consumerGroup": "g", "clientId": "c", "mqSet": [queue]})
    assert orjson.loads(group.call(1, codes.LOCK_BATCH_MQ, body=wanted).body)["lockOKMQSet"] == [queue]
    with pytest.raises(RequestError, match="not the master"):
        group.call(1, codes.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": "9"})

    group.master.start()
    eventually("both brokers in the set again", group.in_sync)
    assert group.state(0)["masterEpoch"] == 2
    eventually("the master's route", lambda: group.route() == ({"0": group.listen[0], "1": group.listen[1]}, 6))
    eventually("a send", lambda: int(group.admin.send(TOPIC, b"later", group="broker-a")["queueOffset"]) == 20)
    assert group.call(0, codes.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == "7"


def test_metrics_and_settings_of_a_running_broker(group: FixedGroup) -> None:
    port = int(group.listen[0].rpartition(":")[2])
    metrics_port = port + 10_000 if port + 10_000 <= 65_535 else port - 10_000

    def scrape() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    assert 'logboom_replication_copies{cluster="DefaultCluster",broker="broker-a",broker_id="0"} 2' in scrape()
    shown = properties_text.decode(group.call(0, codes.GET_BROKER_CONFIG).body)
    assert (shown["minInSyncReplicas"], shown["totalReplicas"]) == ("1", "2")
    group.call(0, codes.UPDATE_BROKER_CONFIG, body=b"minInSyncReplicas=2")
    group.processes[2].kill()
    eventually("the refusal", lambda: group.state(0)["quorum"]["refused"])
    with pytest.raises(LogboomError, match="in-sync replicas not enough"):
        group.admin.send(TOPIC, b"refused", group="broker-a")
    assert [each["brokerId"] for each in group.state(0)["quorum"]["missing"]] == [1]
    text = scrape()
    assert 'reason="too_few_replicas"} 1' in text
    assert (
        'logboom_replication_missing_seconds{cluster="DefaultCluster",broker="broker-a",broker_id="0",member="1"'
        in text
    )
    group.processes[2].start()
    eventually("a send", lambda: bool(group.admin.send(TOPIC, b"taken", group="broker-a")))
    group.master.terminate()
    group.master.start()
    shown = eventually(
        "the settings again", lambda: properties_text.decode(group.call(0, codes.GET_BROKER_CONFIG).body)
    )
    assert shown["minInSyncReplicas"] == "1", "the command line wins at a start"
