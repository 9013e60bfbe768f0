"""The name server's requests over the wire, as brokers, clients and tools of the original send them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.transport.client import connect
from remoting.transport.connection import RemotingConnection
from tests.unit.controllerd.single import Single, single


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Single]:
    async with single(tmp_path / "n0") as running:
        yield running


def topic(perm: int = 6, **more: Any) -> dict[str, Any]:
    return {"readQueueNums": 8, "writeQueueNums": 8, "perm": perm, **more}


async def register(
    one: Single, connection: RemotingConnection | None = None, *, topics: dict[str, Any] | None = None, **fields: object
) -> tuple[int, dict[str, str], dict[str, Any]]:
    """Register a broker; without a connection over the client's own."""
    header = {
        "clusterName": "c",
        "brokerName": "broker-a",
        "brokerAddr": "127.0.0.1:10911",
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": 0,
        **fields,
    }
    table = {"T": topic(), "U": topic(topicSysFlag=1)} if topics is None else topics
    version = {"counter": 1, "stateVersion": 1, "timestamp": 7}
    body = orjson.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version}})
    via = connection or await one.client.connection(one.address)
    answer = await via.call(codes.REGISTER_BROKER, {key: str(value) for key, value in header.items()}, body, 3000)
    return answer.code, answer.ext, orjson.loads(answer.body or b"{}")


async def route(one: Single, name: str = "T", **ext: object) -> dict[str, Any]:
    answer = await one.ask(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": name, **ext})
    assert answer.code == codes.SUCCESS, answer.remark
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


async def test_a_replica_learns_where_its_master_is(one: Single) -> None:
    assert (await register(one))[1] == {}
    code, ext, _ = await register(
        one, brokerId=2, brokerAddr="127.0.0.1:10921", haServerAddr="127.0.0.1:10922", topics={}
    )
    assert code == codes.SUCCESS
    assert ext == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}
    answer = await one.ask(codes.GET_BROKER_MEMBER_GROUP, {"clusterName": "?", "brokerName": "broker-a"})
    members = orjson.loads(answer.body)["brokerMemberGroup"]
    assert members == {
        "brokerAddrs": {"0": "127.0.0.1:10911", "2": "127.0.0.1:10921"},
        "brokerName": "broker-a",
        "cluster": "c",
    }
    answer = await one.ask(
        codes.UNREGISTER_BROKER, {"brokerName": "broker-a", "brokerAddr": "127.0.0.1:10921", "brokerId": 2}
    )
    assert answer.code == codes.SUCCESS
    assert list((await route(one))["brokerDatas"][0]["brokerAddrs"]) == ["0"]


