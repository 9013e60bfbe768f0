"""Every request of the controller protocol over the wire, with every refusal, in the order in which the protocol checks them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from controllerd.replicas import heartbeat
from controllerd.replicas.heartbeat import Heartbeat
from remoting import codes
from remoting.facts.cluster_view import KNOWN_VIEW, SAME_VIEW, TOLD_VIEW
from remoting.frame import Command
from remoting.transport.client import connect
from tests.unit.controllerd.raft.test_driver import until
from tests.unit.controllerd.single import Single, single

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Single]:
    async with single(tmp_path / "n0") as running:
        yield running


async def group_of_two(one: Single) -> None:
    """Brokers 1 and 2 alive, 1 master of epoch 1, both in the set of epoch 2."""
    for broker_id in (1, 2):
        await one.register(broker_id)
        await one.live(broker_id)
    assert (await one.elect(1)).code == codes.SUCCESS
    assert (await one.alter([1, 2])).code == codes.SUCCESS


async def lose_both(one: Single) -> None:
    """First the replica, then the master."""
    one.brokers[1].abort()
    await one.until(lambda group: not group["replicas"][1]["alive"])
    one.brokers[0].abort()
    await one.until(lambda group: group["masterBrokerId"] is None)


def said(answer: Command) -> tuple[int, str]:
    return answer.code, answer.remark or ""


# 1012, 1013, 1003: ids and registration


async def test_ids_are_told_taken_and_repeated(one: Single) -> None:
    names = {"clusterName": "c", "brokerName": "broker-a"}
    answer = await one.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, names)
    assert answer.ext == {**names, "nextBrokerId": "1"}
    claim = {**names, "appliedBrokerId": 1, "registerCheckCode": "127.0.0.1:1001;7"}
    for _ in range(2):
        answer = await one.ask(codes.CONTROLLER_APPLY_BROKER_ID, claim)
        assert (answer.code, answer.ext) == (codes.SUCCESS, names)
    other = {**claim, "registerCheckCode": "127.0.0.1:1002;8"}
    code, remark = said(await one.ask(codes.CONTROLLER_APPLY_BROKER_ID, other))
    assert code == codes.CONTROLLER_BROKER_ID_INVALID
    assert "the next id, which is 2" in remark
    assert (await one.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, names)).ext["nextBrokerId"] == "2"


@pytest.mark.parametrize("applied", [2, 0, -1])
async def test_the_first_id_of_an_unknown_group_is_one(one: Single, applied: int) -> None:
    claim = {"clusterName": "c", "brokerName": "n", "appliedBrokerId": applied, "registerCheckCode": "127.0.0.1:1;7"}
    assert (await one.ask(codes.CONTROLLER_APPLY_BROKER_ID, claim)).code == codes.CONTROLLER_BROKER_ID_INVALID


async def test_registration_names_the_master_only_while_it_lives(one: Single) -> None:
    answer = await one.register(1)
    assert answer.ext == {"clusterName": "c", "brokerName": "broker-a"}
    assert orjson.loads(answer.body) == {"syncStateSet": [], "syncStateSetEpoch": 0}
    connection = await one.live(1)
    await one.elect(1)
    answer = await one.register(2)
    assert answer.ext["masterBrokerId"] == "1"
    assert answer.ext["masterAddress"] == "127.0.0.1:1001"
    assert (answer.ext["masterEpoch"], answer.ext["syncStateSetEpoch"]) == ("1", "1")
    assert orjson.loads(answer.body)["syncStateSet"] == [1]
    await one.live(2)
    connection.abort()
    await one.until(lambda group: not group["replicas"][0]["alive"])
    answer = await one.register(2)
    assert "masterBrokerId" not in answer.ext
    assert orjson.loads(answer.body)["syncStateSet"] == [1], "recorded, though not alive"


async def test_who_has_no_id_cannot_register(one: Single) -> None:
    fields = {"clusterName": "c", "brokerName": "broker-a", "brokerId": 1, "brokerAddress": "127.0.0.1:1001"}
    assert (
        await one.ask(codes.CONTROLLER_REGISTER_BROKER, fields)
    ).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    await one.register(1)
    answer = await one.ask(codes.CONTROLLER_REGISTER_BROKER, {**fields, "brokerId": 2})
    assert answer.code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    answer = await one.ask(codes.CONTROLLER_REGISTER_BROKER, {**fields, "clusterName": "other"})
    assert answer.code == codes.CONTROLLER_INVALID_REQUEST


@pytest.mark.parametrize("alone_ms", [-1, 60_000])
async def test_who_is_refused_is_told_whether_the_other_process_has_the_id_or_claims_it_too(
    one: Single, monkeypatch: pytest.MonkeyPatch, alone_ms: int
) -> None:
    """`alone_ms`: the second process comes so late that the first one was there alone, or at about the same time."""
    monkeypatch.setattr(heartbeat, "_ALONE_MS", alone_ms)
    await one.register(1)
    fields = {"clusterName": "c", "brokerName": "broker-a", "brokerId": 1}
    first, second = "127.0.0.1:1001", "127.0.0.1:2001"
    for address, incarnation in ((first, 7), (second, 8)):
        await one.live(1, brokerAddr=address, incarnation=incarnation)

    async def register(address: str, incarnation: int) -> Command:
        own = {"brokerAddress": address, "incarnation": incarnation}
        return await one.ask(codes.CONTROLLER_REGISTER_BROKER, fields | own)

    refused = await register(second, 8)
    assert refused.code == codes.CONTROLLER_INVALID_REQUEST
    assert refused.ext["twinAddress"] == first
    answer = await register(first, 7)
    if alone_ms < 0:
        assert "127.0.0.1:1001 has it and is alive, the one at 127.0.0.1:2001 is refused" in (refused.remark or "")
        assert ("twinClaims" in refused.ext, answer.code) == (False, codes.SUCCESS)
        return
    claims = "claims it, too, and nobody can tell which was there first"
    for said_to, at, by in ((refused, first, second), (answer, second, first)):
        assert said_to.ext == {"twinAddress": at, "twinClaims": "true"}
        assert f"the one at {at} {claims}, the one at {by} is refused" in (said_to.remark or "")


async def test_a_lost_tail_costs_the_membership(one: Single) -> None:
    await group_of_two(one)
    answer = await one.register(2, tailKept="false", maxOffset=40)
    assert answer.remark == "broker 2 lost the end of its log, which ends at 40 now; it left the sync-state set"
    assert orjson.loads(answer.body) == {"syncStateSet": [1], "syncStateSetEpoch": 3}
    answer = await one.register(1, tailKept="false", maxOffset=40)
    assert "as its last member" in (answer.remark or "")


async def test_a_process_on_another_directory_costs_the_membership(one: Single) -> None:
    await group_of_two(one)
    await until("lives are counted", lambda: one.controller._table.counts_lives)
    assert "runsElsewhere" not in (await one.register(2, incarnation=21, lives="20 21")).ext, (
        "of the others it knows none"
    )
    answer = await one.register(2, incarnation=29, lives="20 29")
    assert answer.ext.get("runsElsewhere") is None
    assert orjson.loads(answer.body) == {"syncStateSet": [1], "syncStateSetEpoch": 3}
    assert "runs on another directory" in (answer.remark or "")
    assert "runsElsewhere" not in (await one.register(1, incarnation=11, lives="11")).ext
    answer = await one.register(1, incarnation=19, lives="10 19")
    assert answer.ext["runsElsewhere"] == "true"
    assert "as its last member" in (answer.remark or "")
    assert "runsElsewhere" not in (await one.register(1, incarnation=12, lives="11 12")).ext


@pytest.mark.parametrize("lives", ["x", "1 2 x", " ".join("7" * 65), str(2**63)])
async def test_lives_are_so_many_numbers(one: Single, lives: str) -> None:
    await one.register(1)
    fields = {
        "clusterName": "c",
        "brokerName": "broker-a",
        "brokerId": 1,
        "brokerAddress": "127.0.0.1:1",
        "lives": lives,
    }
    code, remark = said(await one.ask(codes.CONTROLLER_REGISTER_BROKER, fields))
    assert "lives m" in remark, code


# 1001: the sync-state set


async def test_changes_of_the_set_are_refused_in_the_order_of_the_protocol(one: Single) -> None:
    unknown = {"syncStateSet": [1], "syncStateSetEpoch": 0}
    fields = {"brokerName": "nobody", "masterBrokerId": 1, "masterEpoch": 1}
    answer = await one.ask(codes.CONTROLLER_ALTER_SYNC_STATE_SET, fields, unknown)
    assert answer.code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    await group_of_two(one)
    await one.register(3)
    everything_wrong = {"masterBrokerId": 2, "masterEpoch": 9, "syncStateSetEpoch": 9}
    assert (await one.alter([2, 1], **everything_wrong)).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    proposal = [2, 3, 7]
    assert (await one.alter(proposal, **everything_wrong)).code == codes.CONTROLLER_INVALID_MASTER
    for epoch in (0, 9):
        answer = await one.alter(proposal, masterEpoch=epoch, syncStateSetEpoch=9)
        assert answer.code == codes.CONTROLLER_FENCED_MASTER_EPOCH
    assert (await one.alter(proposal, syncStateSetEpoch=9)).code == codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH
    assert (await one.alter(proposal)).code == codes.CONTROLLER_INVALID_REPLICAS
    assert await one.never_heard_counts(3)
    assert (await one.alter([2, 3])).code == codes.CONTROLLER_BROKER_NOT_ALIVE
    assert (await one.alter([2])).code == codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED
    assert (await one.info())["syncStateSetEpoch"] == 2, "nothing changed"
    await one.live(3)
    answer = await one.alter([1, 2, 3])
    assert (answer.code, answer.ext["newSyncStateSetEpoch"]) == (codes.SUCCESS, "3")
    assert orjson.loads(answer.body) == {"syncStateSet": [1, 2, 3], "syncStateSetEpoch": 3}


async def test_a_group_without_a_master_changes_no_set(one: Single) -> None:
    await one.register(1)
    assert (await one.alter([1], masterBrokerId=1)).code == codes.CONTROLLER_INVALID_MASTER


@pytest.mark.parametrize("body", [b"", b"[]", b'{"syncStateSet":1,"syncStateSetEpoch":1}', b'{"syncStateSet":["1"]}'])
async def test_a_body_that_is_no_set_is_said_so(one: Single, body: bytes) -> None:
    fields = {"brokerName": "broker-a", "masterBrokerId": 1, "masterEpoch": 1}
    answer = await one.ask(codes.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)
    assert answer.code == codes.INVALID_PARAMETER
    assert "syncStateSet" in (answer.remark or "")


# 1002: elections


async def test_the_first_master_is_registered_alive_and_the_freshest(one: Single) -> None:
    assert (await one.elect(1)).code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
    await one.register(1)
    assert (await one.elect(1)).code == codes.CONTROLLER_ELECT_MASTER_FAILED, "not alive"
    assert (await one.info())["masterEpoch"] == 0, "and nothing is written"
    await one.live(1, epoch=-1, maxOffset=0)
    await one.register(2)
    await one.live(2, epoch=3, maxOffset=50)
    answer = await one.elect(1)
    assert answer.ext["masterBrokerId"] == "2", "its log is longer"
    assert answer.ext["masterEpoch"] == "4", "above what the replicas remember"
    body = orjson.loads(answer.body)
    members = {"1": "127.0.0.1:1001", "2": "127.0.0.1:1002"}
    assert body["brokerMemberGroup"] == {"brokerAddrs": members, "brokerName": "broker-a", "cluster": "c"}
    assert body["brokerAddrs"] == members, "where the original's tool looks"
    assert body["syncStateSet"] == [2]
    answer = await one.elect(1)
    assert (answer.code, answer.ext["masterBrokerId"]) == (codes.CONTROLLER_MASTER_STILL_EXIST, "2")
    assert orjson.loads(answer.body)["syncStateSet"] == [2]


async def test_election_priority_decides_between_equals(one: Single) -> None:
    for broker_id, priority in ((1, 7), (2, 3), (3, 3)):
        await one.register(broker_id)
        await one.live(broker_id, electionPriority=priority)
    assert (await one.elect(1)).ext["masterBrokerId"] == "2"


async def test_designation_goes_to_live_members_only(one: Single) -> None:
    await group_of_two(one)
    await one.register(3)
    await one.live(3)
    code, remark = said(await one.elect(3, designateElect="true"))
    assert code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert "not in the sync-state set" in remark
    assert said(await one.elect(9, designateElect="true"))[0] == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert (await one.elect(designateElect="true")).code == codes.INVALID_PARAMETER
    assert (await one.elect(1, designateElect="true")).code == codes.CONTROLLER_MASTER_STILL_EXIST
    answer = await one.elect(2, designateElect="true")
    assert (answer.code, answer.ext["masterBrokerId"], answer.ext["masterEpoch"]) == (codes.SUCCESS, "2", "2")
    assert "the master did not answer" in (answer.remark or ""), "broker 1 is no broker here"


async def test_a_closed_connection_and_a_silent_master_are_replaced_without_anybody_asking(one: Single) -> None:
    await group_of_two(one)
    one.brokers[0].abort()
    await one.until(lambda group: group["masterBrokerId"] == 2, beating=(one.brokers[1], 2, {}))
    assert (await one.view())["metrics"]["masters_elected"] == 2
    await one.beat(one.brokers[1], 2, heartbeatTimeoutMills=300, heartbeatIntervalMills=50, incarnation=1)
    back = await one.live(1, incarnation=2)
    assert (await one.alter([1, 2])).code == codes.SUCCESS
    await one.until(lambda group: group["masterBrokerId"] == 1, beating=(back, 1, {"incarnation": 2}))
    assert (await one.info())["masterEpoch"] == 3


async def test_nobody_left_is_recorded_once_and_a_member_that_returns_is_elected(one: Single) -> None:
    await group_of_two(one)
    await lose_both(one)
    info = await one.info()
    assert info["masterEpoch"] == 2
    assert "masterBrokerId" not in info
    assert [each["brokerId"] for each in info["inSyncReplicas"]] == [1, 2], "the set is kept"
    answer = await one.ask(codes.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "broker-a"})
    assert answer.ext == {"masterEpoch": "2", "syncStateSetEpoch": "2"}
    for _ in range(3):
        assert (await one.elect(1)).code == codes.CONTROLLER_ELECT_MASTER_FAILED
    assert (await one.info())["masterEpoch"] == 2
    await one.live(2)
    await one.until(lambda group: group["masterBrokerId"] == 2)
    assert (await one.info())["masterEpoch"] == 3


async def test_unclean_election_is_off_and_when_on_it_leaves_a_record(tmp_path: Path) -> None:
    async with single(tmp_path / "n0") as one:
        await group_of_two(one)
        await one.register(3)
        await lose_both(one)
        await one.live(3, maxOffset=70)
        code, remark = said(await one.elect(3))
        assert code == codes.CONTROLLER_ELECT_MASTER_FAILED
        assert "broker 3: not in the sync-state set: it may lack acknowledged messages" in remark
        assert (
            await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=b"enableElectUncleanMaster=true\n")
        ).code == codes.SUCCESS
        await one.until(lambda group: group["masterBrokerId"] == 3)
        [election] = (await one.group())["uncleanElections"]
        assert election["lostBytes"] == 30
        assert election["syncStateSet"] == [1, 2]
        assert (await one.view())["metrics"]["unclean_elections"] == 1
    async with single(tmp_path / "n0") as one:
        assert (await one.view())["uncleanElection"] is True, "kept over a restart"
        assert len((await one.group())["uncleanElections"]) == 1


async def test_elections_are_told_with_their_cause(one: Single) -> None:
    await group_of_two(one)
    assert (await one.register(2, haAddress="127.0.0.1:1")).code == codes.SUCCESS
    assert (await one.elect(2, designateElect="true")).code == codes.SUCCESS
    assert set((await one.group())["syncStateSet"]) == {1, 2}, "who lives stays in the set"
    one.brokers[1].abort()
    await one.until(lambda group: group["masterBrokerId"] == 1, beating=(one.brokers[0], 1, {}))
    found = await one.group()
    assert [(each["brokerId"], each.get("previousId"), each["cause"]) for each in found["elections"]] == [
        (1, None, "first-master"),
        (2, 1, "asked"),
        (1, 2, "connection-closed"),
    ]
    assert [each["masterEpoch"] for each in found["elections"]] == [1, 2, 3]
    assert all(each["atMs"] > 0 for each in found["elections"])
    assert [each.get("absence") for each in found["replicas"]] == [None, "connection-closed"]


# 1004, 1005, 1006: reading


async def test_reading(one: Single) -> None:
    answer = await one.ask(codes.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "broker-a"})
    assert answer.code == codes.CONTROLLER_BROKER_METADATA_NOT_EXIST
    for body in (b"", b"{", b"{}", b"[1]"):
        assert (await one.ask(codes.CONTROLLER_GET_SYNC_STATE_DATA, body=body)).code == codes.SYSTEM_ERROR
    answer = await one.ask(codes.CONTROLLER_GET_SYNC_STATE_DATA, body=["nobody"])
    assert (answer.code, orjson.loads(answer.body)) == (codes.SUCCESS, {"replicasInfoTable": {}})
    await group_of_two(one)
    answer = await one.ask(codes.CONTROLLER_GET_REPLICA_INFO, {"brokerName": "broker-a"})
    assert answer.ext["masterBrokerId"] == "1"
    assert orjson.loads(answer.body) == {"syncStateSet": [1, 2], "syncStateSetEpoch": 2}
    info = await one.info()
    assert info["masterAddress"] == "127.0.0.1:1001"
    assert [each["alive"] for each in info["inSyncReplicas"]] == [True, True]
    metadata = (await one.ask(codes.CONTROLLER_GET_METADATA_INFO)).ext
    assert metadata["controllerLeaderAddress"] == one.address
    assert (metadata["isLeader"], metadata["peers"]) == ("true", f"n0:{one.address}")
    assert int(metadata["currentTimeMillis"]) > 1_600_000_000_000, "brokers hold their clocks against it"


async def test_a_view_that_is_known_is_told_again_when_something_of_it_is_another(one: Single) -> None:
    known = ""

    async def is_told() -> bool:
        nonlocal known
        answer = await one.ask(codes.CLUSTER_VIEW, {KNOWN_VIEW: known} if known else {})
        assert answer.ext.get(SAME_VIEW) == ("true" if answer.ext[TOLD_VIEW] == known else None)
        assert bool(answer.body) == (SAME_VIEW not in answer.ext)
        known = answer.ext[TOLD_VIEW]
        return bool(answer.body)

    assert await is_told(), "what is known to nobody"
    await group_of_two(one)
    assert await is_told(), "a group"
    assert not await is_told()
    await one.beat(one.brokers[0], 1)
    assert not await is_told(), "a heartbeat that says what the one before it said"
    await one.beat(one.brokers[0], 1, maxOffset=101)
    assert await is_told(), "a message"
    assert (await one.alter([1])).code == codes.SUCCESS
    assert await is_told(), "another set"
    assert not await is_told()
    one.brokers[1].abort()
    async with asyncio.timeout(60):
        while not await is_told():  # one that does not live any more
            await asyncio.sleep(0.005)
    assert not (await one.group())["replicas"][1]["alive"]
    assert (await one.ask(codes.CLUSTER_VIEW, {KNOWN_VIEW: known, "placements": "true"})).body, "another question"


# 904: heartbeats


async def test_heartbeats_are_the_controllers_when_they_name_an_id(one: Single) -> None:
    connection = await connect(one.address)
    fields = {"clusterName": "c", "brokerName": "broker-a", "brokerAddr": "127.0.0.1:1001"}
    assert (await connection.call(codes.BROKER_HEARTBEAT, fields, b"", 3000)).code == codes.SUCCESS
    answer = await connection.call(codes.BROKER_HEARTBEAT, {**fields, "brokerId": "x"}, b"", 3000)
    assert said(answer) == (codes.CONTROLLER_INVALID_REQUEST, "brokerId must be a whole number, not 'x'")
    connection.close()


async def test_every_field_of_a_heartbeat_counts_also_when_the_others_are_as_before(
    one: Single, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect(one.address)
    heard: list[Heartbeat] = []
    table = one.controller._table
    take = table.heartbeat

    def hear(beat: Heartbeat, now_ms: int) -> bool:
        heard.append(beat)
        return take(beat, now_ms)

    monkeypatch.setattr(table, "heartbeat", hear)
    fields = {"clusterName": "c", "brokerName": "broker-a", "brokerId": "1", "brokerAddr": "127.0.0.1:1001"}
    changes = {
        "brokerAddr": "127.0.0.1:1002",
        "heartbeatTimeoutMills": "1234",
        "heartbeatIntervalMills": "77",
        "epoch": "3",
        "maxOffset": "9",
        "confirmOffset": "8",
        "electionPriority": "2",
        "incarnation": "5",
        "learner": "true",
        "tailKept": "false",
        "lostConfirmedOffset": "4",
        "hasRoom": "true",
        "lives": "4 5",
        "disk": "stands",
    }
    for said in ({}, {}, *({name: value} for name, value in changes.items())):
        fields |= said
        assert (await connection.call(codes.BROKER_HEARTBEAT, fields, b"", 3000)).code == codes.SUCCESS
    assert heard[0] is heard[1]
    assert len(set(heard)) == 1 + len(changes)
    for name in ("learner", "hasRoom", "disk"):
        for _ in range(2):
            answer = await connection.call(codes.BROKER_HEARTBEAT, {**fields, name: "x" * 5000}, b"", 3000)
            assert answer.code == codes.SUCCESS
    assert heard[-1] is not heard[-2], "what is too long is not kept"
    connection.close()


async def test_a_reconnected_broker_outlives_its_old_connection(one: Single) -> None:
    await group_of_two(one)
    await one.live(1)
    one.brokers[0].abort()
    await one.until(lambda group: group["replicas"][0]["alive"])
    assert (await one.info())["masterEpoch"] == 1


# 1011: cleaning


async def test_cleaning(one: Single) -> None:
    invalid = codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    names = {"clusterName": "c", "brokerName": "broker-a", "isCleanLivingBroker": "false"}
    assert (await one.ask(codes.CLEAN_BROKER_DATA, names)).code == invalid
    await group_of_two(one)
    assert (await one.ask(codes.CLEAN_BROKER_DATA, names)).code == invalid, "there is a master"
    for ids in ("x", "1;x", "1,2"):
        assert (await one.ask(codes.CLEAN_BROKER_DATA, {**names, "brokerControllerIdsToClean": ids})).code == invalid
    assert (await one.ask(codes.CLEAN_BROKER_DATA, {**names, "brokerControllerIdsToClean": "2"})).code == invalid
    assert (await one.ask(codes.CLEAN_BROKER_DATA, {**names, "clusterName": "other"})).code == invalid
    living = {**names, "isCleanLivingBroker": "true", "brokerControllerIdsToClean": "2"}
    assert (await one.ask(codes.CLEAN_BROKER_DATA, living)).code == codes.SUCCESS
    assert [each["brokerId"] for each in (await one.info())["inSyncReplicas"]] == [1], "only the one that was named"
    assert (await one.ask(codes.CLEAN_BROKER_DATA, {**names, "isCleanLivingBroker": "true"})).code == codes.SUCCESS
    answer = await one.ask(codes.CONTROLLER_GET_SYNC_STATE_DATA, body=["broker-a"])
    assert orjson.loads(answer.body) == {"replicasInfoTable": {}}
    ids = {"clusterName": "c", "brokerName": "broker-a"}
    assert (await one.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, ids)).ext["nextBrokerId"] == "3", "ids never come back"
    await one.register(3)
    await one.live(3, epoch=-1)
    assert (await one.elect(3)).ext["masterEpoch"] == "2", "nor do epochs"


# 1008: pushes; 1009, 1010, 318, 319: settings


async def test_live_members_are_told_of_a_new_master(one: Single) -> None:
    async with one.broker() as told:
        for broker_id in (1, 2):
            await one.register(broker_id, brokerAddress=told.address)
            await one.live(broker_id)
        await one.elect(1)
        push = await told.next()
        assert push.code == codes.NOTIFY_BROKER_ROLE_CHANGED
        assert push.is_oneway
        assert {"masterBrokerId": "1", "masterEpoch": "1", "syncStateSetEpoch": "1"}.items() <= push.ext.items()
        assert push.ext["masterAddress"] == told.address
        assert orjson.loads(push.body) == {"syncStateSet": [1], "syncStateSetEpoch": 1}


async def test_only_listed_settings_change_and_all_or_none(one: Single) -> None:
    for body in (b"", b"novalue", b"\xff", b"# only a comment"):
        assert (await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=body)).code == codes.SYSTEM_ERROR
    for key in ("configStorePath", "controllerStorePath", "raft.tick_ms", "rocketmqHome", "configBlackList", "data"):
        body = f"election.notify=false\n{key}=1\n".encode()
        code, remark = said(await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=body))
        assert code == codes.NO_PERMISSION
        assert key in remark
    code, remark = said(await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=b"election.notify=perhaps"))
    assert code == codes.SYSTEM_ERROR
    assert "true or false" in remark
    shown = (await one.ask(codes.GET_CONTROLLER_CONFIG)).body.decode()
    assert "election.notify=true\n" in shown
    assert "notifyBrokerRoleChanged=true\n" in shown
    assert (
        await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=b"notifyBrokerRoleChanged=false\r\n")
    ).code == codes.SUCCESS
    shown = (await one.ask(codes.GET_CONTROLLER_CONFIG)).body.decode()
    assert "election.notify=false\n" in shown
    assert "notifyBrokerRoleChanged=false\n" in shown


async def test_the_name_server_has_its_own_list(one: Single) -> None:
    assert (await one.ask(codes.UPDATE_NAMESRV_CONFIG, body=b"election.unclean=true")).code == codes.NO_PERMISSION
    assert (await one.ask(codes.UPDATE_NAMESRV_CONFIG, body=b"supportActingMaster=false")).code == codes.SUCCESS
    assert "nameserver.acting_master=false\n" in (await one.ask(codes.GET_NAMESRV_CONFIG)).body.decode()
    assert (await one.ask(codes.UPDATE_CONTROLLER_CONFIG, body=b"supportActingMaster=true")).code == codes.NO_PERMISSION


# Who does not lead


async def test_who_does_not_lead_changes_nothing_and_answers_no_question(tmp_path: Path) -> None:
    names = {"clusterName": "c", "brokerName": "broker-a"}
    leaders_only = {
        codes.CONTROLLER_ALTER_SYNC_STATE_SET: {"brokerName": "broker-a", "masterBrokerId": 1, "masterEpoch": 1},
        codes.CONTROLLER_ELECT_MASTER: {**names, "brokerId": 1, "designateElect": "true"},
        codes.CONTROLLER_REGISTER_BROKER: {**names, "brokerId": 1, "brokerAddress": "127.0.0.1:1001"},
        codes.CONTROLLER_GET_REPLICA_INFO: {"brokerName": "broker-a"},
        codes.CONTROLLER_GET_SYNC_STATE_DATA: {},
        codes.CONTROLLER_GET_NEXT_BROKER_ID: names,
        codes.CONTROLLER_APPLY_BROKER_ID: {**names, "appliedBrokerId": 1, "registerCheckCode": "127.0.0.1:1001;7"},
        codes.CLEAN_BROKER_DATA: {**names, "isCleanLivingBroker": "true"},
    }
    async with single(tmp_path / "n0", leads=False) as one:
        await one.live(1)
        for code, fields in leaders_only.items():
            answer = await one.ask(code, fields, ["broker-a"])
            assert answer.code == codes.CONTROLLER_NOT_LEADER, code
        assert one.controller._machine.replicas.groups == {}
        for code in (codes.CONTROLLER_GET_METADATA_INFO, codes.GET_CONTROLLER_CONFIG, codes.CLUSTER_VIEW):
            assert (await one.ask(code)).code == codes.SUCCESS
        view = await one.view()
        assert (view["leaderId"], view["metrics"]["requests_refused"]) == (None, len(leaders_only))
        assert "role{" in await one.scrape()
