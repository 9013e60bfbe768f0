"""Sends that are not stored as they came, through the kernel: whatever their properties say, as the general path would do it."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.unique_ids import UniqueIds
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import NO_IMMUNITY, Half
from remoting import codes
from remoting.frame import Command
from remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from remoting.record.codec import decode_record
from tests.support.client_bytes import encode_batch_body
from tests.unit.brokerd.sending.test_send import request
from tests.unit.brokerd.sending.test_timed_kernel import NOW_MS, check_same

pytestmark = pytest.mark.usefixtures("both_kernels")

KEY = "UNIQ_KEY\x017F00000100002A9F0000000000000001\x02"
TAKEN = {
    "no properties": "",
    "no separator": KEY + "TAGS\x01paid",
    "no name": "TAGS\x01größe\x02KEYS\x01k",
    "a name of other letters": "UNIQ_KEY\x01a-b\"c\x02",
    "a level": KEY + "DELAY\x013\x02",
    "a level beyond": KEY + "DELAY\x01+99\x02TAGS\x01t",
    "level 0": KEY + "DELAY\x010\x02",
    "half": KEY + "TRAN_MSG\x01true\x02PGROUP\x01pg\x02",
    "half without a name": "TRAN_MSG\x01true\x02PGROUP\x01pg",
    "half left alone": KEY + "TRAN_MSG\x01true\x02PGROUP\x01pg\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0177\x02",
    "a request": KEY + "REPLY_TO_CLIENT\x01me\x02CLUSTER\x01elsewhere\x02",
    "of an earlier life": KEY + "POP_CK\x010 1 2\x02TRACE_ON\x01false\x02MSG_REGION\x01there\x02",
    "twice": KEY + "a\x01b\x02a\x01c\x02DELAY\x011\x02",
    "nothing in it": KEY + "a\x01\x02\x01b\x02c\x02\x02d\x01e",
    "a value with a separator": KEY + "a\x01b\x01c\x02d\x01e",
    "like a name of the broker's": KEY + "note\x01DELAY and TRAN_MSG and TIMER_\x02",
    "a moment, no separator": KEY + "TIMER_DELAY_SEC\x0130",
    "a moment, no name": "TIMER_DELAY_SEC\x0130\x02TAGS\x01t",
    "a moment and what reads like one": KEY + "TIMER_DELAY_SEC\x0130\x02note\x01INNER_ and DELAY\x02",
    "a moment that has come": KEY + "TIMER_DELAY_SEC\x010\x02",
    "a moment that has passed, no name": f"TIMER_DELIVER_MS\x01{NOW_MS - 1}\x02TAGS\x01t",
    "a moment that has passed, twice": KEY + "TIMER_DELIVER_MS\x011\x02a\x01b\x02TIMER_DELIVER_MS\x012\x02a\x01c\x02",
    "a moment and its place": KEY + "TIMER_DELAY_SEC\x0130\x02REAL_QID\x0177\x02",
}  # fmt: skip


@pytest.mark.parametrize("kind", TAKEN)
def test_what_is_valid_is_laid_out_and_nothing_left_to_the_general_path(kind: str) -> None:
    sends = [request(1), request(2, b"other", i=TAKEN[kind]), request(3)]
    broker, answers, left = check_same(sends)
    assert not left
    assert [answer.code for answer in answers] == [codes.SUCCESS] * 3
    assert len(broker.records()) == 3


def test_a_batch_of_them() -> None:
    kinds = [text for name, text in TAKEN.items() if "half" not in name and "level" not in name and name != "twice"]
    items = [(number, b"body %d" % number, text.encode()) for number, text in enumerate(kinds)]
    for some in (items, items[:3], items[:1] * 3, items[1:2] * 3):
        _, [answer], left = check_same([request(1, encode_batch_body(some), m="true")])
        assert not left
        assert answer.ext["msgId"].count(",") == len(some) - 1


def test_long_names_and_sends_that_are_not_answered() -> None:
    long_names = {"topic": "T", "queueId": "1", "sysFlag": "0", "bornTimestamp": "17", "flag": "0", "properties": ""}
    quiet = request(3, i=TAKEN["a level"])
    quiet.flag = codes.FLAG_ONEWAY
    broker, answers, left = check_same([Command(codes.SEND_MESSAGE, 1, long_names, b"x"), quiet, request(2)])
    assert (len(answers), left) == (2, [])
    assert {decode_record(record).topic for record in broker.records()} == {"T", SCHEDULE_TOPIC}


def test_half_messages_are_told_of_when_they_are_in_the_log() -> None:
    broker, _, left = check_same([request(n, i=TAKEN["half"]) for n in range(3)])
    assert not left
    halves = [decode_record(record) for record in broker.records()]
    assert {record.topic for record in halves} == {HALF_TOPIC}
    assert broker.halves.offsets == [record.physical_offset for record in halves]


class Transactions:
    """Room for three, and 1000 bytes."""

    def __init__(self) -> None:
        self.offsets: list[int] = []

    def room(self) -> HalfRoom:
        return HalfRoom(3 - len(self.offsets), 1000)

    def begun(self, halves: list[Half], end_offset: int) -> None:
        self.offsets += [half.physical_offset for half in halves]


def test_what_a_run_holds_takes_room_until_it_is_appended_or_dropped() -> None:
    transactions = Transactions()
    halves = LaidOutHalves(transactions)
    run, other = (Run(0, 1 << 20, 1 << 20, NOW_MS, TakenOffsets({}), True) for _ in range(2))
    assert halves.room(run) == (3, 1000)
    halves.add(run, [Half(0, 0, 10, 100, NOW_MS, 0, NO_IMMUNITY, "K", False)])
    halves.add(run, [Half(1, 1, 110, 200, NOW_MS, 0, NO_IMMUNITY, "K", False)])
    assert halves.room(run) == (1, 700)
    assert halves.room(other) == (3, 1000)
    assert not transactions.offsets
    for told in run.appended:
        told()
    assert transactions.offsets == [10, 110]
    assert halves.room(other) == (1, 1000)


def test_names_are_taken_when_what_has_them_counts() -> None:
    ids = UniqueIds(NOW_MS)
    first, second = ids.ahead(0), ids.ahead(1)
    assert len(first) == 32
    assert [ids(), ids()] == [first, second]
    assert ids.ahead(0) not in (first, second)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
entries = st.sampled_from(
    [
        *("UNIQ_KEY\x01A1", "UNIQ_KEY\x01a-1", "WAIT\x01true", "TAGS\x01t", "KEYS\x01k", "own\x01v", "DELAY\x011"),
        *(
            "DELAY\x0120",
            "DELAY\x01x",
            "TRAN_MSG\x01true",
            "TRAN_MSG\x01no",
            "PGROUP\x01g",
            "POP_CK\x011",
            "x",
            "x\x01",
        ),
        *(
            "TIMER_DELAY_MS\x01900",
            "TIMER_DELAY_SEC\x010",
            f"TIMER_DELIVER_MS\x01{NOW_MS - 1}",
            "TIMER_OUT_MS\x017",
            "TIMER_DEL_UNIQKEY\x01T+a",
        ),
        *("REAL_TOPIC\x01U", "__transactionId__\x01t", "REPLY_TO_CLIENT\x01c", "TRACE_ON\x01no", "WAIT\x01false"),
        *("__CRC32#\x01123", "TRANSACTION_CHECK_TIMES\x012", "CHECK_IMMUNITY_TIME_IN_SECONDS\x019", "INNER_NUM\x012"),
    ]
) | texts.map(lambda text: f"K\x01{text}")
properties = st.builds(
    lambda all, is_closed: "\x02".join(all) + "\x02" * is_closed, st.lists(entries, max_size=6), st.booleans()
)
changes = st.fixed_dictionaries(
    {"i": properties},
    optional={
        "f": st.sampled_from(["0", "1", "4", "5", "12", "16", "48", "128"]),
        "e": st.sampled_from(["0", "3", "4"]),
        "j": st.sampled_from(["0", "3"]),
        "g": st.sampled_from(["0", str(NOW_MS + 5)]),
    },
)
items = st.tuples(st.integers(-3, 3), st.binary(min_size=1, max_size=9), properties.map(str.encode))


@settings(deadline=None, max_examples=200)
@given(st.lists(changes | st.tuples(changes, st.lists(items, max_size=4)), min_size=1, max_size=6))
@example([{"i": "UNIQ_KEY\x01A1\x02UNIQ_KEY\x01a-1\x02"}])
def test_whatever_they_say(sends: list[dict[str, str] | tuple[dict[str, str], list[tuple[int, bytes, bytes]]]]) -> None:
    requests = []
    for number, send in enumerate(sends):
        if isinstance(send, dict):
            requests.append(request(number, b"body", **send))
        else:
            requests.append(request(number, encode_batch_body(send[1]), **{**send[0], "m": "true", "i": ""}))
    check_same(requests)
