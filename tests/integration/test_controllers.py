"""Real controller processes on loopback: they elect, decide, survive kills and freezes, and serve routes.

Brokers are played by the test: what a broker does with its role is not the subject here.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.errors import ConnectionLost, RequestTimeout
from remoting.frame import Command
from remoting.transport.client import RemotingClient
from tests.bench.processes import memory_of
from tests.support.cluster import ROOT, Process, free_ports
from tests.support.fake_broker import CLUSTER, NAME, FakeBroker, eventually

pytestmark = pytest.mark.slow


class Controllers:
    """A group of controller processes."""

    def __init__(self, root: Path, count: int, settings: Sequence[str] = ()) -> None:
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.peers = ",".join(f"n{n}={address}" for n, address in enumerate(self.addresses))
        self.processes = [
            Process(
                f"n{n}",
                [
                    *("-m", "controllerd", "--id", f"n{n}", "--peers", self.peers, "--data", str(root / f"n{n}")),
                    *(word for each in settings for word in ("--set", each)),
                ],
                root / f"n{n}.log",
            )
            for n in range(count)
        ]
        self.client = RemotingClient()

    async def metadata(self, address: str) -> Command | None:
        try:
            return await self.client.call(address, codes.CONTROLLER_GET_METADATA_INFO, timeout_ms=500)
        except (ConnectionLost, RequestTimeout):
            return None

    async def leader(self, among: Sequence[int] | None = None) -> int:
        """Index of the controller that leads and serves; waits for one."""

        async def found() -> tuple[int] | None:
            for index in range(len(self.addresses)) if among is None else among:
                answer = await self.metadata(self.addresses[index])
                if answer is not None and answer.ext["isLeader"] == "true":
                    return (index,)
            return None

        index: int = (await eventually("a leader", found))[0]
        return index

    async def view(self, index: int) -> dict[str, Any]:
        answer = await self.client.call(self.addresses[index], codes.CLUSTER_VIEW)
        view: dict[str, Any] = orjson.loads(answer.body)
        return view


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Controllers]:
    async with _running(tmp_path, 3) as group:
        yield group


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Controllers]:
    async with _running(tmp_path, 1) as group:
        yield group


@contextlib.asynccontextmanager
async def _running(root: Path, count: int, settings: Sequence[str] = ()) -> AsyncIterator[Controllers]:
    group = Controllers(root, count, settings)
    try:
        for process in group.processes:
            process.start()
        yield group
    finally:
        group.client.close()
        for process in group.processes:
            process.close()
        await asyncio.sleep(0)  # the loop closes the sockets


@contextlib.asynccontextmanager
async def brokers(group: Controllers, count: int) -> AsyncIterator[list[FakeBroker]]:
    """Joined brokers, the first one master, all in the sync-state set."""
    found = [FakeBroker(group.addresses) for _ in range(count)]
    try:
        for broker in found:
            await broker.start()
            await broker.join()
            if broker is found[0]:
                await eventually("the first master", functools.partial(_elected, broker))
        if count > 1:
            await eventually("everybody alive", lambda: _all_alive(group, count))
            await found[0].alter([broker.broker_id for broker in found], 1, 1)
        yield found
    finally:
        for broker in found:
            await broker.die()


async def _elected(broker: FakeBroker) -> bool:
    answer = await broker.elect(accept=(codes.SUCCESS, codes.CONTROLLER_ELECT_MASTER_FAILED))
    return answer.code == codes.SUCCESS


async def _all_alive(group: Controllers, count: int) -> bool:
    view = await group.view(await group.leader())
    return sum(each["alive"] for each in view["groups"][0]["replicas"]) == count


async def master_of(broker: FakeBroker) -> tuple[int, int]:
    """(master's broker id or 0, master epoch)."""
    info = await broker.replica_info()
    return int(info.get("masterBrokerId", 0)), int(info["masterEpoch"])


async def test_three_elect_one_and_survive_the_kill_of_each(three: Controllers) -> None:
    leader = await three.leader()
    others = [index for index in range(3) if index != leader]
    for index in others:
        answer = await three.client.call(
            three.addresses[index],
            codes.CONTROLLER_GET_REPLICA_INFO,
            {"brokerName": NAME},
            accept=(codes.CONTROLLER_NOT_LEADER,),
        )
        assert "not the leader" in str(answer.remark)
    async with brokers(three, 1) as (broker,):
        before = await master_of(broker)
        kills = 0
        for _ in range(3):
            leader = await three.leader()
            three.processes[leader].kill()
            kills += 1
            await three.leader([index for index in range(3) if index != leader])
            assert await master_of(broker) == before, "a controller's death changed a broker's role"
            three.processes[leader].start()

            async def back(index: int = leader) -> bool:
                answer = await three.metadata(three.addresses[index])
                return answer is not None and "controllerLeaderId" in answer.ext

            await eventually("the killed controller follows", back)
        assert kills == 3


async def test_everything_decided_is_there_after_all_were_killed(three: Controllers) -> None:
    async with brokers(three, 2) as (first, second):
        for process in three.processes:
            process.kill()
        for process in three.processes:
            process.start()
        info = await second.replica_info()
        assert (info["masterBrokerId"], info["masterEpoch"]) == (str(first.broker_id), "1")
        data = await first.ask(codes.CONTROLLER_GET_SYNC_STATE_DATA, body=orjson.dumps([NAME, "unknown"]))
        table = orjson.loads(data.body)["replicasInfoTable"]
        assert [each["brokerId"] for each in table[NAME]["inSyncReplicas"]] == [1, 2]
        assert list(table) == [NAME]


async def test_a_killed_master_is_replaced_at_once_and_the_new_roles_are_pushed(three: Controllers) -> None:
    async with brokers(three, 3) as (first, second, third):
        third.epoch, third.max_offset = 1, 500
        second.epoch, second.max_offset = 1, 400

        async def heard() -> bool:
            replicas = (await three.view(await three.leader()))["groups"][0]["replicas"]
            return [each["maxOffset"] for each in replicas] == [0, 400, 500]

        await eventually("the latest heartbeats", heard)
        await first.die()

        async def replaced() -> bool:
            return await master_of(second) == (third.broker_id, 2)

        await eventually("the freshest member as master of the next epoch", replaced)

        async def told() -> bool:
            return bool(second.roles and third.roles)

        await eventually("the push of the new roles", told)
        for broker in (second, third):
            role = broker.roles[-1]
            assert role["masterBrokerId"] == str(third.broker_id)
            assert role["masterAddress"] == third.address
            assert (role["masterHaAddress"], role["masterGrpcAddress"]) == ("127.0.0.1:1", "127.0.0.1:2")
            assert orjson.loads(role["body"])["syncStateSet"] == [second.broker_id, third.broker_id], "who lives stays"


async def test_a_silent_master_is_replaced_after_its_time_out_and_a_healthy_one_never(three: Controllers) -> None:
    async with brokers(three, 2) as (first, second):
        leader = await three.leader()
        beats = (await three.view(leader))["metrics"]["heartbeats"]

        async def many_beats() -> bool:
            return bool((await three.view(leader))["metrics"]["heartbeats"] > beats + 60)

        await eventually("three seconds of heartbeats", many_beats)
        assert await master_of(second) == (first.broker_id, 1)
        first.fall_silent()

        async def replaced() -> bool:
            return await master_of(second) == (second.broker_id, 2)

        await eventually("the other member as master", replaced)


async def test_a_restarted_master_gets_a_new_epoch_even_if_nobody_saw_it_die(three: Controllers) -> None:
    async with brokers(three, 1) as (broker,):
        broker.incarnation = 99

        async def renewed() -> bool:
            return await master_of(broker) == (broker.broker_id, 2)

        await eventually("a new epoch for the new process", renewed)


async def test_a_designated_election_and_its_refusal(three: Controllers) -> None:
    async with brokers(three, 2) as (first, second):
        answer = await first.elect(second.broker_id)
        assert answer.ext["masterBrokerId"] == str(second.broker_id)
        assert orjson.loads(answer.body)["brokerMemberGroup"]["brokerAddrs"]["1"] == first.address
        again = await first.elect(second.broker_id, accept=(codes.CONTROLLER_MASTER_STILL_EXIST,))
        assert again.ext["masterBrokerId"] == str(second.broker_id)
        await second.alter([second.broker_id], 4, 2)
        refused = await first.elect(first.broker_id, accept=(codes.CONTROLLER_ELECT_MASTER_FAILED,))
        assert "not in the sync-state set" in str(refused.remark)


async def test_a_frozen_leader_is_replaced_and_tells_nobody_of_the_past(three: Controllers) -> None:
    async with brokers(three, 2) as (first, second):
        old = await three.leader()
        three.processes[old].freeze()
        others = [index for index in range(3) if index != old]
        await three.leader(others)
        survivors = [three.addresses[index] for index in others]
        first.controllers = second.controllers = survivors
        await first.elect(second.broker_id)
        epoch = (await master_of(first))[1]
        three.processes[old].thaw()
        answer = await three.client.call(
            three.addresses[old],
            codes.CONTROLLER_GET_REPLICA_INFO,
            {"brokerName": NAME},
            accept=(codes.SUCCESS, codes.CONTROLLER_NOT_LEADER),
        )
        assert answer.code == codes.CONTROLLER_NOT_LEADER or int(answer.ext["masterEpoch"]) >= epoch

        async def follows() -> bool:
            view = await three.view(old)
            return bool(view["groups"][0]["masterEpoch"] == epoch and not view["controllers"][old]["leader"])

        await eventually("the thawed controller as a follower", follows)


async def test_all_controllers_paused_and_resumed_elect_nobody(three: Controllers) -> None:
    async with brokers(three, 2) as (first, second):
        before = await master_of(first)
        for process in three.processes:
            process.freeze()
        first.fall_silent()
        second.fall_silent()
        # Nobody answers for longer than the brokers' time-out.
        with pytest.raises(RequestTimeout):
            await three.client.call(three.addresses[0], codes.CONTROLLER_GET_METADATA_INFO, timeout_ms=2500)
        for process in three.processes:
            process.thaw()
        first.is_silent = second.is_silent = False
        await three.leader()
        beats = (await three.view(await three.leader()))["metrics"]["heartbeats"]

        async def many_beats() -> bool:
            return bool((await three.view(await three.leader()))["metrics"]["heartbeats"] > beats + 40)

        await eventually("two seconds of heartbeats", many_beats)
        assert await master_of(first) == before


async def test_the_view_shows_controllers_and_why_replicas_are_eligible(three: Controllers) -> None:
    async with brokers(three, 2) as (_, second):
        leader = await three.leader()
        view = await three.view(leader)
        assert [each["id"] for each in view["controllers"]] == ["n0", "n1", "n2"]
        assert [each["leader"] for each in view["controllers"]] == [index == leader for index in range(3)]
        assert [each["role"] for each in view["controllers"]].count("follower") == 2
        (group,) = view["groups"]
        assert (group["clusterName"], group["masterBrokerId"], group["syncStateSet"]) == (CLUSTER, 1, [1, 2])
        assert [each["eligible"] for each in group["replicas"]] == [False, True]
        assert [each["role"] for each in group["replicas"]] == ["master", "replica"]
        assert group["replicas"][1]["address"] == second.address
        assert group["replicas"][0]["lastHeartbeatMs"] < 1000
        assert view["metrics"]["masters_elected"] == 1

        async def follower_knows() -> bool:
            follower = await three.view((leader + 1) % 3)
            return bool(follower["groups"]) and follower["groups"][0]["masterEpoch"] == 1

        await eventually("a follower applies what was committed", follower_knows)


async def test_one_controller_alone_works_and_remembers(one: Controllers) -> None:
    async with brokers(one, 1) as (broker,):
        one.processes[0].kill()
        one.processes[0].start()
        assert await master_of(broker) == (1, 1)
        names = {"clusterName": CLUSTER, "brokerName": NAME}
        answer = await broker.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, names)
        assert answer.ext["nextBrokerId"] == "2"
        refused = await broker.ask(
            codes.CLEAN_BROKER_DATA, names, accept=(codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,)
        )
        assert "is the master" in str(refused.remark)
        await broker.ask(codes.CLEAN_BROKER_DATA, names | {"isCleanLivingBroker": "true"})
        answer = await broker.ask(codes.CONTROLLER_GET_NEXT_BROKER_ID, names)
        assert answer.ext["nextBrokerId"] == "2", "ids are never given out again"
        assert memory_of(one.processes[0].pid).resident_mb < 80
        assert one.processes[0].terminate() == 0


