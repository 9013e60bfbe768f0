"""ReceiveMessage: frames, waiting, cancelling, filtering, and what a gone client leaves behind."""

from __future__ import annotations

import time

import pytest
import zstandard

from brokerd.metadata.configs import GroupConfig
from brokerd.metadata.start_offsets import InitMode
from brokerd.pop.requests import PopOutcome, PopStatus
from brokerd.pop.settings import PopSettings
from brokerd.proxy.methods.asked import Wait, wait_of
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.store.draft import Draft, encode_draft
from remoting import codes
from remoting.errors import RequestError
from remoting.record.codec import decode_record
from remoting.record.layout import SYS_COMPRESSED
from tests.unit.brokerd.proxy.test_methods import resource, sending
from tests.unit.brokerd.proxy.waiting import until


def receiving(topic="Normal", group="G", **fields):
    request = service.ReceiveMessageRequest(group=resource(group), batch_size=10)
    request.message_queue.topic.name = topic
    request.invisible_duration.seconds = 10
    for name, value in fields.items():
        setattr(request, name, value)
    return request


def frames(call):
    """(status code, messages, whether the delivery timestamp came last) of a finished call."""
    assert call.finished
    parsed = [service.ReceiveMessageResponse.FromString(frame) for frame in call.answers]
    kinds = [frame.WhichOneof("content") for frame in parsed]
    assert kinds == ["status", *["message"] * (len(kinds) - 2), "delivery_timestamp"]
    return parsed[0].status.code, [frame.message for frame in parsed[1:-1]]


def send(bench, *bodies, topic="Normal", **system):
    response = bench.call("SendMessage", sending(*bodies, topic=topic, **system), service.SendMessageResponse)
    assert response.status.code == Code.OK


async def test_a_status_every_message_and_a_timestamp(bench) -> None:
    send(bench, b"one", b"two")
    code, messages = frames(bench.begin("ReceiveMessage", receiving()))
    assert code == Code.OK
    assert sorted(message.body for message in messages) == [b"one", b"two"]
    assert all(message.system_properties.invisible_duration.seconds == 10 for message in messages)


async def test_what_the_broker_is_asked(bench) -> None:
    send(bench, b"x")
    request = receiving(batch_size=100, attempt_id="attempt")
    request.filter_expression.type = definition.FilterType.Value("SQL")
    request.filter_expression.expression = "a > 1"
    request.message_queue.id = 3
    bench.begin("ReceiveMessage", request)
    (pop,) = bench.broker.pops
    assert (pop.group, pop.topic, pop.queue_id, pop.max_count) == ("G", "Normal", -1, 32)
    assert (pop.expression_type, pop.expression) == ("SQL92", "a > 1")
    assert (pop.invisible_time_ms, pop.init_mode, pop.attempt_id) == (10_000, InitMode.MAX, "attempt")
    assert (pop.client_id, pop.auto_renew, pop.fifo) == ("client-1", False, False)


async def test_messages_carry_the_topic_that_was_asked_for(bench) -> None:
    bench.broker.add_topic("shop%Orders")
    send(bench, b"x", topic="shop%Orders")
    request = receiving("Orders")
    request.message_queue.topic.resource_namespace = "shop"
    (message,) = frames(bench.begin("ReceiveMessage", request))[1]
    assert (message.topic.resource_namespace, message.topic.name) == ("shop", "Orders")


async def test_a_call_that_waits_lets_its_request_go(bench) -> None:
    call = bench.begin("ReceiveMessage", receiving(attempt_id="a" * 1000))
    assert not call.finished
    assert call.message == b""
    assert len(bench.broker.pops[0].attempt_id) == 128


async def test_a_push_consumer_is_renewed_by_the_broker(bench) -> None:
    send(bench, b"x")
    request = receiving(auto_renew=True)
    request.ClearField("invisible_duration")
    code, _ = frames(bench.begin("ReceiveMessage", request))
    assert code == Code.OK
    assert (bench.broker.pops[0].auto_renew, bench.broker.pops[0].invisible_time_ms) == (True, 60_000)


