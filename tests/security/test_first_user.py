"""The first super user's file is for its owner: who noted what it says removes it, and nothing misses it or shows another key."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from controllerd.access.first_user import FirstUser, check_first_user
from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.socket_connection import SocketConnection
from remoting.errors import LogboomError, SettingsError
from remoting.transport.identity import Identity
from tests.support.appliance import CONTROLLER, Appliance
from tests.support.cluster import eventually
from tests.support.disks import MemoryDisk

SHOWN = re.compile(r"Clients sign as +(\S+), secret key (\S+) ")


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    on = ("--controller-set", "access.authentication=true", "--broker-set", "access.authentication=true")
    it = Appliance(tmp_path_factory.mktemp("first"), "--controllers", "1", "--replicas", "1", *on)
    it.start()
    yield it
    it.process.close()


def answers(appliance: Appliance, user: Credentials) -> bool:
    try:
        with SocketConnection(f"127.0.0.1:{appliance.base + CONTROLLER}", identity=Identity(user)) as connection:
            connection.call(codes.GET_BROKER_CLUSTER_INFO)
    except (LogboomError, OSError):
        return False
    return True


@pytest.mark.slow
def test_without_its_file_the_first_user_stays_and_no_other_is_shown(appliance: Appliance) -> None:
    name, secret = SHOWN.findall(appliance.said)[0]
    user, file = Credentials(name, secret.encode()), appliance.layout.first_user_file
    assert file.read_text() == f"{name}:{secret}\n"
    assert answers(appliance, user)
    file.unlink()

    os.kill(appliance.children()["controller-n0"]["pid"], signal.SIGKILL)
    eventually("the controller serves again", lambda: answers(appliance, user), 30)

    assert appliance.stop() == 0
    appliance.start()
    assert SHOWN.findall(appliance.said) == [], "a key that counts nowhere"
    assert "the users of before" in appliance.said
    assert not file.exists()
    assert answers(appliance, user)

    assert appliance.stop() == 0
    file.write_text("admin:drawn for a start that failed\n")
    file.chmod(0o600)
    appliance.start()
    assert "its key counts nowhere any more" in appliance.said
    assert not file.exists()


def test_a_file_that_is_unfit_is_refused_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    file = tmp_path / "first-user"
    check_first_user(file)
    with pytest.raises(SettingsError, match="cannot read --first-user"):
        FirstUser(file, MemoryDisk(), tmp_path, lambda: "drawn").get()
    file.write_text("admin:a long secret\n")
    file.chmod(0o644)
    with pytest.raises(SettingsError, match="others may read"):
        check_first_user(file)
    file.chmod(0o600)
    assert FirstUser(file, MemoryDisk(), tmp_path, lambda: "drawn").get() == ("admin", "a long secret")
    file.write_text("admin\n")
    with pytest.raises(SettingsError, match="NAME:PASSWORD"):
        check_first_user(file)
