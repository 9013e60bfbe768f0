"""What RocketMQ left beside its log becomes records of ours: once, whatever happens in between."""

from __future__ import annotations

import pytest

from brokerd.config import documents
from brokerd.config.takeover import PENDING
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.names import METADATA_TOPIC
from brokerd.replication.roles.effects import Role
from brokerd.store.start.checkpoint_page import PATH as CHECKPOINT
from brokerd.store.upkeep.retention import RetentionDecision
from remoting.errors import CorruptedFile
from remoting.names import SCHEDULE_TOPIC
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SETTINGS, STORE_HOST, draft, open_store, payloads, put, sync

VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 1}


def foreign(document: bytes) -> bytes:
    """A document without the mark of ours."""
    marked = documents.parse(document, "file")
    del marked[documents.MARK]
    return repr(marked).replace("'", '"').replace("True", "true").replace("False", "false").encode()


def tables(*, offset: int = 3, topic: str = "Orders") -> dict[str, bytes]:
    return {
        documents.TOPICS: foreign(
            documents.encode_topics(
                [TopicConfig(topic, 2, 2), TopicConfig("TBW102"), TopicConfig("rmq_sys_x")], VERSION
            )
        ),
        documents.GROUPS: foreign(documents.encode_groups([GroupConfig("GID", retry_max_times=4)], VERSION)),
        documents.OFFSETS: foreign(documents.encode_offsets({("GID", topic): {0: offset, 1: 99}}, VERSION)),
    }


def foreign_directory(files: dict[str, bytes] | None = None) -> MemoryDisk:
    """A log with ten messages in queue 0 of Orders, a checkpoint that another program wrote, and its tables."""
    disk = MemoryDisk()
    store = open_store(disk)
    put(store, *(draft(body, topic="Orders") for body in payloads(10)))
    store.close()
    leave(disk, tables() if files is None else files)
    return disk


def leave(disk: MemoryDisk, files: dict[str, bytes]) -> None:
    disk.replace_bytes(CHECKPOINT, bytes(4096))
    for path, content in files.items():
        disk.replace_bytes(path, content)