async def test_the_group_decides_the_order_not_the_client(bench) -> None:
    bench.broker.group_table["F"] = GroupConfig("F", fifo=True)
    send(bench, b"x")
    bench.begin("ReceiveMessage", receiving(group="F"))
    assert bench.broker.pops[0].fifo


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        ({"topic": "Unknown"}, Code.TOPIC_NOT_FOUND, "does not exist"),
        ({"topic": "rmq_sys_x"}, Code.ILLEGAL_TOPIC, "system"),
        ({"topic": "Closed"}, Code.FORBIDDEN, "read"),
        ({"group": ""}, Code.ILLEGAL_CONSUMER_GROUP, "required"),
        ({"group": "a+b"}, Code.ILLEGAL_CONSUMER_GROUP, "letters"),
        ({"seconds": 9}, Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small"),
        ({"seconds": 12 * 3600 + 1}, Code.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large"),
        ({"batch_size": -1}, Code.BAD_REQUEST, "batch_size"),
    ],
)
async def test_refusals(bench, change, code, text) -> None:
    bench.broker.add_topic("Closed", perm=2)
    seconds = change.pop("seconds", 10)
    request = receiving(**change)
    request.invisible_duration.seconds = seconds
    call = bench.begin("ReceiveMessage", request)
    found, _ = frames(call)
    assert found == code
    assert text in service.ReceiveMessageResponse.FromString(call.answers[0]).status.message


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (PopOutcome(PopStatus.POLLING_FULL), Code.TOO_MANY_REQUESTS),
        (PopOutcome(PopStatus.NOTHING), Code.MESSAGE_NOT_FOUND),
        (
            PopOutcome(PopStatus.REFUSED, error=RequestError(codes.SUBSCRIPTION_PARSE_FAILED, "bad")),
            Code.ILLEGAL_FILTER_EXPRESSION,
        ),
        (
            PopOutcome(PopStatus.REFUSED, error=RequestError(codes.SERVICE_NOT_AVAILABLE, "no master")),
            Code.HA_NOT_AVAILABLE,
        ),
    ],
)
async def test_what_the_broker_says_of_a_pop(bench, outcome, code) -> None:
    bench.broker.pop_outcome = outcome
    assert frames(bench.begin("ReceiveMessage", receiving()))[0] == code


def now_ms():
    return int(time.monotonic() * 1000)


async def test_an_empty_answer_comes_within_the_deadline(bench) -> None:
    request = receiving()
    request.long_polling_timeout.nanos = 50_000_000
    call = bench.begin("ReceiveMessage", request, deadline_ms=now_ms() + 60_000)
    assert not call.finished
    await until("the answer", lambda: call.finished)
    assert frames(call) == (Code.MESSAGE_NOT_FOUND, [])


async def test_a_message_wakes_a_waiting_call(bench) -> None:
    call = bench.begin("ReceiveMessage", receiving())
    send(bench, b"new")
    code, messages = frames(call)
    assert (code, [message.body for message in messages]) == (Code.OK, [b"new"])
    assert not bench.methods.receive.waiting


async def test_a_cancelled_call_leaves_no_waiter_and_takes_no_message(bench) -> None:
    call = bench.begin("ReceiveMessage", receiving())
    call.cancel()
    assert bench.broker.parked == []
    assert not bench.methods.receive.waiting
    send(bench, b"for somebody else")
    assert bench.broker.log[0].taken == {}
    assert call.answers == []


async def test_messages_taken_for_a_client_that_is_gone_come_back_soon(bench) -> None:
    send(bench, b"x")
    held = []
    take = bench.broker.take
    bench.broker.pop = lambda request, done: held.append((done, take(request)))
    call = bench.begin("ReceiveMessage", receiving())
    call.cancel()
    ((done, outcome),) = held
    done(outcome)
    taken = bench.broker.log[0].taken["G"]
    assert " 1000 " in taken.handle
    assert call.answers == []


async def test_a_stopping_broker_answers_what_waits(bench) -> None:
    calls = [bench.begin("ReceiveMessage", receiving()) for _ in range(3)]
    bench.methods.receive.stop()
    assert [frames(call) for call in calls] == [(Code.MESSAGE_NOT_FOUND, [])] * 3
    assert bench.broker.parked == []


