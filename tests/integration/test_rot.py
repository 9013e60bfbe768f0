"""Bytes that change in the files of running brokers: they are put right from another replica, without a switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerd.store.unit import UNIT
from remoting import codes, properties_text
from remoting.client.socket_connection import SocketConnection
from remoting.record.layout import Field
from remoting.record.properties import encode_properties
from remoting.record.walk import records_in
from tests.support.client_bytes import encode_batch_body
from tests.support.cluster import Cluster, eventually
from tests.support.documents import document
from tests.support.workload import call_until

pytestmark = pytest.mark.slow

TOPIC = "rot"
MESSAGES = 400
ALL = [b"m%04d" % each for each in range(MESSAGES)]
SEGMENT = "store.segment_size_bytes=65536"
SETTINGS = [
    *(SEGMENT, "store.checkpoint_interval_ms=200", "pull.slave_read=true"),
    *("scrub.bytes_per_s=50000000", "scrub.round_ms=1000"),
]
ANSWERS = (codes.SUCCESS, codes.PULL_RETRY_IMMEDIATELY, codes.SYSTEM_ERROR)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("rot"), controllers=1, broker_settings=SETTINGS) as cluster:
        cluster.start()
        call_until(lambda: cluster.admin.create_topic(TOPIC, queues=1))
        eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
        with SocketConnection(cluster.broker_addresses[cluster.master()]) as master:
            for first in range(0, MESSAGES, 20):
                send(master, first)
        read_all(cluster.broker_addresses[cluster.master()])  # makes the group
        yield cluster


def send(master: SocketConnection, first: int) -> None:
    header = {
        **{"a": "p", "b": TOPIC, "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000"},
        **{"h": "0", "i": "", "j": "0", "k": "false", "m": "true"},
    }
    names = [f"m{number:04d}" for number in range(first, first + 20)]
    items = [
        (0, name.encode().ljust(300, b"."), encode_properties({"UNIQ_KEY": name, "TAGS": "red"})) for name in names
    ]
    master.call(codes.SEND_BATCH_MESSAGE, header, encode_batch_body(items), timeout_ms=10_000)


def read_all(address: str, sub: str = "*") -> list[bytes]:
    """The bodies of all messages, as a consumer gets them that asks again after an error."""
    found: list[bytes] = []
    with SocketConnection(address) as broker:
        offset = 0
        while offset < MESSAGES:
            header = {
                **{"consumerGroup": "readers", "topic": TOPIC, "queueId": "0", "queueOffset": str(offset)},
                **{"maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
                **{"subscription": sub, "subVersion": "0", "expressionType": "TAG"},
            }
            answer = broker.call(codes.PULL_MESSAGE, header, timeout_ms=10_000, accept=ANSWERS)
            if answer.code == codes.SUCCESS:
                body = bytes(answer.body)
                found += [body[at + Field.BODY_LENGTH.at + 4 :][:5] for at in records_in(body)]
            if answer.code in (codes.SUCCESS, codes.PULL_RETRY_IMMEDIATELY):
                offset = int(answer.ext["nextBeginOffset"])
    return found


def state_of(cluster: Cluster, number: int) -> Any:
    return document(cluster.admin.broker_state(cluster.broker_addresses[number]))


def flip(path: Path, position: int) -> None:
    """What a disk does, done by another process than the one that has the file open."""
    with open(path, "r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 4]))


def bodies_in(path: Path, name: str) -> int:
    return path.read_bytes().index(name.encode() + b"...")


def units_in(directory: Path) -> int:
    """How many units the files of a queue have."""
    return sum(
        size > 0
        for path in directory.glob("*")
        for _, size, _ in UNIT.iter_unpack(path.read_bytes()[: MESSAGES * UNIT.size])
    )


def is_whole_again(sound: dict[Path, bytes]) -> bool:
    """Whatever was appended since."""
    return all(path.read_bytes().startswith(content.rstrip(b"\0")) for path, content in sound.items())


@pytest.mark.parametrize("who", ["master", "replica"])
def test_a_changed_record_is_repaired_while_it_runs(cluster: Cluster, who: str) -> None:
    master = cluster.master()
    number = master if who == "master" else (master + 1) % 3
    files = sorted((cluster.data / f"b{number}" / "commitlog").iterdir())
    closed, current = files[0], next(each for each in files if b"m0399" in each.read_bytes())
    sound = {path: path.read_bytes() for path in (closed, current)}
    before = state_of(cluster, number)["scrub"]["repaired"]
    starts = [each.starts for each in cluster.processes]
    flip(closed, bodies_in(closed, "m0007") + 100)
    flip(current, bodies_in(current, "m0399") + 100)
    eventually("both are repaired", lambda: state_of(cluster, number)["scrub"]["repaired"] >= before + 2)
    assert is_whole_again(sound)
    assert not state_of(cluster, number)["scrub"]["unrepaired"]
    assert read_all(cluster.broker_addresses[number]) == ALL
    assert cluster.master() == master
    assert [each.starts for each in cluster.processes] == starts


def test_a_changed_unit_is_repaired_while_it_runs(cluster: Cluster) -> None:
    master = cluster.master()
    directory = cluster.data / f"b{master}" / "consumequeue" / TOPIC / "0"
    # the longer a checkpoint takes, the later comes the next one, which has the rest
    eventually("all units are in files", lambda: units_in(directory) == MESSAGES)
    (path,) = directory.iterdir()
    sound = path.read_bytes()
    for position in (20 * 5 + 19, 20 * 111 + 7):  # a tag's hash and a place
        flip(path, position)
    eventually("the units are right again", lambda: path.read_bytes() == sound)
    assert read_all(cluster.broker_addresses[master], "red") == ALL


def test_a_reader_gets_what_was_damaged_before_any_round(cluster: Cluster) -> None:
    master = cluster.master()
    address = cluster.broker_addresses[master]
    with SocketConnection(address) as broker:
        broker.call(codes.UPDATE_BROKER_CONFIG, {}, properties_text.encode({"scrub.bytes_per_s": "0"}))
    path = sorted((cluster.data / f"b{master}" / "commitlog").iterdir())[0]
    flip(path, bodies_in(path, "m0031") + 50)
    assert read_all(address) == ALL


def rot_of_the_stopped(cluster: Cluster, number: int) -> dict[Path, bytes]:
    """Change the topic's record, one in the middle of the log and one near its end; what the files had before."""
    files = sorted((cluster.data / f"b{number}" / "commitlog").iterdir())
    sound = {path: content for path in files if any(content := path.read_bytes())}
    for name in ("m0012", "m0200", "m0390"):
        path = next(each for each in sound if name.encode() + b"..." in sound[each])
        flip(path, bodies_in(path, name) + 100)
    flip(files[0], sound[files[0]].index(b"topicPut") - 30)
    return sound