async def test_a_follower_that_missed_a_compaction_gets_the_snapshot(tmp_path: Path) -> None:
    settings = ["raft.compact_after_entries=10", "raft.keep_entries=0"]
    async with _running(tmp_path, 3, settings) as group, brokers(group, 1) as (broker,):
        behind = (await group.leader() + 1) % 3
        group.processes[behind].kill()
        for _ in range(30):
            await broker.elect(accept=(codes.CONTROLLER_MASTER_STILL_EXIST,))  # logged, though it changes nothing
        leader = await group.leader()
        applied = (await group.view(leader))["controllers"][leader]["appliedIndex"]
        assert applied > 30
        group.processes[behind].start()

        async def caught_up() -> bool:
            own = (await group.view(behind))["controllers"][behind]
            return bool(own["appliedIndex"] >= applied)

        await eventually("the follower at the leader's state", caught_up)
        view = await group.view(behind)
        assert (view["groups"][0]["masterBrokerId"], view["groups"][0]["masterEpoch"]) == (1, 1)
        assert "restored the leader's snapshot" in group.processes[behind].log_text()


async def test_routes_live_as_long_as_the_connection_they_came_on(one: Controllers) -> None:
    await one.leader()
    registering = RemotingClient()
    wrapper = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
        "topicConfigTable": {
            name: {"perm": 6, "readQueueNums": 4, "writeQueueNums": 4, "topicName": name}
            for name in ("orders", "payments")
        },
    }
    ext = {
        "brokerName": NAME,
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": CLUSTER,
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": "0",
    }
    body = orjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})
    await registering.call(one.addresses[0], codes.REGISTER_BROKER, ext, body)
    answer = await one.client.call(one.addresses[0], codes.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert b" " not in answer.body
    assert orjson.loads(answer.body)["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
    await one.client.call(one.addresses[0], codes.BROKER_HEARTBEAT, {k: ext[k] for k in ("brokerName", "brokerAddr")})
    registering.close()

    async def gone() -> bool:
        answer = await one.client.call(
            one.addresses[0],
            codes.GET_ROUTEINFO_BY_TOPIC,
            {"topic": "orders"},
            accept=(codes.SUCCESS, codes.TOPIC_NOT_EXIST),
        )
        return answer.code == codes.TOPIC_NOT_EXIST

    await eventually("the route gone with its connection", gone)


async def test_bad_requests_get_a_sentence_and_bad_frames_a_closed_connection(one: Controllers) -> None:
    await one.leader()
    address = one.addresses[0]

    async def refusal(code: int, ext: dict[str, str], body: bytes = b"") -> tuple[int, str]:
        answer = await one.client.call(address, code, ext, body, accept=tuple(range(4000)))
        return answer.code, str(answer.remark)

    names = {"clusterName": CLUSTER, "brokerName": NAME}
    assert (await refusal(codes.CONTROLLER_GET_REPLICA_INFO, {}))[0] == codes.INVALID_PARAMETER
    assert (await refusal(codes.CONTROLLER_GET_REPLICA_INFO, names))[0] == codes.CONTROLLER_BROKER_METADATA_NOT_EXIST
    assert "appliedBrokerId" in (await refusal(codes.CONTROLLER_APPLY_BROKER_ID, names))[1]
    bad = names | {"appliedBrokerId": "1", "registerCheckCode": "nowhere;1"}
    assert "is not an address" in (await refusal(codes.CONTROLLER_APPLY_BROKER_ID, bad))[1]
    assert (await refusal(codes.CONTROLLER_GET_SYNC_STATE_DATA, {}))[0] == codes.SYSTEM_ERROR
    assert (await refusal(codes.CONTROLLER_ALTER_SYNC_STATE_SET, names, b"{}"))[0] == codes.INVALID_PARAMETER
    assert (await refusal(codes.UPDATE_CONTROLLER_CONFIG, {}))[0] == codes.SYSTEM_ERROR
    assert (await refusal(codes.UPDATE_CONTROLLER_CONFIG, {}, b"configStorePath=elsewhere"))[0] == codes.NO_PERMISSION
    assert "raft.tick_ms=50" in bytes((await one.client.call(address, codes.GET_CONTROLLER_CONFIG)).body).decode()
    assert (await refusal(77, {}))[0] == codes.REQUEST_CODE_NOT_SUPPORTED
    host, port = address.split(":")
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff\0\0\0\0", b"\0\0\0\x08\0\0\0\x04nope"):
        with socket.create_connection((host, int(port)), 5) as stream:
            stream.sendall(garbage)
            assert stream.recv(10) == b""
    stranger = {"group": "another group"}
    other = RemotingClient()
    with pytest.raises(ConnectionLost):
        await other.call(address, codes.RAFT_MESSAGE, stranger, b"")
    assert (await one.metadata(address)) is not None


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--peers", "n0=0.0.0.0:9876"], "reachable from other machines"),
        (["--id", "n7"], "not among --peers"),
        (["--peers", "n0=127.0.0.1"], "is not an address"),
        (["--set", "raft.tick_ms=1"], "raft.tick_ms is 1; it must be at least 5"),
        (["--set", "raft.heartbeat_ticks=10"], "must be less than raft.election_ticks"),
        (["--set", "liveness.pause_ms=50"], "must be more than liveness.scan_ms"),
    ],
)
def test_start_is_refused_with_one_sentence(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    code, lines = run_to_its_end(["--data", str(tmp_path / "d"), *arguments])
    assert (code, len(lines)) == (2, 1)
    assert sentence in lines[0]


async def test_a_directory_in_use_and_a_taken_port_are_refused(one: Controllers, tmp_path: Path) -> None:
    await one.leader()
    code, lines = run_to_its_end(["--peers", one.peers, "--data", str(tmp_path / "n0")])
    assert code == 2
    assert "in use by another running process" in lines[-1]
    code, lines = run_to_its_end(["--peers", one.peers, "--data", str(tmp_path / "other")])
    assert code == 1
    assert "free the port or choose another one" in lines[-1]
    code, lines = run_to_its_end(["--peers", "n5=127.0.0.1:22005", "--id", "n5", "--data", str(tmp_path / "other")])
    assert code == 1
    assert "belongs to controller 'n0'" in lines[-1]


def run_to_its_end(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """Exit code and log lines of a controller that does not stay."""
    done = subprocess.run(
        [sys.executable, "-m", "controllerd", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return done.returncode, done.stderr.splitlines()
