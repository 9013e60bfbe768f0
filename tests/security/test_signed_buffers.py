"""64 signed sends in one piece of bytes, over plaintext and TLS, with loops in C and in Python: what is refused is not stored."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pytest

from remoting import codes, frame
from remoting.access.signature import SIGNATURE, Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.frame import Command
from remoting.transport.client import split_address
from remoting.transport.tls import client_context
from tests.security.people import PASSWORD, Person
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually

TOPIC, FOREIGN = "buffers", "buffers-of-others"
COUNT: Final = 64
_ON: Final = ("access.authentication=true", "access.authorization=true")


@pytest.fixture(scope="module", params=["native", "python"])
def asking(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("buffers")
    tls, authority = of_the_appliance(root / "appliance")
    settings = (*_ON, *tls, f"kernel.mode={'auto' if request.param == 'native' else 'python'}")
    with Cluster(
        root / "cluster", controllers=1, replicas=1, broker_settings=settings, controller_settings=_ON
    ) as cluster:
        cluster.start()
        for topic in (TOPIC, FOREIGN):
            cluster.admin.create_topic(topic, 1)
        (cluster.data / "authority").write_text(str(authority))
        eventually("the topics' routes", lambda: all(map(cluster.admin.queue_offsets, (TOPIC, FOREIGN))))
        yield cluster


@pytest.fixture(params=["plaintext", "TLS"])
def ask(asking: Cluster, request: pytest.FixtureRequest) -> Iterator[Callable[[Sequence[bytes]], dict[int, int]]]:
    """Sends frames in one piece on one connection; the codes of the answers, by the requests' numbers."""
    [address] = asking.broker_addresses
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(split_address(address), 10))
        if request.param == "TLS":
            connection = stack.enter_context(
                client_context((asking.data / "authority").read_text()).wrap_socket(connection)
            )

        def send(frames: Sequence[bytes]) -> dict[int, int]:
            connection.sendall(b"".join(frames))
            answers: list[Command] = []
            rest = b""
            while len(answers) < len(frames):
                rest += connection.recv(1 << 16)
                rest = rest[frame.decode_frames(rest, answers) :]
            return {each.opaque: each.code for each in answers}

        yield send


def frame_of(number: int, name: str, topic: str = TOPIC, *, is_tampered: bool = False) -> bytes:
    ext = dict(zip("abcdefgh", ("g", topic, "TBW102", "4", "0", "0", "0", "0"), strict=True))
    ext["i"] = f"UNIQ_KEY\x01{number:032}\x02"
    signed = Credentials(name, PASSWORD.encode()).sign(ext, b"a body")
    if is_tampered:
        first = signed[SIGNATURE][0]
        signed[SIGNATURE] = ("B" if first == "A" else "A") + signed[SIGNATURE][1:]
    return frame.encode_request(codes.SEND_MESSAGE_V2, number, signed, b"a body")


def stored(cluster: Cluster, topic: str) -> int:
    return sum(each.max_offset for each in cluster.admin.queue_offsets(topic))


def test_what_is_refused_is_not_stored(asking: Cluster, ask: Callable[[Sequence[bytes]], dict[int, int]]) -> None:
    name = f"kim{stored(asking, TOPIC)}"
    Person(asking, name, {f"Topic:{TOPIC}": ("Pub",)})
    for _ in range(2):  # the first request of a connection shows who it is
        before, foreign = stored(asking, TOPIC), stored(asking, FOREIGN)
        frames = [frame_of(number, name) for number in range(COUNT)]
        frames[20] = frame_of(20, name, is_tampered=True)
        frames[41] = frame_of(41, name, FOREIGN)
        refused = {20, 41}
        assert ask(frames) == {n: codes.NO_PERMISSION if n in refused else codes.SUCCESS for n in range(COUNT)}
        assert stored(asking, TOPIC) == before + COUNT - len(refused)
        assert stored(asking, FOREIGN) == foreign
    AccessAdmin(asking.admin).delete_user(name)
    eventually("the user is gone", lambda: set(ask([frame_of(1, name)]).values()) == {codes.NO_PERMISSION})
    before = stored(asking, TOPIC)
    assert ask([frame_of(number, name) for number in range(COUNT)]) == dict.fromkeys(range(COUNT), codes.NO_PERMISSION)
    assert stored(asking, TOPIC) == before
