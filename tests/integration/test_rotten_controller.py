"""Files of stopped controllers are damaged: with a healthy majority each comes back by itself, without one it waits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from remoting import exit_codes
from remoting.client.blocking import AdminClient
from tests.integration.test_membership import Load, blocking, hand_leadership, member, under_load
from tests.support.cluster import Cluster, Process, eventually, free_ports

pytestmark = pytest.mark.slow

TAKEN = "the group has taken this controller again"


def _log(directory: Path) -> Path:
    return max((directory / "raft").glob("log-*"))


def _flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position, 2)
        (byte,) = file.read(1)
        file.seek(position, 2)
        file.write(bytes([byte ^ 1]))


def _rot(directory: Path) -> None:
    _flip(_log(directory), -7)


def _rot_the_identity(directory: Path) -> None:
    _flip(directory / "raft" / "identity", -30)


def _lose_the_log(directory: Path) -> None:
    _log(directory).unlink()


def _empty(directory: Path) -> None:
    shutil.rmtree(directory)


def _is_whole(cluster: Cluster, name: str) -> bool:
    found = member(cluster, name)
    return bool(found and found["role"] == "voter" and found["alive"] and found["behind"] == 0)


async def _damage_and_return(cluster: Cluster, victim: int, damage: Callable[[Path], None], load: Load) -> None:
    process = cluster.controllers[victim]
    process.kill()
    acknowledged = len(load.acknowledged)
    await blocking(eventually, "the others decide", lambda: len(load.acknowledged) > acknowledged + 20)
    damage(cluster.data / f"n{victim}")
    seen = process.log_text().count(TAKEN)
    process.start()
    await blocking(
        eventually, f"n{victim} is taken again after {damage.__name__}", lambda: process.log_text().count(TAKEN) > seen
    )
    await blocking(eventually, f"n{victim} votes again", lambda: _is_whole(cluster, f"n{victim}"))
    listing = await blocking(cluster.admin.controller_members)
    assert [each["id"] for each in listing["members"]] == ["n0", "n1", "n2"]
    assert [each["role"] for each in listing["members"]] == ["voter"] * 3
    assert listing["retired"] == []


async def test_damaged_controllers_come_back_under_load(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, replicas=1) as cluster:
        await blocking(cluster.start)
        async with under_load(cluster.controller_addresses) as load:
            await blocking(eventually, "some proposals", lambda: len(load.acknowledged) > 20)
            for damage in (_rot, _lose_the_log, _empty, _rot_the_identity):
                leader = await blocking(cluster.leader)
                victim = next(n for n in range(3) if n != leader)
                await _damage_and_return(cluster, victim, damage, load)
            process = cluster.controllers[victim]
            moved = await hand_leadership(cluster.admin, f"n{victim}")
            assert moved["controllerLeaderId"] == f"n{victim}"
            process.kill()
            acknowledged = len(load.acknowledged)
            await blocking(eventually, "the others decide", lambda: len(load.acknowledged) > acknowledged + 20)
            process.start()
            await blocking(eventually, "it votes as before", lambda: _is_whole(cluster, f"n{victim}"))


async def test_without_a_healthy_majority_it_waits_and_says_what_to_do(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=3, replicas=0) as cluster:
        for process in cluster.controllers:
            process.start()
        leader = await blocking(cluster.leader)
        rotten, other = (n for n in range(3) if n != leader)
        for process in cluster.controllers:
            process.kill()
        _rot(tmp_path / f"n{rotten}")
        cluster.controllers[rotten].start()
        cluster.controllers[other].start()
        text = "still out of service: the group did not take this controller again"
        await blocking(eventually, "it waits", lambda: text in cluster.controllers[rotten].log_text())
        admin = AdminClient([cluster.controller_addresses[other]])
        listing = await blocking(eventually, "the other answers", admin.controller_members)
        assert listing["leaderId"] is None
        assert _log(tmp_path / f"n{rotten}").exists(), "nothing is thrown away before others have everything"
        cluster.controllers[leader].start()
        await blocking(eventually, "it votes again", lambda: _is_whole(cluster, f"n{rotten}"))


async def test_a_controller_that_joined_comes_back_too(tmp_path: Path) -> None:
    """It was told nobody's address but its own: the others are in what it can still read."""
    with Cluster(tmp_path, controllers=3, replicas=0) as cluster:
        for process in cluster.controllers:
            process.start()
        await blocking(eventually, "the group is founded", lambda: cluster.admin.controller_members()["cluster"])
        address = f"127.0.0.1:{free_ports(1)[0]}"
        arguments = ["-m", "controllerd", "--id", "n3", "--peers", f"n3={address}", "--join"]
        process = Process("n3", [*arguments, "--data", str(tmp_path / "n3")], tmp_path / "logs" / "n3.log")
        cluster.guests.append(process)
        process.start()
        await blocking(cluster.admin.add_controller, "n3", address)
        await blocking(eventually, "it has caught up", lambda: member(cluster, "n3")["behind"] == 0)
        await blocking(cluster.admin.promote_controller, "n3")
        process.kill()
        _rot(tmp_path / "n3")
        process.start()
        await blocking(eventually, "it is taken again", lambda: TAKEN in process.log_text())
        await blocking(eventually, "it votes again", lambda: _is_whole(cluster, "n3"))


async def test_a_copied_directory_is_found_out(tmp_path: Path) -> None:
    """Started beside the first one it ends and says why; put back in place of what was written since, it is a lost log."""
    with Cluster(tmp_path, controllers=3, replicas=0) as cluster:
        for process in cluster.controllers:
            process.start()
        leader = await blocking(cluster.leader)
        victim = next(n for n in range(3) if n != leader)
        name, first = f"n{victim}", cluster.controllers[victim]
        await blocking(eventually, "the group is founded", lambda: cluster.admin.controller_members()["cluster"])
        await blocking(eventually, "its directory says so", lambda: _is_whole(cluster, name))
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path / name, copy)
        addresses = list(cluster.controller_addresses)
        addresses[victim] = f"127.0.0.1:{free_ports(1)[0]}"
        peers = ",".join(f"n{n}={address}" for n, address in enumerate(addresses))
        second = Process(
            "second",
            ["-m", "controllerd", "--id", name, "--peers", peers, "--data", str(copy)],
            tmp_path / "logs" / "second.log",
        )
        cluster.guests.append(second)
        second.start()
        await blocking(eventually, "the second one ends", lambda: not second.is_running)
        assert second.exit_code == exit_codes.REFUSED
        assert f"another process is controller {name}" in second.log_text()
        assert first.is_running
        assert await blocking(_is_whole, cluster, name)

        first.kill()
        older = tmp_path / "older"
        shutil.copytree(tmp_path / name, older)
        await blocking(eventually, "it is missed", lambda: not member(cluster, name)["alive"])
        first.start()
        await blocking(eventually, "the others meet it", lambda: _is_whole(cluster, name))
        first.kill()
        shutil.rmtree(tmp_path / name)
        older.rename(tmp_path / name)
        first.start()
        await blocking(eventually, "it is taken again", lambda: TAKEN in first.log_text())
        assert "it is a copy that was put back" in first.log_text()
        await blocking(eventually, "it votes again", lambda: _is_whole(cluster, name))
