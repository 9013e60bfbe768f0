"""The appliance's own Redis: a stranger on the machine gets nothing of it, and its one user gets no more than the console and the
tasks need, which is shown by what they do."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.transport.redis import Channel
from redis import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from tasks.transport import ScriptlessAmqp
from tests.support.cluster import eventually
from tests.support.leash import leashed
from tests.support.redis import embedded
from webapp import redis_urls
from webapp.appliance.redis_server import Embedded
from webapp.channel_layer import ScriptlessChannelLayer

NOBODY_UID = 65534


class Running:
    """The server, in a data directory that anybody may enter: what protects it is its own."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.embedded: Embedded = embedded(root)
        self.process = subprocess.Popen(leashed(self.embedded.argv), stdout=subprocess.DEVNULL)
        self.client = Redis.from_url(self.embedded.url)
        eventually("Redis answers", self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except RedisError:
            return False

    def close(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait(10)

    def answer(self, command: str) -> str:
        """What a connection that said nothing before is answered."""
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(self.embedded.socket))
            stranger.sendall(f"{command}\r\n".encode())
            return stranger.recv(1000).decode().strip()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    root = Path(tempfile.mkdtemp(prefix="redis"))
    server = Running(root)
    yield server
    server.close()
    shutil.rmtree(root)


def test_it_listens_on_no_port(running: Running) -> None:
    own = {os.readlink(each) for each in Path(f"/proc/{running.process.pid}/fd").iterdir()}
    rows = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    assert any(each.startswith("socket:") for each in own), "this sees the sockets of the process"
    assert not [row for row in rows if f"socket:[{row[9]}]" in own]


@pytest.mark.parametrize(
    "command", ["PING", "GET logboom:snapshot", "LPUSH default x", "EVAL return(1) 0", "CONFIG GET *"]
)
def test_who_has_no_password_gets_nothing(running: Running, command: str) -> None:
    assert running.answer(command) == "-NOAUTH Authentication required."


def test_the_password_counts_for_its_user_alone(running: Running) -> None:
    password = running.client.connection_pool.connection_kwargs["password"]
    for who in (password, f"default {password}", "logboom guess", "default ''"):
        assert running.answer(f"AUTH {who}").startswith("-WRONGPASS")
    assert running.answer(f"AUTH logboom {password}") == "+OK"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_of_the_machine_reaches_neither_socket_nor_password(running: Running) -> None:
    place = running.embedded.socket
    knock = (
        "import os, socket, sys\n"
        f"os.setgid({NOBODY_UID}), os.setgroups([]), os.setuid({NOBODY_UID})\n"
        "for path in sys.argv[2:]:\n"
        "    try:\n"
        "        open(path)\n"
        "    except PermissionError:\n"
        "        print('closed')\n"
        "try:\n"
        "    socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
        "except PermissionError:\n"
        "    print('closed')\n"
    )
    root = place.parent.parent
    files = (place.parent / "redis.conf", root / "secrets" / "redis-password", root / "secrets" / "redis-url")

    def answers() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", knock, str(place), *map(str, files)], capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    assert answers() == ["closed"] * 4
    for directory in (place.parent, root / "secrets"):
        directory.chmod(0o755)
    assert answers() == ["closed"] * 4, "socket and files are closed also where their directory is not"


@pytest.mark.parametrize(
    "command",
    [
        "EVAL return(1) 0",
        "EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0",
        "EVAL_RO return(1) 0",
        "FCALL f 0",
        "FUNCTION LIST",
        "SCRIPT LOAD return(1)",
        "CONFIG SET dir /tmp",
        "MODULE LIST",
        "REPLICAOF 127.0.0.1 1",
        "ACL SETUSER logboom +@all",
        "SAVE",
        "FLUSHALL",
        "KEYS *",
        "MONITOR",
        "CLIENT LIST",
        "SHUTDOWN NOSAVE",
        "MIGRATE 127.0.0.1 1 x 0 1",
        "RESTORE x 0 x",
        "SETBIT x 1 1",
        "PFADD x a",
        "XADD x * a b",
        "GEOADD x 1 1 a",
    ],
)
def test_the_user_of_the_appliance_may_not(running: Running, command: str) -> None:
    with pytest.raises(NoPermissionError):
        running.client.execute_command(*command.split())


# ---- what console and tasks do works with that user (claims: tests/unit/tasks/test_claims.py)


@pytest.fixture
async def layer(running: Running) -> AsyncIterator[ScriptlessChannelLayer]:
    layer = ScriptlessChannelLayer(hosts=[running.embedded.url], prefix="test", capacity=3)
    yield layer
    await layer.close_pools()


async def test_what_a_group_is_told_each_of_its_channels_hears(layer: ScriptlessChannelLayer) -> None:
    channels = [await layer.new_channel() for _ in range(2)]
    for channel in channels:
        await layer.group_add("g", channel)
    for number in range(2):
        await layer.group_send("g", {"type": "told", "number": number})
    for channel in channels:
        assert [(await layer.receive(channel))["number"] for _ in range(2)] == [0, 1]
    await layer.group_discard("g", channels[0])
    await layer.group_send("g", {"type": "told", "number": 2})
    assert await layer.receive(channels[1]) == {"type": "told", "number": 2}


async def test_what_a_receiver_took_that_was_cancelled_is_received_again(
    layer: ScriptlessChannelLayer, running: Running
) -> None:
    channel = await layer.new_channel()
    key = "test" + layer.non_local_name(channel)
    for number in range(2):
        await layer.send(channel, {"type": "told", "number": number})
    first = await layer._brpop_with_clean(0, key, 1)  # and nobody says that it was handled
    assert first is not None
    assert running.client.zcard(f"{key}$inflight") == 1
    assert [(await layer.receive(channel))["number"] for _ in range(2)] == [0, 1]
    await layer.wait_received()
    assert running.client.exists(key, f"{key}$inflight") == 0


async def test_a_process_that_does_not_listen_is_told_no_more_than_its_capacity(
    layer: ScriptlessChannelLayer, running: Running
) -> None:
    deaf, hearing = ScriptlessChannelLayer(hosts=[running.embedded.url], prefix="test", capacity=3), layer
    for each in (deaf, hearing):
        await each.group_add("h", await each.new_channel())
    (channel,) = [
        name.decode() for name in running.client.zrange("test:group:h", 0, -1) if hearing.client_prefix.encode() in name
    ]
    for number in range(5):
        await layer.group_send("h", {"type": "told", "number": number})
        assert (await asyncio.wait_for(layer.receive(channel), 10))["number"] == number
    waiting = [running.client.zcard(key) for key in running.client.scan_iter(f"test*{deaf.client_prefix}!")]
    assert waiting == [3]
    await deaf.close_pools()


def test_a_task_that_its_worker_left_behind_comes_back(running: Running) -> None:
    """The one step of Celery that is a script by itself."""
    url = redis_urls.for_celery(running.embedded.url)
    app = Celery("test", broker=url, amqp=ScriptlessAmqp, set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": 0}
    app.send_task("some.task", queue="left-behind", ignore_result=True)
    with app.connection_for_read() as connection, connection.SimpleQueue("left-behind") as queue:
        taken = queue.get(timeout=10)
        assert running.client.hlen("unacked") == 1
        queue.channel.qos.restore_visible(interval=1)
        again = queue.get(timeout=10)
        assert again.headers["id"] == taken.headers["id"]
        again.ack()
        assert (running.client.hlen("unacked"), running.client.exists("unacked_mutex")) == (0, 0)
    app.close()


def test_the_librarys_own_way_would_be_refused(running: Running) -> None:
    app = Celery("test", broker=redis_urls.for_celery(running.embedded.url), set_as_current=False)
    with app.connection_for_read() as connection:
        channel: Any = connection.channel()
        assert isinstance(channel, Channel)
        with pytest.raises(ResponseError, match="no permissions"):
            channel.qos.restore_visible(interval=1)
    app.close()
