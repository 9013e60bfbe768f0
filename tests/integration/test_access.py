"""Access control of a running cluster: signed requests, users and permissions that every broker learns, and their survival."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.socket_connection import SocketConnection
from remoting.errors import RequestError
from remoting.facts.words import Outcome
from remoting.transport.identity import NOBODY, Identity
from tests.support.cluster import Cluster, eventually

ON = ("access.authentication=true", "access.authorization=true")
PASSWORD = "correct horse battery"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(
        tmp_path_factory.mktemp("access"), controllers=1, replicas=2, broker_settings=ON, controller_settings=ON
    ) as cluster:
        cluster.start()
        eventually("the first user is made", (cluster.data / "n0" / "first-user").exists)
        cluster.admin.create_topic("orders", 4)
        yield cluster


def ask(
    address: str, user: str, password: str, code: int, ext: dict[str, str] | None = None, body: bytes = b""
) -> bytes:
    identity = Identity(Credentials(user, password.encode())) if user else NOBODY
    with SocketConnection(address, identity=identity) as connection:
        return bytes(connection.call(code, ext, body).body)


def send(cluster: Cluster, user: str, password: str, topic: str = "orders") -> None:
    ext = {"a": "g", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    ask(cluster.broker_addresses[cluster.master()], user, password, codes.SEND_MESSAGE_V2, ext, b"hello")


def allowed(action: Callable[[], object]) -> bool:
    try:
        action()
    except RequestError as error:
        if error.code != codes.NO_PERMISSION:
            raise
        return False
    return True


def refusal(cluster: Cluster, user: str, password: str, topic: str = "orders") -> str:
    with pytest.raises(RequestError) as caught:
        send(cluster, user, password, topic)
    assert caught.value.code == codes.NO_PERMISSION
    return caught.value.message


def test_who_does_not_sign_is_refused_by_controllers_and_brokers(cluster: Cluster) -> None:
    for address in (*cluster.controller_addresses, *cluster.broker_addresses):
        for code in (codes.CLUSTER_VIEW, codes.GET_ROUTEINFO_BY_TOPIC, codes.BROKER_STATE):
            with pytest.raises(RequestError) as caught:
                ask(address, "", "", code, {"topic": "orders"})
            if caught.value.code != codes.REQUEST_CODE_NOT_SUPPORTED:
                assert caught.value.code == codes.NO_PERMISSION
    assert "signed requests only" in refusal(cluster, "", "")


def test_a_user_may_do_what_the_permissions_say_on_every_broker(cluster: Cluster) -> None:
    admin = AccessAdmin(cluster.admin)
    assert admin.create_user("alice", PASSWORD, "Normal", "enable").outcome == Outcome.CONFIRMED
    assert admin.create_user("alice", PASSWORD, "Normal", "enable").outcome == Outcome.UNCHANGED
    eventually("the broker knows alice", lambda: "no permission" in refusal(cluster, "alice", PASSWORD))
    admin.put_permission("alice", {"resource": "Topic:order*", "actions": ["Pub"], "decision": "Allow"})

    def sent() -> bool:
        return allowed(lambda: send(cluster, "alice", PASSWORD))

    eventually("alice may send", sent)
    assert "do not fit" in refusal(cluster, "alice", "a wrong password")
    assert "no permission" in refusal(cluster, "alice", PASSWORD, "invoices")
    admin.put_permission("alice", {"resource": "Topic:orders", "actions": ["Pub"], "decision": "Deny"})
    eventually("alice may not any more", lambda: not sent())
    assert "denies" in refusal(cluster, "alice", PASSWORD)
    admin.delete_permission("alice", "Topic:orders")
    eventually("alice may again", sent)
    admin.update_user("alice", status="disable")
    eventually("alice is disabled", lambda: not sent())


def test_the_first_super_user_manages_users_over_a_broker(cluster: Cluster) -> None:
    file = cluster.data / "n0" / "first-user"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    name, password = file.read_text().strip().split(":", 1)
    broker = cluster.broker_addresses[cluster.master()]
    body = orjson.dumps({"username": "bob", "password": PASSWORD, "userType": "Normal"})

    def created() -> bool:
        return allowed(lambda: ask(broker, name, password, codes.AUTH_CREATE_USER, {"username": "bob"}, body))

    eventually("the first user may create one", created)
    # the broker that took the change answers when it has it
    shown = orjson.loads(ask(broker, name, password, codes.AUTH_GET_USER, {"username": "bob"}))
    assert shown == {"username": "bob", "password": PASSWORD, "userType": "Normal", "userStatus": "enable"}
    with pytest.raises(RequestError) as caught:
        ask(broker, "bob", PASSWORD, codes.AUTH_CREATE_USER, {"username": "eve"}, body)
    assert caught.value.code == codes.NO_PERMISSION
    assert not any("password" in each for each in AccessAdmin(cluster.admin).users())


def test_a_broker_works_while_no_controller_is_there_and_after_a_restart_of_all(cluster: Cluster) -> None:
    admin = AccessAdmin(cluster.admin)
    admin.create_user("carol", PASSWORD, "Normal", "enable")
    admin.put_permission("carol", {"resource": "*", "actions": ["All"], "decision": "Allow"})
    copies = [cluster.data / f"b{number}" / "access.json" for number in range(2)]
    eventually(
        "both brokers have carol", lambda: all(each.exists() and b"User:carol" in each.read_bytes() for each in copies)
    )
    for each in copies:
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
        assert PASSWORD.encode() not in each.read_bytes()
    master = cluster.broker_addresses[cluster.master()]
    for controller in cluster.controllers:
        controller.kill()
    ask(master, "carol", PASSWORD, codes.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"})
    shown = orjson.loads(ask(master, "carol", PASSWORD, codes.AUTH_GET_USER, {"username": "carol"}))
    assert shown == {"username": "carol", "userType": "Normal", "userStatus": "enable"}
    for controller in cluster.controllers:
        controller.start()
    cluster.wait_in_sync(2)
    users = eventually("the controllers have a leader", admin.users)
    assert "carol" in {each["username"] for each in users}
    for path in Path(cluster.data).rglob("*"):
        if path.is_file() and path.parent.name != "logs":
            assert PASSWORD.encode() not in path.read_bytes(), path


def test_the_cluster_s_secret_is_changed_without_a_new_secret_for_anybody(cluster: Cluster) -> None:
    admin = AccessAdmin(cluster.admin)
    admin.create_user("dave", PASSWORD, "Super", "enable")
    old, new = cluster.secret_file.read_text().strip(), "b" * 64

    def restart(*lines: str) -> None:
        cluster.secret_file.write_text("\n".join(lines) + "\n")
        for process in (*cluster.controllers, *cluster.brokers):
            process.terminate()
            process.start()
        cluster.use_secret(lines[0])
        cluster.wait_in_sync(2)

    def works() -> bool:
        master = cluster.broker_addresses[cluster.master()]
        return allowed(lambda: ask(master, "dave", PASSWORD, codes.GET_BROKER_RUNTIME_INFO))

    restart(old, new)
    eventually("dave is known", works)
    restart(new, old)
    eventually("secrets were sealed anew", lambda: "sealed the secret of dave" in cluster.controllers[0].log_text())
    version = cluster.admin.cluster_view().access_version
    copies = [cluster.data / f"b{number}" / "access.json" for number in range(2)]
    wanted = f'\\"version\\":{version}'.encode()
    eventually("the brokers have them", lambda: all(wanted in each.read_bytes() for each in copies))
    restart(new)
    assert works()
