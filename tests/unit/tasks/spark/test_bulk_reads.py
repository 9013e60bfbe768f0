"""Reading in bulk: few round trips, one answer ahead, replicas as long as they have what is wanted; nothing twice or lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from remoting import codes
from remoting.errors import ProtocolError, RequestError
from tasks.spark.bulk_reads import BulkReads
from tasks.spark.cluster import Cluster
from tasks.spark.planning import QueueRange
from tasks.spark.reader import DataLoss, read_ranges
from tests.unit.tasks.fake_cluster import FakeBroker

TOPIC = "o" * 90
COUNT = 1000
WHOLE = QueueRange(TOPIC, "broker-a", 0, 0, COUNT)
EVERYTHING = [f"body {offset}" for offset in range(COUNT)]


class Group:
    """A master and two replicas with the same messages."""

    def __init__(self, brokers: list[FakeBroker]) -> None:
        self.master, *self.replicas = brokers
        for broker in brokers:
            broker.add_topic(TOPIC, 1)
            for body in EVERYTHING:
                broker.store(TOPIC, 0, body.encode())
        self.master.replicas = {str(2 + number): each.address for number, each in enumerate(self.replicas)}
        self.waited_s = 0.0

    def connect(self) -> Cluster:
        def pause(seconds: float) -> None:
            self.waited_s += seconds

        return Cluster(
            [self.master.address], timeout_ms=5000, retry_for_ms=3000, now_s=lambda: self.waited_s, pause=pause
        )

    def read(self, *, turn: int = 0, fail_on_data_loss: bool = True, wanted: QueueRange = WHOLE) -> list[str]:
        with self.connect() as cluster:
            batches = read_ranges(cluster, [wanted], ("body",), turn=turn, fail_on_data_loss=fail_on_data_loss)
            return [row["body"].decode() for batch in batches for row in batch.to_pylist()]

    @property
    def asked(self) -> list[int]:
        """How often each broker was asked, the master first."""
        return [each.pulls for each in (self.master, *self.replicas)]


@pytest.fixture
def group() -> Iterator[Group]:
    with ExitStack() as stack:
        yield Group([stack.enter_context(FakeBroker(answer_most=100)) for _ in range(3)])


def test_replicas_are_read_in_turn_and_the_master_is_left_alone(group: Group) -> None:
    assert group.read(turn=0) == EVERYTHING
    assert group.asked == [0, 10, 0]
    assert group.read(turn=1) == EVERYTHING
    assert group.asked == [0, 10, 10]
    assert group.read(turn=2) == EVERYTHING
    assert group.asked == [0, 20, 10]


def test_what_follows_is_on_its_way_before_an_answer_is_used(group: Group) -> None:
    replica = group.replicas[0]
    with group.connect() as cluster:
        batches = read_ranges(cluster, [WHOLE], ("body",))
        for number in range(1, 10):
            assert next(batches).num_rows == 100
            wait_asked(replica, number + 1)
            assert replica.reads == [100 * each for each in range(number + 1)]
        assert next(batches).num_rows == 100
        assert list(batches) == []
        assert replica.reads == [100 * each for each in range(10)], "nothing is asked for twice, or behind the end"


def test_the_next_range_is_on_its_way_before_the_last_answer_of_one_is_used(group: Group) -> None:
    replica = group.replicas[0]
    ranges = [WHOLE._replace(end=100), WHOLE._replace(start=500, end=600)]
    with group.connect() as cluster:
        batches = read_ranges(cluster, ranges, ("body",))
        assert next(batches).num_rows == 100
        wait_asked(replica, 2)
        assert replica.reads == [0, 500]
        assert [batch.num_rows for batch in batches] == [100]
        assert replica.reads == [0, 500], "nothing is asked for twice"


def test_a_replica_that_dies_between_two_ranges_is_left_for_the_master(group: Group) -> None:
    replica = group.replicas[0]

    def die() -> None:
        if replica.pulls > 5:
            replica.drop_pulls = 1

    replica.on_pull = die
    with group.connect() as cluster:
        batches = read_ranges(cluster, [WHOLE._replace(end=500), WHOLE._replace(start=500)], ("body",))
        assert [row["body"].decode() for batch in batches for row in batch.to_pylist()] == EVERYTHING
    assert group.master.reads == [100 * each for each in range(5, 10)]
    assert group.waited_s == 0


def test_a_range_of_another_group_is_not_asked_of_this_one(group: Group) -> None:
    [replica, _] = group.replicas
    with FakeBroker("broker-b", answer_most=100) as other:
        other.add_topic(TOPIC, 1)
        for body in EVERYTHING:
            other.store(TOPIC, 0, body.encode())
        with group.connect() as cluster:
            cluster._masters["broker-b"] = other.address
            cluster._replicas["broker-b"] = []
            batches = read_ranges(cluster, [WHOLE._replace(end=100), WHOLE._replace(broker_name="broker-b")], ("body",))
            assert sum(batch.num_rows for batch in batches) == 100 + COUNT
    assert replica.reads == [0]


def wait_asked(broker: FakeBroker, times: int) -> None:
    """Wait until the broker's thread saw so many requests."""
    while len(broker.reads) < times:
        assert broker.asked.acquire(timeout=10)


