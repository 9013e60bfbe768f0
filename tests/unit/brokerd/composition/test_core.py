"""The broker without its sockets: what a cut of the log means for what was derived from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.delay.deliverer import DelaySettings
from brokerd.journal.journal import JournalSettings
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.replication.roles.effects import Role
from brokerd.store.derived.dispatcher import Arrival, Arrivals
from brokerd.store.put_status import PutStatus
from brokerd.store.store_reads import Suspicion
from remoting.errors import CorruptedFile, DamagedRange, StorageError
from remoting.record.codec import decode_record
from remoting.record.properties import encode_properties
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import SETTINGS, STORE_HOST, draft

QUEUES = 2


class Broker(AloneBroker):
    """Master from the start; `disk` may be one that another broker wrote."""

    def __init__(self, disk: MemoryDisk | None = None, delay: DelaySettings | None = None, **more: Any) -> None:
        super().__init__(disk or MemoryDisk(), Turns(), SETTINGS, STORE_HOST, delay=delay or DelaySettings(), **more)
        self.replica.become(Role.MASTER)
        self.change(lambda done: self.core.metadata.put_topic(TopicConfig("T", QUEUES, QUEUES), done))
        self.change(lambda done: self.core.metadata.put_group(GroupConfig("g"), done))

    def restart(self) -> Broker:
        """Stop in order; another broker starts on the disk."""
        self.core.close()
        self.core.store.close()
        return Broker(self.disk)

    def change(self, ask: Callable[[Callable[[object], None]], None]) -> None:
        answers: list[object] = []
        ask(answers.append)
        self.turns.run(100)
        assert answers == [None]

    def send(self, queue_id: int) -> None:
        outcomes: list[object] = []
        self.core.sender.send([draft(b"x" * 20, topic="T", queue_id=queue_id)], outcomes.extend)
        self.turns.run(10)
        assert [outcome.status for outcome in outcomes] == [PutStatus.PUT_OK]  # type: ignore[attr-defined]

    def consume_all(self, queue_id: int) -> int:
        """Commit the end of what a consumer can read."""
        high = self.core.store.max_offset("T", queue_id)
        self.change(lambda done: self.core.metadata.commit_offset("g", "T", queue_id, high, done))
        return high


def test_a_mistake_in_dispatch_fails_the_store() -> None:
    broker = Broker()
    failures: list[StorageError] = []
    broker.core.store.failure_listeners.append(failures.append)
    broker.core.store.dispatcher.confirm_offset = 1 << 40
    with pytest.raises(AssertionError, match="not confirmed"):
        broker.send(0)
    assert "dispatch broke" in str(failures[0])


def test_what_is_sent_when_dispatch_is_due_goes_before_it_and_is_visible_with_what_was_sent_earlier() -> None:
    broker = Broker()
    core = broker.core
    sent: list[object] = []
    visible: list[int] = []

    def take_sends() -> None:
        if len(sent) == 1:  # in the turn of the loop behind the first one
            assert core.store.max_offset("T", 0) == 0
            core.sender.send([draft(b"y" * 20, topic="T", queue_id=0)], sent.extend)

    core.take_sends = take_sends
    core.arrival_listeners.append(
        lambda arrivals: visible.extend(arrival.max_offset for arrival in arrivals if arrival.topic == "T")
    )
    core.sender.send([draft(b"x" * 20, topic="T", queue_id=0)], sent.extend)
    broker.turns.run(10)
    assert [outcome.status for outcome in sent] == [PutStatus.PUT_OK] * 2
    assert visible == [2]


def test_when_what_was_sent_cannot_be_taken_dispatch_goes_on() -> None:
    broker = Broker()
    sent: list[object] = []
    broker.core.take_sends = lambda: 1 / 0
    broker.core.sender.send([draft(b"x" * 20, topic="T", queue_id=0)], sent.extend)
    with pytest.raises(ZeroDivisionError):
        broker.turns.run(10)
    assert broker.core.store.max_offset("T", 0) == 1
    broker.core.take_sends = None
    broker.send(0)
    assert broker.core.store.max_offset("T", 0) == 2


def rot_at_the_end_of_dispatch(broker: Broker) -> Callable[[], None]:
    """Append a message and change it before dispatch reads it from the log; the result changes it back."""
    offset = broker.core.store.dispatch_offset
    broker.core.store.append_messages([draft(b"x" * 20, topic="T")])
    broker.core.store.dispatcher.restart(offset)  # as on a replica, which has nothing but the log
    file = broker.disk.files["commitlog/" + "0" * 20].seen

    def flip() -> None:
        file.write(offset + 4, bytes([file.read(offset + 4, 1)[0] ^ 8]))

    flip()
    return flip


def test_dispatch_waits_for_a_repair_and_ends_the_broker_without_one() -> None:
    for is_repaired in (True, False):
        broker = Broker()
        told: list[Suspicion] = []
        failures: list[StorageError] = []
        store = broker.core.store
        store.damage_listeners.append(told.append)
        store.failure_listeners.append(failures.append)
        repair, offset = rot_at_the_end_of_dispatch(broker), store.dispatch_offset
        broker.replica.on_appended(store.commitlog.end_offset)
        broker.turns.run(10)
        assert told == [Suspicion(offset)]
        assert not failures
        if is_repaired:
            repair()
        broker.turns.run(40_000)
        assert store.dispatch_offset == (store.commitlog.end_offset if is_repaired else offset)
        assert bool(failures) is not is_repaired


def test_who_could_not_read_the_log_and_all_behind_him_hear_of_what_was_dispatched_after_the_repair() -> None:
    broker = Broker()
    broker.core.store.damage_listeners.append(lambda suspicion: None)
    heard: list[tuple[str, list[int]]] = []
    is_damaged = True

    def hear(who: str, arrivals: Sequence[Arrival]) -> None:
        if ends := [arrival.max_offset for arrival in arrivals if arrival.topic == "T"]:
            heard.append((who, ends))

    def needs_the_log(arrivals: Sequence[Arrival]) -> None:
        hear("first", arrivals)
        if is_damaged:
            raise CorruptedFile("no intact record", DamagedRange(0, 100))

    broker.core.arrival_listeners[:] = [needs_the_log, lambda arrivals: hear("second", arrivals)]
    broker.send(0)
    broker.turns.run(2000)
    assert len(heard) > 1
    assert set(map(repr, heard)) == {repr(("first", [1]))}
    is_damaged = False
    heard.clear()
    broker.send(0)
    broker.turns.run(2000)
    assert heard == [("first", [1]), ("second", [1]), ("first", [2]), ("second", [2])]


def test_without_a_scrubber_damage_in_dispatch_ends_the_broker() -> None:
    broker = Broker()
    failures: list[StorageError] = []
    broker.core.store.failure_listeners.append(failures.append)
    rot_at_the_end_of_dispatch(broker)
    broker.replica.on_appended(broker.core.store.commitlog.end_offset)
    broker.turns.run(10)
    assert "no record at offset" in str(failures[0])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["send", "send", "consume"]), st.integers(0, QUEUES - 1)), max_size=25))
def test_wherever_the_log_is_cut_no_consumer_is_ahead_of_it_and_no_topic_is_missing(
    steps: list[tuple[str, int]],
) -> None:
    broker = Broker()
    boundaries: list[tuple[int, dict[int, int]]] = []
    committed: dict[int, int] = {}
    for step, queue_id in steps:
        if step == "send":
            broker.send(queue_id)
        else:
            committed[queue_id] = broker.consume_all(queue_id)
        boundaries.append((broker.core.store.commitlog.end_offset, dict(committed)))
    broker.replica.become(Role.FENCED)
    for offset, expected in reversed(boundaries):
        broker.core.store.truncate(offset)
        broker.replica.confirm_offset = min(broker.replica.confirm_offset, offset)
        for queue_id in range(QUEUES):
            at = broker.core.metadata.consumer_offset("g", "T", queue_id)
            assert at == expected.get(queue_id), f"queue {queue_id} after the cut at {offset}"
            assert (at or 0) <= broker.core.store.max_offset("T", queue_id)
        assert broker.core.metadata.topic("T") is not None


def test_a_replica_that_lost_its_role_takes_no_message_and_none_waits() -> None:
    broker = Broker()
    end = broker.core.store.commitlog.end_offset
    broker.replica.become(Role.REPLICA, 2)
    outcomes: list[object] = []
    broker.core.sender.send([draft(topic="T")], outcomes.extend)
    assert [outcome.status for outcome in outcomes] == [PutStatus.SERVICE_NOT_AVAILABLE]  # type: ignore[attr-defined]
    assert broker.core.store.commitlog.end_offset == end
    with pytest.raises(Exception, match="master"):
        broker.core.store.append_messages([draft(topic="T")])
    assert broker.core.store.commitlog.end_offset == end


def test_with_too_few_replicas_nothing_is_stored_whatever_the_message_says() -> None:
    broker = Broker()
    broker.replica.is_taking = False
    broker.replica.refusal = PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH
    end = broker.core.store.commitlog.end_offset
    outcomes: list[object] = []
    careless = draft(topic="T")._replace(properties=encode_properties({"UNIQ_KEY": "U", "WAIT": "false"}))
    broker.core.sender.send([draft(topic="T"), careless], outcomes.extend)
    assert {outcome.status for outcome in outcomes} == {PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH}  # type: ignore[attr-defined]
    assert ["in-sync replicas not enough" in outcome.error.message for outcome in outcomes] == [True, True]  # type: ignore[attr-defined]
    assert broker.core.store.commitlog.end_offset == end
    assert broker.core.counters.refused["too_few_replicas"] == 2


def test_who_does_not_want_to_wait_is_answered_at_the_append() -> None:
    broker = Broker()
    waits: list[object] = []
    broker.core.appends.wait = lambda position, callback: waits.append(callback)
    outcomes: list[object] = []
    careless = draft(topic="T")._replace(properties=encode_properties({"UNIQ_KEY": "U", "WAIT": "false"}))
    broker.core.sender.send([careless], outcomes.extend)
    assert [outcome.status for outcome in outcomes] == [PutStatus.PUT_OK]  # type: ignore[attr-defined]
    broker.core.sender.send([draft(topic="T")], outcomes.extend)
    assert (len(outcomes), len(waits)) == (1, 1), "the other one waits"


@pytest.mark.parametrize("made_again", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_messages_of_a_deleted_topic_do_not_come_back_when_the_queues_are_derived_anew(
    made_again: bool, snapshot: bool
) -> None:
    broker = Broker()
    for _ in range(3):
        broker.send(0)
    broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
    if made_again:
        broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", QUEUES, QUEUES), done))
    if snapshot:
        broker.core.metadata.rolled()
        broker.turns.run(10)
    broker.core.close()
    broker.core.store.close()
    broker.disk.remove("consumequeue")
    again = Broker(broker.disk)  # which makes the topic, if it is not there
    assert again.core.store.max_offset("T", 0) == 0
    again.send(0)
    assert again.core.store.max_offset("T", 0) == 1
    after = again.restart()
    assert after.core.store.max_offset("T", 0) == 1, "what was sent since then stays"


@pytest.mark.parametrize("sent_after", [False, True])
def test_a_new_master_numbers_a_topic_from_zero_whose_deletion_it_had_not_dispatched_yet(sent_after: bool) -> None:
    broker = Broker()
    for _ in range(3):
        broker.send(0)
    broker.core.store.checkpoint()
    broker.replica.on_appended = lambda end_offset: None  # type: ignore[method-assign]  # nothing is confirmed any more
    broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
    if sent_after:
        broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", QUEUES, QUEUES), done))
        broker.send(0)
    broker.core.store.sync()
    again = Broker(broker.disk)
    for _ in range(2):
        again.send(0)
    expected = 3 if sent_after else 2
    assert again.core.store.max_offset("T", 0) == expected
    records = again.core.store.read_messages("T", 0, 0, 10, 1 << 20).records
    assert [decode_record(each).queue_offset for each in records] == list(range(expected))


@pytest.mark.parametrize("sent_after", [False, True])
def test_a_log_that_begins_later_does_not_bring_back_what_was_deleted_before_its_snapshot(sent_after: bool) -> None:
    """The new master reads the snapshot at once, and dispatches what lies in front of it after that."""
    broker = Broker()
    broker.replica.on_appended = lambda end_offset: None  # type: ignore[method-assign]  # nothing is confirmed any more
    log = broker.core.store.commitlog
    while log.end_offset < log.segment_size_bytes:
        broker.send(1)
    for _ in range(3):
        broker.send(0)
    broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("T", QUEUES, QUEUES), done))
    if sent_after:
        broker.send(0)
    broker.core.metadata.rolled()
    broker.turns.run(10)
    broker.core.store.sync()
    broker.disk.remove("consumequeue")
    broker.disk.remove("commitlog/" + "0" * 20)
    again = Broker(broker.disk)
    store = again.core.store
    assert store.commitlog.min_offset > 0
    assert store.dispatch_offset == store.commitlog.end_offset
    assert store.max_offset("T", 0) == sent_after
    again.send(0)
    assert store.max_offset("T", 0) == sent_after + 1


def test_a_replica_dispatches_a_message_and_the_deletion_of_its_topic_in_one_round() -> None:
    broker = Broker()
    heard: list[tuple[str, int]] = []
    broker.core.arrival_listeners.append(lambda arrivals: heard.extend(each[:2] for each in arrivals))
    confirm, broker.replica.on_appended = broker.replica.on_appended, lambda end_offset: None  # type: ignore[method-assign]
    broker.send(1)
    broker.change(lambda done: broker.core.metadata.delete_topic("T", done))
    broker.replica.become(Role.REPLICA)  # its tables are what is dispatched
    confirm(broker.core.store.commitlog.end_offset)
    broker.turns.run(10)
    assert ("T", 1) in heard
    assert ("T", 1) not in broker.core.store.queues.table
    assert broker.core.metadata.topic("T") is None


def test_who_waits_for_messages_hears_of_them_behind_the_tables_that_they_change() -> None:
    broker, order = Broker(), list[str]()
    metadata = broker.core.metadata
    dispatched = metadata.dispatched
    broker.core.arrival_listeners.append(lambda arrivals: order.append("listener"))

    def in_order(arrivals: Arrivals) -> None:
        order.append("resident")
        dispatched(arrivals)

    metadata.dispatched = in_order
    broker.send(1)
    broker.turns.run(10)
    assert order == ["listener"]
    broker.change(lambda done: metadata.delete_topic("T", done))
    broker.turns.run(10)
    assert order == ["listener", "resident", "listener"]


@pytest.mark.parametrize("role", [Role.MASTER, Role.REPLICA])
def test_a_replica_makes_visible_in_one_round_what_several_transfers_brought(role: Role) -> None:
    broker, rounds = Broker(), 0

    def count(_: object) -> None:
        nonlocal rounds
        rounds += 1

    confirm, broker.replica.on_appended = broker.replica.on_appended, lambda end_offset: None  # type: ignore[method-assign]
    ends = []
    for _ in range(4):
        broker.core.store.append_messages([draft(b"x" * 20, topic="T")])
        ends.append(broker.core.store.commitlog.end_offset)
    if role is Role.REPLICA:
        broker.replica.become(role)
    broker.core.arrival_listeners.append(count)
    for end in ends:
        confirm(end)
        broker.turns.run(1)
    assert rounds == (4 if role is Role.MASTER else 0)
    broker.turns.run(10)
    assert rounds == (4 if role is Role.MASTER else 1)
    assert broker.core.store.max_offset("T", 0) == 4


def test_a_replica_waits_for_no_more_than_is_done_quickly() -> None:
    broker = Broker()
    confirm, broker.replica.on_appended = broker.replica.on_appended, lambda end_offset: None  # type: ignore[method-assign]
    broker.core.store.append_messages([draft(bytes(2000), topic="T")])
    small_end = broker.core.store.commitlog.end_offset
    for _ in range(600):
        broker.core.store.append_messages([draft(bytes(2000), topic="T")])
    broker.replica.become(Role.REPLICA)
    confirm(small_end)  # it begins to gather
    broker.turns.run(0)
    assert broker.core.store.max_offset("T", 0) == 0
    confirm(broker.core.store.commitlog.end_offset)
    broker.turns.run(0)
    assert broker.core.store.max_offset("T", 0) > 1


def test_a_broker_that_cannot_read_what_it_has_to_dispatch_says_so_instead_of_standing_still() -> None:
    broker = Broker()
    confirm = broker.replica.on_appended
    broker.replica.on_appended = lambda end_offset: None  # type: ignore[method-assign]
    broker.change(lambda done: broker.core.metadata.put_topic(TopicConfig("Later"), done))
    path = "commitlog/00000000000000000000"
    broker.disk.files[path].seen.write(broker.core.store.commitlog.end_offset - 80, b"no JSON")
    failures: list[StorageError] = []
    broker.core.store.failure_listeners.append(failures.append)
    broker.core.store.dispatcher.truncate(broker.core.store.dispatch_offset)  # what was appended is read back
    broker.core.metadata.rebuild()
    confirm(broker.core.store.commitlog.end_offset)
    broker.turns.run(100)
    assert len(failures) == 1
    assert broker.core.store.refusal is not None


@pytest.mark.parametrize("topic", ["rmq_sys_logboom_metadata", "rmq_sys_logboom_pop"])
def test_a_start_refuses_records_of_the_tables_whose_kind_it_does_not_know(topic: str) -> None:
    """Another version may have written them, or a disk changed a byte that no checksum covers; what they say is not guessed."""
    broker = Broker()
    broker.core.appends.appended(
        broker.core.store.append_messages(
            [draft(b'{"v":1}', topic=topic, tag="unheardOf", queue_id=0)],
        )[-1].end_offset
    )
    broker.core.store.close()
    with pytest.raises(CorruptedFile, match="unheardOf"):
        Broker(broker.disk)


def test_snapshots_that_fill_files_of_the_log_do_not_ask_for_each_other() -> None:
    broker = Broker(journal=JournalSettings(snapshot_part_bytes=1024))
    store = broker.core.store
    for number in range(120):
        name = f"{number:03}".ljust(110, "x")
        broker.change(lambda done, name=name: broker.core.metadata.put_group(GroupConfig(name), done))  # type: ignore[misc]
    broker.turns.run(10_000)
    end, before = store.commitlog.end_offset, broker.core.record_log.snapshot_bytes
    assert before > 2 * SETTINGS.segment_size_bytes
    broker.turns.run(60_000)
    assert store.commitlog.end_offset == end
    while store.commitlog.end_offset < end + 16 * SETTINGS.segment_size_bytes:  # messages fill files, too
        broker.send(0)
    assert broker.core.record_log.snapshot_bytes > before
    broker.core.close()
    store.close()
