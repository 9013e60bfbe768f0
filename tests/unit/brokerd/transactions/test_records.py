"""The records of transactions, and what decides about them: one rule each."""

from __future__ import annotations

import pytest

from brokerd.store.draft import Draft, encode_draft
from brokerd.transactions.decide import Due, EndTransaction, Outcome, check_end, decide_due
from brokerd.transactions.records import (
    OP_TOPIC,
    EndedAs,
    Half,
    asked_about,
    commit_draft,
    done_offsets,
    half_draft,
    half_of,
    half_of_draft,
    is_half,
    op_draft,
    ordinary_draft,
    successor_draft,
    successor_noted_draft,
)
from brokerd.transactions.settings import TransactionSettings
from brokerd.transactions.table import OpenTransactions
from remoting import codes
from remoting.errors import RequestError
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties

HOST = pack_host("10.0.0.2", 10911)
SETTINGS = TransactionSettings()


def sent(sys_flag: int = 4, reconsume_times: int = 0, host: str = "10.0.0.1", **properties: str) -> Draft:
    encoded = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", **properties})
    return Draft("T", 3, b"body", encoded, 1000, pack_host(host, 1), 7, sys_flag, reconsume_times)


def stored(draft: Draft, queue_offset: int = 5, physical_offset: int = 4096, stored_ms: int = 2000) -> Record:
    return decode_record(encode_draft(draft, queue_offset, physical_offset, stored_ms, HOST))


def kept_of(record: Record) -> Half:
    return half_of(record, record.property_map())


@pytest.mark.parametrize(
    ("draft", "begins"),
    [
        (sent(), True),
        (sent(TRAN_MSG="TRUE"), True),
        (sent(sys_flag=0), True),
        (sent(TRAN_MSG="false"), False),
        (sent(TRAN_MSG=""), False),
        (sent(reconsume_times=1), True),
        (sent(DELAY="3"), True),
        (sent(reconsume_times=1, DELAY="3"), False),
        (sent(reconsume_times=1, DELAY="0"), True),
        (sent(reconsume_times=1, DELAY="much"), True),
        (sent(TRAN_MSG="false", NOT_TRAN_MSG="true"), False),
    ],
)
def test_what_begins_a_transaction(draft: Draft, begins: bool) -> None:
    assert is_half(draft) is begins


def test_flags_of_a_transaction_without_one_are_cleared_or_refused() -> None:
    back = ordinary_draft(sent(reconsume_times=1, DELAY="3"))
    assert back.sys_flag == 0
    plain = sent(sys_flag=1, TRAN_MSG="")
    assert ordinary_draft(plain) is plain
    for sys_flag in (4, 8, 12):
        with pytest.raises(RequestError) as refusal:
            ordinary_draft(sent(sys_flag=sys_flag, TRAN_MSG=""))
        assert refusal.value.code == codes.MESSAGE_ILLEGAL


def test_a_half_message_needs_a_group_and_room() -> None:
    for draft in (sent(PGROUP=""), sent(long="x" * 32_600)):
        with pytest.raises(RequestError) as refusal:
            half_draft(draft)
        assert refusal.value.code == codes.MESSAGE_ILLEGAL


def test_the_largest_half_message_can_be_checked_as_often_as_wanted() -> None:
    draft = half_draft(sent(long="x" * 32_400))
    successor = successor_draft(stored(draft, queue_offset=1 << 62), (1 << 62) - 1, 1000)
    assert len(successor.properties) <= 32767
    assert kept_of(stored(successor, queue_offset=1 << 62)).checks == 1000


def test_a_commit_keeps_everything_but_its_place_and_flags() -> None:
    half = stored(half_draft(sent(sys_flag=5, host="fe80::1")))
    commit = commit_draft(half, half.property_map())
    assert (commit.topic, commit.queue_id, commit.body, commit.flag) == ("T", 3, b"body", 7)
    assert (commit.sys_flag, commit.prepared_transaction_offset) == (9, 4096)
    assert commit.properties == half.properties
    assert (commit.born_timestamp_ms, commit.born_host) == (1000, pack_host("fe80::1", 1))