class Opened(AloneBroker):
    """A core on the disk; a replica until `promote`."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk, Turns(), SETTINGS, STORE_HOST)

    def promote(self) -> Opened:
        self.replica.become(Role.MASTER)
        self.replica.on_appended(self.core.store.commitlog.end_offset)
        self.turns.run(500)
        return self

    def offsets(self) -> dict[int, int]:
        return self.core.metadata.tables.offsets.get(("GID", "Orders"), {})

    def commit(self, offset: int) -> list[object]:
        answers: list[object] = []
        self.core.metadata.commit_offset("GID", "Orders", 0, offset, answers.append)
        self.turns.run(100)
        return answers

    def records(self) -> int:
        return self.core.store.max_offset(METADATA_TOPIC, 0)

    def stop(self) -> None:
        self.core.close()
        self.turns.run(500)
        self.core.config.write()
        self.core.store.close()


def test_a_replica_shows_the_tables_and_records_nothing() -> None:
    opened = Opened(foreign_directory())
    tables = opened.core.metadata.tables
    assert tables.topics == {"Orders": TopicConfig("Orders", 2, 2)}
    assert tables.groups == {"GID": GroupConfig("GID", retry_max_times=4)}
    assert opened.offsets() == {0: 3, 1: 99}
    assert opened.records() == 0
    assert opened.disk.exists(PENDING)
    opened.core.config.write()
    assert opened.disk.read_bytes(documents.OFFSETS) == globals()["tables"]()[documents.OFFSETS], "left alone"


def test_a_master_takes_them_over_into_the_log() -> None:
    opened = Opened(foreign_directory()).promote()
    assert opened.core.metadata.tables.topics == {"Orders": TopicConfig("Orders", 2, 2)}
    assert opened.offsets() == {0: 3, 1: 0}, "an offset behind the end of its queue would leave out what comes next"
    assert opened.records() > 0
    opened.stop()
    assert not opened.disk.exists(PENDING)
    document = documents.parse(opened.disk.read_bytes(documents.OFFSETS) or b"", "file")
    assert documents.is_ours(document)
    assert documents.decode_offsets(document) == {("GID", "Orders"): {0: 3, 1: 0}}
    for path in documents.PATHS:
        opened.disk.remove(path)
    again = Opened(opened.disk).promote()
    assert again.offsets() == {0: 3, 1: 0}, "the log says it"
    assert again.core.metadata.tables.groups == {"GID": GroupConfig("GID", retry_max_times=4)}


def test_nothing_is_rewound_when_it_dies_before_the_files_are_its_own() -> None:
    opened = Opened(foreign_directory()).promote()
    assert opened.commit(8) == [None]
    sync(opened.core.store)
    assert opened.disk.exists(PENDING)
    died = opened.disk  # without a word
    again = Opened(died).promote()
    assert again.offsets() == {0: 8, 1: 0}
    before = again.records()
    again.stop()
    third = Opened(died).promote()
    assert third.offsets() == {0: 8, 1: 0}
    assert third.records() <= before + 1, "at most a snapshot"


def test_changes_by_hand_are_not_read() -> None:
    opened = Opened(foreign_directory()).promote()
    opened.stop()
    for path, content in tables(offset=1, topic="ByHand").items():
        opened.disk.replace_bytes(path, content)
    again = Opened(opened.disk).promote()
    assert set(again.core.metadata.tables.topics) == {"Orders"}
    assert again.offsets() == {0: 3, 1: 0}


def test_what_the_original_did_in_between_counts() -> None:
    opened = Opened(foreign_directory()).promote()
    opened.stop()
    leave(opened.disk, tables(offset=6))
    again = Opened(opened.disk)
    assert again.offsets()[0] == 6
    again.promote()
    assert again.offsets() == {0: 6, 1: 0}


def test_nothing_comes_before_it() -> None:
    opened = Opened(foreign_directory())
    opened.replica.is_taking = False
    opened.promote()
    [refusal] = opened.commit(9)
    assert refusal is not None
    assert opened.records() == 0
    assert opened.offsets()[0] == 3
    opened.replica.is_taking = True
    assert opened.commit(9) == [None]
    assert opened.offsets() == {0: 9, 1: 0}
    assert opened.core.metadata.tables.taken_over


def test_tables_that_cannot_be_read_refuse_the_start() -> None:
    disk = foreign_directory({documents.TOPICS: b"{"})
    with pytest.raises(CorruptedFile, match=r"config/topics.json is not JSON.*repair it"):
        Opened(disk)


def test_the_file_before_counts_when_the_last_one_is_empty() -> None:
    files = tables()
    files[f"{documents.OFFSETS}.bak"] = files[documents.OFFSETS]
    files[documents.OFFSETS] = b""
    opened = Opened(foreign_directory(files)).promote()
    assert opened.offsets() == {0: 3, 1: 0}
    opened.stop()
    assert not opened.disk.exists(f"{documents.OFFSETS}.bak")


def test_a_fresh_directory_has_nothing_to_take_over() -> None:
    opened = Opened(MemoryDisk()).promote()
    assert not opened.disk.exists(PENDING)
    assert opened.records() == 0
    opened.stop()
    assert not any(map(opened.disk.exists, documents.PATHS))


def test_a_queue_whose_messages_are_all_gone_goes_on_where_it_was() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    put(store, *(draft(body, topic="Old") for body in payloads(20, 300)))
    put(store, *(draft(body, topic="Orders") for body in payloads(40, 300)))
    sync(store)
    store.checkpoint()
    while store.commitlog.min_offset < store.queues.table["Old", 0].last_physical:
        for removal in store.apply_retention(RetentionDecision(1, False)):
            removal()
    store.close()
    leave(disk, {})
    opened = Opened(disk).promote()
    assert opened.core.store.max_offset("Old", 0) == 20
    put(opened.core.store, draft(topic="Old"))
    assert opened.core.store.min_offset("Old", 0) == 20
    assert opened.core.store.max_offset("Old", 0) == 21
    opened.stop()
    again = Opened(disk).promote()
    assert again.core.store.max_offset("Old", 0) == 21


def test_delayed_messages_go_on_where_rocketmq_was() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for number in range(4):
        properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "Orders", "REAL_QID": "0"})
        put(store, draft(b"%d" % number, topic=SCHEDULE_TOPIC)._replace(properties=properties))
    store.close()
    leave(disk, {**tables(), documents.DELAYS: b'{"dataVersion":{"counter":7},"offsetTable":{1:3,2:9}}'})
    opened = Opened(disk)
    assert opened.core.schedule.offsets()[1] == 3, "a replica knows it too"
    opened.promote()
    opened.turns.run(5000)
    delivered = opened.core.store.read_messages("Orders", 0, 0, 10, 1 << 20).records
    assert [decode_record(each).body for each in delivered] == [b"3"]
    opened.core.config.write()
    written = documents.parse(disk.read_bytes(documents.DELAYS) or b"", "file")
    assert documents.is_ours(written)
    assert documents.decode_delays(written) == {0: 4, 1: 0}
    offsets = documents.parse(disk.read_bytes(documents.OFFSETS) or b"", "file")
    assert not [group for group, _ in documents.decode_offsets(offsets) if group.startswith("CID_RMQ_SYS_LOGBOOM")]


@pytest.mark.parametrize("table", [b"[1]", b'{"x":1}', b'{"1":"x"}', b'{"1":{}}'])
def test_a_file_of_delays_that_makes_no_sense_is_not_guessed(table: bytes) -> None:
    disk = foreign_directory({**tables(), documents.DELAYS: b'{"offsetTable":%b}' % table})
    with pytest.raises(CorruptedFile, match="delayOffset"):
        Opened(disk)
