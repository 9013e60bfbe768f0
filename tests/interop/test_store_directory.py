"""A store directory goes from the original to us and back, and nothing in it changes for its clients."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.interop.apache import Session
from tests.interop.directories import (
    QUEUES,
    Directory,
    commit,
    look,
    make_group,
    send,
    topic_fields,
)

TOPICS = ("Orders", "Payments", "Later")
GROUPS = ("GID_orders", "GID_ordered")


def write(address: str, topic: str, count: int, start: int = 0) -> None:
    """Messages of several kinds: with tags and keys, compressed ones, and some that are large enough to fill files."""
    with SocketConnection(address, timeout_ms=5000) as connection:
        for number in range(start, start + count):
            body = b"%s %d " % (topic.encode(), number) + bytes(20_000 if number % 7 == 0 else 10)
            is_compressed = number % 5 == 0
            send(
                connection,
                topic,
                number % QUEUES,
                zlib.compress(body) if is_compressed else body,
                sys_flag=1 if is_compressed else 0,
                TAGS=f"tag{number % 3}",
                KEYS=f"key{number}",
                UNIQ_KEY=f"{topic}{number:08d}",
            )


def configure(address: str, topic: str, offsets: dict[tuple[str, str, int], int]) -> None:
    with SocketConnection(address, timeout_ms=5000) as connection:
        connection.call(codes.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, QUEUES))
    write(address, topic, 120)
    with SocketConnection(address, timeout_ms=5000) as connection:
        make_group(connection, "GID_orders", retries=5)
        make_group(connection, "GID_ordered", fifo=True)
        for (group, name, queue_id), offset in offsets.items():
            commit(connection, group, name, queue_id, offset)


@pytest.mark.parametrize("cleanly", [True, False], ids=["stopped", "killed"])
def test_a_directory_goes_there_and_back_and_there_again(session: Session, tmp_path: Path, *, cleanly: bool) -> None:
    directory = Directory(tmp_path / "shared", session)

    # the original writes
    address = directory.open_original()
    first = {("GID_orders", "Orders", 0): 7, ("GID_orders", "Orders", 3): 30, ("GID_ordered", "Orders", 1): 2}
    configure(address, "Orders", first)
    directory.wait_offsets_on_disk(first)
    before = look(address, TOPICS, GROUPS)
    assert sum(map(len, before.messages.values())) == 120
    directory.close(cleanly=cleanly)

    # we go on
    address = directory.open_ours()
    assert look(address, TOPICS, GROUPS) == before
    second = first | {("GID_orders", "Payments", 2): 11, ("GID_orders", "Orders", 0): 9}
    configure(address, "Payments", second)
    write(address, "Orders", 40, 120)
    directory.wait_offsets_on_disk(second)
    between = look(address, TOPICS, GROUPS)
    assert {key: between.messages[key][: len(found)] for key, found in before.messages.items()} == before.messages
    assert sum(map(len, between.messages.values())) == 120 + 120 + 40
    assert between.offsets.items() >= second.items()
    directory.close(cleanly=cleanly)

    # the original again
    address = directory.open_original()
    assert look(address, TOPICS, GROUPS) == between
    third = second | {("GID_ordered", "Later", 0): 4, ("GID_orders", "Orders", 0): 12}
    configure(address, "Later", third)
    write(address, "Orders", 40, 160)
    directory.wait_offsets_on_disk(third)
    after = look(address, TOPICS, GROUPS)
    assert {key: after.messages[key][: len(found)] for key, found in between.messages.items()} == between.messages
    directory.close(cleanly=cleanly)

    # and we once more: what it changed meanwhile counts
    address = directory.open_ours()
    assert look(address, TOPICS, GROUPS) == after
    assert after.offsets.items() >= third.items()
    directory.close(cleanly=True)
