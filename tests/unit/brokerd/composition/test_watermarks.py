"""How often the log says how far it is confirmed: never while nothing comes, and soon behind what came last."""

from __future__ import annotations

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.start.watermark import TOPIC, confirmed_by
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SETTINGS, STORE_HOST, draft


def master() -> AloneBroker:
    broker = AloneBroker(MemoryDisk(), Turns(), SETTINGS, STORE_HOST)
    broker.replica.become(Role.MASTER)
    broker.core.metadata.put_topic(TopicConfig("T", 1, 1), lambda _: None)
    broker.turns.run(5000)
    return broker


def send(broker: AloneBroker) -> None:
    broker.core.sender.send([draft(b"x" * 20, topic="T")], lambda _: None)
    broker.turns.run(10)


def watermarks(broker: AloneBroker) -> list[tuple[int, int]]:
    """Of each what it says, and where it begins."""
    store = broker.core.store
    found = store.read_units(TOPIC, 0, 0, 1000) if (TOPIC, 0) in store.queues.table else []
    said = []
    for offset, _, _ in found:
        record = store.commitlog.record_at(offset)
        assert record is not None
        said.append((confirmed_by(record), offset))
    return said


def test_what_was_confirmed_last_is_said_and_an_idle_log_stays_as_it_is() -> None:
    broker = master()
    before = len(watermarks(broker))
    send(broker)
    confirmed = broker.core.store.commitlog.end_offset
    broker.turns.run(60_000)
    assert watermarks(broker)[before:] == [(confirmed, confirmed)]
    end = broker.core.store.commitlog.end_offset
    broker.turns.run(3_600_000)
    assert broker.core.store.commitlog.end_offset == end


def test_a_busy_log_has_one_a_second() -> None:
    broker = master()
    before = len(watermarks(broker))
    for _ in range(100):
        send(broker)
        broker.turns.run(40)
    broker.turns.run(5000)
    assert 5 <= len(watermarks(broker)) - before <= 6
    for confirmed, offset in watermarks(broker):
        assert confirmed <= offset


def test_only_a_master_writes_and_one_that_cannot_goes_on() -> None:
    broker = master()
    send(broker)
    broker.replica.become(Role.REPLICA, 2)
    end = broker.core.store.commitlog.end_offset
    broker.turns.run(5000)
    assert broker.core.store.commitlog.end_offset == end
    broker.replica.become(Role.MASTER, 3)
    broker.turns.run(5000)
    before = len(watermarks(broker))
    send(broker)
    broker.core.store.set_full(True)
    broker.turns.run(5000)
    assert len(watermarks(broker)) == before
    broker.core.store.set_full(False)
    send(broker)
    broker.turns.run(5000)
    assert len(watermarks(broker)) == before + 1


def test_a_record_that_is_no_watermark_says_nothing() -> None:
    broker = master()
    send(broker)
    store = broker.core.store
    [(offset, _, _)] = store.read_units("T", 0, 0, 1)
    record = store.commitlog.record_at(offset)
    assert record is not None
    assert confirmed_by(record) == -1
    assert confirmed_by(b"") == -1
