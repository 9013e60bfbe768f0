"""A copied data directory as real processes: the process that is there first keeps the identity, the other one says why
it serves nobody, and goes on in its place when it is gone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from remoting.errors import LogboomError
from remoting.exit_codes import FAILED
from tests.support.cluster import Cluster, Process, eventually
from tests.support.documents import document
from tests.support.fixed_group import TOPIC, FixedGroup
from tests.support.ports import free_ports

pytestmark = pytest.mark.slow


def copy_of(process: Process, data: Path) -> tuple[Process, str]:
    """A process that runs on a copy of a stopped broker's directory, and its address."""
    listen, ha, grpc = (f"127.0.0.1:{port}" for port in free_ports(3))
    words = process._command[1:]
    given = words[words.index("--data") + 1]
    shutil.copytree(given, data)
    for option, value in (("--listen", listen), ("--ha-listen", ha), ("--grpc-listen", grpc), ("--data", str(data))):
        words[words.index(option) + 1] = value
    return Process("copy", words, data.with_suffix(".log")), listen


@pytest.mark.parametrize("of_master", [False, True])
def test_one_of_two_processes_with_an_identity_has_a_role(tmp_path: Path, *, of_master: bool) -> None:
    with Cluster(tmp_path, controllers=1, replicas=2) as cluster:
        cluster.start()
        eventually("the topic", lambda: cluster.admin.create_topic("T", queues=1)[0].outcome == "CONFIRMED")
        copied = cluster.master() if of_master else 1 - cluster.master()
        original = cluster.brokers[copied]
        original.terminate()
        copy, address = copy_of(original, tmp_path / "copied")
        cluster.guests.append(copy)
        original.start()
        group = cluster.wait_in_sync(2)
        members = {each["address"] for each in group["replicas"]}
        copy.start()

        def refusal() -> str | None:
            said: str = document(cluster.admin.broker_state(address)).get("controllersError") or ""
            return said if "two processes have the identity of broker" in said else None

        sentence = eventually("the copy says why", refusal)
        assert cluster.broker_addresses[copied] in sentence
        assert address in sentence
        assert f"the one at {address} is refused" in cluster.controllers[0].log_text()
        for number in range(20):
            cluster.admin.send("T", b"%d" % number)
        state = document(cluster.admin.broker_state(address))
        assert state["role"] == "fenced"

        def claims() -> list[str]:
            group = cluster.group()
            assert group is not None
            return [each["claimedBy"] for each in group["replicas"] if each["claimedBy"]]

        assert eventually("the controllers tell of the copy", claims) == [address]
        group = cluster.wait_in_sync(2)
        assert {each["address"] for each in group["replicas"]} == members
        original.kill()
        eventually("the copy is a replica or the master", lambda: cluster.admin.broker_state(address).role != "fenced")
        group = cluster.wait_in_sync(2)
        assert address in {each["address"] for each in group["replicas"]}
        pulled = cluster.admin.pull("T", "broker-a", 0, 0)
        assert [record.body for record in pulled.records] == [b"%d" % number for number in range(20)]


def test_with_fixed_roles_the_second_master_ends(tmp_path: Path) -> None:
    with FixedGroup(tmp_path) as group:
        group.start()
        group.master.terminate()
        copy, address = copy_of(group.master, tmp_path / "copied")
        try:
            group.master.start()
            eventually("both brokers in the set again", group.in_sync)
            eventually("the route", lambda: group.route()[0].get("0") == group.listen[0])
            copy.start()
            eventually("the copy ends", lambda: not copy.is_running)
            assert copy.exit_code == FAILED
            assert "two processes have the identity of broker 0" in copy.log_text()
            assert group.listen[0] in copy.log_text()
            assert group.route()[0] == {"0": group.listen[0], "1": group.listen[1]}
            group.admin.send(TOPIC, b"to the first one", group="broker-a")
            with pytest.raises(LogboomError):
                group.admin.broker_state(address)
        finally:
            copy.close()