def wait_for_members(cluster: Cluster, count: int) -> None:
    """Wait until the sync-state set has shrunk to so many."""

    def reached() -> bool:
        group = cluster.group()
        return group is not None and len(group["syncStateSet"]) == count

    eventually(f"a set of {count}", reached)


def test_a_killed_replica_whose_log_rots_comes_up_whole(cluster: Cluster) -> None:
    number = (cluster.master() + 1) % 3
    process = cluster.brokers[number]
    cluster.wait_in_sync(3)
    process.kill()
    wait_for_members(cluster, 2)
    sound = rot_of_the_stopped(cluster, number)
    files = {path: path.stat().st_ino for path in sound}
    process.start()
    cluster.wait_in_sync(3)
    assert is_whole_again(sound)
    eventually("all can be read", lambda: read_all(cluster.broker_addresses[number]) == ALL)
    assert process.log_text().count("the log was mended from") == 4
    assert {path: path.stat().st_ino for path in files} == files, "it was copied anew"


def test_the_last_member_is_mended_by_who_was_in_the_set(cluster: Cluster) -> None:
    """Its former replicas may not lead, but they have what its disk has changed."""
    last = cluster.master()
    others = [each for number, each in enumerate(cluster.brokers) if number != last]
    for process in others:
        process.kill()
    wait_for_members(cluster, 1)
    cluster.brokers[last].kill()
    sound = rot_of_the_stopped(cluster, last)
    for process in others:
        process.start()

    def lives() -> bool:
        group = cluster.group()
        return group is not None and sum(bool(each["alive"]) for each in group["replicas"]) == 2

    eventually("its former replicas live", lives)
    mended = cluster.brokers[last].log_text().count("the log was mended from")
    cluster.brokers[last].start()
    cluster.wait_in_sync(3)
    assert cluster.master() == last
    assert cluster.brokers[last].log_text().count("the log was mended from") >= mended + 4
    assert is_whole_again(sound)
    eventually("all can be read", lambda: read_all(cluster.broker_addresses[last]) == ALL)
