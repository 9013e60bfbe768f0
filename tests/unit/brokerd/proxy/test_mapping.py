"""What a gRPC client may send, and what is stored of it: each rule, its code, and their order."""

from __future__ import annotations

import gzip
from types import SimpleNamespace

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.proxy import mapping
from brokerd.proxy.mapping import check_same_topic, to_draft
from brokerd.proxy.protobuf import definition
from brokerd.proxy.status import Code, Refusal
from remoting.message_groups import queue_of_group
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_COMPRESSED
from remoting.record.properties import decode_properties

NOW_MS = 1_763_600_000_000
MAX_AHEAD_MS = 40 * 86_400_000
HOST = pack_host("10.0.0.9", 4000)


def good(**system):
    message = definition.Message(body=b"body")
    message.topic.name = "T"
    properties = message.system_properties
    properties.message_id = "01A2B3"
    properties.body_encoding = 1
    for name, value in system.items():
        if isinstance(value, list):
            getattr(properties, name).extend(value)
        else:
            setattr(properties, name, value)
    return message


def draft_of(message, message_type="NORMAL", queues=4):
    config = TopicConfig("T", queues, queues, attributes={"message.type": message_type})
    return to_draft(message, "T", config, HOST, NOW_MS, MAX_AHEAD_MS)


def refusal(message, message_type="MIXED"):
    with pytest.raises(Refusal) as refused:
        draft_of(message, message_type)
    return refused.value


def test_every_field_is_stored_under_its_property() -> None:
    message = good(
        tag="a", keys=["k1", "k2"], trace_context="trace", born_host="host-7", delivery_attempt=3, message_group="g"
    )
    message.user_properties["color"] = "blue"
    message.system_properties.born_timestamp.seconds = 1_763_599_999
    message.system_properties.born_timestamp.nanos = 250_000_000
    draft = draft_of(message, "FIFO")
    assert decode_properties(draft.properties) == {
        "UNIQ_KEY": "01A2B3",
        "color": "blue",
        "TAGS": "a",
        "KEYS": "k1 k2",
        "TRACE_CONTEXT": "trace",
        "__BORNHOST": "host-7",
        "BORN_TIMESTAMP": "1763599999250",
        "RECONSUME_TIME": "3",
        "__SHARDINGKEY": "g",
    }
    assert (draft.body, draft.born_timestamp_ms, draft.born_host) == (b"body", 1_763_599_999_250, HOST)
    assert draft.sys_flag == 0
    assert draft.queue_id == queue_of_group("g", 4)


def test_without_a_group_the_broker_chooses_the_queue() -> None:
    assert draft_of(good()).queue_id == -1
    assert draft_of(good(queue_id=3)).queue_id == -1


def test_a_compressed_body_is_stored_as_it_came() -> None:
    message = good(body_encoding=2)
    message.body = gzip.compress(b"x" * 100)
    draft = draft_of(message)
    assert (draft.sys_flag, draft.body) == (SYS_COMPRESSED, message.body)


