"""Transactions from the half message to what consumers see, over a real store, through restarts and changes of role."""

from __future__ import annotations

import pytest

from brokerd.replication.roles.effects import Role
from brokerd.store.put_status import PutStatus
from brokerd.transactions import checking, topics
from brokerd.transactions.decide import EndTransaction, Outcome
from brokerd.transactions.records import GIVEN_UP_TOPIC, OP_TOPIC, TRANSACTION_GROUP, EndedAs
from brokerd.transactions.settings import TransactionSettings
from remoting import codes
from remoting.errors import StorageError
from remoting.java_hash import java_hash
from remoting.names import HALF_TOPIC
from remoting.record.hosts import offset_message_id
from remoting.record.layout import SYS_COMPRESSED, SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_PREPARED
from tests.support.transactions import CLIENT_HOST, HOST, Producer, TransactionBroker


@pytest.fixture
def broker() -> TransactionBroker:
    return TransactionBroker().topic()


def test_a_half_message_waits_where_the_original_keeps_it(broker: TransactionBroker) -> None:
    outcome = broker.half(queue_id=3, body=b"hello", key="K" * 32, flag=7)
    [half] = broker.halves
    assert (outcome.queue_id, outcome.queue_offset, outcome.physical_offset) == (3, 0, half.physical_offset)
    assert (half.topic, half.queue_id, half.body, half.flag, half.sys_flag) == (HALF_TOPIC, 0, b"hello", 7, 0)
    properties = half.property_map()
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "3")
    assert properties["__transactionId__"] == properties["UNIQ_KEY"] == "K" * 32
    assert properties["TRAN_MSG"] == "true"
    assert broker.bodies() == []


def test_a_committed_message_appears_in_its_queue(broker: TransactionBroker) -> None:
    half = broker.half(
        queue_id=2, body=b"zip", key="K" * 32, flag=7, sys_flag=SYS_TRANSACTION_PREPARED | SYS_COMPRESSED
    )
    assert broker.end(half) is None
    [record] = broker.records()
    assert (record.topic, record.queue_id, record.queue_offset, record.body, record.flag) == ("T", 2, 0, b"zip", 7)
    assert record.sys_flag == SYS_TRANSACTION_COMMIT | SYS_COMPRESSED
    assert record.prepared_transaction_offset == half.physical_offset
    assert record.born_host == CLIENT_HOST
    properties = record.property_map()
    assert properties["UNIQ_KEY"] == "K" * 32
    assert (properties["TRAN_MSG"], properties["REAL_TOPIC"], properties["REAL_QID"]) == ("true", "T", "2")
    [(_, _, tags_code)] = broker.core.store.read_units("T", 2, 0, 1)
    assert tags_code == java_hash("tag")
    [op] = broker.ops
    assert (op.body, op.property_map()["TAGS"], op.queue_id) == (b"0,", "d", 0)
    assert op.physical_offset > record.physical_offset


def test_a_rolled_back_message_never_appears(broker: TransactionBroker) -> None:
    first, second = broker.half(), broker.half(body=b"stays")
    assert broker.end(first, Outcome.ROLLBACK) is None
    assert broker.end(second) is None
    assert broker.bodies() == [b"stays"]
    assert [op.body for op in broker.ops] == [b"0,", b"1,"]
    assert broker.service.state().open == 0


def test_a_committed_message_with_a_delay_waits_from_its_commit_on(broker: TransactionBroker) -> None:
    half = broker.half(queue_id=3, properties={"DELAY": "2"})
    broker.turns.run(10_000)
    assert broker.end(half) is None
    broker.turns.run(4_900)
    assert broker.bodies() == []
    broker.turns.run(300)
    [record] = broker.records()
    assert (record.queue_id, record.sys_flag) == (3, SYS_TRANSACTION_COMMIT)
    assert record.prepared_transaction_offset == half.physical_offset


def test_an_undecided_transaction_stays_open(broker: TransactionBroker) -> None:
    half = broker.half()
    assert broker.end(half, Outcome.UNKNOWN) is None
    assert broker.service.state().open == 1
    assert (broker.bodies(), broker.ops) == ([], [])