async def test_a_broker_leaves_the_routes_with_its_connection(one: Single) -> None:
    connection = await connect(one.address)
    await register(one, connection)
    await route(one)
    connection.abort()
    while (await one.ask(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code != codes.TOPIC_NOT_EXIST:
        pass


async def test_ordered_topics_reach_brokers_and_clients(one: Single) -> None:
    assert (await register(one))[2] == {"table": {}}
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert (await one.ask(codes.PUT_KV_CONFIG, put)).code == codes.SUCCESS
    assert (await register(one))[2] == {"table": {"T": "broker-a:4"}}
    assert (await route(one))["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in await route(one, "U")
    await one.ask(codes.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=false")
    assert (await register(one))[2] == {}
    assert "orderTopicConf" not in await route(one)


async def test_zones_are_asked_for_by_the_client(one: Single) -> None:
    await register(one, __ZONE_NAME="east", __ZONE_MODE="true")
    assert (await route(one, __ZONE_MODE="true", __ZONE_NAME="west"))["brokerDatas"] == []
    assert len((await route(one, __ZONE_MODE="true", __ZONE_NAME="east"))["brokerDatas"]) == 1
    assert len((await route(one, __ZONE_MODE="false", __ZONE_NAME="west"))["brokerDatas"]) == 1
    assert len((await route(one, __ZONE_MODE="true"))["brokerDatas"]) == 1


async def test_a_group_hears_of_its_smallest_id(one: Single) -> None:
    async with one.broker() as told:
        first = await connect(one.address)
        await register(one, first, brokerId=1, enableActingMaster="true")
        await register(one, brokerId=2, brokerAddr=told.address, enableActingMaster="true")
        first.abort()
        push = await told.next()
        assert push.code == codes.NOTIFY_MIN_BROKER_ID_CHANGE
        assert push.is_oneway
        assert push.ext == {
            "minBrokerId": "2",
            "brokerName": "broker-a",
            "minBrokerAddr": told.address,
            "offlineBrokerAddr": "127.0.0.1:10911",
        }
        await register(one, brokerId=1, enableActingMaster="true")
        push = await told.next()
        assert (push.ext["minBrokerId"], push.ext["haBrokerAddr"]) == ("1", "127.0.0.1:10912")
        await one.ask(codes.UPDATE_NAMESRV_CONFIG, body=b"notifyMinBrokerIdChanged=false")
        third = await connect(one.address)
        await register(one, third, brokerId=0, brokerAddr="127.0.0.1:10931", enableActingMaster="true")
        await one.ask(codes.UPDATE_NAMESRV_CONFIG, body=b"notifyMinBrokerIdChanged=true")
        third.abort()
        assert (await told.next()).ext["offlineBrokerAddr"] == "127.0.0.1:10931", "of its coming nobody was told"


async def test_topics_by_hand(one: Single) -> None:
    await register(one)
    body = {"queueDatas": [{"brokerName": "broker-a", **topic()}]}
    assert (await one.ask(codes.REGISTER_TOPIC_IN_NAMESRV, {"topic": "V"}, body)).code == codes.SUCCESS
    assert (await route(one, "V"))["queueDatas"][0]["readQueueNums"] == 8
    assert (await one.ask(codes.DELETE_TOPIC_IN_NAMESRV, {"topic": "V", "clusterName": "other"})).code == codes.SUCCESS
    await route(one, "V")
    assert (await one.ask(codes.DELETE_TOPIC_IN_NAMESRV, {"topic": "V"})).code == codes.SUCCESS
    assert (await one.ask(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "V"})).code == codes.TOPIC_NOT_EXIST
    assert (await one.ask(codes.DELETE_TOPIC_IN_NAMESRV)).code == codes.INVALID_PARAMETER


@pytest.mark.parametrize(
    ("code", "ext", "expected"),
    [
        (codes.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, ["T", "U"]),
        (codes.GET_TOPICS_BY_CLUSTER, {"cluster": "c"}, ["T", "U"]),
        (codes.GET_TOPICS_BY_CLUSTER, {"cluster": "x"}, []),
        (codes.GET_SYSTEM_TOPIC_LIST_FROM_NS, {}, ["broker-a", "c"]),
        (codes.GET_UNIT_TOPIC_LIST, {}, ["U"]),
        (codes.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, []),
        (codes.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, []),
    ],
)
async def test_lists(one: Single, code: int, ext: dict[str, str], expected: list[str]) -> None:
    await register(one)
    assert orjson.loads((await one.ask(code, ext)).body)["topicList"] == expected


async def test_the_question_whether_a_registration_is_needed_is_a_sign_of_life(one: Single) -> None:
    asked = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:10911", "brokerId": 0}
    version = {"counter": 1, "stateVersion": 1, "timestamp": 7}
    answer = await one.ask(codes.QUERY_DATA_VERSION, asked, version)
    assert (answer.ext["changed"], bytes(answer.body)) == ("true", b"")
    await register(one, heartbeatTimeoutMillis=1000)
    for _ in range(3):
        answer = await one.ask(codes.QUERY_DATA_VERSION, asked, version)
        assert (answer.ext["changed"], orjson.loads(answer.body)) == ("false", version)
    assert (await one.ask(codes.QUERY_DATA_VERSION, asked, {**version, "counter": 2})).ext["changed"] == "true"


async def test_permissions_survive_a_registration_that_changes_nothing(one: Single) -> None:
    await register(one)
    assert (await one.ask(codes.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})).ext == {"wipeTopicCount": "2"}
    await register(one)
    assert (await route(one))["queueDatas"][0]["perm"] == 4
    assert (await one.ask(codes.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})).ext == {"addTopicCount": "2"}
    assert (await route(one))["queueDatas"][0]["perm"] == 6


async def test_a_fresh_name_server_may_wait_before_it_says_that_there_is_nothing(tmp_path: Path) -> None:
    async with single(tmp_path / "n0", "nameserver.wait_s=600") as one:
        answer = await one.ask(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert answer.code == codes.SYSTEM_ERROR
        assert "waits for brokers" in (answer.remark or "")


async def test_the_name_server_holds_to_what_the_controllers_decided(one: Single) -> None:
    await one.register(1)
    await one.live(1, epoch=5)
    assert (await one.elect(1)).ext["masterEpoch"] == "6"
    code, _, _ = await register(one)
    assert code == codes.NO_PERMISSION, "a master of epoch 1 is none any more"