def test_a_question_is_a_record_of_the_message_itself() -> None:
    half = stored(half_draft(sent()))
    question = decode_record(asked_about(half).encode())
    assert (question.topic, question.queue_id) == ("T", 3)
    assert question.size == len(asked_about(half).encode())
    kept = ("body", "properties", "queue_offset", "physical_offset", "store_timestamp_ms", "store_host", "sys_flag")
    assert [getattr(question, name) for name in kept] == [getattr(half, name) for name in kept]


@pytest.mark.parametrize(
    ("body", "tag", "offsets"),
    [
        (b"12,", "d", [12]),
        (b"12", "d", [12]),  # of versions before 5
        (b"1,2,30,", "d", [1, 2, 30]),
        (b"1,,x,-4, 5,\xb2," + b"9" * 25, "d", [1]),
        (b"", "d", []),
        (b"7,", "r", []),
    ],
)
def test_op_records_of_all_versions_are_read(body: bytes, tag: str, offsets: list[int]) -> None:
    draft = op_draft([], 1, HOST, EndedAs.COMMIT)._replace(body=body, properties=encode_properties({"TAGS": tag}))
    assert done_offsets(stored(draft)) == offsets


def test_an_op_record_of_a_successor_decides_nothing() -> None:
    moved = successor_noted_draft(3, 5, HOST)
    assert (moved.topic, moved.body) == (OP_TOPIC, b"3,")
    assert done_offsets(stored(moved)) == []


def test_op_records_are_as_the_original_writes_them() -> None:
    op = op_draft([3, 17], 5, HOST, EndedAs.ROLLBACK)
    assert (op.topic, op.queue_id, op.body, op.properties) == (
        OP_TOPIC,
        0,
        b"3,17,",
        b"TAGS\x01d\x02TRAN_ENDED_AS\x01rollback\x02",
    )


def test_the_table_keeps_of_a_draft_what_it_reads_of_the_record() -> None:
    draft = half_draft(sent(CHECK_IMMUNITY_TIME_IN_SECONDS="40"))
    record = stored(draft)
    assert half_of_draft(draft, 5, 4096, record.size, 2000) == kept_of(record)
    assert kept_of(record) == Half(5, 5, 4096, record.size, 1000, 0, 40_000, "K", False)


def test_a_clock_of_a_client_that_is_ahead_puts_nothing_off() -> None:
    assert kept_of(stored(half_draft(sent()), stored_ms=500)).since_ms == 500


# ---- decisions

REQUEST = EndTransaction("pg", 5, 4096, Outcome.COMMIT)


def refusal_of(request: EndTransaction, record: Record | None, now_ms: int = 2000) -> int | None:
    try:
        check_end(request, record, now_ms, SETTINGS)
    except RequestError as refusal:
        return refusal.code
    return None


def test_immunity_limits_a_producers_own_decision_only() -> None:
    record = stored(half_draft(sent(CHECK_IMMUNITY_TIME_IN_SECONDS="10")))
    asked = EndTransaction("pg", 5, 4096, Outcome.ROLLBACK, from_check=True)
    assert refusal_of(REQUEST, record, 11_000) is None
    assert refusal_of(REQUEST, record, 11_001) == codes.ILLEGAL_OPERATION
    assert refusal_of(asked, record, 11_001) is None
    assert refusal_of(REQUEST, stored(half_draft(sent())), 1 << 40) is None
    # what cannot be read counts as the ordinary time
    garbled = stored(half_draft(sent(CHECK_IMMUNITY_TIME_IN_SECONDS="soon")))
    assert refusal_of(REQUEST, garbled, 7000) is None
    assert refusal_of(REQUEST, garbled, 7001) == codes.ILLEGAL_OPERATION