def with_properties(count=1, name="name", value="value"):
    message = good()
    for number in range(count):
        message.user_properties[name if count == 1 else f"{name}{number}"] = value
    return message


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (definition.Message(), Code.MESSAGE_BODY_EMPTY),
        (definition.Message(body=bytes(4 * 1024 * 1024 + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (with_properties(129), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, value="x" * 16381), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, value="ä" * 8191), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (good(tag="t" * 16385), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (good(keys=["k" * 9000, "l" * 9000]), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_properties(1, name="UNIQ_KEY"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, name="POP_CK"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, name="__SHARDINGKEY"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, name=""), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, name="a\x02b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, value="a\x01b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_properties(1, value="a\x85b"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (good(tag=""), Code.ILLEGAL_MESSAGE_TAG),
        (good(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (good(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (good(tag="a\nb"), Code.ILLEGAL_MESSAGE_TAG),
        (good(keys=["ok", ""]), Code.ILLEGAL_MESSAGE_KEY),
        (good(keys=["a\tb"]), Code.ILLEGAL_MESSAGE_KEY),
        (good(message_group=" "), Code.ILLEGAL_MESSAGE_GROUP),
        (good(message_group="g" * 64), Code.ILLEGAL_MESSAGE_GROUP),
        (good(message_group="ä" * 32), Code.ILLEGAL_MESSAGE_GROUP),
        (good(message_group="a\x7fb"), Code.ILLEGAL_MESSAGE_GROUP),
        (good(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (good(message_id="a\x02TAGS\x01b"), Code.ILLEGAL_MESSAGE_ID),
        (good(message_id="i" * 256), Code.ILLEGAL_MESSAGE_ID),
    ],
)
def test_each_rule_has_its_code(message, code) -> None:
    assert refusal(message).code == code


@pytest.mark.parametrize(
    "message",
    [
        definition.Message(body=bytes(4 * 1024 * 1024), system_properties=good().system_properties),
        with_properties(128),
        with_properties(1, value="x" * 16380),
        good(message_group="g" * 63),
        good(tag="ä b"),
    ],
    ids=["body of 4 MiB", "128 properties", "16 KiB of properties", "group of 63 bytes", "tag with a blank inside"],
)
def test_the_bounds_themselves_are_accepted(message) -> None:
    assert draft_of(message, "MIXED").topic == "T"


def test_the_first_broken_rule_decides() -> None:
    everything = good(tag="a|b", message_group=" ", message_id="")
    everything.user_properties["UNIQ_KEY"] = "x"
    order = []
    for repair in (
        lambda: setattr(everything, "body", b"x"),
        lambda: everything.user_properties.clear(),
        lambda: setattr(everything.system_properties, "tag", "a"),
        lambda: setattr(everything.system_properties, "message_group", "g"),
        lambda: setattr(everything.system_properties, "message_id", "1"),
    ):
        if not order:
            everything.body = b""
        order.append(refusal(everything).code)
        repair()
    assert order == [
        Code.MESSAGE_BODY_EMPTY,
        Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
        Code.ILLEGAL_MESSAGE_TAG,
        Code.ILLEGAL_MESSAGE_GROUP,
        Code.ILLEGAL_MESSAGE_ID,
    ]


def delayed(ahead_ms):
    message = good()
    message.system_properties.delivery_timestamp.FromMilliseconds(NOW_MS + ahead_ms)
    return message


TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY")


def message_of(kind):
    return {
        "NORMAL": good(),
        "FIFO": good(message_group="g"),
        "DELAY": delayed(-1000),
        "TRANSACTION": good(message_type=mapping.TRANSACTION),
        "PRIORITY": good(priority=2),
    }[kind]


@pytest.mark.parametrize("topic_type", [*TYPES, "MIXED", "UNSPECIFIED"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_topic_takes_its_own_type_of_message(kind, topic_type) -> None:
    message = message_of(kind)
    if topic_type != kind and (topic_type != "MIXED" or kind == "PRIORITY"):
        assert refusal(message, topic_type).code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    else:
        draft = draft_of(message, topic_type)
        assert draft.topic == "T"
        assert (b"TRAN_MSG" in draft.properties) == (kind == "TRANSACTION")


def test_the_properties_decide_the_type_not_the_field() -> None:
    assert draft_of(good(message_type=mapping.FIFO)).queue_id == -1
    assert refusal(good(message_group="g", message_type=mapping.NORMAL), "NORMAL").code == (
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    )


@pytest.mark.parametrize("ahead_ms", [MAX_AHEAD_MS, 1000, 1, 0, -1000])
def test_a_delivery_time_is_kept_with_the_message(ahead_ms) -> None:
    for topic_type in ("DELAY", "MIXED"):
        draft = draft_of(delayed(ahead_ms), topic_type)
        assert decode_properties(draft.properties)["TIMER_DELIVER_MS"] == str(NOW_MS + ahead_ms)
        assert draft.queue_id == -1


def test_a_delivery_time_before_1970_is_due() -> None:
    assert decode_properties(draft_of(delayed(-NOW_MS - 5000), "DELAY").properties)["TIMER_DELIVER_MS"] == "0"


def test_a_delivery_time_too_far_ahead_is_refused_with_the_limit() -> None:
    refused = refusal(delayed(MAX_AHEAD_MS + 1))
    assert refused.code == Code.ILLEGAL_DELIVERY_TIME
    assert "40 d" in refused.text
    assert "timers.max_ahead_s" in refused.text


def test_a_message_has_a_message_group_or_a_delivery_time() -> None:
    for ahead_ms in (1000, -1000):
        message = delayed(ahead_ms)
        message.system_properties.message_group = "g"
        for topic_type in ("MIXED", "DELAY"):
            refused = refusal(message, topic_type)
            assert refused.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
            assert "not both" in refused.text


def test_a_message_that_begins_a_transaction_may_have_a_delivery_time() -> None:
    message = delayed(1000)
    message.system_properties.message_type = mapping.TRANSACTION
    stored = decode_properties(draft_of(message, "TRANSACTION").properties)
    assert (stored["TRAN_MSG"], stored["TIMER_DELIVER_MS"]) == ("true", str(NOW_MS + 1000))


@pytest.mark.parametrize(("priority", "queue_id"), [(0, 0), (2, 2), (3, 3), (4, 3), ((1 << 31) - 1, 3)])
def test_a_priority_is_stored_and_names_the_queue(priority, queue_id) -> None:
    draft = draft_of(good(priority=priority), "PRIORITY")
    assert draft.queue_id == queue_id
    assert decode_properties(draft.properties)["_SYS_MSG_PRIORITY_"] == str(priority)


def test_a_message_has_a_priority_or_another_type() -> None:
    assert refusal(good(priority=-1), "PRIORITY").code == Code.BAD_REQUEST
    grouped = good(priority=1, message_group="g")
    for message, kind in (
        (grouped, "FIFO"),
        (good(priority=1, message_type=mapping.TRANSACTION), "TRANSACTION"),
        (grouped, "MIXED"),
    ):
        assert refusal(message, kind).code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.mark.parametrize("kind", ["NORMAL", "PRIORITY", "MIXED"])
def test_lite_topics_are_refused_by_name(kind) -> None:
    refused = refusal(good(lite_topic="l"), kind)
    assert refused.code == Code.UNSUPPORTED
    assert "lite topics" in refused.text
    for name in ("", " ", "x" * 65, "a\nb"):
        assert refusal(good(lite_topic=name), kind).code == Code.ILLEGAL_LITE_TOPIC
    unnamed = refusal(good(message_type=mapping.LITE), kind)
    assert (unnamed.code, "lite topic" in unnamed.text) == (Code.ILLEGAL_LITE_TOPIC, True)


def test_transaction_recovery_is_at_most_an_hour() -> None:
    message = good()
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 3601
    assert refusal(message).code == Code.BAD_REQUEST


def half_properties(**recovery: int) -> dict[str, str]:
    message = good(message_type=mapping.TRANSACTION, tag="a")
    if recovery:
        duration = message.system_properties.orphaned_transaction_recovery_duration
        duration.seconds, duration.nanos = recovery["seconds"], recovery.get("nanos", 0)
    config = TopicConfig("ns%T", 4, 4, attributes={"message.type": "TRANSACTION"})
    return decode_properties(to_draft(message, "ns%T", config, HOST, NOW_MS, MAX_AHEAD_MS, "s" * 32).properties)


def test_a_transaction_is_of_the_group_of_those_who_publish_its_topic() -> None:
    stored = half_properties()
    assert (stored["TRAN_MSG"], stored["PGROUP"], stored["TRAN_SECRET"]) == ("true", "ns%T", "s" * 32)
    assert (stored["UNIQ_KEY"], stored["TAGS"]) == ("01A2B3", "a")
    assert "CHECK_IMMUNITY_TIME_IN_SECONDS" not in stored


@pytest.mark.parametrize(
    ("recovery", "seconds"),
    [({"seconds": 40}, "40"), ({"seconds": 1, "nanos": 1}, "2"), ({"seconds": 3600}, "3600"), ({"seconds": 0}, None)],
)
def test_how_long_a_producer_wants_to_be_left_alone(recovery, seconds) -> None:
    assert half_properties(**recovery).get("CHECK_IMMUNITY_TIME_IN_SECONDS") == seconds


def test_nobody_sets_the_secret_or_the_group_by_a_property_of_his_own() -> None:
    for name in ("TRAN_SECRET", "PGROUP"):
        message = good()
        message.user_properties[name] = "x"
        assert refusal(message).code == Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_a_topic_that_does_not_exist() -> None:
    with pytest.raises(Refusal) as refused:
        to_draft(good(), "T", None, HOST, NOW_MS, MAX_AHEAD_MS)
    assert refused.value.code == Code.TOPIC_NOT_FOUND


def test_one_request_has_one_topic() -> None:
    first, second = good(), good()
    assert check_same_topic([first, second]) == "T"
    second.topic.resource_namespace = "ns"
    for messages in ([], [first, second]):
        with pytest.raises(Refusal) as refused:
            check_same_topic(messages)
        assert refused.value.code == Code.MESSAGE_CORRUPTED
    assert check_same_topic([second]) == "ns%T"


@pytest.mark.parametrize("name", ["", "a b", "t" * 128, "rmq_sys_x", "TBW102", "SCHEDULE_TOPIC_XXXX", "a+b", "ä"])
def test_illegal_topics(name) -> None:
    message = good()
    message.topic.name = name
    with pytest.raises(Refusal) as refused:
        check_same_topic([message])
    assert refused.value.code == Code.ILLEGAL_TOPIC


def test_very_many_properties_are_refused_before_they_are_copied() -> None:
    class Unreadable(dict[str, str]):
        def __getitem__(self, name: str) -> str:
            raise AssertionError("it was copied")

    message = SimpleNamespace(
        body=b"body",
        system_properties=good().system_properties,
        user_properties=Unreadable.fromkeys(map(str, range(129))),
    )
    assert refusal(message).code == Code.MESSAGE_PROPERTIES_TOO_LARGE
