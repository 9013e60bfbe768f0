"""What a gRPC client receives of a stored record; the oracle of the bytes is protobuf's own library."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brokerd.pop.requests import PoppedMessage
from brokerd.proxy import properties as names
from brokerd.proxy.digests import digest_for
from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.received import encode_answer, take_apart, topic_label
from remoting.errors import ProtocolError
from remoting.record import checksum
from remoting.record.codec import Record, decode_record, encode_record
from remoting.record.hosts import offset_message_id, pack_host, unpack_host
from remoting.record.layout import MAX_PROPERTIES_BYTES, SYS_COMPRESSED
from tests.unit.brokerd.proxy.test_mapping import draft_of, good

HOST = pack_host("10.0.0.9", 4000)

PROPERTIES = (
    b"UNIQ_KEY\x0101AB\x02TAGS\x01red\x02KEYS\x01k1 k2\x02__SHARDINGKEY\x01g\x02TRACE_CONTEXT\x01trace\x02color\x01blue\x02"
    b"__BORNHOST\x01host-7\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02"
    b"DLQ_ORIGIN_TOPIC\x01T0\x02DLQ_ORIGIN_MESSAGE_ID\x0102\x02POP_CK\x01x\x02__transactionId__\x0199\x02"
)


def record_of(properties=PROPERTIES, body=b"body", sys_flag=0, born_host=HOST, **others):
    fields = {
        **{"topic": b"T", "queue_id": 3, "queue_offset": 17, "physical_offset": 4242},
        **{"born_timestamp_ms": 1_763_600_000_123, "store_timestamp_ms": 1_763_600_000_456},
        "store_host": pack_host("10.0.0.1", 10911),
        **others,
    }
    return encode_record(body=body, properties=properties, born_host=born_host, sys_flag=sys_flag, **fields)


def answer_of(popped, topic, language="PYTHON", invisible_time_ms=30_000):
    stored = take_apart(popped.record)
    answer = encode_answer(popped, stored, topic_label(topic), invisible_time_ms, digest_for(language))
    return service.ReceiveMessageResponse.FromString(answer).message


def received(*arguments, attempt=2, **fields):
    popped = PoppedMessage(record_of(*arguments, **fields), "T", 0, 3, 17, "a handle", attempt)
    return answer_of(popped, definition.Resource(resource_namespace="ns", name="T"))


def test_every_field_of_a_delivered_message() -> None:
    message = received()
    system = message.system_properties
    assert (message.topic.resource_namespace, message.topic.name, message.body) == ("ns", "T", b"body")
    assert message.user_properties == {"color": "blue", "__transactionId__": "99"}
    assert (system.tag, list(system.keys), system.message_id) == ("red", ["k1", "k2"], "01AB")
    assert system.body_digest.type == definition.DigestType.Value("CRC32")
    assert system.body_digest.checksum == f"{zlib.crc32(b'body'):08X}"
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
        (b"TIMER_DELAY_SEC\x013\x02", "DELAY"),
        (b"TIMER_DELAY_MS\x013\x02", "DELAY"),
        (b"__SHARDINGKEY\x01g\x02", "FIFO"),
        (b"__SHARDINGKEY\x01g\x02_SYS_MSG_PRIORITY_\x011\x02", "FIFO"),
        (b"_SYS_MSG_PRIORITY_\x011\x02", "PRIORITY"),
        (b"TAGS\x01g\x02", "NORMAL"),
    ],
)
def test_the_type_comes_from_the_stored_properties(properties, kind) -> None:
    system = received(properties=properties).system_properties
    assert system.message_type == definition.MessageType.Value(kind)
    assert system.HasField("delivery_timestamp") == (b"DELIVER" in properties)


def test_what_waited_says_when_it_was_due_and_nothing_of_the_wait() -> None:
    waited = b"TIMER_DELAY_MS\x013\x02TIMER_OUT_MS\x011763600009000\x02TIMER_DUE_MS\x011763600009123\x02"
    waited += b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_PLACE\x017\x02TIMER_ROLL_TIMES\x012\x02TIMER_LEG_MS\x019\x02"
    message = received(properties=waited)
    assert message.system_properties.delivery_timestamp.ToMilliseconds() == 1_763_600_009_123
    assert not message.user_properties


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
    assert message.system_properties.body_digest.checksum == f"{zlib.crc32(message.body):08X}"


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
        if name not in names.RESERVED:
            message.user_properties[name] = value
    draft = draft_of(message)
    delivered = received(draft.properties, draft.body, draft.sys_flag)
    assert delivered.body == message.body
    assert delivered.user_properties == message.user_properties
    for name in ("tag", "message_id", "born_host", "keys"):
        assert getattr(delivered.system_properties, name) == getattr(message.system_properties, name)


# ---- the same by protobuf's library


def oracle(popped: PoppedMessage, topic: Any, invisible_time_ms: int) -> Any:
    """The message of a decoded record, field by field. Bodies and digests are compared elsewhere."""
    record: Record = decode_record(popped.record)
    properties = record.property_map()
    message = definition.Message(topic=topic)
    for name, value in properties.items():
        if name not in names.RESERVED:
            message.user_properties[name] = value
    system = message.system_properties
    if tag := properties.get("TAGS"):
        system.tag = tag
    system.keys.extend(filter(None, properties.get("KEYS", "").split(" ")))
    system.message_id = properties.get("UNIQ_KEY") or offset_message_id(record.store_host, record.physical_offset)
    system.message_type = oracle_type(properties)
    set_time(system.born_timestamp, record.born_timestamp_ms)
    system.born_host = properties.get("__BORNHOST") or unpack_host(record.born_host)[0]
    set_time(system.store_timestamp, record.store_timestamp_ms)
    host, port = unpack_host(record.store_host)
    system.store_host = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    due = next(filter(None, map(properties.get, ("TIMER_DELIVER_MS", "TIMER_DUE_MS", "TIMER_OUT_MS"))), "")
    if is_number(due):
        set_time(system.delivery_timestamp, int(due))
    system.receipt_handle = popped.receipt_handle
    system.queue_id = popped.queue_id
    system.queue_offset = popped.queue_offset
    system.invisible_duration.FromMilliseconds(invisible_time_ms)
    system.delivery_attempt = min(max(1, popped.delivery_attempt), (1 << 31) - 1)
    if group := properties.get("__SHARDINGKEY"):
        system.message_group = group
    if trace_context := properties.get("TRACE_CONTEXT"):
        system.trace_context = trace_context
    immunity = properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
    if is_number(immunity):
        system.orphaned_transaction_recovery_duration.seconds = min(int(immunity), 3600)
    if origin := properties.get("DLQ_ORIGIN_TOPIC"):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get("DLQ_ORIGIN_MESSAGE_ID", "")
    priority = properties.get("_SYS_MSG_PRIORITY_", "")
    if is_number(priority):
        system.priority = min(int(priority), (1 << 31) - 1)
    return message


def oracle_type(properties: dict[str, str]) -> Any:
    value = definition.MessageType.Value
    if properties.get("TRAN_MSG") == "true":
        return value("TRANSACTION")
    if {"TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "DELAY"} & properties.keys():
        return value("DELAY")
    if "__SHARDINGKEY" in properties:
        return value("FIFO")
    return value("PRIORITY" if "_SYS_MSG_PRIORITY_" in properties else "NORMAL")


def is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19


def set_time(field: Any, time_ms: int) -> None:
    seconds, rest_ms = divmod(max(0, time_ms), 1000)
    field.seconds = min(seconds, 253402300799)
    field.nanos = rest_ms * 1_000_000


TIMES = st.integers(-1, 1 << 62) | st.integers(1_763_600_000_000, 1_763_700_000_000)
HOSTS = st.sampled_from([HOST, pack_host("255.255.255.255", 65535), pack_host("2001:db8::17", 1), pack_host("::", 0)])
NAMES = (
    st.sampled_from(sorted(names.RESERVED)).map(str.encode)
    | st.binary(min_size=1, max_size=12)
    | st.text(min_size=1, max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.just(b"n" * 90)
)
VALUES = (
    st.sampled_from([b"", b"true", b"0", b"1763600009000", b"9" * 19, b"9" * 20, b"9" * 5000, "٣".encode(), b"a b", b" "])
    | st.just(b"v" * 200)
    | st.binary(max_size=200)
    | st.text(max_size=20).map(lambda text: text.encode("utf-8", "surrogatepass"))
)  # fmt: skip
PROPERTY_STRINGS = st.lists(st.tuples(NAMES, VALUES), max_size=8).map(
    lambda pairs: b"".join(name + b"\x01" + value + b"\x02" for name, value in pairs)
) | st.binary(max_size=300)


@given(
    properties=PROPERTY_STRINGS,
    sealed=st.booleans(),
    body=st.binary(max_size=40) | st.just(bytes(70_000)),
    sys_flag=st.sampled_from([0, 0x8, SYS_COMPRESSED, SYS_COMPRESSED | 0x100, SYS_COMPRESSED | 0x200, SYS_COMPRESSED | 0x300]),
    topic=st.sampled_from([b"T", b"%RETRY%g+" + b"t" * 120, b"\xff"]),
    hosts=st.tuples(HOSTS, HOSTS),
    times=st.tuples(TIMES, TIMES),
    place=st.tuples(st.integers(0, (1 << 31) - 1), st.integers(0, 1 << 62), st.integers(0, 1 << 62)),
    attempt=st.integers(-1, 1 << 32),
    handle=st.text(max_size=300),
    resource=st.tuples(st.sampled_from(["", "ns", "n" * 200]), st.sampled_from(["T", "t" * 127])),
    invisible_time_ms=st.integers(0, 1 << 40),
)  # fmt: skip
def test_the_bytes_mean_what_protobuf_makes_of_the_fields(
    properties, sealed, body, sys_flag, topic, hosts, times, place, attempt, handle, resource, invisible_time_ms
) -> None:
    queue_id, queue_offset, physical_offset = place

    def popped_with(topic):
        record = record_of(
            checksum.reserve(properties) if sealed else properties,
            body,
            sys_flag,
            hosts[0],
            store_host=hosts[1],
            topic=topic,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            born_timestamp_ms=times[0],
            store_timestamp_ms=times[1],
        )
        record = checksum.seal(record) if sealed else record
        return PoppedMessage(record, "T", 0, queue_id, queue_offset, handle, attempt)

    asked = definition.Resource(resource_namespace=resource[0], name=resource[1])
    message = answer_of(popped_with(topic), asked, invisible_time_ms=invisible_time_ms)
    # no message shows the topic as it is stored, so that one which is no text does no harm; the oracle cannot decode it
    expected = oracle(popped_with(b"T" if topic == b"\xff" else topic), asked, invisible_time_ms)
    if not sys_flag & SYS_COMPRESSED:
        assert message.body == body
        assert message.system_properties.body_encoding == definition.Encoding.Value("IDENTITY")
    for field in ("body_digest", "body_encoding"):
        message.system_properties.ClearField(field)
    message.ClearField("body")
    assert message == expected


@pytest.mark.parametrize(
    "name", ["TIMER_DELIVER_MS", "TIMER_OUT_MS", "CHECK_IMMUNITY_TIME_IN_SECONDS", "_SYS_MSG_PRIORITY_"]
)
def test_a_number_without_end_does_not_keep_a_message_from_its_client(name) -> None:
    """More digits than Python reads at once, which once failed every receive of that queue."""
    properties = name.encode() + b"\x01" + b"9" * (MAX_PROPERTIES_BYTES - 40) + b"\x02"
    assert received(properties).body == b"body"


def test_records_of_plain_brokers_are_received_alike() -> None:
    """No tail, no separator at the end, and a checksum of the body that nobody filled in."""
    record = bytearray(record_of(b"UNIQ_KEY\x01A\x02TAGS\x01t", physical_offset=1))
    record[8:12] = bytes(4)
    message = answer_of(PoppedMessage(bytes(record), "T", 0, 3, 17, "h", 1), definition.Resource(name="T"))
    assert (message.system_properties.message_id, message.system_properties.tag) == ("A", "t")
    assert message.system_properties.body_digest.checksum == f"{zlib.crc32(b'body'):08X}"


@given(st.data())
def test_what_contradicts_itself_is_refused_and_nothing_else_is_raised(data) -> None:
    record = bytearray(record_of(born_host=data.draw(HOSTS)))
    for _ in range(data.draw(st.integers(1, 3))):
        record[data.draw(st.integers(0, 91))] = data.draw(st.integers(0, 255))
    damaged = bytes(record[: data.draw(st.integers(0, len(record)))])
    try:
        stored = take_apart(damaged)
    except ProtocolError:
        return
    encode_answer(PoppedMessage(damaged, "T", 0, 3, 17, "h", 1), stored, b"", 1, digest_for("JAVA"))


def test_a_large_compressed_body_is_unpacked_from_its_place() -> None:
    body = bytes(range(256)) * 400
    for compressed, flag in ((lz4.frame.compress(body, compression_level=0), 0x100), (zstandard.compress(body), 0x200)):
        assert received(body=compressed, sys_flag=SYS_COMPRESSED | flag).body == body
    noise = b"".join(zlib.crc32(b"%d" % n).to_bytes(4) for n in range(10_000))
    assert received(body=lz4.frame.compress(noise), sys_flag=SYS_COMPRESSED | 0x100).body == noise
