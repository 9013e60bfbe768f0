"""PullMessage: what is streamed, how long a call waits, and where it says to go on."""

from __future__ import annotations

import pytest
import zstandard

from brokerd.metadata.configs import GroupConfig
from brokerd.proxy.methods.table import build_methods
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from remoting.record.layout import SYS_COMPRESSED
from tests.support.memory_log import MemoryRecordLog, draft
from tests.support.turns import Turns
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.proxy.fakes import FakeBroker

SQL = definition.FilterType.Value("SQL")


class Pulling:
    """A broker whose reads and clock a test moves."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.broker = FakeBroker()
        self.broker.add_topic("T")
        self.log: MemoryRecordLog = self.broker.reads
        self.make_methods()

    def make_methods(self) -> None:
        self.methods = build_methods(
            self.broker.services(),
            scheduler=self.turns,
            monotonic_ms=self.turns.monotonic_ms,
            wall_ms=self.turns.wall_ms,
        )
        self.log.listeners.append(self.methods.pull.arrived)

    def store(self, *bodies: bytes, queue_id: int = 0, tag: str = "", **properties: str) -> None:
        named = {"UNIQ_KEY": "id", **properties}
        drafts = [draft("T", body, queue_id, tag=tag, properties=named) for body in bodies]
        self.log.append_messages(drafts)

    def begin(self, offset: int, wait_ms: int = 0, **fields: object) -> FakeCall:
        deadline_ms = fields.pop("deadline_ms", None)
        request = service.PullMessageRequest(group=definition.Resource(name="G"), offset=offset)
        request.message_queue.topic.name = "T"
        for name, value in fields.items():
            if name in ("expression", "type"):
                setattr(request.filter_expression, name, value)
            elif name == "id":
                request.message_queue.id = value
            elif name == "broker":
                request.message_queue.broker.name = value
            else:
                setattr(request, name, value)
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        call = FakeCall(request, deadline_ms=deadline_ms)
        self.methods.handlers["PullMessage"]([call])
        return call

    def pull(self, offset: int, **fields: object):
        return outcome(self.begin(offset, **fields))


def outcome(call: FakeCall):
    """(code, bodies, next offset), in the order in which they have to come."""
    assert call.finished
    first, *between, last = map(service.PullMessageResponse.FromString, call.answers)
    assert [each.WhichOneof("content") for each in between] == ["message"] * len(between)
    assert (first.WhichOneof("content"), last.WhichOneof("content")) == ("status", "next_offset")
    return first.status.code, [each.message.body for each in between], last.next_offset


@pytest.fixture
def pulling() -> Pulling:
    return Pulling()


def test_messages_come_in_order_with_where_to_go_on(pulling) -> None:
    pulling.store(*(b"%d" % number for number in range(40)))
    code, bodies, following = pulling.pull(3, batch_size=4)
    assert (code, bodies, following) == (Code.OK, [b"3", b"4", b"5", b"6"], 7)
    assert len(pulling.pull(0)[1]) == len(pulling.pull(0, batch_size=1000)[1]) == 32
    message = service.PullMessageResponse.FromString(pulling.begin(7).answers[1]).message
    assert (message.topic.name, message.system_properties.queue_offset) == ("T", 7)
    assert message.system_properties.delivery_attempt == 1
    assert pulling.broker.pulled.get("G", "T", 0) == 39, "lag and what is on its way are told from it"
    assert pulling.broker.counters.out_messages > 60


def test_nothing_is_committed_by_pulling(pulling) -> None:
    pulling.store(b"x")
    pulling.pull(0)
    assert pulling.broker.offsets == {}
    assert "G" in pulling.broker.group_table


def test_what_is_not_confirmed_is_not_given_out(pulling) -> None:
    pulling.log.dispatches = False
    pulling.store(b"x")
    assert pulling.pull(0) == (Code.MESSAGE_NOT_FOUND, [], 0)
    pulling.log.dispatch()
    assert pulling.pull(0)[1] == [b"x"]


@pytest.mark.parametrize(("offset", "following"), [(-1, 2), (0, 2), (1, 2), (6, 5), (1 << 62, 5)])
def test_an_offset_that_the_queue_does_not_have_is_told_the_next_one(pulling, offset, following) -> None:
    pulling.store(*[b"x"] * 5)
    pulling.log.expire("T", 0, 2)
    assert pulling.pull(offset, wait_ms=5000) == (Code.ILLEGAL_OFFSET, [], following)


def test_an_empty_queue_has_the_offset_0(pulling) -> None:
    assert pulling.pull(7, wait_ms=5000) == (Code.ILLEGAL_OFFSET, [], 0)
    assert not pulling.begin(0, wait_ms=5000).finished


def test_a_call_waits_for_a_message_of_its_queue(pulling) -> None:
    pulling.store(b"old")
    call = pulling.begin(1, wait_ms=5000)
    pulling.store(b"elsewhere", queue_id=1)
    pulling.turns.run(4000)
    assert not call.finished
    assert pulling.methods.pull.waiting_count == 1
    pulling.store(b"new")
    pulling.turns.run()
    assert outcome(call) == (Code.OK, [b"new"], 2)
    assert pulling.methods.pull.waiting_count == 0


@pytest.mark.parametrize(
    ("wait_ms", "deadline_ms", "after_ms"),
    [(5000, None, 5000), (100, None, 100), (60_000, None, 20_000), (5000, 3000, 2900), (5000, 50, 0), (0, None, 0)],
)
def test_it_waits_as_long_as_it_asks_and_not_beyond_its_deadline(pulling, wait_ms, deadline_ms, after_ms) -> None:
    call = pulling.begin(0, wait_ms=wait_ms, deadline_ms=deadline_ms)
    if after_ms:
        pulling.turns.run(after_ms - 2)
        assert not call.finished
    pulling.turns.run(4)
    assert outcome(call) == (Code.MESSAGE_NOT_FOUND, [], 0)


def test_a_client_that_goes_waits_no_more(pulling) -> None:
    call = pulling.begin(0, wait_ms=5000)
    call.cancel()
    assert pulling.methods.pull.waiting_count == 0
    pulling.store(b"x")
    pulling.turns.run(6000)
    assert call.answers == []


def test_a_slow_reader_is_given_messages_when_it_has_caught_up(pulling) -> None:
    pulling.store(b"x")
    request = service.PullMessageRequest(group=definition.Resource(name="G"))
    request.message_queue.topic.name = "T"
    call = FakeCall(request)
    call.writable = False
    pulling.methods.handlers["PullMessage"]([call])
    assert call.answers == []
    (start,) = call.waiting
    start()
    assert outcome(call)[1] == [b"x"]


def test_whoever_waits_asks_again_after_a_change_of_role(pulling) -> None:
    call = pulling.begin(0, wait_ms=5000)
    pulling.methods.pull.answer_all()
    assert outcome(call) == (Code.MESSAGE_NOT_FOUND, [], 0)


def test_tags_are_compared_and_not_their_hashes_alone(pulling) -> None:
    # "Aa" and "BB" have one hash
    for body, tag in ((b"1", "Aa"), (b"2", "BB"), (b"3", "c"), (b"4", "Aa")):
        pulling.store(body, tag=tag)
    assert pulling.pull(0, expression="Aa || c") == (Code.OK, [b"1", b"3", b"4"], 4)
    assert pulling.pull(0, expression="BB") == (Code.OK, [b"2"], 4)
    assert pulling.pull(0, expression="d") == (Code.MESSAGE_NOT_FOUND, [], 4)


def test_an_expression_over_properties(pulling) -> None:
    for number in range(6):
        pulling.store(b"%d" % number, a=str(number))
    assert pulling.pull(0, type=SQL, expression="a > 1 AND a < 4") == (Code.OK, [b"2", b"3"], 6)


def test_a_wrong_expression_is_refused_without_a_next_offset(pulling) -> None:
    call = pulling.begin(0, type=SQL, expression="a >")
    (only,) = map(service.PullMessageResponse.FromString, call.answers)
    assert only.status.code == Code.ILLEGAL_FILTER_EXPRESSION
    assert call.finished


def test_a_wait_goes_on_over_messages_that_do_not_match_and_goes_on_behind_them(pulling) -> None:
    call = pulling.begin(0, wait_ms=5000, expression="a")
    pulling.store(b"1", b"2", tag="b")
    pulling.turns.run()
    sql = pulling.begin(2, wait_ms=5000, type=SQL, expression="x = '1'")
    pulling.store(b"3", tag="b")
    pulling.turns.run()
    assert not call.finished
    assert not sql.finished
    pulling.store(b"4", tag="a", x="1")
    pulling.turns.run()
    assert outcome(call) == outcome(sql) == (Code.OK, [b"4"], 4)
    waiting = pulling.begin(4, wait_ms=500, expression="a")
    pulling.store(b"5", tag="b")
    pulling.turns.run(500)
    # the hash alone says that it is not for this call, so it was not looked at
    assert outcome(waiting) == (Code.MESSAGE_NOT_FOUND, [], 4)


def test_a_look_through_many_that_do_not_match_ends_and_says_how_far_it_came(pulling) -> None:
    pulling.store(*[b"x"] * 2000, a="1")
    code, bodies, following = pulling.pull(0, wait_ms=5000, type=SQL, expression="a = '2'")
    assert (code, bodies) == (Code.MESSAGE_NOT_FOUND, [])
    assert 0 < following < 2000
    assert pulling.broker.pulled.get("G", "T", 0) == following


def test_a_group_that_was_reset_is_told_once_where_to_go_on(pulling) -> None:
    pulling.store(*[b"x"] * 5)
    pulling.broker.resets["G", "T", 0] = 2
    assert pulling.pull(4) == (Code.ILLEGAL_OFFSET, [], 2)
    assert pulling.pull(4)[:2] == (Code.OK, [b"x"])
    waiting = pulling.begin(5, wait_ms=5000)
    pulling.broker.resets["G", "T", 0] = 1
    pulling.store(b"y")
    pulling.turns.run()
    assert outcome(waiting) == (Code.ILLEGAL_OFFSET, [], 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"id": 4}, Code.BAD_REQUEST),
        ({"id": -1}, Code.BAD_REQUEST),
        ({"broker": "broker-b"}, Code.BAD_REQUEST),
        ({"batch_size": -1}, Code.BAD_REQUEST),
        ({"wait_ms": -1}, Code.ILLEGAL_POLLING_TIME),
    ],
)
def test_what_is_refused(pulling, fields, code) -> None:
    call = pulling.begin(0, **fields)
    (only,) = map(service.PullMessageResponse.FromString, call.answers)
    assert (only.status.code, call.finished) == (code, True)


def test_who_may_not_read_is_refused_also_while_he_waits(pulling) -> None:
    call = pulling.begin(0, wait_ms=5000)
    pulling.broker.forbidden.add(("G", "T"))
    pulling.store(b"x")
    pulling.turns.run()
    for refused in (call, pulling.begin(0)):
        (only,) = map(service.PullMessageResponse.FromString, refused.answers)
        assert only.status.code == Code.FORBIDDEN
    assert pulling.methods.pull.waiting_count == 0
    pulling.broker.forbidden.clear()
    pulling.broker.group_table["G"] = GroupConfig("G", consume_enable=False)
    (only,) = map(service.PullMessageResponse.FromString, pulling.begin(0).answers)
    assert only.status.code == Code.FORBIDDEN


def test_bodies_that_grow_very_much_come_a_few_at_a_time(pulling) -> None:
    bomb = zstandard.compress(bytes(7 * 1024 * 1024))
    pulling.log.append_messages([draft("T", bomb)._replace(sys_flag=SYS_COMPRESSED | 0x200)] * 5)
    code, bodies, following = pulling.pull(0)
    assert (code, [len(body) for body in bodies], following) == (Code.OK, [7 * 1024 * 1024] * 2, 2)
    assert [pulling.pull(offset)[2] for offset in (2, 4)] == [4, 5]
