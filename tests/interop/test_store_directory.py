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
    find,
    look,
    make_group,
    send,
)
from tests.interop.servers import topic_fields

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


def check_index(address: str, counts: dict[str, int]) -> None:
    """Each message of the topics, so many of them, is found by its key and by its unique id."""
    for topic, count in counts.items():
        for number in range(0, count, 3):
            [body] = find(address, topic, f"{topic}{number:08d}")
            assert find(address, topic, f"key{number}") == [body]
        assert find(address, topic, f"key{count}") == []


def test_the_index_goes_there_and_back(session: Session, tmp_path: Path) -> None:
    """After clean stops: a broker of the original that was killed gives up the index of what it had written."""
    directory = Directory(tmp_path / "shared", session)
    address = directory.open_original()
    configure(address, "Orders", {})
    directory.close(cleanly=True)
    of_original = directory.index_files()
    assert len(of_original) > 1

    address = directory.open_ours()
    check_index(address, {"Orders": 120})
    configure(address, "Payments", {})
    check_index(address, {"Orders": 120, "Payments": 120})
    directory.close(cleanly=True)
    of_ours = directory.index_files()
    assert list(of_ours)[: len(of_original) - 1] == list(of_original)[:-1]
    assert all(of_ours[name] == of_original[name] for name in list(of_original)[:-1])

    address = directory.open_original()
    check_index(address, {"Orders": 120, "Payments": 120})
    write(address, "Orders", 40, 120)
    directory.close(cleanly=True)
    assert list(directory.index_files())[: len(of_ours)] == list(of_ours)

    address = directory.open_ours()
    check_index(address, {"Orders": 160, "Payments": 120})
    directory.close(cleanly=False)
    address = directory.open_ours()
    check_index(address, {"Orders": 160, "Payments": 120})
    directory.close(cleanly=True)


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
