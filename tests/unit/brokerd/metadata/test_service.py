"""The metadata service: answers wait for the acknowledgement, commits share records, replicas follow."""

from __future__ import annotations

import pytest

from brokerd.metadata.configs import GroupConfig, Metadata, TopicConfig
from brokerd.metadata.decide import Rules
from brokerd.metadata.names import METADATA_TOPIC, SystemNames
from brokerd.metadata.service import MetadataService, topic_json
from brokerd.metadata.tables import Change, MetadataTables
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from remoting.record.codec import decode_record
from tests.support.memory_log import MemoryRecordLog
from tests.support.turns import Turns


class Answers:
    """A `done` that remembers."""

    def __init__(self) -> None:
        self.all: list[RequestError | None] = []

    def __call__(self, error: RequestError | None) -> None:
        self.all.append(error)

    @property
    def only(self) -> RequestError | None:
        (answer,) = self.all
        return answer


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def log() -> MemoryRecordLog:
    return MemoryRecordLog()


def service(log: MemoryRecordLog, turns: Turns) -> MetadataService:
    names = SystemNames("c", "broker-a", development=True, delay_levels=18)
    rules = Rules(MetadataTables(), names, turns.wall_ms)
    made = MetadataService(log, rules, turns)
    protocol: Metadata = made
    assert protocol is made
    return made


def test_a_change_is_answered_when_acknowledged(log: MemoryRecordLog, turns: Turns) -> None:
    metadata, answers = service(log, turns), Answers()
    log.acknowledges = False
    metadata.put_topic(TopicConfig("t"), answers)
    assert metadata.topic("t") is not None
    assert answers.all == []
    log.acknowledge()
    assert answers.only is None


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_SLAVE_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT),
        (PutStatus.FLUSH_DISK_TIMEOUT, codes.FLUSH_DISK_TIMEOUT),
        (PutStatus.SERVICE_NOT_AVAILABLE, codes.SERVICE_NOT_AVAILABLE),
        (PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH, codes.SERVICE_NOT_AVAILABLE),
    ],
)
def test_an_unacknowledged_change_is_an_error(log: MemoryRecordLog, turns: Turns, status: PutStatus, code: int) -> None:
    metadata, answers = service(log, turns), Answers()
    log.acknowledges = False
    metadata.put_topic(TopicConfig("t"), answers)
    log.acknowledge(status)
    assert answers.only is not None
    assert answers.only.code == code


def test_a_replica_refuses_and_follows(log: MemoryRecordLog, turns: Turns) -> None:
    master, replica, answers = service(log, turns), service(log, turns), Answers()
    changes: list[Change] = []
    replica.listeners.append(changes.append)
    log.is_master = False
    replica.put_topic(TopicConfig("t"), answers)
    assert answers.only is not None
    assert answers.only.code == codes.SERVICE_NOT_AVAILABLE
    assert replica.topic("t") is None
    log.is_master = True
    master.put_topic(TopicConfig("t"), Answers())
    master.put_group(GroupConfig("g"), Answers())
    replica.dispatched(())
    assert replica.topic("t") == master.topic("t")
    assert [(change.topics_put, change.groups_put) for change in changes] == [(("t",), ()), ((), ("g",))]
    assert changes[-1].position == log.end_offset


