"""The whole appliance as a person runs it: `manage.py up`, real daemons, a real Redis, the console and its workers.

Faults are injected with real signals; what the supervisor published afterwards is counted.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.transport.identity import NOBODY
from remoting.transport.tls import client_context
from tests.support.appliance import START_S, STOP_S, Appliance
from tests.support.cluster import eventually
from webapp.appliance import state

pytestmark = pytest.mark.slow


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """The default appliance, healthy."""
    it = Appliance(tmp_path_factory.mktemp("appliance"))
    it.start()
    yield it
    it.process.close()


def test_it_is_healthy_and_says_where_everything_is(appliance: Appliance) -> None:
    told = appliance.manage("status", "--json")
    content = json.loads(told.stdout)
    assert (told.returncode, content["status"]) == (0, "healthy")
    children = appliance.children()
    assert {child["state"] for child in children.values()} == {"running"}
    kinds = [child["kind"] for child in children.values()]
    assert (kinds.count("controller"), kinds.count("broker"), kinds.count("worker")) == (3, 3, 2)
    http = content["supervisor"]["http"]
    assert f"http://{http}/" in appliance.said
    assert len(re.findall(r"log in as +admin, password \S+ ", appliance.said)) == 1


def test_every_port_of_the_cluster_answers_tls_and_plaintext(appliance: Appliance) -> None:
    """On a directory that was just made, and to a client that checks everything."""
    made = appliance.layout.tls
    assert {file.name: file.stat().st_mode & 0o777 for file in made.iterdir()} == dict.fromkeys(
        ("ca.pem", "ca.key", "server.pem", "server.key"), 0o600
    )
    context = client_context(str(appliance.layout.tls_authority_file), check_host=True)
    context.set_alpn_protocols(["h2"])
    content = state.read(appliance.layout)
    assert content is not None
    remoting = [each["address"] for each in content["processes"] if each["kind"] in ("broker", "controller")]
    assert (len(remoting), len(content["grpc"])) == (6, 3)
    for address in (*remoting, *content["grpc"]):
        port = int(address.rpartition(":")[2])
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            assert tls.selected_alpn_protocol() == ("h2" if address in content["grpc"] else None)
    for address in remoting:
        with SocketConnection(address, identity=NOBODY) as connection:
            connection.call(codes.GET_BROKER_RUNTIME_INFO, accept=tuple(range(4096)))


def test_no_password_is_on_a_command_line_or_in_a_log(appliance: Appliance) -> None:
    files = (appliance.layout.redis_password_file, appliance.layout.replication_secret_file)
    secrets = [file.read_text().strip() for file in files]
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    shown = re.search(r"password (\S+) ", appliance.said)
    assert shown is not None
    for child in appliance.children().values():
        command = Path(f"/proc/{child['pid']}/cmdline").read_text()
        assert not [secret for secret in secrets if secret in command]
    for log in appliance.layout.logs.iterdir():
        text = log.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], log
        assert shown[1] not in text, log


def test_a_second_instance_on_the_same_data_is_refused(appliance: Appliance) -> None:
    done = appliance.manage("up", *appliance.arguments)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(
        f"up: another appliance (process {appliance.process.pid}) is running on"
    )


def test_each_process_that_is_killed_comes_back_and_is_counted(appliance: Appliance) -> None:
    for name, before in appliance.children().items():
        os.kill(before["pid"], signal.SIGKILL)

        def decide_copy(name: str = name, before: dict[str, Any] = before) -> bool:
            now = appliance.children()[name]
            return bool(now["state"] == "running" and now["restarts"] == before["restarts"] + 1)

        eventually(f"{name} is back", decide_copy, START_S)
        after = appliance.children()[name]
        assert after["last_exit"]["text"] == "was killed by SIGKILL"
        assert f"{name} was killed by SIGKILL; starting it again in 0.2 s" in appliance.said
    appliance.wait_healthy()
    assert {child["restarts"] for child in appliance.children().values()} == {1}


def test_the_data_survives_a_stop_and_a_start(appliance: Appliance) -> None:
    created = appliance.manage("topic", "create", "kept")
    assert created.returncode == 0, created.stdout + created.stderr
    pids = [child["pid"] for child in appliance.children().values()]
    assert appliance.stop(signal.SIGINT) == 0
    assert "everything is stopped" in appliance.said
    assert "did not stop within its grace" not in appliance.said
    assert [pid for pid in pids if is_alive(pid)] == []
    assert appliance.status()[0] == 2
    appliance.start()
    assert "password" not in appliance.said
    assert "kept" in appliance.manage("topic", "list").stdout


def test_a_killed_supervisor_leaves_nothing_and_starts_again(appliance: Appliance) -> None:
    pids = [child["pid"] for child in appliance.children().values()]
    appliance.process.kill()
    eventually("all children are gone", lambda: not any(is_alive(pid) for pid in pids), STOP_S)
    assert appliance.status()[0] == 2
    appliance.start()
    assert "kept" in appliance.manage("topic", "list").stdout


def test_all_processes_killed_at_once_come_back(appliance: Appliance) -> None:
    before = appliance.children()
    for child in before.values():
        os.kill(child["pid"], signal.SIGKILL)
    eventually(
        "all are restarted",
        lambda: all(now["restarts"] == before[name]["restarts"] + 1 for name, now in appliance.children().items()),
        START_S,
    )
    appliance.wait_healthy()
    assert "kept" in appliance.manage("topic", "list").stdout


def test_a_second_interrupt_does_not_wait(appliance: Appliance) -> None:
    pids = [child["pid"] for child in appliance.children().values()]
    os.kill(appliance.process.pid, signal.SIGINT)
    eventually("it is stopping", lambda: "once more Ctrl-C kills" in appliance.said)
    with suppress(ProcessLookupError):
        os.kill(appliance.process.pid, signal.SIGINT)
    eventually("the supervisor ended", lambda: not appliance.process.is_running, STOP_S)
    assert [pid for pid in pids if is_alive(pid)] == []
