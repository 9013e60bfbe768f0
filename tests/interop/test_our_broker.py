"""Our broker under the original: its controller elects it, its name server routes to it, its tool sends and looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.apache import Apache, CommandFailed, NameServer, Session
from tests.support.cluster import Process, eventually, free_ports


@dataclass
class Ours:
    """One broker of ours, and the original's name server with the controller inside it."""

    session: Session
    name_server: NameServer
    process: Process
    address: str

    def tool(self, *words: str) -> str:
        return self.session.mqadmin(*words)

    def state(self) -> dict[str, str]:
        """What getSyncStateSet prints of the group; empty before it is registered."""
        text = self.tool("getSyncStateSet", "-a", self.name_server.controller, "-b", "broker-a")
        return dict(re.findall(r"^#(\w+)\t(.*)$", text, re.MULTILINE))

    def wait_master(self, after_epoch: int) -> int:
        """Wait until the controller names the broker master of a later epoch, and the broker is in the routes; the epoch."""

        def elected() -> int | None:
            try:
                state = self.state()
                route = self.tool("topicRoute", "-t", "broker-a", "-n", self.name_server.address)
            except CommandFailed:
                return None
            is_master = state.get("MasterAddr") == self.address and self.address in route
            return int(state["MasterEpoch"]) if is_master and int(state["MasterEpoch"]) > after_epoch else None

        return eventually(f"our broker is master of an epoch above {after_epoch}", elected, 90)


@pytest.fixture(scope="module")
def ours(apache: Apache, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    root: Path = tmp_path_factory.mktemp("broker")
    listen, ha, grpc = (f"127.0.0.1:{port}" for port in free_ports(3))
    with apache.session(root / "apache") as session:
        name_server = session.name_server(with_controller=True)
        words = [
            *("-m", "brokerd", "--name", "broker-a", "--listen", listen, "--ha-listen", ha, "--grpc-listen", grpc),
            *("--controllers", f"{name_server.address},{name_server.controller}", "--data", str(root / "data")),
        ]
        process = Process("broker", words, root / "broker.log")
        session.processes.append(process)
        process.start()
        yield Ours(session, name_server, process, listen)


def test_the_originals_controller_elects_it(ours: Ours) -> None:
    assert ours.wait_master(0) == 1
    state = ours.state()
    assert (state["MasterBrokerId"], state["SyncStateSetNums"]) == ("1", "1")
    listed = ours.tool("clusterList", "-n", ours.name_server.address)
    [line] = [line.split() for line in listed.splitlines() if " broker-a " in line]
    assert (line[2], line[3], line[4], line[-1]) == ("0", ours.address, "V5_3_3", "true")
    epochs = ours.tool("getBrokerEpoch", "-b", "broker-a", "-n", ours.name_server.address)
    assert "#Epoch: EpochEntry{epoch=1, startOffset=0" in epochs
    assert "cannot be understood" not in ours.process.log_text()


def test_the_originals_client_sends_to_it_and_reads_back(ours: Ours) -> None:
    name_server = ours.name_server.address
    assert "success" in ours.tool("updateTopic", "-t", "interop", "-n", name_server, "-c", "DefaultCluster")
    eventually("the topic is routed", lambda: "interop" in ours.tool("topicList", "-n", name_server), 60)
    sent = ours.tool("sendMessage", "-n", name_server, "-t", "interop", "-p", "hello", "-k", "key-1")
    assert "SEND_OK" in sent
    read = ours.tool("printMsg", "-t", "interop", "-n", name_server)
    assert "BODY: hello" in read


def test_a_killed_broker_of_ours_is_elected_again(ours: Ours) -> None:
    name_server = ours.name_server.address
    epoch = ours.wait_master(0)
    ours.process.kill()
    eventually("the controller lost its master", lambda: ours.state().get("MasterAddr") == "null", 60)
    ours.process.start()
    ours.wait_master(epoch)
    assert "BODY: hello" in ours.tool("printMsg", "-t", "interop", "-n", name_server)
    assert "SEND_OK" in ours.tool("sendMessage", "-n", name_server, "-t", "interop", "-p", "again")
