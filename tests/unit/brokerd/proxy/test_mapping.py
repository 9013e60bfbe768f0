"""What a gRPC client may send, what is stored of it, and what comes back: each rule, its code, and their order."""

from __future__ import annotations

import gzip
import hashlib
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brokerd.metadata.configs import TopicConfig
from brokerd.pop.requests import PoppedMessage
from brokerd.proxy import mapping
from brokerd.proxy.mapping import check_same_topic, to_draft, to_message
from brokerd.proxy.protobuf import definition
from brokerd.proxy.status import Code, Refusal
from remoting.message_groups import queue_of_group
from remoting.record.codec import decode_record, encode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import SYS_COMPRESSED
from remoting.record.properties import decode_properties

NOW_MS = 1_763_600_000_000
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
    return to_draft(message, "T", config, HOST, NOW_MS)


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


TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")


def message_of(kind):
    return {
        "NORMAL": good(),
        "FIFO": good(message_group="g"),
        "DELAY": delayed(-1000),
        "TRANSACTION": good(message_type=mapping.TRANSACTION),
    }[kind]


@pytest.mark.parametrize("topic_type", [*TYPES, "MIXED", "UNSPECIFIED"])
@pytest.mark.parametrize("kind", TYPES)
def test_a_topic_takes_its_own_type_of_message(kind, topic_type) -> None:
    message = message_of(kind)
    if topic_type not in (kind, "MIXED"):
        assert refusal(message, topic_type).code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    elif kind == "TRANSACTION":
        assert refusal(message, topic_type).code == Code.UNSUPPORTED
    else:
        assert draft_of(message, topic_type).topic == "T"


def test_the_properties_decide_the_type_not_the_field() -> None:
    assert draft_of(good(message_type=mapping.FIFO)).queue_id == -1
    assert refusal(good(message_group="g", message_type=mapping.NORMAL), "NORMAL").code == (
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    )


def test_a_delay_is_never_dropped_in_silence() -> None:
    assert refusal(delayed(1000)).code == Code.UNSUPPORTED
    assert refusal(delayed(24 * 3600 * 1000 + 1)).code == Code.ILLEGAL_DELIVERY_TIME
    assert draft_of(delayed(0), "DELAY").queue_id == -1  # due already: delivered now, as promised


def test_lite_topics_and_priorities_are_refused() -> None:
    assert refusal(good(lite_topic="l")).code == Code.UNSUPPORTED
    assert refusal(good(priority=3)).code == Code.UNSUPPORTED


def test_transaction_recovery_is_at_most_an_hour() -> None:
    message = good()
    message.system_properties.orphaned_transaction_recovery_duration.seconds = 3601
    assert refusal(message).code == Code.BAD_REQUEST


def test_a_topic_that_does_not_exist() -> None:
    with pytest.raises(Refusal) as refused:
        to_draft(good(), "T", None, HOST, NOW_MS)
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


# ---- receiving

PROPERTIES = (
    b"UNIQ_KEY\x0101AB\x02TAGS\x01red\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01g\x02TRACE_CONTEXT\x01trace\x02color\x01blue\x02"
    b"__BORNHOST\x01host-7\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02"
    b"DLQ_ORIGIN_TOPIC\x01T0\x02DLQ_ORIGIN_MESSAGE_ID\x0102\x02POP_CK\x01x\x02__transactionId__\x0199\x02"
)


def received(properties=PROPERTIES, body=b"body", sys_flag=0, attempt=2, born_host=HOST):
    record = encode_record(
        topic=b"T",
        queue_id=3,
        queue_offset=17,
        physical_offset=4242,
        body=body,
        properties=properties,
        born_timestamp_ms=1_763_600_000_123,
        born_host=born_host,
        store_timestamp_ms=1_763_600_000_456,
        store_host=pack_host("10.0.0.1", 10911),
        sys_flag=sys_flag,
    )
    popped = PoppedMessage(record, "T", 0, 3, 17, "a handle", attempt)
    decoded = decode_record(record)
    topic = definition.Resource(resource_namespace="ns", name="T")
    return definition.Message.FromString(to_message(popped, decoded, decoded.property_map(), topic, 30_000))