@pytest.mark.parametrize("after", [0, 1, 5, 9])
def test_a_replica_that_dies_in_the_middle_is_left_for_the_master(group: Group, after: int) -> None:
    [replica, other] = group.replicas

    def die() -> None:
        if replica.pulls > after:
            replica.drop_pulls = 1

    replica.on_pull = die
    assert group.read() == EVERYTHING
    assert group.master.reads == [100 * each for each in range(after, 10)]
    assert other.pulls == 0
    assert group.waited_s == 0


@pytest.mark.parametrize("after", [0, 5])
def test_a_replica_that_falls_out_of_the_set_is_left_for_the_master(group: Group, after: int) -> None:
    [replica, _] = group.replicas

    def fall_out() -> None:
        if replica.pulls > after:
            replica.refuse_pulls = 1000

    replica.on_pull = fall_out
    assert group.read() == EVERYTHING
    assert group.master.reads == [100 * each for each in range(after, 10)]
    assert group.waited_s == 0


def test_a_replica_that_is_gone_is_not_tried_for_every_queue(group: Group) -> None:
    dead = FakeBroker()
    with dead:
        address = dead.address
    group.master.replicas = {"2": address}
    with group.connect() as cluster:
        for _ in range(3):
            assert len(list(read_ranges(cluster, [WHOLE], ("queue_id",)))) == 10
            assert cluster.replicas(TOPIC, "broker-a") == []


def test_what_a_replica_does_not_have_yet_is_the_masters(group: Group) -> None:
    [replica, _] = group.replicas
    replica.visible_end = 350
    assert group.read() == EVERYTHING
    assert replica.reads == [0, 100, 200, 300, 350]
    assert group.master.reads[0] == 350


def test_only_the_master_says_that_messages_are_gone(group: Group) -> None:
    [replica, _] = group.replicas
    replica.min_offset = 500  # it was made later than its master
    assert group.read() == EVERYTHING
    group.master.min_offset = 200
    with pytest.raises(DataLoss, match="messages 0 to 200"):
        group.read()
    assert group.read(fail_on_data_loss=False) == EVERYTHING[200:]


def test_damaged_records_of_a_replica_are_refused(group: Group) -> None:
    group.replicas[0].break_records = True
    with pytest.raises(
        ProtocolError, match=f"messages of {TOPIC}, broker-a, queue 0 cannot be read: no record starts at"
    ):
        group.read()


def test_a_master_that_dies_in_the_middle_is_waited_for(group: Group) -> None:
    master = group.master
    master.replicas = {}

    def die() -> None:
        if master.pulls == 5:
            master.drop_pulls, master.refuse_pulls = 1, 3

    master.on_pull = die
    assert group.read() == EVERYTHING
    assert group.waited_s > 0
    assert list(dict.fromkeys(master.reads)) == [100 * each for each in range(10)]


def test_brokers_that_do_not_know_reads_in_bulk_are_pulled_from(group: Group) -> None:
    """As while a cluster is upgraded, one broker after another."""
    for broker in (group.master, *group.replicas):
        broker.knows_bulk = False
    assert group.read() == EVERYTHING
    assert group.master.reads == list(range(0, COUNT, 32))
    assert [each.pulls for each in group.replicas] == [0, 0], "a replica answers pulls only if it is set to"


def test_a_new_master_that_does_not_know_reads_in_bulk_is_pulled_from(group: Group) -> None:
    master = group.master
    master.replicas = {}

    def become_another() -> None:
        if master.pulls == 5:
            master.drop_pulls, master.knows_bulk = 1, False

    master.on_pull = become_another
    assert group.read() == EVERYTHING
    assert master.reads[4:7] == [400, 400, 432]


def test_who_asks_ahead_of_a_closed_connection_hears_it_when_it_matters(group: Group) -> None:
    group.master.replicas = {}
    with group.connect() as cluster:
        reads = BulkReads(cluster, WHOLE, 0, 5000)
        reads.ask_ahead(0)  # of nobody yet
        assert reads.at(0).ext["nextBeginOffset"] == "100"
        cluster.connection(group.master.address).close()
        reads.ask_ahead(100)
        assert reads.at(100).ext["nextBeginOffset"] == "200"


def test_answers_ahead_for_another_offset_are_not_taken(group: Group) -> None:
    with group.connect() as cluster:
        reads = BulkReads(cluster, WHOLE, 0, 5000)
        reads.at(0)
        reads.ask_ahead(100)
        assert reads.at(700).ext["nextBeginOffset"] == "800"


def test_a_refusal_that_does_not_pass_is_the_masters_sentence(group: Group) -> None:
    for broker in (group.master, *group.replicas):
        broker.refuse_pulls, broker.refusal = 1000, codes.NO_PERMISSION
    with pytest.raises(RequestError, match="a remark"):
        group.read()
    assert group.waited_s == 0


def test_a_topic_that_is_gone_meanwhile_is_named(group: Group) -> None:
    with pytest.raises(RequestError, match="nowhere could not be read"):
        group.read(wanted=WHOLE._replace(topic="nowhere"))
    assert group.waited_s >= 3
