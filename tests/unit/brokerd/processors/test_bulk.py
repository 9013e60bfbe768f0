"""Reads in bulk: how much comes at once and what limits it, where they are served, and that nothing of consuming is touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerd.composition.flow_settings import FlowSettings
from brokerd.consuming.read_place import PullSettings
from remoting import codes
from remoting.errors import SettingsError
from remoting.frame import MAX_FRAME_BYTES, Command
from remoting.record.codec import decode_records
from remoting.record.layout import MAX_RECORD_BYTES
from tests.support.remoting_broker import RemotingBroker, remoting_master

QUEUE = {"consumerGroup": "g", "topic": "t", "queueId": 0}


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def read(broker: RemotingBroker, offset: int = 0, **changes: Any) -> Command:
    asked = {**QUEUE, "queueOffset": offset, **changes}
    return broker.answer(codes.BULK_READ, {name: value for name, value in asked.items() if value is not None})


def bodies(answer: Command) -> list[str]:
    return [record.body.decode() for record in decode_records(answer.body)]


def change(broker: RemotingBroker, **settings: int) -> None:
    broker.pull_settings.change(replace(broker.pull_settings.value, **settings))


def test_a_mebibyte_and_more_comes_at_once(broker: RemotingBroker) -> None:
    broker.send(*["x" * 1024] * 3000)
    answer = read(broker)
    assert 1 << 20 <= len(answer.body) <= PullSettings().bulk_bytes
    following = int(answer.ext["nextBeginOffset"])
    assert following == len(bodies(answer)) > 1024
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("0", "3000")
    round_trips = 1
    while following < 3000:
        following = int(read(broker, following).ext["nextBeginOffset"])
        round_trips += 1
    assert round_trips == 2, "32 at a time were 94"


def test_small_messages_are_limited_by_their_number(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(5000)))
    assert bodies(read(broker)) == [str(number) for number in range(4096)]
    change(broker, bulk_messages=100)
    assert len(bodies(read(broker))) == 100
    assert bodies(read(broker, 4990)) == [str(number) for number in range(4990, 5000)]


def test_bytes_are_limited_but_one_message_always_comes(broker: RemotingBroker) -> None:
    broker.send(*["x" * 300_000] * 10)
    assert len(bodies(read(broker))) == 6
    change(broker, bulk_bytes=1_000_000)
    assert len(bodies(read(broker))) == 3
    change(broker, bulk_bytes=64 << 10)
    assert len(bodies(read(broker))) == 1


def test_who_asks_for_less_gets_less_and_never_more(broker: RemotingBroker) -> None:
    broker.send(*["x" * 1000] * 200)
    assert len(bodies(read(broker, maxMsgNums=7))) == 7
    assert len(bodies(read(broker, maxMsgBytes=5000))) == 4
    assert len(bodies(read(broker, maxMsgBytes=1))) == 1
    change(broker, bulk_messages=32)
    assert len(bodies(read(broker, maxMsgNums=2**31 - 1, maxMsgBytes=2**31 - 1))) == 32


def test_old_messages_come_in_smaller_parts(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(3000)))
    broker.log_end = broker.log.end_offset + broker.memory_bytes
    assert len(bodies(read(broker))) == 1024
    change(broker, bulk_messages_on_disk=8)
    assert len(bodies(read(broker))) == 8
    change(broker, bulk_messages_on_disk=3000, bulk_bytes_on_disk=64 << 10)
    assert len(read(broker).body) <= 64 << 10
    broker.log_end = 0
    assert len(bodies(read(broker))) == 3000


@pytest.mark.parametrize("name", ["bulk_bytes", "bulk_bytes_on_disk"])
def test_no_answer_is_longer_than_a_frame_or_than_a_connection_may_leave_unread(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"pull\.{name} is 4194305; it must be at most 4194304"):
        PullSettings(**{name: (4 << 20) + 1})
    largest = max(4 << 20, MAX_RECORD_BYTES)
    assert largest + 4096 < min(MAX_FRAME_BYTES, 8 << 20), "8 MiB is the least of flow.max_unsent_bytes"
    with pytest.raises(SettingsError):
        FlowSettings(max_unsent_bytes=(8 << 20) - 1)


def test_a_client_that_pulls_gets_32_whatever_it_asks_for(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(100)))
    asked = {**QUEUE, "queueOffset": 0, "sysFlag": 4, "subscription": "*"}
    for count in (32, 1024):
        answer = broker.answer(codes.PULL_MESSAGE, {**asked, "maxMsgNums": count, "commitOffset": 0, "subVersion": 0})
        assert len(bodies(answer)) == 32


@pytest.mark.parametrize(
    ("offset", "code", "following"),
    [(5, 19, 5), (7, 21, 5), (0, 21, 2), (1, 21, 2), (-1, 21, 2), (2, 0, 5)],
    ids=["end", "beyond", "removed", "removed", "nonsense", "there"],
)
def test_offsets_beside_the_messages_are_answered_at_once(
    broker: RemotingBroker, offset: int, code: int, following: int
) -> None:
    broker.send(*map(str, range(5)))
    broker.log.expire("t", 0, 2)
    answer = read(broker, offset, sysFlag=2, suspendTimeoutMillis=15_000)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, str(following))
    assert (answer.ext["minOffset"], answer.ext["maxOffset"]) == ("2", "5")
    assert broker.pull.waiting_count == 0


def test_a_replica_serves_while_it_is_in_sync_whatever_consumers_may_read_there(broker: RemotingBroker) -> None:
    broker.send("a")
    broker.is_master, broker.is_master_known, broker.is_in_sync = False, True, True
    assert not broker.pull_settings.value.slave_read
    assert bodies(read(broker)) == ["a"]
    broker.is_in_sync = False
    answer = read(broker)
    assert (answer.code, "sync-state set" in (answer.remark or "")) == (codes.SERVICE_NOT_AVAILABLE, True)
    broker.is_master_known = False
    assert read(broker).code == codes.SERVICE_NOT_AVAILABLE, "nobody vouches for it"


def test_only_what_is_confirmed_is_seen(broker: RemotingBroker) -> None:
    broker.send("a")
    broker.log.dispatches = False
    broker.send("b")
    answer = read(broker)
    assert (bodies(answer), answer.ext["maxOffset"]) == (["a"], "1")
    assert read(broker, 1).code == codes.PULL_NOT_FOUND


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"consumerGroup": "bad name"}, codes.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"consumerGroup": None}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "off"}, codes.NO_PERMISSION),
        ({"consumerGroup": "without"}, codes.NO_PERMISSION),
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "rmq_sys_logboom_metadata"}, codes.TOPIC_NOT_EXIST),
        ({"topic": "closed"}, codes.NO_PERMISSION),
        ({"queueId": 1}, codes.INVALID_PARAMETER),
        ({"queueId": "x"}, codes.INVALID_PARAMETER),
        ({"queueOffset": "all"}, codes.INVALID_PARAMETER),
        ({"queueOffset": None}, codes.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, codes.INVALID_PARAMETER),
        ({"maxMsgBytes": -1}, codes.INVALID_PARAMETER),
    ],
)
def test_refusals(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    broker.send("a")
    broker.topic("closed", perm=2)
    broker.group("off", consume_enable=False)
    broker.group("without")
    broker.answer(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, {"group": "without", "topic": "t", "readable": "false"})
    answer = read(broker, **changes)
    assert answer.code == code
    assert answer.remark


def test_it_counts_as_reading_but_not_as_consuming(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    read(broker, commitOffset=1, sysFlag=1)
    assert (broker.counters.out_messages, broker.counters.out_bytes > 0) == (2, True)
    assert broker.progress.pulled.get("g", "t", 0) is None
    assert broker.answer(codes.QUERY_CONSUMER_OFFSET, {**QUEUE, "setZeroIfNotFound": "false"}).code == 22
    read(broker, 2)
    assert broker.counters.missed == 1