@pytest.mark.parametrize("again", [Outcome.COMMIT, Outcome.ROLLBACK])
@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_decided_is_not_decided_again(broker: TransactionBroker, again: Outcome, restarts: bool) -> None:
    half = broker.half()
    assert broker.end(half) is None
    if restarts:
        broker = broker.restart()
    error = broker.end(half, again)
    if again is Outcome.COMMIT:
        assert error is None, "it is told what it was told before"
    else:
        assert error is not None
        assert error.code == codes.SYSTEM_ERROR
        assert "not open" in str(error)
    assert len(broker.bodies()) == 1
    assert len(broker.ops) == 1


def test_a_decision_must_fit_its_half_message(broker: TransactionBroker) -> None:
    half = broker.half()
    plain = broker.try_half(properties={"TRAN_MSG": "false"}, sys_flag=0)

    def refusal(**changes: object) -> str:
        fields = {
            "producer_group": "pg",
            "queue_offset": half.queue_offset,
            "physical_offset": half.physical_offset,
            "outcome": Outcome.COMMIT,
        }
        error = broker.decide(EndTransaction(**{**fields, **changes}))  # type: ignore[arg-type]
        assert error is not None
        assert error.code == codes.SYSTEM_ERROR
        return str(error)

    assert "producer group is wrong" in refusal(producer_group="other")
    assert "state table offset is wrong" in refusal(queue_offset=5)
    for nowhere in (half.physical_offset + 1, 1 << 50, plain.physical_offset):
        assert "no half message starts" in refusal(physical_offset=nowhere)
    assert broker.service.state().refused_ends == 5
    assert broker.end(half) is None


def test_a_replica_ends_nothing(broker: TransactionBroker) -> None:
    half = broker.half()
    broker.replica.become(Role.REPLICA)
    error = broker.end(half)
    assert error is not None
    assert error.code == codes.SLAVE_NOT_AVAILABLE


