"""Sends and pulls of many connections at once, whose answers a thread writes, among peers that reset, half-close, do not read, or
send noise, on descriptors that are used again at once: who is honest gets its own answers alone, in order, and all of them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import pytest

from remoting import codes, frame
from remoting.frame import Command
from remoting.transport.client import split_address
from tests.support.cluster import Cluster, eventually

TOPIC: Final = "carried"
HONEST: Final = 32
PULLING: Final = 8  # of the honest ones, besides
RUDE: Final = 48
ROUNDS: Final = 150  # of each honest one
BEFORE: Final = 200  # messages that are there to be pulled
OF_ONE: Final = 100_000  # numbers of requests
_RESET: Final = struct.pack("ii", 1, 0)
_PATIENT_S: Final = 300


@pytest.fixture(scope="module", params=["native", "python"])
def cluster(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    mode = "auto" if request.param == "native" else "python"
    root: Path = tmp_path_factory.mktemp("carried")
    with Cluster(root, controllers=1, replicas=1, broker_settings=(f"kernel.mode={mode}",)) as cluster:
        cluster.start()
        cluster.admin.create_topic(TOPIC, 4)
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        yield cluster


def sends(first: int, count: int, body: bytes = b"a body") -> bytes:
    ext = dict(zip("abcdefgh", ("g", TOPIC, "TBW102", "4", "0", "0", "0", "0"), strict=True))
    return b"".join(
        frame.encode_request(codes.SEND_MESSAGE_V2, number, ext | {"i": f"UNIQ_KEY\x01{number:032}\x02"}, body)
        for number in range(first, first + count)
    )


async def connected(address: tuple[str, int], receive_bytes: int = 0) -> socket.socket:
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, address)
    return connection


async def answers_of(connection: socket.socket, most: int) -> list[Command]:
    """So many answers, or those that come before the end."""
    answers: list[Command] = []
    rest = b""
    while len(answers) < most and (data := await asyncio.get_running_loop().sock_recv(connection, 1 << 16)):
        rest += data
        rest = rest[frame.decode_frames(rest, answers) :]
    return answers


async def be_honest(address: tuple[str, int], number: int, chance: Random) -> int:
    """How many sends were acknowledged."""
    loop, at = asyncio.get_running_loop(), number * OF_ONE
    connection = await connected(address)
    with connection:
        for _ in range(ROUNDS):
            count = chance.randint(1, 4)
            await loop.sock_sendall(connection, sends(at, count))
            answers = await answers_of(connection, count)
            assert [(each.opaque, each.code) for each in answers] == [(at + n, codes.SUCCESS) for n in range(count)]
            at += count
    return at - number * OF_ONE


def pulls(first: int, count: int, offset: int) -> bytes:
    fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32"}
    more = {"sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    return b"".join(
        frame.encode_request(codes.PULL_MESSAGE, number, fields | more | {"expressionType": "TAG"}, b"")
        for number in range(first, first + count)
    )


def queue_offsets(records: bytes) -> list[int]:
    found = []
    while records:
        found.append(int.from_bytes(records[20:28]))
        records = records[int.from_bytes(records[:4]) :]
    return found


async def pull_honestly(address: tuple[str, int], number: int, chance: Random) -> None:
    loop = asyncio.get_running_loop()
    with await connected(address) as connection:
        for at in range(number * OF_ONE, number * OF_ONE + ROUNDS):
            offset = chance.randrange(BEFORE - 32)
            await loop.sock_sendall(connection, pulls(at, 1, offset))
            [answer] = await answers_of(connection, 1)
            assert (answer.opaque, answer.code) == (at, codes.SUCCESS)
            assert queue_offsets(bytes(answer.body)) == list(range(offset, offset + 32))


async def be_rude(address: tuple[str, int], number: int, chance: Random, until: asyncio.Event) -> None:
    loop, own = asyncio.get_running_loop(), range(number * OF_ONE, (number + 1) * OF_ONE)
    while not until.is_set():
        kind = chance.choice(("reset", "half", "deaf", "noise", "gone"))
        with (
            contextlib.suppress(ConnectionError),
            await connected(address, 2048 if kind == "deaf" else 0) as connection,
        ):
            count = chance.randint(1, 120 if kind == "deaf" else 9)
            data = chance.choice((sends(own.start, count), pulls(own.start, count, chance.randrange(BEFORE))))
            if kind == "noise":
                at = chance.randrange(len(data))
                data = data[:at] + chance.randbytes(chance.randint(1, 9)) + data[at + 3 :]
            await loop.sock_sendall(connection, data)
            if kind == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            elif kind in ("half", "noise"):
                connection.shutdown(socket.SHUT_WR)
                found = await asyncio.wait_for(answers_of(connection, OF_ONE), _PATIENT_S)
                assert kind == "noise" or all(each.opaque in own for each in found)
            elif kind == "deaf":
                await asyncio.sleep(chance.random() / 50)


async def _fill(address: tuple[str, int]) -> int:
    """Messages to pull, so many that an answer is a large one."""
    with await connected(address) as connection:
        await asyncio.get_running_loop().sock_sendall(connection, sends(0, BEFORE, b"x" * 1000))
        return len(await answers_of(connection, BEFORE))


async def _crowd(address: tuple[str, int], seed: int) -> int:
    until = asyncio.Event()
    async with asyncio.timeout(_PATIENT_S), asyncio.TaskGroup() as tasks:
        for number in range(RUDE):
            tasks.create_task(be_rude(address, HONEST + number, Random(seed * 1000 + number), until))
        for number in range(HONEST + RUDE, HONEST + RUDE + PULLING):
            tasks.create_task(pull_honestly(address, number, Random(seed * 3000 + number)))
        honest = [be_honest(address, number, Random(seed * 2000 + number)) for number in range(HONEST)]
        acknowledged = await asyncio.gather(*honest)
        until.set()
    return sum(acknowledged)


def test_each_gets_its_own_answers_whatever_others_do(cluster: Cluster) -> None:
    [address] = cluster.broker_addresses
    acknowledged = asyncio.run(_fill(split_address(address))) + asyncio.run(_crowd(split_address(address), 1))
    [broker] = cluster.brokers
    assert broker.is_running
    assert "Traceback" not in broker.log_text()
    assert sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC)) >= acknowledged