def test_only_half_messages_are_ended() -> None:
    assert refusal_of(REQUEST, stored(half_draft(sent()))) is None
    for record in (None, stored(sent())):
        assert refusal_of(REQUEST, record) == codes.SYSTEM_ERROR
    for request in (
        EndTransaction("other", 5, 4096, Outcome.COMMIT),
        EndTransaction("pg", 6, 4096, Outcome.COMMIT),
        EndTransaction("pg", 5, 4097, Outcome.COMMIT),
    ):
        assert refusal_of(request, stored(half_draft(sent()))) == codes.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("age_ms", "immunity_ms", "checks", "log_end", "due"),
    [
        (6000, -1, 0, 0, Due.NOTHING),
        (6001, -1, 0, 0, Due.CHECK),
        (6001, -1, 14, 0, Due.CHECK),
        (6001, -1, 15, 0, Due.GIVE_UP),
        (100, 0, 0, 0, Due.CHECK),
        (40_000, 40_000, 0, 0, Due.NOTHING),
        (40_001, 40_000, 0, 0, Due.CHECK),
        (40_000, 40_000, 0, 101, Due.MOVE_UP),
        (40_000, 40_000, 0, 100, Due.NOTHING),
        (72 * 3_600_000 + 1, 1 << 50, 0, 0, Due.CHECK),  # nobody holds back the log for ever
        (-5, -1, 0, 0, Due.NOTHING),
    ],
)
def test_what_is_due(age_ms: int, immunity_ms: int, checks: int, log_end: int, due: Due) -> None:
    half = Half(1, 1, 0, 200, 1000, checks, immunity_ms, "K", False)
    assert decide_due(half, 1000 + age_ms, log_end, 100, SETTINGS) is due


# ---- the table


def half(queue_offset: int, first: int | None = None, key: str = "", checks: int = 0) -> Half:
    successor = first is not None or checks > 0
    return Half(
        queue_offset if first is None else first, queue_offset, queue_offset * 100, 10, 0, checks, -1, key, successor
    )


def opened(table: OpenTransactions) -> list[tuple[int, int]]:
    assert table.size_bytes == 10 * len(table)
    return [(each.first, each.queue_offset) for each in table]


def test_a_successor_of_the_originals_checks_is_known_by_its_key() -> None:
    table = OpenTransactions()
    table.apply_half(half(0, key="A"))
    table.apply_half(half(1, key="B"))
    table.apply_half(half(2, key="A", checks=1))
    assert opened(table) == [(1, 1), (0, 2)]
    found = table.find(half(2, key="A", checks=1))
    assert found is not None
    assert found.first == 0
    table.apply_done([2])
    assert opened(table) == [(1, 1)]
    table.apply_half(half(3, key="A", checks=2))  # its transaction ended, as far as anybody knows it is a new one
    assert opened(table) == [(1, 1), (3, 3)]


def test_a_done_record_may_name_the_first_or_the_present_half_message() -> None:
    for named in (0, 3):
        table = OpenTransactions()
        table.apply_half(half(0))
        table.apply_half(half(1))
        table.apply_half(half(2, first=0, checks=1))
        table.apply_half(half(3, first=0, checks=2))
        assert opened(table) == [(1, 1), (0, 3)]
        assert table.done_before == 1
        table.apply_done([named, 77])
        assert opened(table) == [(1, 1)]
    table.apply_done([1])
    assert table.done_before == 4
    assert opened(table) == []


def test_a_successor_of_what_is_done_opens_nothing() -> None:
    table = OpenTransactions()
    table.apply_half(half(0))
    table.apply_done([0])
    table.apply_half(half(1, first=0, checks=1))
    assert opened(table) == []


def test_a_successor_of_what_was_not_read_is_open() -> None:
    table = OpenTransactions()
    table.restart(10)
    table.apply_half(half(10, first=4, checks=1))
    assert opened(table) == [(4, 10)]
    assert table.done_before == 10


def test_a_successor_of_what_this_log_never_had_is_open() -> None:
    table = OpenTransactions()
    table.apply_half(half(62, first=4, checks=1))
    table.apply_half(half(63))
    assert opened(table) == [(4, 62), (63, 63)]
    table.apply_done([63])
    table.apply_half(half(64, first=63, checks=1))
    table.apply_half(half(65, first=4, checks=2))
    assert opened(table) == [(4, 65)]
    table.apply_done([4, 65])
    assert opened(table) == []


def test_what_was_applied_is_not_applied_again() -> None:
    table = OpenTransactions()
    table.apply_half(half(0))
    table.apply_done([0])
    table.apply_half(half(0))
    assert opened(table) == []