def test_after_its_immunity_only_the_answer_to_a_check_ends_a_transaction(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    half = broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"})
    broker.turns.run(40_001)
    error = broker.end(half)
    assert error is not None
    assert error.code == codes.ILLEGAL_OPERATION
    assert not producer.asked  # not at the look after 30 seconds
    broker.look()
    [(question, _)] = producer.asked
    assert broker.answer_check(question) is None
    assert len(broker.bodies()) == 1


def test_within_its_immunity_a_transaction_ends_as_others_do(broker: TransactionBroker) -> None:
    half = broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"})
    broker.turns.run(40_000)
    assert broker.end(half) is None


def test_an_orphan_is_asked_about_with_the_offsets_of_its_present_record(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    broker.half(queue_id=2, body=b"orphan", key="K" * 32)
    broker.look()
    [(question, message)] = producer.asked
    first, second = broker.halves
    assert question == {
        "topic": HALF_TOPIC,
        "tranStateTableOffset": "1",
        "commitLogOffset": str(second.physical_offset),
        "msgId": "K" * 32,
        "transactionId": "K" * 32,
        "offsetMsgId": offset_message_id(HOST, second.physical_offset),
        "bname": "broker-a",
    }
    assert (message.topic, message.queue_id, message.body) == ("T", 2, b"orphan")
    assert message.property_map()["PGROUP"] == "pg"
    assert second.property_map()["TRANSACTION_CHECK_TIMES"] == "1"
    assert second.property_map()["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert (first.body, first.born_timestamp_ms) == (second.body, second.born_timestamp_ms)
    assert broker.answer_check(question) is None
    [record] = broker.records()
    assert (record.queue_id, record.body, record.prepared_transaction_offset) == (2, b"orphan", second.physical_offset)
    moved, done = broker.ops
    assert (moved.body, moved.property_map()) == (b"0,", {"TAGS": "d", "TRAN_MOVED": "true"})
    assert (done.body, done.property_map()) == (b"0,1,", {"TAGS": "d", "TRAN_ENDED_AS": "commit"})
    broker.look()
    assert len(producer.asked) == 1


def test_a_fresh_transaction_is_not_asked_about(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    broker.turns.run(25_000)
    broker.half()
    broker.turns.run(5_000)
    assert not producer.asked
    broker.look()
    assert len(producer.asked) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_set_back_leaves_no_producer_unasked(broker: TransactionBroker, restarts: bool) -> None:
    producer = Producer()
    broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"})
    broker.turns.set_wall_clock(-3_600_000)
    if restarts:  # as well as when another one becomes master, whose clock is an hour behind
        broker = broker.restart()
    broker.producers["pg"] = [producer]
    asked = []
    for _ in range(4):
        broker.look()
        asked.append(len(producer.asked))
    assert asked == [0, 0, 1, 2], "it is left alone for as long as it wants, from the first look on"


def test_the_immunity_of_a_producer_whose_clock_is_ahead_passes_once(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    ahead_ms = broker.turns.wall_ms() + 3_600_000
    broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "40"}, born_timestamp_ms=ahead_ms)
    asked = []
    for _ in range(4):
        broker.look()
        asked.append(len(producer.asked))
    assert asked == [0, 1, 2, 3], "what takes its place begins no new one"


def test_the_answer_to_a_check_and_a_late_decision_deliver_once(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    half = broker.half()
    broker.look()
    [(question, _)] = producer.asked
    assert broker.end(half) is None  # with the offsets of the record that was replaced
    assert broker.answer_check(question) is None, "the same decision"
    assert broker.answer_check(question, Outcome.ROLLBACK) is not None
    assert len(broker.bodies()) == 1
    broker.look()
    assert len(producer.asked) == 1


def test_producers_of_a_group_are_asked_in_turn_and_the_deaf_are_passed_over(broker: TransactionBroker) -> None:
    one, two, deaf = Producer(), Producer(), Producer()
    deaf.is_open = False
    broker.producers = {"pg": [one, deaf, two], "other": [Producer()]}
    for _ in range(2):
        broker.half()
    for _ in range(3):
        broker.look()
    assert len(one.asked) + len(two.asked) == 6
    assert one.asked
    assert two.asked
    assert not broker.producers["other"][0].asked


def test_nobody_decides_and_it_is_given_up(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    half = broker.half(body=b"lost?")
    for _ in range(14):
        broker.look()
    broker.producers.clear()  # a check counts, whoever hears it
    broker.look()
    state = broker.service.state()
    assert (state.open, state.oldest_checks, state.max_checks) == (1, 15, 15)
    broker.look()
    assert len(producer.asked) == 14
    state = broker.service.state()
    assert (state.open, state.checks, state.unasked, state.given_up) == (0, 14, 1, 1)
    [record] = broker.given_up
    assert (record.body, record.property_map()["TRANSACTION_CHECK_TIMES"]) == (b"lost?", "15")
    error = broker.end(half)
    assert error is not None
    assert GIVEN_UP_TOPIC in str(error)
    assert broker.bodies() == []
    # somebody has it checked once more
    broker.producers["pg"] = [producer]
    assert broker.resume(record.physical_offset) is None
    assert broker.halves[-1].property_map()["TRANSACTION_CHECK_TIMES"] == "0"
    broker.look()
    assert broker.answer_check(producer.asked[-1][0]) is None
    assert broker.bodies() == [b"lost?"]


def test_resuming_an_open_transaction_counts_its_checks_anew(broker: TransactionBroker) -> None:
    half = broker.half()
    broker.look()
    assert broker.resume(half.physical_offset) is None
    [open_half] = broker.service.table
    assert (open_half.first, open_half.checks) == (half.queue_offset, 0)
    assert broker.end(half) is None
    error = broker.resume(half.physical_offset)
    assert error is not None
    assert "not open" in str(error)
    assert broker.resume(broker.records()[0].physical_offset) is not None


def test_the_state_survives_a_restart_and_a_change_of_role(broker: TransactionBroker) -> None:
    producer = Producer()
    done, waiting, checked = broker.half(), broker.half(body=b"waits"), broker.half(body=b"is asked about")
    broker.end(done)
    broker.look()
    for change in ("restart", "role"):
        if change == "restart":
            broker = broker.restart()
        else:
            broker.replica.become(Role.REPLICA)
            broker.replica.become(Role.MASTER)
        assert sorted(half.first for half in broker.service.table) == [1, 2]
        assert [half.checks for half in broker.service.table] == [1, 1]
    assert broker.end(waiting) is None
    broker.producers["pg"] = [producer]
    broker.look()
    [(question, _)] = producer.asked
    assert int(question["tranStateTableOffset"]) > checked.queue_offset
    assert broker.answer_check(question) is None
    assert broker.bodies() == [b"m", b"waits", b"is asked about"]


def test_a_start_reads_only_what_may_be_open(broker: TransactionBroker) -> None:
    for _ in range(50):
        broker.end(broker.half())
    open_half = broker.half()
    broker.look()
    broker.turns.run(100)
    offset = broker.core.metadata.consumer_offset(TRANSACTION_GROUP, HALF_TOPIC, 0)
    assert offset == open_half.queue_offset + 1  # where it was written again
    assert broker.core.metadata.consumer_offset(TRANSACTION_GROUP, OP_TOPIC, 0) == 50
    broker = broker.restart()
    assert broker.service.table.start == offset
    assert [half.first for half in broker.service.table] == [open_half.queue_offset]


def test_many_ends_between_two_looks_do_not_make_a_start_long(
    broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics, "_PROGRESS_EVERY", 20)
    for _ in range(50):
        broker.end(broker.half())
    broker.turns.run(100)
    assert broker.restart().service.table.start == 40


def test_the_log_is_kept_from_the_oldest_open_half_message_on(broker: TransactionBroker) -> None:
    assert broker.service.held_offset() is None
    half, other = broker.half(), broker.half()
    assert broker.service.held_offset() == half.physical_offset
    broker.end(half)
    assert broker.service.held_offset() == other.physical_offset
    assert broker.core.store.held_offset() <= other.physical_offset


def test_a_transaction_that_waits_long_moves_along_with_the_log(broker: TransactionBroker) -> None:
    half = broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"}, body=b"patient")
    while broker.core.store.commitlog.end_offset < 2 * 65536:
        broker.end(broker.half(body=b"x" * 4000))
    broker.look()
    [moved] = broker.service.table
    assert moved.first == half.queue_offset
    assert moved.checks == 0
    assert moved.physical_offset > 65536
    assert broker.end(half) is None
    assert broker.bodies()[-1] == b"patient"


def test_a_topic_that_is_gone_leaves_its_transactions_open(broker: TransactionBroker) -> None:
    broker.topic("Gone")
    half = broker.half(topic="Gone")
    answers: list[object] = []
    broker.core.metadata.delete_topic("Gone", answers.append)
    broker.turns.run(10)
    error = broker.end(half)
    assert error is not None
    assert error.code == codes.TOPIC_NOT_EXIST
    broker.topic("Gone", queues=1)
    assert broker.end(half) is None
    [record] = broker.records("Gone")
    assert record.queue_id == 0  # it has fewer queues than it had


def test_more_open_transactions_than_the_settings_allow_are_refused_as_busy() -> None:
    broker = TransactionBroker(settings=TransactionSettings(max_open=2)).topic()
    first = broker.half()
    broker.half()
    refused = broker.try_half()
    assert refused.error is not None
    assert refused.error.code == codes.SYSTEM_BUSY
    assert broker.end(first, Outcome.ROLLBACK) is None
    broker.half()


def test_more_open_bytes_than_the_settings_allow_are_refused_as_busy() -> None:
    broker = TransactionBroker(settings=TransactionSettings(max_open_bytes=6000)).topic()
    first = broker.half(body=b"x" * 4000)
    assert broker.try_half(body=b"x" * 4000).error is not None
    assert broker.end(first) is None
    broker.half(body=b"x" * 4000)


def test_a_broker_can_refuse_transactions() -> None:
    broker = TransactionBroker(settings=TransactionSettings(reject=True)).topic()
    refused = broker.try_half()
    assert refused.error is not None
    assert refused.error.code == codes.NO_PERMISSION


def test_clients_cannot_say_what_only_brokers_say(broker: TransactionBroker) -> None:
    victim = broker.half()
    broker.half(
        properties={"TRAN_PREPARED_QUEUE_OFFSET": "0", "TRANSACTION_CHECK_TIMES": "15", "REAL_TOPIC": "rmq_sys_x"}
    )
    properties = broker.halves[1].property_map()
    assert "TRAN_PREPARED_QUEUE_OFFSET" not in properties
    assert "TRANSACTION_CHECK_TIMES" not in properties
    assert properties["REAL_TOPIC"] == "T"
    assert len(broker.service.table) == 2
    assert broker.end(victim) is None


def test_a_crash_between_the_message_and_its_op_record_may_deliver_twice_and_never_loses(
    broker: TransactionBroker,
) -> None:
    half = broker.half(body=b"twice")
    broker.end(half)
    [op] = broker.ops
    store = broker.core.store
    broker.replica.become(Role.REPLICA)
    store.truncate(op.physical_offset)
    broker.replica.confirm_offset = op.physical_offset
    broker.replica.become(Role.MASTER)
    assert [each.first for each in broker.service.table] == [half.queue_offset]
    producer = Producer()
    broker.producers["pg"] = [producer]
    broker.look()
    broker.answer_check(producer.asked[0][0])
    assert broker.bodies() == [b"twice", b"twice"]


def test_a_log_that_refuses_leaves_the_transaction_open(broker: TransactionBroker) -> None:
    half = broker.half()
    broker.replica.is_taking = False
    error = broker.end(half)
    assert error is not None
    broker.look()
    assert len(broker.halves) == 1
    broker.replica.is_taking = True
    assert broker.end(half) is None
    assert len(broker.bodies()) == 1


def test_the_look_goes_on_after_a_log_that_refused(broker: TransactionBroker) -> None:
    producer = Producer()
    broker.producers["pg"] = [producer]
    for _ in range(300):
        broker.half()
    broker.replica.is_taking = False
    broker.look()
    assert not producer.asked
    broker.replica.is_taking = True
    broker.look()
    assert len(producer.asked) == 300
    assert len({question["tranStateTableOffset"] for question, _ in producer.asked}) == 300


def test_a_look_at_many_takes_several_turns(broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MAX_LOOKED_AT", 7)
    producer = Producer()
    broker.producers["pg"] = [producer]
    for n in range(60):
        broker.half(properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "1000"} if n % 3 else {})
    broker.look()
    assert len(producer.asked) == 20
    broker.look()
    assert len(producer.asked) == 40


def test_an_old_masters_checks_end_with_its_role(broker: TransactionBroker) -> None:
    broker.half()
    broker.replica.become(Role.REPLICA)
    broker.look()
    broker.look()
    assert len(broker.halves) == 1


def test_errors_of_the_disk_are_answered(broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    half = broker.half()

    def refuse(*_: object) -> int:
        raise StorageError("cannot write commitlog: I/O error")

    monkeypatch.setattr(broker.core.store.commitlog, "append", refuse)
    error = broker.end(half)
    assert error is not None
    assert "I/O error" in str(error)
    assert [each.first for each in broker.service.table] == [half.queue_offset]


# ---- what is not acknowledged


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_SLAVE_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT),
        (PutStatus.FLUSH_DISK_TIMEOUT, codes.FLUSH_DISK_TIMEOUT),
        (PutStatus.SERVICE_NOT_AVAILABLE, codes.SERVICE_NOT_AVAILABLE),
    ],
)
@pytest.mark.parametrize("outcome", [Outcome.COMMIT, Outcome.ROLLBACK])
def test_an_end_that_is_not_acknowledged_is_not_answered_ok(
    broker: TransactionBroker, status: PutStatus, code: int, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record may not be in the log of the next master, where the transaction is open then."""
    half = broker.half()
    with monkeypatch.context() as late:
        late.setattr(broker.core.record_log, "when_acknowledged", lambda end_offset, done: done(status))
        error = broker.end(half, outcome)
        assert error is not None
        assert error.code == code
        assert "it is not known whether the transaction is ended" in str(error)
        assert broker.end(half, outcome) is not None, "asked again, it is told when it is acknowledged, not before"
    assert broker.end(half, outcome) is None
    assert len(broker.ops) == 1
    assert len(broker.bodies()) == (outcome is Outcome.COMMIT)
    other = Outcome.ROLLBACK if outcome is Outcome.COMMIT else Outcome.COMMIT
    assert "not open" in str(broker.end(half, other))


# ---- given up, and ended by hand


def given_up(broker: TransactionBroker, count: int = 1) -> None:
    for number in range(count):
        broker.half(body=b"%d" % number, queue_id=2)
    for _ in range(16):
        broker.look()
    assert len(broker.given_up) == count


def by_hand(broker: TransactionBroker, offset: int, ended_as: EndedAs, who: str = "ann") -> str:
    answers: list[object] = []
    broker.service.end_given_up(offset, ended_as, who, answers.append)
    broker.turns.run()
    [answer] = answers
    return str(answer or "")


def test_what_was_given_up_is_listed_with_its_age_and_why(broker: TransactionBroker) -> None:
    begun_ms = broker.turns.wall_ms()
    given_up(broker, 3)
    page = broker.service.given_up.page(None, 2)
    assert [each.offset for each in page.items] == [2, 1]
    assert page.before == 1
    rest = broker.service.given_up.page(page.before, 2)
    assert ([each.offset for each in rest.items], rest.before) == ([0], None)
    [first] = rest.items
    assert (first.topic, first.producer_group, first.checks, first.decision) == ("T", "pg", 15, None)
    assert first.begun_at_ms == begun_ms
    assert first.given_up_at_ms > begun_ms
    assert len(first.key) == 32


def test_a_given_up_message_is_committed_by_hand_exactly_once(broker: TransactionBroker) -> None:
    given_up(broker, 2)
    assert by_hand(broker, 0, EndedAs.COMMIT) == ""
    assert by_hand(broker, 0, EndedAs.COMMIT, "bob") == "", "the second click finds it done"
    assert "ann decided commit" in by_hand(broker, 0, EndedAs.ROLLBACK, "bob")
    assert by_hand(broker, 1, EndedAs.ROLLBACK) == ""
    assert broker.bodies() == [b"0"]
    [record] = broker.records()
    assert (record.queue_id, record.sys_flag) == (2, SYS_TRANSACTION_COMMIT)
    listed = {each.offset: (each.decision, each.decided_by) for each in broker.service.given_up.page(None, 9).items}
    assert listed == {0: ("commit", "ann"), 1: ("rollback", "ann")}
    again = broker.restart()
    assert by_hand(again, 0, EndedAs.COMMIT, "bob") == ""
    assert "ann decided rollback" in by_hand(again, 1, EndedAs.COMMIT, "bob")
    assert again.bodies() == [b"0"]


def test_two_people_who_decide_before_anything_is_confirmed_decide_once(
    broker: TransactionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up(broker)
    answers: list[object] = []
    broker.service.end_given_up(0, EndedAs.COMMIT, "ann", answers.append)
    broker.service.end_given_up(0, EndedAs.COMMIT, "bob", answers.append)
    broker.service.end_given_up(0, EndedAs.ROLLBACK, "eve", answers.append)
    broker.turns.run()
    assert [str(each or "") for each in answers if each is None] == ["", ""]
    assert [str(each) for each in answers if each is not None] == ["ann decided commit about it already"]
    assert broker.bodies() == [b"0"]


def test_what_is_decided_is_not_resumed_nor_the_reverse(broker: TransactionBroker) -> None:
    given_up(broker, 2)
    places = [record.physical_offset for record in broker.given_up]
    assert by_hand(broker, 0, EndedAs.ROLLBACK) == ""
    assert "ann decided rollback" in str(broker.resume(places[0]))
    assert broker.resume(places[1]) is None
    assert "decided resumed" in str(broker.resume(places[1])), "it is open once, whoever asks"
    assert "decided resumed" in by_hand(broker, 1, EndedAs.COMMIT)
    assert broker.service.state().open == 1


def test_only_a_message_that_was_given_up_is_ended_by_hand(broker: TransactionBroker) -> None:
    given_up(broker)
    assert by_hand(broker, 0, EndedAs.COMMIT) == ""
    for offset in (1, 2):  # the decision itself, and nothing
        assert "no half message that was given up is at queue offset" in by_hand(broker, offset, EndedAs.COMMIT)
    broker.replica.become(Role.REPLICA)
    assert "only the master" in by_hand(broker, 0, EndedAs.COMMIT)
