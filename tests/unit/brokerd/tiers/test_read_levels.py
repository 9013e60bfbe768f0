"""Levels of reading: whoever gives the messages, files or tier, consumers get the same ones; and it is who an operator says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from brokerd.composition.mounting import take_mount
from brokerd.composition.settings import BrokerSettings
from brokerd.pop.reading import read_offsets
from brokerd.store.queues.consume_queue import ConsumeQueue
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.store.read_levels import ReadLevel
from brokerd.store.store_reads import StoreReads
from brokerd.tiers.settings import TierSettings
from remoting.errors import SettingsError
from remoting.record.codec import decode_record, decode_records
from tests.support.tiered_broker import SETTINGS, TieredBroker

QUEUE = ("T", 0)
UPLOADED = 40
ALL = UPLOADED + 5


class Leveled(TieredBroker):
    """The tier has the first messages, and files have all of them."""

    def __init__(self, level: ReadLevel) -> None:
        super().__init__(replace(SETTINGS, commit_bytes=1 << 20, read_level=level))
        self.reads: StoreReads = self.core.store
        self.send(UPLOADED)
        self.turns.run(5000)
        assert self.core.tiers.range_of(*QUEUE).end == UPLOADED
        self.send(ALL - UPLOADED)
        assert self.reads.local_min_offset(*QUEUE) == 0

    @property
    def given(self) -> int:
        """Messages that came from the tier."""
        assert self.core.tiers.cold is not None
        return self.core.tiers.cold.messages_out

    def read(self, *, joined: bool) -> list[int]:
        """The queue offsets of all messages, as a consumer comes to them who waits for what is fetched."""
        found: list[int] = []
        offset, patience = self.reads.min_offset(*QUEUE), 100
        while offset < self.reads.max_offset(*QUEUE):
            if joined:
                result = self.reads.read_joined(*QUEUE, offset, 7, 1 << 20)
                records = list(decode_records(result.body))
            else:
                encoded = self.reads.read_messages(*QUEUE, offset, 7, 1 << 20)
                result, records = encoded, [decode_record(each) for each in encoded.records]
            if result.status is GetStatus.BEING_FETCHED:
                patience -= 1
                assert patience, "what is fetched comes"
                self.turns.run(100)
                continue
            assert result.status is GetStatus.FOUND
            assert (result.min_offset, result.max_offset) == (0, ALL)
            found += [record.queue_offset for record in records]
            offset = result.next_offset
        return found


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(("level", "given"), [(ReadLevel.NOT_IN_DISK, 0), (ReadLevel.FORCE, UPLOADED)])
def test_who_gives_what_both_have(level: ReadLevel, given: int, joined: bool) -> None:
    broker = Leveled(level)
    assert broker.read(joined=joined) == list(range(ALL))
    assert broker.given == given
    assert broker.reads.is_cold(*QUEUE, 0) is (given > 0)
    assert not broker.reads.is_cold(*QUEUE, UPLOADED)


@pytest.mark.parametrize("joined", [False, True])
def test_what_the_disk_would_be_read_for_comes_from_the_tier(monkeypatch: pytest.MonkeyPatch, joined: bool) -> None:
    on_disk = range(10, 20)
    monkeypatch.setattr(StoreReads, "is_in_memory", lambda _, queue, offset: offset not in on_disk)
    broker = Leveled(ReadLevel.NOT_IN_MEM)
    assert broker.read(joined=joined) == list(range(ALL))
    assert broker.given == 7, "a read is the tier's or the files' by its first message: that at 14"


@pytest.mark.parametrize("level", [ReadLevel.FORCE, ReadLevel.NOT_IN_MEM])
def test_what_the_tier_cannot_give_files_do(monkeypatch: pytest.MonkeyPatch, level: ReadLevel) -> None:
    monkeypatch.setattr(StoreReads, "is_in_memory", lambda *_: False)
    broker = Leveled(level)
    broker.objects.is_down = True
    assert broker.read(joined=False) == broker.read(joined=True) == list(range(ALL))
    assert broker.given == 0


def test_a_gap_of_the_tier_is_read_from_files() -> None:
    broker = Leveled(ReadLevel.FORCE)
    broker.put_topic("T", tier_enable="false")
    broker.send(4)
    tiers = broker.core.tiers
    assert tiers.cold is not None
    assert tiers.cold.run_end(*QUEUE, 3) == UPLOADED
    assert tiers.cold.run_end(*QUEUE, UPLOADED) == UPLOADED
    assert not broker.reads.is_cold(*QUEUE, UPLOADED + 1)


def test_who_needs_a_message_at_once_gets_it_from_files() -> None:
    broker = Leveled(ReadLevel.FORCE)
    assert list(read_offsets(broker.reads, *QUEUE, [3, 5])) == [3, 5]
    assert broker.given == 0


def test_nothing_is_read_from_a_tier_that_is_switched_off() -> None:
    broker = Leveled(ReadLevel.DISABLE)
    broker.send(200)
    broker.turns.run(5000)
    broker.remove_files()
    reads = broker.reads
    low = reads.local_min_offset(*QUEUE)
    assert low > 0
    assert reads.min_offset(*QUEUE) == low
    result = reads.read_messages(*QUEUE, 0, 7, 1 << 20)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_TOO_SMALL, low)
    assert reads.offset_by_time(*QUEUE, 0) == low
    assert broker.core.tiers.range_of(*QUEUE).first == 0, "it is kept there"


def test_what_was_just_written_is_in_memory() -> None:
    broker = Leveled(ReadLevel.NOT_IN_MEM)
    queue: ConsumeQueue = broker.core.store.queues.table[QUEUE]
    assert broker.reads.is_in_memory(queue, 3)
    assert broker.read(joined=True) == list(range(ALL))
    assert broker.given == 0


async def test_a_mount_is_refused_that_could_read_nothing(tmp_path: Path) -> None:
    tiers = TierSettings(url="memory:///", read_level=ReadLevel.DISABLE)
    with pytest.raises(SettingsError, match="DISABLE"):
        await take_mount(
            BrokerSettings(
                name="broker-a",
                cluster="c",
                data=tmp_path,
                listen="127.0.0.1:10911",
                ha_listen="127.0.0.1:10912",
                grpc_listen="127.0.0.1:8081",
                controllers=("127.0.0.1:9878",),
                cluster_secret=tmp_path / "secret",
                tiers=tiers,
            )
        )


def test_a_level_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="NOT_IN_DISK"):
        TierSettings(read_level="SOMETIMES")
