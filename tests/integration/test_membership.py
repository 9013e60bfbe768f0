"""A controller of three is replaced by a new one, and leadership moves, under a broker's work and a load of proposals."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from remoting import codes, exit_codes
from remoting.client.blocking import AdminClient
from remoting.errors import ConnectionLost, LogboomError, RequestError, RequestTimeout
from remoting.transport.client import RemotingClient
from tests.support.cluster import Cluster, Process, eventually, free_ports

pytestmark = pytest.mark.slow

# With ticks of 50 ms: a vote can be called after 0.5 to 0.95 s without a leader, and a tied one a second time.
ELECTION_S = 2.0


class Load:
    """Proposals one after the other, to whoever leads: a new broker name each, which the group must know ever after."""

    def __init__(self, addresses: list[str]) -> None:
        self.addresses = addresses
        self.acknowledged: list[str] = []
        self.unknown = 0
        self.refused = 0
        self.longest_gap_s = 0.0
        self._client = RemotingClient()
        self._leader: str | None = None

    async def run(self) -> None:
        last, number = time.monotonic(), 0
        while True:
            number += 1
            name = f"load-{number}"
            fields = {
                "clusterName": "c",
                "brokerName": name,
                "appliedBrokerId": "1",
                "registerCheckCode": "127.0.0.1:1;1",
            }
            try:
                await self._client.call(await self.leader(), codes.CONTROLLER_APPLY_BROKER_ID, fields, timeout_ms=3000)
            except RequestError:
                self.refused += 1
                self._leader = None
                await asyncio.sleep(0.01)
                continue
            except (ConnectionLost, RequestTimeout):
                self.unknown += 1
                self._leader = None
                await asyncio.sleep(0.01)
                continue
            now = time.monotonic()
            self.longest_gap_s, last = max(self.longest_gap_s, now - last), now
            self.acknowledged.append(name)

    async def leader(self) -> str:
        while self._leader is None:
            for address in self.addresses:
                with contextlib.suppress(LogboomError):
                    answer = await self._client.call(address, codes.CONTROLLER_GET_METADATA_INFO, timeout_ms=300)
                    self._leader = answer.ext.get("controllerLeaderAddress") or self._leader
                if self._leader is not None:
                    break
            else:
                await asyncio.sleep(0.01)
        return self._leader

    async def missing(self) -> list[str]:
        """Acknowledged proposals that the leader does not know."""
        lost = []
        for name in self.acknowledged:
            fields = {"clusterName": "c", "brokerName": name}
            answer = await self._client.call(await self.leader(), codes.CONTROLLER_GET_NEXT_BROKER_ID, fields)
            if answer.ext["nextBrokerId"] != "2":
                lost.append(name)
        return lost

    def gap(self) -> float:
        """The longest time without an acknowledgement since the last question."""
        gap, self.longest_gap_s = self.longest_gap_s, 0.0
        return gap

    def close(self) -> None:
        self._client.close()


@contextlib.asynccontextmanager
async def under_load(addresses: list[str]) -> AsyncIterator[Load]:
    load = Load(addresses)
    task = asyncio.get_running_loop().create_task(load.run())
    try:
        yield load
        assert not task.done(), "the load stopped by itself"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await load.missing() == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        load.close()
        await asyncio.sleep(0)


def joining(cluster: Cluster, name: str, *settings: str) -> tuple[Process, str]:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    arguments = ["-m", "controllerd", "--id", name, "--peers", f"{name}={address}", "--join"]
    arguments += ["--data", str(cluster.data / name), *(word for each in settings for word in ("--set", each))]
    process = Process(name, arguments, cluster.data / "logs" / f"{name}.log")
    cluster.guests.append(process)
    return process, address


def member(cluster: Cluster, name: str) -> dict[str, Any]:
    found = [each for each in cluster.admin.controller_members()["members"] if each["id"] == name]
    return found[0] if found else {}


def caught_up(cluster: Cluster, name: str) -> bool:
    found = member(cluster, name)
    return bool(found and found["alive"] and found["behind"] is not None and found["behind"] < 50)


async def hand_leadership(admin: AdminClient, name: str) -> dict[str, str]:
    """The answer to the request to hand it over; asked once more where a starved machine elected another one, or nobody: the
    target has half a second for a vote, which goes to two disks first."""
    try:
        return await blocking(admin.transfer_controller_leader, name)
    except RequestError as refused:
        if not any(each in str(refused) for each in ("was elected instead of", "did not take over in time")):
            raise
    return await blocking(admin.transfer_controller_leader, name)


async def blocking(function: Any, *arguments: Any, **options: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **options)


def change(admin: AdminClient, changes: list[dict[str, str]]) -> None:
    """Several changes of the membership at once."""
    admin.ask_leader(codes.CHANGE_CONTROLLER_MEMBERS, body=orjson.dumps({"changes": changes}))


async def test_a_controller_is_replaced_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, replicas=1) as cluster:
        await blocking(cluster.start)
        before = await blocking(cluster.group)
        new, address = joining(cluster, "n3")
        admin = cluster.admin
        async with under_load(cluster.controller_addresses) as load:
            await blocking(eventually, "some proposals", lambda: len(load.acknowledged) > 20)
            load.gap()

            # A node that nobody added waits, and nobody can promote it.
            new.start()
            with pytest.raises(RequestError, match="n3 is no learner"):
                await blocking(admin.promote_controller, "n3")
            listing = await blocking(admin.add_controller, "n3", address)
            assert [each["role"] for each in listing["members"]] == ["voter", "voter", "voter", "learner"]
            await blocking(eventually, "n3 catches up", lambda: caught_up(cluster, "n3"))
            await blocking(admin.promote_controller, "n3")
            assert load.gap() < ELECTION_S, "adding a member stops nothing"

            # A follower of the founders leaves; its process ends with a sentence.
            leader = await blocking(cluster.leader)
            victim = next(n for n in range(3) if n != leader)
            listing = await blocking(admin.remove_controller, f"n{victim}")
            assert listing["retired"] == [f"n{victim}"]
            gone = cluster.controllers[victim]
            await blocking(eventually, "the removed process ends", lambda: not gone.is_running)
            assert gone.exit_code == exit_codes.NOT_NEEDED
            assert "this controller was removed from its group" in gone.log_text()
            with pytest.raises(RequestError, match="ids are never used again"):
                await blocking(admin.add_controller, f"n{victim}", cluster.controller_addresses[victim])
            gone.start()
            await blocking(eventually, "it is turned away", lambda: not gone.is_running)
            assert gone.exit_code == exit_codes.NOT_NEEDED
            assert load.gap() < ELECTION_S, "neither does removing one"

            # The new one leads, is killed, comes back.
            moved = await hand_leadership(admin, "n3")
            assert (moved["controllerLeaderId"], moved["controllerLeaderAddress"]) == ("n3", address)
            acknowledged = len(load.acknowledged)
            await blocking(eventually, "n3 decides", lambda: len(load.acknowledged) > acknowledged + 20)
            assert load.gap() < ELECTION_S
            assert (await blocking(admin.cluster_view)).leader_id == "n3"
            group = await blocking(cluster.wait_in_sync, 1)  # the broker finds the new leader, too
            assert group["masterEpoch"] == before["masterEpoch"]
            new.kill()
            killed = len(load.acknowledged)
            new.start()
            await blocking(eventually, "the others decide", lambda: len(load.acknowledged) > killed + 20)
            await blocking(eventually, "n3 is back", lambda: caught_up(cluster, "n3"))
            assert member(cluster, "n3")["role"] == "voter"

            # The leader removes itself; the rest goes on.
            leaving = (await blocking(admin.controller_members))["leaderId"]
            await blocking(admin.remove_controller, leaving)
            left = len(load.acknowledged)
            await blocking(eventually, "the rest decides", lambda: len(load.acknowledged) > left + 20)
            listing = await blocking(admin.controller_members)
            assert len(listing["members"]) == 2
            assert leaving in listing["retired"]
            assert len(load.acknowledged) > 100
        after = await blocking(cluster.group)
        assert after["masterEpoch"] == before["masterEpoch"], "brokers noticed nothing of it all"
        new.close()


async def test_changes_that_would_stop_the_group_are_refused(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, replicas=0) as cluster:
        for process in cluster.controllers:
            process.start()
        leader = await blocking(cluster.leader)
        admin = cluster.admin
        others = [n for n in range(3) if n != leader]
        cluster.controllers[others[0]].kill()
        await blocking(eventually, "it is missed", lambda: not member(cluster, f"n{others[0]}")["alive"])
        with pytest.raises(RequestError, match=f"would lose its majority.*does not hear n{others[0]}"):
            await blocking(admin.remove_controller, f"n{others[1]}")
        two = [
            {"kind": "add-voter", "id": f"m{n}", "address": f"127.0.0.1:{port}"} for n, port in enumerate(free_ports(2))
        ]
        with pytest.raises(RequestError, match="as a learner first"):
            await blocking(change, admin, two)
        for bad, sentence in (
            ([{"kind": "explode", "id": "n1"}], "kind must be one of"),
            ([{"kind": "add-learner", "id": "n 9", "address": "127.0.0.1:1"}], "1 to 32 letters"),
            ([{"kind": "add-learner", "id": "n9"}], "needs the address"),
            ([{"kind": "add-learner", "id": "n9", "address": "nowhere"}], "is not an address"),
            ([], "1 to 9 changes"),
        ):
            with pytest.raises(RequestError, match=sentence):
                await blocking(change, admin, bad)
        with pytest.raises(RequestError, match="is not heard at the moment"):
            await blocking(admin.transfer_controller_leader, f"n{others[0]}")
        # The dead one may go: the two that are left decide.
        listing = await blocking(admin.remove_controller, f"n{others[0]}")
        assert sorted(each["id"] for each in listing["members"]) == sorted(f"n{n}" for n in (leader, others[1]))


async def test_a_joining_controller_gets_a_snapshot(tmp_path: Path) -> None:
    settings = ["raft.compact_after_entries=10", "raft.keep_entries=0"]
    with Cluster(tmp_path, controllers=1, replicas=0, controller_settings=settings) as cluster:
        cluster.controllers[0].start()
        await blocking(cluster.leader)
        new, address = joining(cluster, "n1", *settings)
        try:
            async with under_load(cluster.controller_addresses) as load:
                await blocking(eventually, "compactions", lambda: len(load.acknowledged) > 100)
                new.start()
                await blocking(cluster.admin.add_controller, "n1", address)
                await blocking(eventually, "n1 catches up", lambda: caught_up(cluster, "n1"))
                await blocking(cluster.admin.promote_controller, "n1")
                moved = await hand_leadership(cluster.admin, "n1")
                assert moved["controllerLeaderAddress"] == address
                # A leader that is told to stop hands over first: nobody waits for an election.
                acknowledged = len(load.acknowledged)
                await blocking(eventually, "n1 decides", lambda: len(load.acknowledged) > acknowledged + 20)
                assert "restored the leader's snapshot" in new.log_text()
            assert new.terminate() == 0
            await blocking(eventually, "n0 was told to lead", lambda: "leader n0" in cluster.controllers[0].log_text())
        finally:
            new.close()