async def test_a_slow_reader_pops_nothing_until_it_has_read(bench) -> None:
    send(bench, b"x")
    call = bench.begin("ReceiveMessage", receiving())
    frames(call)

    class Slow(type(call)):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.writable = False

    slow = Slow(receiving(group="H"))
    bench.methods.handlers["ReceiveMessage"]([slow])
    assert len(bench.broker.pops) == 1
    (start,) = slow.waiting
    start()
    assert frames(slow)[0] == Code.OK


# ---- messages that are not for the client


async def test_a_tag_that_only_hashes_alike_is_acked_and_the_call_polls_on(bench) -> None:
    bench.broker.filter_tags = False  # as if every tag had the same hash
    send(bench, b"other", tag="b")
    request = receiving()
    request.filter_expression.type = definition.FilterType.Value("TAG")
    request.filter_expression.expression = "a || c"
    call = bench.begin("ReceiveMessage", request)
    assert not call.finished
    assert bench.broker.log[0].finished == {"G"}
    send(bench, b"mine", tag="c")
    assert [message.body for message in frames(call)[1]] == [b"mine"]


async def test_a_message_that_was_delivered_often_enough_goes_to_the_dead_letters(bench) -> None:
    bench.broker.group_table["G"] = GroupConfig("G", retry_max_times=2)
    send(bench, b"poison")
    for attempt in (1, 2, 3):
        bench.broker.log[0].taken.clear()
        (message,) = frames(bench.begin("ReceiveMessage", receiving()))[1]
        assert message.system_properties.delivery_attempt == attempt
    bench.broker.log[0].taken.clear()
    call = bench.begin("ReceiveMessage", receiving())
    assert not call.finished
    assert [stored.queue_offset for _, stored in bench.broker.dead_letters] == [0]


async def test_the_failures_of_a_dead_letter_topic_stay_in_it(bench) -> None:
    bench.broker.add_topic("%DLQ%G")
    bench.broker.group_table["G"] = GroupConfig("G", retry_max_times=0)
    send(bench, b"dead", topic="%DLQ%G")
    for _ in range(3):
        bench.broker.log[0].taken.clear()
        assert len(frames(bench.begin("ReceiveMessage", receiving("%DLQ%G")))[1]) == 1
    assert bench.broker.dead_letters == []


async def test_endless_mismatches_end_the_call(bench) -> None:
    bench.broker.filter_tags = False
    request = receiving(batch_size=1)
    request.filter_expression.type = definition.FilterType.Value("TAG")
    request.filter_expression.expression = "a"
    send(bench, *[b"other"] * 200, tag="b")
    assert frames(bench.begin("ReceiveMessage", request)) == (Code.MESSAGE_NOT_FOUND, [])


# ---- how long to wait


@pytest.mark.parametrize(
    ("asked_ms", "left_ms", "wait_ms"),
    [
        (20_000, 23_000, 20_000),
        (25_000, 60_000, 20_000),
        (1_000, 5_000, 1_000),
        (2_000, 4_950, 2_000),
        (3_000, 6_000, 3_000),
        (20_000, 8_000, 7_900),
        (10_000, None, 10_000),
        (0, 40_000, 20_000),
        (0, 12_000, 6_000),
        (0, 3_000, 2_900),
        (0, 50, 0),
        (0, None, 10_050),
    ],
)
def test_polling_time(asked_ms, left_ms, wait_ms) -> None:
    deadline_ms = None if left_ms is None else 1_000_000 + left_ms
    assert wait_of(asked_ms, deadline_ms, 1_000_000, PopSettings()) == Wait(wait_ms)


@pytest.mark.parametrize(
    ("asked_ms", "left_ms"), [(20_000, 4_899), (5_000, 3_000), (1_000, -1), (1_000, 4_000), (1_000, 1_500)]
)
async def test_who_has_no_time_to_poll_gets_what_is_there_or_is_told_so(bench, asked_ms, left_ms) -> None:
    """The original refuses such a call, and its Go client asserts that: it waits for a second, and its deadline is three later.
    The C# client takes messages in this way (`test_dotnet`)."""
    request = receiving()
    request.long_polling_timeout.FromMilliseconds(asked_ms)
    assert wait_of(asked_ms, 1_000_000 + left_ms, 1_000_000, PopSettings()).ms == 0
    call = bench.begin("ReceiveMessage", request, deadline_ms=now_ms() + left_ms)
    await until("the answer", lambda: call.finished)
    assert frames(call) == (Code.ILLEGAL_POLLING_TIME, [])
    send(bench, b"x")
    call = bench.begin("ReceiveMessage", request, deadline_ms=now_ms() + left_ms)
    assert [message.body for message in frames(call)[1]] == [b"x"]