def test_a_rebuild_is_told_once(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    metadata.put_topic(TopicConfig("t"), Answers())
    metadata.delete_topic("t", Answers())
    metadata.put_topic(TopicConfig("t", 3, 3), Answers())
    changes: list[Change] = []
    metadata.listeners.append(changes.append)
    metadata.rebuild()
    assert [change.rebuilt for change in changes] == [True]
    assert metadata.topic("t") == TopicConfig("t", 3, 3)
    metadata.truncated(log.end_offset)
    assert len(changes) == 1


def test_commits_share_one_record(log: MemoryRecordLog, turns: Turns) -> None:
    metadata, answers = service(log, turns), Answers()
    turns.run(1000)
    for queue_id in range(8):
        metadata.commit_offset("g", "t", queue_id, 5, answers)
        metadata.commit_offset("g", "t", queue_id, 6 + queue_id, None)
    assert metadata.consumer_offset("g", "t", 3) is None
    turns.run()
    assert metadata.consumer_offset("g", "t", 3) == 9
    assert answers.all == [None] * 8
    assert len(log.bodies(METADATA_TOPIC)) == 1
    metadata.commit_offset("g", "t", 0, 7, None)
    turns.run()
    assert len(log.bodies(METADATA_TOPIC)) == 1, "a second record follows at once"
    turns.run(5)
    assert len(log.bodies(METADATA_TOPIC)) == 2


def test_what_pulls_carry_waits_longer_but_for_a_commit_that_takes_it_along(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    turns.run(1000)
    metadata.commits.commit("g", "t", 0, 1, None, is_carried=True)
    turns.run()
    assert metadata.consumer_offset("g", "t", 0) == 1, "the first one after a while waits for nothing"
    for offset in range(2, 10):
        metadata.commits.commit("g", "t", 0, offset, None, is_carried=True)
        turns.run(6)
    assert metadata.consumer_offset("g", "t", 0) == 1
    turns.run(2)
    assert metadata.consumer_offset("g", "t", 0) == 9
    assert len(log.bodies(METADATA_TOPIC)) == 2
    metadata.commits.commit("g", "t", 0, 10, None, is_carried=True)
    metadata.commit_offset("g", "t", 1, 5, None)
    metadata.commits.commit("g", "t", 2, 6, None, is_carried=True)
    turns.run(5)
    assert [metadata.consumer_offset("g", "t", queue_id) for queue_id in range(3)] == [10, 5, 6]
    turns.run(100)
    assert len(log.bodies(METADATA_TOPIC)) == 3


def test_what_waits_to_be_committed_goes_with_the_topic_or_the_group(log: MemoryRecordLog, turns: Turns) -> None:
    """It would be there again, and a topic of the same name would be read from there on."""
    metadata, answers = service(log, turns), Answers()
    for name in ("t", "u"):
        metadata.put_topic(TopicConfig(name), Answers())
    for name in ("g", "h", "kept"):
        metadata.put_group(GroupConfig(name), Answers())
    turns.run(1000)
    metadata.commit_offset("g", "u", 0, 1, None)
    turns.run()
    for group in ("g", "h", "kept"):
        metadata.commit_offset(group, "t", 0, 5, answers)
        metadata.commit_offset(group, "u", 0, 6, answers)
    metadata.delete_topic("t", Answers())
    metadata.delete_group("h", Answers())
    metadata.delete_group("kept", Answers(), clean_offsets=False)
    turns.run(100)
    assert answers.all == [None] * 6
    assert metadata.tables.offsets == {("g", "u"): {0: 6}, ("kept", "u"): {0: 6}}


def test_equal_commits_write_nothing(log: MemoryRecordLog, turns: Turns) -> None:
    metadata, answers = service(log, turns), Answers()
    for _ in range(3):
        metadata.commit_offset("g", "t", 0, 5, answers)
        turns.run(10)
    assert answers.all == [None] * 3
    assert len(log.bodies(METADATA_TOPIC)) == 1


def test_commits_may_go_back_and_are_refused_on_a_replica(log: MemoryRecordLog, turns: Turns) -> None:
    metadata, answers = service(log, turns), Answers()
    metadata.commit_offset("g", "t", 0, 9, None)
    turns.run(10)
    metadata.commit_offset("g", "t", 0, 4, None)
    metadata.close()
    assert metadata.consumer_offset("g", "t", 0) == 4
    log.is_master = False
    metadata.commit_offset("g", "t", 0, 5, answers)
    turns.run(10)
    assert answers.only is not None
    assert metadata.consumer_offset("g", "t", 0) == 4
    assert turns.waiting == 0


def test_internal_topics_may_have_names_that_clients_may_not_use(log: MemoryRecordLog, turns: Turns) -> None:
    metadata, answers = service(log, turns), Answers()
    metadata.put_topic(TopicConfig("%RETRY%g+t"), answers)
    assert answers.only is not None
    assert metadata.ensure_topic("%RETRY%g+t") is None
    assert metadata.ensure_topic("%RETRY%g+t") is None
    assert len(log.bodies(METADATA_TOPIC)) == 1
    log.refusal = InvalidParameter("full")
    assert metadata.ensure_topic("%DLQ%g") is not None


def test_deleting_a_group_deletes_where_its_unfinished_messages_wait(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    metadata.put_group(GroupConfig("g"), Answers())
    for name in ("%RETRY%g+t", "%RETRY%gg+t", "%DLQ%g"):
        metadata.ensure_topic(name)
    answers = Answers()
    metadata.delete_group("g", answers)
    assert answers.only is None
    assert metadata.group("g") is None
    assert set(metadata.tables.topics) == {"%RETRY%gg+t", "%DLQ%g"}


def test_system_topics_and_groups_are_there_without_records(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    for name in ("c", "broker-a", "SELF_TEST_TOPIC", "TBW102", "c_REPLY_TOPIC"):
        assert metadata.topic(name) is not None
        assert name in metadata.topics()
    assert metadata.group("TOOLS_CONSUMER") is not None
    names = SystemNames("c", "b", development=False, delay_levels=18)
    plain = MetadataService(log, Rules(MetadataTables(), names, turns.wall_ms), turns)
    assert plain.topic("TBW102") is None


def test_a_change_of_topics_or_of_the_master_is_a_new_version(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    before = metadata.data_version(7)
    metadata.put_topic(TopicConfig("t", 4, 4), Answers())
    assert metadata.data_version(7).as_json() == {"counter": 1, "stateVersion": 7, "timestamp": turns.wall_ms()}
    assert before != metadata.data_version(7) != metadata.data_version(8)


def test_a_topic_as_the_protocol_writes_it() -> None:
    assert topic_json(TopicConfig("t", 4, 4, attributes={"message.type": "FIFO"})) == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "t",
        "topicSysFlag": 0,
        "writeQueueNums": 4,
    }


def test_a_rolled_file_gets_a_snapshot_when_this_is_the_master(log: MemoryRecordLog, turns: Turns) -> None:
    metadata = service(log, turns)
    metadata.put_topic(TopicConfig("t"), Answers())
    log.is_master = False
    metadata.rolled()
    turns.run()
    assert len(log.bodies(METADATA_TOPIC)) == 1
    log.is_master = True
    metadata.rolled()
    turns.run()
    last = decode_record(log.bodies(METADATA_TOPIC)[-1])
    assert last.property_map()["TAGS"] == "snapshot"
