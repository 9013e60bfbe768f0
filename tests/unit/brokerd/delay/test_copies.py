"""What is due at a delay level makes the same log whether it is copied, in C or not, or each message is decoded."""

from __future__ import annotations

from random import Random

import pytest

from brokerd.delay import batch
from brokerd.delay.deliverer import DelaySettings
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.native.library import Library
from brokerd.store.draft import Draft
from remoting.names import SCHEDULE_TOPIC
from remoting.record.layout import SYS_COMPRESSED, SYS_TRANSACTION_COMMIT
from tests.support.native_library import native_library
from tests.unit.brokerd.composition.test_core import Broker
from tests.unit.brokerd.store.stores import draft, log_bytes

GROUP = "g"
TARGETS = (
    *(b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02", b"REAL_TOPIC\x01T\x02REAL_QID\x011\x02"),
    *(b"REAL_TOPIC\x01T\x02REAL_QID\x017\x02", b"REAL_TOPIC\x01%RETRY%g\x02REAL_QID\x010\x02"),
)
ODD_TARGETS = (
    *(b"REAL_TOPIC\x01gone\x02REAL_QID\x010\x02", b"REAL_TOPIC\x01again\x02REAL_QID\x010\x02"),
    *(b"REAL_TOPIC\x01T\x02", b"REAL_TOPIC\x01rmq_sys_x\x02REAL_QID\x010\x02", b"REAL_QID\x010\x02"),
)
PROPERTIES = (
    *(b"TAGS\x01red\x02", b"KEYS\x01k\x02", b"RECONSUME_TIME\x013\x02RETRY_TOPIC\x01T\x02", b"DELAY\x013\x02"),
    *(
        b"TAGS\x01red\x02TAGS\x01blue\x02",
        b"empty\x01\x02",
        b"unended\x01x",
        b"\x01y\x02",
        b"a\x01b\x01c\x02",
        b"\xff\x01\xfe\x02",
    ),
)


def untidy(rng: Random) -> Draft:
    """A waiting message as clients, this broker, others, and nobody store it."""
    is_odd = rng.random() < 0.2
    pieces = [rng.choice(ODD_TARGETS if is_odd else TARGETS), b"DELAY\x011\x02"]
    pieces += rng.sample(PROPERTIES if is_odd else PROPERTIES[:4], rng.choice((0, 1, 3)))
    rng.shuffle(pieces)
    message = draft(rng.randbytes(rng.choice((0, 5, 300))), topic=SCHEDULE_TOPIC, queue_id=rng.randrange(2))
    return message._replace(
        properties=b"".join(pieces),
        sys_flag=rng.choice((0, SYS_COMPRESSED, SYS_COMPRESSED | SYS_TRANSACTION_COMMIT)),
        flag=rng.getrandbits(31),
        reconsume_times=rng.choice((0, 0, 3)),
        prepared_transaction_offset=rng.choice((0, 77)),
        born_host=bytes(16) + b"\0\0\0\1" if rng.random() < 0.1 else message.born_host,
    )


def delivered(seed: int, library: Library | None) -> Broker:
    broker = Broker(delay=DelaySettings(batch_messages=16), library=library)
    broker.change(lambda done: broker.core.metadata.put_group(GroupConfig(GROUP), done))
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("again", 1, 1), done))
    rng = Random(seed)
    for number in range(6):
        results = broker.core.store.append_messages([untidy(rng) for _ in range(rng.randrange(1, 12))])
        broker.core.appends.appended(results[-1].end_offset)
        broker.turns.run(rng.choice((0, 1, 300)))
        if number == 3:
            broker.change(lambda done: broker.core.metadata.delete_topic("again", done))
            broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("again", 1, 1), done))
    broker.turns.run(5000)
    state = broker.core.schedule.state()
    assert state.failures == 0
    assert [level.waiting for level in state.levels[:2]] == [0, 0]
    return broker


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("is_native", [False, True])
def test_copied_or_decoded_the_log_is_the_same(seed: int, is_native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = delivered(seed, native_library() if is_native else None)
    monkeypatch.setattr(batch, "LEAST_TOGETHER", 1 << 30)
    decoded = delivered(seed, None)
    assert log_bytes(copied.core.store) == log_bytes(decoded.core.store)
    assert copied.core.schedule.state() == decoded.core.schedule.state()
    assert copied.core.store.max_offset("T", 1) == decoded.core.store.max_offset("T", 1) > 0


def test_no_more_are_decoded_in_one_write_than_a_turn_of_the_loop_has_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MOST_DECODED", 5)
    broker = Broker(delay=DelaySettings(batch_messages=100))
    message = draft(b"x", topic=SCHEDULE_TOPIC, queue_id=0)._replace(
        properties=TARGETS[0] + b"DELAY\x011\x02", born_host=bytes(16) + b"\0\0\0\1"
    )
    results = broker.core.store.append_messages([message] * 12)
    broker.core.appends.appended(results[-1].end_offset)
    appended: list[int] = []
    commit = broker.core.metadata.commit_behind
    broker.core.metadata.commit_behind = lambda pieces, offsets: (
        appended.append(len(pieces)),
        commit(pieces, offsets),
    )[1]  # type: ignore[method-assign]
    broker.turns.run(3000)
    assert appended == [5, 5, 2]