def test_every_field_of_a_delivered_message() -> None:
    message = received()
    system = message.system_properties
    assert (message.topic.resource_namespace, message.topic.name, message.body) == ("ns", "T", b"body")
    assert message.user_properties == {"color": "blue", "__transactionId__": "99"}
    assert (system.tag, list(system.keys), system.message_id) == ("red", ["k1", "k2"], "01AB")
    assert system.body_digest.type == definition.DigestType.Value("MD5")
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert system.body_encoding == definition.Encoding.Value("IDENTITY")
    assert system.message_type == definition.MessageType.Value("FIFO")
    assert system.born_timestamp.ToMilliseconds() == 1_763_600_000_123
    assert system.store_timestamp.ToMilliseconds() == 1_763_600_000_456
    assert (system.born_host, system.store_host) == ("host-7", "10.0.0.1:10911")
    assert not system.HasField("delivery_timestamp")
    assert (system.receipt_handle, system.queue_id, system.queue_offset) == ("a handle", 3, 17)
    assert system.invisible_duration.ToMilliseconds() == 30_000
    assert system.delivery_attempt == 2
    assert (system.message_group, system.trace_context) == ("g", "trace")
    assert system.orphaned_transaction_recovery_duration.seconds == 60
    assert (system.dead_letter_queue.topic, system.dead_letter_queue.message_id) == ("T0", "02")


def test_a_message_without_properties_has_what_clients_need() -> None:
    system = received(properties=b"", attempt=0).system_properties
    assert system.message_id == "0A00000100002A9F0000000000001092"  # the server's id
    assert system.born_host == "10.0.0.9"
    assert system.delivery_attempt == 1
    assert system.message_type == definition.MessageType.Value("NORMAL")
    assert not system.HasField("tag")
    assert not system.HasField("message_group")


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        (b"TRAN_MSG\x01true\x02__SHARDINGKEY\x01g\x02", "TRANSACTION"),
        (b"TIMER_DELIVER_MS\x011763600009000\x02", "DELAY"),
        (b"DELAY\x013\x02", "DELAY"),
        (b"__SHARDINGKEY\x01g\x02", "FIFO"),
        (b"TAGS\x01g\x02", "NORMAL"),
    ],
)
def test_the_type_comes_from_the_stored_properties(properties, kind) -> None:
    system = received(properties=properties).system_properties
    assert system.message_type == definition.MessageType.Value(kind)
    assert system.HasField("delivery_timestamp") == (b"DELIVER" in properties)


@pytest.mark.parametrize(
    ("compressed", "flag", "delivered", "encoding"),
    [
        (gzip.compress(b"x" * 500), SYS_COMPRESSED, None, "GZIP"),
        (zlib.compress(b"x" * 500), SYS_COMPRESSED | 0x300, None, "GZIP"),
        (lz4.frame.compress(b"x" * 500), SYS_COMPRESSED | 0x100, b"x" * 500, "IDENTITY"),
        (zstandard.compress(b"x" * 500), SYS_COMPRESSED | 0x200, b"x" * 500, "IDENTITY"),
        (b"no zstandard", SYS_COMPRESSED | 0x200, None, "GZIP"),
        (b"no lz4", SYS_COMPRESSED | 0x100, None, "GZIP"),
    ],
    ids=["gzip", "zlib", "lz4", "zstd", "broken zstd", "broken lz4"],
)
def test_bodies_compressed_by_other_clients_are_readable(compressed, flag, delivered, encoding) -> None:
    message = received(body=compressed, sys_flag=flag)
    assert message.body == (compressed if delivered is None else delivered)
    assert message.system_properties.body_encoding == definition.Encoding.Value(encoding)
    assert message.system_properties.body_digest.checksum == hashlib.md5(message.body).hexdigest().upper()


def test_a_body_that_grows_too_much_is_not_unpacked() -> None:
    bomb = zstandard.compress(bytes(40 * 1024 * 1024))
    assert received(body=bomb, sys_flag=SYS_COMPRESSED | 0x200).body == bomb
    bomb = lz4.frame.compress(bytes(40 * 1024 * 1024))
    assert received(body=bomb, sys_flag=SYS_COMPRESSED | 0x100).body == bomb


@given(st.data())
def test_what_is_sent_is_what_comes_back(data) -> None:
    text = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20).filter(str.strip)
    key = text.filter(lambda key: " " not in key)
    message = good(keys=data.draw(st.lists(key, max_size=3)), born_host="h")
    message.body = data.draw(st.binary(min_size=1, max_size=100))
    if data.draw(st.booleans()):
        message.system_properties.tag = data.draw(text.filter(lambda tag: "|" not in tag))
    for name, value in data.draw(st.dictionaries(text, text, max_size=4)).items():
        if name not in mapping.names.RESERVED:
            message.user_properties[name] = value
    draft = draft_of(message)
    delivered = received(draft.properties, draft.body, draft.sys_flag)
    assert delivered.body == message.body
    assert delivered.user_properties == message.user_properties
    for name in ("tag", "message_id", "born_host", "keys"):
        assert getattr(delivered.system_properties, name) == getattr(message.system_properties, name)
