"""A broker with its loops in C, and one with Python's: what they say of it, and what they store of one burst of all kinds."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from remoting import codes, frame
from remoting.client.socket_connection import SocketConnection
from remoting.frame import Command
from remoting.record.properties import encode_properties
from tests.support.client_bytes import encode_batch_body, encode_compact
from tests.support.cluster import Cluster, eventually
from tests.support.native_library import native_library
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "Modes"
SINGLES, BATCHES, OF_A_BATCH = 300, 20, 8


def sends(mode: str) -> list[Command]:
    """Singles to two queues, and batches to a third."""

    def key(n: int) -> dict[str, str]:
        return {"UNIQ_KEY": f"{mode}{n}", "TAGS": "t", "WAIT": "true"}

    def command(opaque: int, queue_id: int, body: bytes, code: int, **changes: str) -> Command:
        ext = {
            **{"a": "p", "b": TOPIC, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1700000000000"},
            **{"h": "0", "i": encode_properties(key(opaque)).decode(), "j": "0", "k": "false", **changes},
        }
        return Command(code, opaque, ext, body)

    found = [command(n, n % 2, f"{mode} {n}".encode(), codes.SEND_MESSAGE_V2) for n in range(SINGLES)]
    for n in range(SINGLES, SINGLES + BATCHES):
        items = [(0, f"{mode} {n} {m}".encode(), encode_properties(key(1000 * n + m))) for m in range(OF_A_BATCH)]
        found.append(command(n, 2, encode_batch_body(items), codes.SEND_BATCH_MESSAGE, m="true"))
    return found


def send_all(address: str, commands: Sequence[Command]) -> list[Command]:
    """All at once, every other one with a compact header; the answers in their order."""
    host, _, port = address.rpartition(":")
    data = b"".join(
        encode_compact(each) if each.opaque % 2 else frame.encode_request(each.code, each.opaque, each.ext, each.body)
        for each in commands
    )
    answers: list[Command] = []
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(data)
        received = b""
        while len(answers) < len(commands):
            more = peer.recv(1 << 16)
            assert more, "the broker closed the connection"
            received += more
            received = received[frame.decode_frames(received, answers) :]
    return sorted(answers, key=lambda answer: answer.opaque)


@pytest.mark.parametrize("mode", ["native", "python"])
def test_a_broker_says_its_mode_and_stores_what_it_is_sent(tmp_path: Path, mode: str) -> None:
    if mode == "native":
        native_library()
    with Cluster(tmp_path, controllers=1, replicas=1, broker_settings=(f"kernel.mode={mode}",)) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=3))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        address = cluster.broker_addresses[cluster.master()]
        assert cluster.admin.broker_state(address).kernel == mode
        answers = send_all(address, sends(mode))
        assert {answer.code for answer in answers} == {codes.SUCCESS}
        offsets = [int(answer.ext["queueOffset"]) for answer in answers]
        assert offsets[:SINGLES] == [n // 2 for n in range(SINGLES)]
        assert offsets[SINGLES:] == [n * OF_A_BATCH for n in range(BATCHES)]
        counts = [SINGLES // 2, SINGLES // 2, BATCHES * OF_A_BATCH]
        eventually(
            "all to be readable", lambda: [each.max_offset for each in cluster.admin.queue_offsets(TOPIC)] == counts
        )
        for queue_id in range(len(counts)):
            pulled = cluster.admin.pull(TOPIC, cluster.admin.queue_offsets(TOPIC)[queue_id].group, queue_id, 0)
            bodies = [bytes(record.body) for record in pulled.records]
            if queue_id < 2:
                wanted = [f"{mode} {2 * n + queue_id}".encode() for n in range(len(bodies))]
            else:
                wanted = [f"{mode} {SINGLES + n // OF_A_BATCH} {n % OF_A_BATCH}".encode() for n in range(len(bodies))]
            assert (bodies, len(bodies) > 0) == (wanted, True)


@pytest.mark.parametrize(
    "more", [(), ("send.beside_loop=false",), ("kernel.mode=python",)], ids=["beside the loop", "in the loop", "python"]
)
def test_who_asks_sees_what_was_answered_to_another_one(tmp_path: Path, more: Sequence[str]) -> None:
    """Also what was taken beside the loop, as that of who sends densely is."""
    if "kernel.mode=python" not in more:
        native_library()
    settings = ("replication.ack_after=append", *more)
    with Cluster(tmp_path, controllers=1, replicas=1, broker_settings=settings) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        address = cluster.broker_addresses[cluster.master()]
        [send] = sends("seen")[:1]
        with SocketConnection(address) as sender, SocketConnection(address) as reader:
            for count in range(1, 1001):
                answer = sender.call(send.code, send.ext, send.body)
                assert int(answer.ext["queueOffset"]) == count - 1
                if count % 10:
                    continue
                position = int(answer.ext["msgId"][16:], 16)
                asker = reader if count % 20 else sender
                seen = asker.call(codes.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
                assert int(seen.ext["offset"]) == count
                found = asker.call(codes.VIEW_MESSAGE_BY_ID, {"offset": str(position), "topic": TOPIC})
                assert bytes(found.body).count(send.body) == 1
