"""Brokers of both kinds in one group, under our controllers: elected, killed and back, with equal logs at the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from tests.interop.apache import Session
from tests.interop.mixed import SEGMENT_BYTES, Member, MixedGroup, find_bodies, read_log
from tests.support.cluster import eventually
from tests.support.documents import document

pytestmark = pytest.mark.slow


@pytest.fixture
def group(tmp_path: Path, session: Session) -> Iterator[MixedGroup]:
    with MixedGroup(tmp_path / "group", session) as group:
        yield group


def test_ours_follows_a_master_of_the_original(group: MixedGroup) -> None:
    original = group.add_original()
    group.wait_for_master(original)
    sent = group.send(1500)
    ours = group.add_ours()
    group.wait_in_sync(original, ours)
    sent += group.send(3000)
    assert group.master is original
    group.wait_until_equal_length()
    compared = group.compare(3 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) == 4500
    assert compared.files >= 4
    assert compared.epochs == 1
    following = document(group.admin.broker_state(ours.address))["channel"]["following"]
    assert (following["layout"], following["copies"], following["cuts"]) == ("current", 0, 0)


def test_a_slave_of_the_original_follows_ours(group: MixedGroup) -> None:
    ours = group.add_ours()
    group.wait_for_master(ours)
    sent = group.send(1500)
    original = group.add_original()
    group.wait_in_sync(ours, original)
    sent += group.send(3000)
    assert group.master is ours
    group.wait_until_equal_length()
    compared = group.compare(3 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) == 4500
    assert compared.files >= 4
    (peer,) = document(group.admin.broker_state(ours.address))["channel"]["replicas"]
    assert (peer["layout"], peer["inSync"]) == ("current", True)


def test_a_slave_of_the_original_takes_over_the_topics_of_ours(group: MixedGroup) -> None:
    ours = group.add_ours()
    group.wait_for_master(ours)
    original = group.add_original()
    group.wait_in_sync(ours, original)
    group.admin.create_topic("TypedTopic", queues=3)

    def taken_over() -> int:
        with SocketConnection(original.address, timeout_ms=3000) as connection:
            table = json.loads(bytes(connection.call(codes.GET_ALL_TOPIC_CONFIG).body))["topicConfigTable"]
        return int(table.get("TypedTopic", {}).get("readQueueNums", 0))

    assert eventually("the topic is there", taken_over) == 3


def test_there_and_back_through_kills_and_elections(group: MixedGroup) -> None:
    original = group.add_original()
    group.wait_for_master(original)
    ours = group.add_ours()
    group.wait_in_sync(original, ours)
    masters = [original]
    with group.load() as sent:
        group.wait_for_more(sent, 800)
        for victim, heir in ((original, ours), (ours, original)):
            assert group.master is victim
            victim.process.kill()
            group.wait_for_master(heir)
            masters.append(heir)
            group.wait_for_more(sent, 800)
            victim.process.start()
            group.wait_in_sync(original, ours)
            group.wait_for_more(sent, 400)
        for heir in (ours, original, ours):
            group.elect(heir)
            masters.append(heir)
            group.wait_for_more(sent, 800)
            group.wait_in_sync(original, ours)
    assert [each.is_ours for each in masters] == [False, True, False, True, False, True]
    group.wait_until_equal_length()
    compared = group.compare(4 * SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(sent) >= 800 + 2 * 1200 + 3 * 800
    assert compared.epochs == len(masters) == 6


def test_two_of_ours_and_one_of_the_original(group: MixedGroup) -> None:
    """Every one of the three is killed as master once, under load; the next master is of either kind."""
    members = [group.add_ours(), group.add_original(), group.add_ours()]
    group.wait_in_sync(*members)
    killed = []
    with group.load() as sent:
        group.wait_for_more(sent, 300)
        for victim in members:
            if group.master is not victim:
                group.elect(victim)
                group.wait_in_sync(*members)
            group.wait_for_more(sent, 200)
            victim.process.kill()
            killed.append(victim)
            group.wait_for_more(sent, 300)
            assert group.master is not victim
            victim.process.start()
            group.wait_in_sync(*members)
    group.wait_until_equal_length()
    compared = group.compare(SEGMENT_BYTES)
    group.check_bodies(sent)
    assert len(killed) == 3
    assert len(sent) >= 1800
    assert compared.epochs >= 4


def wait_for_copy(copy: Member, original: Member, start: int, end: int) -> None:
    """Wait until the copy's files have the other's bytes of that range."""
    expected = read_log(original.store, end)[start:]
    assert len(expected) == end - start

    def is_copied() -> bool:
        try:
            return read_log(copy.store, end)[-len(expected) :] == expected
        except FileNotFoundError:  # the original dropped a file behind the end of what it recovered after a kill
            return False

    eventually("equal files", is_copied, 60)


def test_a_classic_slave_of_the_original_follows_ours(group: MixedGroup) -> None:
    ours = group.add_ours(["replication.classic_peers=true"])
    group.wait_for_master(ours)
    sent = group.send(2000)
    slave = group.add_classic_original(brokerRole="SLAVE", brokerId=5)  # the name server tells it where to copy from
    sent += group.send(2000)
    end = group.log_end(ours)
    assert end > 3 * SEGMENT_BYTES
    wait_for_copy(slave, ours, 0, end)
    assert find_bodies(read_log(slave.store, end)) == sent
    assert len(sent) == 4000
    (peer,) = document(group.admin.broker_state(ours.address))["channel"]["replicas"]
    assert (peer["layout"], peer["brokerId"], peer["inSync"]) == ("classic", -1, False)
    slave.process.kill()
    assert len(group.send(100)) == 100, "nobody waits for a guest"
    slave.process.start()
    end = group.log_end(ours)
    wait_for_copy(slave, ours, 0, end)


def test_ours_copies_a_classic_master_of_the_original(group: MixedGroup) -> None:
    master = group.add_classic_original(brokerRole="ASYNC_MASTER")
    sent: list[bytes] = []
    eventually("the master takes messages", lambda: group.send_to(master.address, 1, sent) or sent)
    group.send_to(master.address, 2000, sent)
    settings = [f"replication.classic_master={master.ha_address}"]
    ours = group.add_ours(settings, registers=False)

    def end() -> int:
        state = document(group.admin.broker_state(ours.address))
        following = state["channel"]["following"]
        return int(state["endOffset"]) if following and following["stage"] == "transfer" else 0

    eventually("the copy has begun", lambda: end() > SEGMENT_BYTES)
    group.send_to(master.address, 4000, sent)
    ours.process.kill()
    group.send_to(master.address, 5000, sent)
    ours.process.start()

    def whole() -> bool:
        return find_bodies(read_log(ours.store, end()))[-1:] == sent[-1:]

    eventually("the last message is in the copy", whole)
    state = document(group.admin.broker_state(ours.address))
    start = state["minOffset"]
    assert start == SEGMENT_BYTES, "a classic master sends an empty slave its last file only"
    wait_for_copy(ours, master, start, end())
    copied = find_bodies(read_log(ours.store, end()))
    assert copied == sent[-len(copied) :]
    assert len(sent) == 5000
    assert len(copied) > 3000
    assert state["epochs"] == [{"epoch": 0, "startOffset": start}]
    assert state["role"] == "replica"