def test_how_long_is_waited_is_set() -> None:
    settings = PopSettings(min_wait_ms=1_000, max_wait_ms=700)
    assert wait_of(1_000, 1_004_000, 1_000_000, settings) == Wait(700)
    assert wait_of(1_000, None, 1_000_000, settings) == Wait(700)
    assert wait_of(1_000, 1_000_800, 1_000_000, settings).empty != Wait(0).empty


async def test_the_shortest_and_the_longest_invisible_time_are_set(bench) -> None:
    bench.broker.settings = PopSettings(min_invisible_time_ms=2_000, max_invisible_time_ms=30_000)
    for seconds, expected in ((1, "too small"), (2, ""), (30, ""), (31, "too large")):
        send(bench, b"x")
        request = receiving()
        request.invisible_duration.seconds = seconds
        call = bench.begin("ReceiveMessage", request)
        code, _ = frames(call)
        assert code == (Code.ILLEGAL_INVISIBLE_TIME if expected else Code.OK)
        assert expected in service.ReceiveMessageResponse.FromString(call.answers[0]).status.message


async def test_bodies_that_grow_very_much_come_a_few_at_a_time(bench) -> None:
    send(bench, *(b"%d" % number for number in range(5)))
    bomb = zstandard.compress(bytes(7 * 1024 * 1024))
    for stored in bench.broker.log:
        unpacked = decode_record(stored.record)
        stored.record = encode_draft(
            Draft.again(unpacked)._replace(body=bomb, sys_flag=SYS_COMPRESSED | 0x200), 0, 0, 0, unpacked.store_host
        )
    code, messages = frames(bench.begin("ReceiveMessage", receiving()))
    assert code == Code.OK
    assert [len(message.body) for message in messages] == [7 * 1024 * 1024] * 2
    late = [stored.taken["G"].due - time.monotonic() > 5 for stored in bench.broker.log]
    assert late == [True, True, False, False, False], "those that did not come are given back soon"


@pytest.mark.parametrize(("asked_s", "hidden_s"), [(0, 25), (19, None), (20, 20), (30, 30), (31, None)])
async def test_a_group_bounds_its_invisible_time_and_has_a_default(bench, asked_s, hidden_s) -> None:
    attributes = {"invisible.min.ms": "20000", "invisible.max.ms": "30000", "invisible.default.ms": "25000"}
    bench.broker.group_table["G"] = GroupConfig("G", attributes=attributes)
    send(bench, b"x")
    request = receiving()
    request.invisible_duration.seconds = asked_s
    call = bench.begin("ReceiveMessage", request)
    code, messages = frames(call)
    if hidden_s is None:
        assert code == Code.ILLEGAL_INVISIBLE_TIME
        text = service.ReceiveMessageResponse.FromString(call.answers[0]).status.message
        assert text.endswith(f"{asked_s * 1000} ms; it may be from 20000 to 30000 ms")
    else:
        assert [message.system_properties.invisible_duration.seconds for message in messages] == [hidden_s]


async def test_no_change_hides_a_message_for_longer_than_its_group_allows(bench) -> None:
    bench.broker.group_table["G"] = GroupConfig("G", attributes={"invisible.max.ms": "30000"})
    send(bench, b"x")
    (message,) = frames(bench.begin("ReceiveMessage", receiving()))[1]
    change = service.ChangeInvisibleDurationRequest(
        group=resource("G"), topic=resource("Normal"), receipt_handle=message.system_properties.receipt_handle
    )
    for seconds, expected in ((31, Code.ILLEGAL_INVISIBLE_TIME), (30, Code.OK)):
        change.invisible_duration.seconds = seconds
        response = bench.call("ChangeInvisibleDuration", change, service.ChangeInvisibleDurationResponse)
        assert response.status.code == expected
