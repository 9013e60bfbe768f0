"""Sends: the kernel and the general path store the same bytes, give the same answers, and refuse with the protocol's codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.delay.levels import DEFAULT_DELAYS, code_rules
from brokerd.metadata.configs import TopicConfig
from brokerd.processors.sending.general import GeneralSends, MakeTopic
from brokerd.processors.sending.send import SendProcessor
from brokerd.sending.counters import Counters
from brokerd.sending.halves import LaidOutHalves
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.rules import STAMP
from brokerd.sending.sender import MessageSender, SendRules
from brokerd.sending.stored_form import KernelRules
from brokerd.sending.turns import SendTurns
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from brokerd.store.run import AppendResult
from brokerd.store.seams import StoreSeams
from brokerd.store.settings import StoreSettings
from brokerd.store.store import MessageStore
from brokerd.timers.codes import CODE_RULES
from brokerd.transactions.decide import HalfRoom
from brokerd.transactions.records import Half, half_draft, is_half, ordinary_draft
from remoting import codes, frame
from remoting.errors import LogboomError, NotMaster, StorageError
from remoting.frame import Command
from remoting.names import TIMER_TOPIC
from remoting.record.checksum import is_intact
from remoting.record.codec import body_is_intact, decode_record
from remoting.record.hosts import pack_host
from remoting.record.layout import MAX_BODY_BYTES, MAX_PROPERTIES_BYTES
from remoting.record.properties import decode_properties, encode_properties
from tests.support.client_bytes import encode_batch_body
from tests.support.disks import MemoryDisk
from tests.support.kernels import make_kernel
from tests.support.timers import StillTimers, timed_messages

pytestmark = pytest.mark.usefixtures("both_kernels")

STORE_HOST = ("10.0.0.2", 10911)
TOPICS = {
    "T": TopicConfig("T", 4, 4, 6),
    "ReadOnly": TopicConfig("ReadOnly", 4, 4, 4),
    "NoQueues": TopicConfig("NoQueues", 0, 0, 6),
    "%RETRY%g": TopicConfig("%RETRY%g", 1, 1, 6),
    "%DLQ%g": TopicConfig("%DLQ%g", 1, 1, 6),
}


@dataclass
class Acknowledger:
    """Acknowledges when told."""

    waiting: list[tuple[int, Callable[[PutStatus], None]]] = field(default_factory=list)
    error: LogboomError | None = None

    def refusal(self) -> LogboomError | None:
        return self.error

    def appended(self, end_offset: int) -> None:
        pass

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        self.waiting.append((position, callback))

    def complete(self, status: PutStatus = PutStatus.PUT_OK) -> None:
        waiting, self.waiting = self.waiting, []
        for _, callback in waiting:
            callback(status)


class Halves:
    """Remembers which half messages were stored."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.laid_out: list[Half] = []

    def to_stored_draft(self, draft: Draft) -> Draft:
        return half_draft(draft) if is_half(draft) else ordinary_draft(draft)

    def stored(self, draft: Draft, place: AppendResult) -> None:
        self.offsets.append(place.physical_offset)

    def room(self) -> HalfRoom:
        return HalfRoom(1000, 1 << 30)

    def begun(self, halves: Sequence[Half], end_offset: int) -> None:
        assert halves[-1].physical_offset + halves[-1].size == end_offset
        self.offsets += [half.physical_offset for half in halves]
        self.laid_out += halves


class Connection:
    """What a processor uses of a connection; answers are kept decoded."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        self.packed_peer = pack_host(host, 40000)
        self.answers: list[Command] = []

    def respond(
        self, request: Command, code: int = 0, ext: Any = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        self.respond_encoded(frame.encode_response(code, request.opaque, ext, body, remark), 1)

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))

    def respond_encoded(self, frames: bytes, count: int) -> None:
        before = len(self.answers)
        assert frame.decode_frames(frames, self.answers) == len(frames)
        assert len(self.answers) - before == count


class Broker:
    def __init__(
        self,
        segment_size_bytes: int = 1 << 16,
        disk: MemoryDisk | None = None,
        make_topic: MakeTopic | None = None,
        topics: dict[str, TopicConfig] = TOPICS,
        when_known: Callable[[Callable[[], None]], None] = lambda done: done(),
    ) -> None:
        self.now = 1_700_000_000_000
        self.disk = disk or MemoryDisk()
        self.store = MessageStore(
            self.disk,
            StoreSettings(segment_size_bytes=segment_size_bytes),
            lambda: self.now,
            pack_host(*STORE_HOST),
            StoreSeams({**code_rules(DEFAULT_DELAYS), **CODE_RULES}),
        )
        self.store.load()
        self.store.set_appendable(True)
        self.acknowledger = Acknowledger()
        self.counters = Counters()
        self.turn: list[Callable[[], None]] = []
        self.halves = Halves()
        self.timers = StillTimers(lambda: self.now)
        self.timed = timed_messages(self.timers, next_place=lambda: self.store.queue_offsets.next(TIMER_TOPIC, 0))
        rules = SendRules(topics.get, "c", DEFAULT_DELAYS)
        self.sender = MessageSender(self.store, self.acknowledger, rules, self.counters, self.halves, self.timed)
        self.asked: list[tuple[str, int, int | None, int]] = []
        kernel_rules = KernelRules(
            self.sender.unique_ids, self.timed.terms, DEFAULT_DELAYS, "c", LaidOutHalves(self.halves)
        )
        self.kernel = make_kernel(pack_host(*STORE_HOST), kernel_rules)
        self.kernel.topics_changed(topics)
        general = GeneralSends(self.sender, pack_host(*STORE_HOST), self.sent_again, make_topic, when_known)
        self.turns = SendTurns(self.store, self.acknowledger, self.kernel, self.counters)
        self.processor = SendProcessor(self.turns, general, self.turn.append)

    def sent_again(self, draft: Draft, limit: int | None, version: int) -> Draft:
        """The rule of retry topics has its own tests; here it makes dead letters of all."""
        self.asked.append((draft.topic, draft.reconsume_times, limit, version))
        return draft._replace(topic="%DLQ%g", queue_id=0)

    def handle(self, connection: Connection, requests: list[Command]) -> None:
        """One read event, and the turn of the loop after it."""
        self.processor.handle(connection, requests)  # type: ignore[arg-type]
        self.next_turn()

    def next_turn(self) -> None:
        while self.turn:
            self.turn.pop()()

    def records(self) -> list[bytes]:
        while self.store.dispatch(self.store.commitlog.end_offset):
            pass
        found: list[bytes] = []
        for topic, queue_id in sorted(self.store.queues.table):
            found += self.store.read_messages(topic, queue_id, 0, 10_000, 1 << 30).records
        return found


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.store.close()


def request(
    opaque: int = 1,
    body: bytes = b"hello",
    properties: dict[str, str] | None = None,
    code: int = codes.SEND_MESSAGE_V2,
    **changes: str,
) -> Command:
    properties = {"UNIQ_KEY": f"{opaque:032d}", "WAIT": "true", "TAGS": "a"} if properties is None else properties
    ext = {
        "a": "pg",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": "1",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": encode_properties(properties).decode(),
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return Command(code, opaque, {**ext, **changes}, body)


def test_an_answer_waits_until_the_position_is_acknowledged(broker: Broker) -> None:
    connection = Connection()
    broker.handle(connection, [request(1), request(2)])
    assert not connection.answers
    [(position, _)] = broker.acknowledger.waiting
    assert position == broker.store.commitlog.end_offset
    broker.acknowledger.complete()
    assert [(answer.code, answer.opaque, answer.ext["queueOffset"]) for answer in connection.answers] == [
        (0, 1, "0"),
        (0, 2, "1"),
    ]
    first = decode_record(broker.records()[0])
    assert connection.answers[0].ext["msgId"] == "0A00000200002A9F0000000000000000"
    assert connection.answers[0].ext["transactionId"] == f"{1:032d}"
    assert first.property_map() == {
        "UNIQ_KEY": f"{1:032d}",
        "WAIT": "true",
        "TAGS": "a",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert broker.counters.in_messages == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (PutStatus.FLUSH_DISK_TIMEOUT, codes.FLUSH_DISK_TIMEOUT),
        (PutStatus.FLUSH_SLAVE_TIMEOUT, codes.FLUSH_SLAVE_TIMEOUT),
        (PutStatus.SERVICE_NOT_AVAILABLE, codes.SERVICE_NOT_AVAILABLE),
    ],
)
@pytest.mark.parametrize("properties", [None, {"KEYS": "no unique key: the general path"}])
def test_a_put_status_becomes_the_answers_code(
    broker: Broker, status: PutStatus, code: int, properties: dict[str, str] | None
) -> None:
    connection = Connection()
    broker.handle(connection, [request(1, properties=properties), request(2, properties=properties)])
    broker.acknowledger.complete(status)
    assert [answer.code for answer in connection.answers] == [code, code]
    if status is not PutStatus.SERVICE_NOT_AVAILABLE:
        assert [answer.ext["queueOffset"] for answer in connection.answers] == ["0", "1"]


texts = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1, max_size=20)
# how the messages of a batch differ besides their unique keys
DIFFERENCES = ["", "body", "body length", "key length", "tag", "flag", "odd"]
requests = st.builds(
    lambda body, keys, tag, queue, flag, reconsume, batch: (body, keys, tag, queue, flag, reconsume, batch),
    st.binary(min_size=1, max_size=3000),
    texts,
    texts,
    st.integers(-1, 3),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(0, 16),
    st.none() | st.tuples(st.integers(1, 5), st.sampled_from(DIFFERENCES)),
)


def batch_items(
    opaque: int, body: bytes, properties: dict[str, str], flag: int, count: int, differ: str
) -> list[tuple[int, bytes, bytes]]:
    items = []
    for index in range(count):
        name = f"{opaque}00{index}" if differ == "key length" and index == 1 else f"{opaque:016d}{index:016d}"
        changed = {**properties, "UNIQ_KEY": name}
        if differ == "tag":
            changed["TAGS"] = f"{properties['TAGS']}{index}"
        elif differ == "odd" and index == count - 1:
            changed["POP_CK"] = "of an earlier life"
        content = bytes([index]) + body[1:] if differ == "body" else body
        content += b"x" * index if differ == "body length" else b""
        items.append((flag ^ index if differ == "flag" else flag, content, encode_properties(changed)))
    return items


@settings(deadline=None, max_examples=60)
@given(st.lists(requests, min_size=1, max_size=20), st.booleans())
def test_the_kernel_and_the_general_path_store_and_answer_the_same(choices: list[Any], seals: bool) -> None:
    fast, slow = Broker(), Broker()
    fast.store.adds_checksums = slow.store.adds_checksums = seals
    slow.kernel.topics_changed(dict.fromkeys(TOPICS))  # it takes none: every request takes the general path
    commands: list[list[Command]] = [[], []]
    for opaque, (body, keys, tag, queue, flag, reconsume, batch) in enumerate(choices):
        properties = {"UNIQ_KEY": f"{opaque:032d}", "KEYS": keys, "TAGS": tag}
        changes = {"e": str(max(queue, 0)), "h": str(flag), "j": str(reconsume)}
        if batch:
            body = encode_batch_body(batch_items(opaque, body, properties, flag, *batch))
            changes["m"] = "true"
        for side in commands:
            side.append(request(opaque, body, properties, **changes))
    connections = Connection(), Connection()
    for broker, connection, side in zip((fast, slow), connections, commands, strict=True):
        broker.handle(connection, side)
        broker.acknowledger.complete()
    assert fast.records() == slow.records()
    assert all(body_is_intact(decode_record(record)) for record in fast.records())
    assert all(is_intact(record) and record[-20:-12] == b"__CRC32#" for record in fast.records() if seals)
    for ours, theirs in zip(connections[0].answers, connections[1].answers, strict=True):
        assert (ours.code, ours.opaque) == (theirs.code, theirs.opaque)
        for name in ("msgId", "queueId", "queueOffset"):
            assert ours.ext[name] == theirs.ext[name]
    fast_log, slow_log = fast.store.commitlog, slow.store.commitlog
    assert fast_log.read(0, 1 << 16) == slow_log.read(0, 1 << 16)


@pytest.mark.parametrize("room", [*range(-1, 3), *range(18, 23)])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("is_alike", [False, True])
def test_what_the_checksum_has_no_room_for_is_stored_without(room: int, batch: bool, is_alike: bool) -> None:
    """What clients could send before records had checksums they still can: a checksum is added where there is room."""
    properties = {"UNIQ_KEY": "0" * 32, "KEYS": ""}
    properties["KEYS"] = "k" * (
        MAX_PROPERTIES_BYTES - len(encode_properties(properties) + STAMP) - len("KEYS\1\2") - room
    )
    fast, slow = Broker(1 << 18), Broker(1 << 18)
    slow.kernel.topics_changed(dict.fromkeys(TOPICS))
    items = [(0, b"b" * (1 if is_alike else 1 + n), encode_properties(properties)) for n in range(2)]
    command = request(1, encode_batch_body(items), m="true") if batch else request(1, properties=properties)
    for broker in (fast, slow):
        connection = Connection()
        broker.handle(connection, [command])
        broker.acknowledger.complete()
        assert [answer.code == codes.SUCCESS for answer in connection.answers] == [room >= 0]
    assert fast.records() == slow.records()
    assert len(fast.records()) == (0 if room < 0 else 2 if batch else 1)
    for record in fast.records():
        assert is_intact(record)
        assert (record[-20:-12] == b"__CRC32#") == (room >= 20)
        assert decode_record(record).property_map() == {**properties, **decode_properties(STAMP)}


def test_connections_of_one_turn_share_an_append_and_get_their_own_answers(broker: Broker) -> None:
    connections = [Connection(f"10.0.0.{n}") for n in range(5)]
    for n, connection in enumerate(connections):
        odd = {"UNIQ_KEY": "1", "WAIT": "false"}  # answered at once
        sent = [request(10 * n + m, properties=odd if m == n == 2 else None) for m in range(3)]
        broker.processor.handle(connection, sent)  # type: ignore[arg-type]
    broker.next_turn()
    assert len(broker.acknowledger.waiting) == 1
    assert [len(connection.answers) for connection in connections] == [0, 0, 1, 0, 0]
    broker.acknowledger.complete()
    for n, connection in enumerate(connections):
        assert sorted(answer.opaque for answer in connection.answers) == [10 * n, 10 * n + 1, 10 * n + 2]
    assert len(broker.records()) == 15


GENERAL = {"j": "40000"}  # more attempts than the kernel takes


def test_the_general_path_shares_the_append_of_what_is_around(broker: Broker) -> None:
    connection = Connection()
    early = {"UNIQ_KEY": "1", "WAIT": "false"}
    batch = encode_batch_body([(0, b"x", encode_properties({"UNIQ_KEY": str(n)})) for n in range(3)])
    sends = [request(1), request(2, **GENERAL), request(3, properties=early, **GENERAL), request(4, properties=early)]
    sends += [request(5, batch, m="true", **GENERAL), request(6, b"", **GENERAL), request(7)]
    sends[3].flag = codes.FLAG_ONEWAY
    broker.handle(connection, sends)
    assert [(answer.opaque, answer.code) for answer in connection.answers] == [(6, codes.MESSAGE_ILLEGAL), (3, 0)]
    assert len(broker.acknowledger.waiting) == 1
    broker.acknowledger.complete(PutStatus.FLUSH_DISK_TIMEOUT)
    assert [answer.code for answer in connection.answers[2:]] == [codes.FLUSH_DISK_TIMEOUT] * 4
    assert [answer.opaque for answer in connection.answers[2:]] == [1, 2, 5, 7]
    assert connection.answers[3].ext["transactionId"] == f"{2:032d}"
    assert connection.answers[4].ext["msgId"].count(",") == 2
    offsets = [decode_record(record).queue_offset for record in broker.records()]
    assert offsets == list(range(8))


def test_what_the_general_path_lays_out_goes_to_the_next_file_or_to_several() -> None:
    broker = Broker(segment_size_bytes=8192)
    connection = Connection()
    broker.handle(connection, [request(n, b"x" * 3000, **GENERAL) for n in range(5)])
    items = [(0, b"x" * 3000, encode_properties({"UNIQ_KEY": str(n)})) for n in range(4)]
    broker.handle(connection, [request(6), request(5, encode_batch_body(items), m="true", **GENERAL), request(7)])
    broker.acknowledger.complete()
    assert sorted((answer.opaque, answer.code) for answer in connection.answers) == [(n, 0) for n in range(8)]
    assert [decode_record(record).queue_offset for record in broker.records()] == list(range(11))


def test_records_go_to_the_next_file_when_one_is_full() -> None:
    broker = Broker(segment_size_bytes=8192)
    connection = Connection()
    broker.handle(connection, [request(n, b"x" * 1000) for n in range(30)])
    broker.acknowledger.complete()
    assert len(connection.answers) == 30
    assert [decode_record(record).queue_offset for record in broker.records()] == list(range(30))
    assert len(broker.store.commitlog.segment_starts()) > 4


def test_a_message_larger_than_a_file_is_refused_and_those_around_it_are_stored() -> None:
    broker = Broker(segment_size_bytes=8192)
    connection = Connection()
    broker.handle(connection, [request(1), request(2, b"x" * 9000), request(3)])
    broker.acknowledger.complete()
    codes_by_opaque = {answer.opaque: answer.code for answer in connection.answers}
    assert codes_by_opaque == {1: 0, 2: codes.MESSAGE_ILLEGAL, 3: 0}
    assert len(broker.records()) == 2
    assert len(broker.store.commitlog.segment_starts()) == 1, "no file is ended for what no file has room for"


@pytest.mark.parametrize(
    ("changes", "body", "properties", "code", "rule"),
    [
        ({"b": "Unknown"}, b"x", None, codes.TOPIC_NOT_EXIST, "does not exist"),
        ({"b": "bad name"}, b"x", None, codes.INVALID_PARAMETER, "topic"),
        ({"b": "t" * 128}, b"x", None, codes.INVALID_PARAMETER, "at most 127"),
        ({"b": ""}, b"x", None, codes.INVALID_PARAMETER, "required"),
        ({"b": "TRANS_CHECK_MAX_TIME_TOPIC"}, b"x", None, codes.NO_PERMISSION, "belongs to the system"),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", None, codes.NO_PERMISSION, "belongs to the system"),
        ({"b": "rmq_sys_logboom_metadata"}, b"x", None, codes.NO_PERMISSION, "belongs to the system"),
        ({"b": "ReadOnly"}, b"x", None, codes.NO_PERMISSION, "does not accept"),
        ({"b": "NoQueues"}, b"x", None, codes.NO_PERMISSION, "no queue"),
        ({"e": "9"}, b"x", None, codes.INVALID_PARAMETER, "must be below 4"),
        ({"e": "many"}, b"x", None, codes.INVALID_PARAMETER, "lacks or garbles"),
        ({"f": "-5"}, b"x", None, codes.INVALID_PARAMETER, "out of range"),
        ({"f": "4"}, b"x", None, codes.MESSAGE_ILLEGAL, "names a transaction"),
        ({}, b"", None, codes.MESSAGE_ILLEGAL, "no body"),
        ({}, b"x" * (MAX_BODY_BYTES + 1), None, codes.MESSAGE_ILLEGAL, "at most"),
        ({}, b"x", {"DELAY": "soon"}, codes.MESSAGE_ILLEGAL, "from 1 to 18"),
        ({}, b"x", {"UNIQ_KEY": "U", "DELAY": "3", "K": "v" * 32700}, codes.MESSAGE_ILLEGAL, "delayed message take"),
        ({}, b"x", {"TIMER_DELAY_SEC": "soon"}, codes.MESSAGE_ILLEGAL, "TIMER_DELAY_SEC"),
        ({}, b"x", {"TIMER_DELAY_SEC": "3456001"}, codes.MESSAGE_ILLEGAL, "timers.max_ahead_s"),
        ({}, b"x", {"TIMER_DEL_UNIQKEY": "T+A"}, codes.MESSAGE_ILLEGAL, "TIMER_DEL_UNIQKEY"),
        ({"b": "rmq_sys_wheel_timer"}, b"x", None, codes.NO_PERMISSION, "belongs to the system"),
        ({}, b"x", {"TRAN_MSG": "true"}, codes.MESSAGE_ILLEGAL, "producer group"),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", None, codes.NO_PERMISSION, "belongs to the system"),
        ({}, b"x", {"K": "a\0b"}, codes.MESSAGE_ILLEGAL, "NUL"),
        ({}, b"x", {"K": "v" * 40000}, codes.MESSAGE_ILLEGAL, "properties take"),
        ({"m": "true"}, b"junk", None, codes.SYSTEM_ERROR, "batch"),
        ({"m": "true"}, b"", None, codes.MESSAGE_ILLEGAL, "empty"),
        ({"l": "often", "b": "%RETRY%g"}, b"x", None, codes.INVALID_PARAMETER, "field l"),
        (
            {"m": "true"},
            encode_batch_body([(0, b"x", encode_properties({"DELAY": "2"}))]),
            None,
            codes.MESSAGE_ILLEGAL,
            "delayed",
        ),
        (
            {"m": "true"},
            encode_batch_body([(0, b"x", b"")]),
            {"TIMER_DELAY_SEC": "3"},
            codes.MESSAGE_ILLEGAL,
            "each of its messages",
        ),
        ({"m": "true", "b": "%RETRY%g"}, encode_batch_body([(0, b"x", b"")]), None, codes.MESSAGE_ILLEGAL, "retry"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_the_rule(
    broker: Broker, changes: dict[str, str], body: bytes, properties: dict[str, str] | None, code: int, rule: str
) -> None:
    connection = Connection()
    before = broker.store.commitlog.end_offset
    broker.handle(connection, [request(1, body, properties, **changes)])
    [answer] = connection.answers
    assert answer.code == code
    assert rule in (answer.remark or "")
    assert broker.store.commitlog.end_offset == before


def test_a_batch_with_one_bad_message_stores_nothing(broker: Broker) -> None:
    good, bad = encode_properties({"UNIQ_KEY": "1"}), encode_properties({"UNIQ_KEY": "2", "DELAY": "1"})
    connection = Connection()
    broker.handle(connection, [request(1, encode_batch_body([(0, b"x", good), (0, b"y", bad)]), m="true")])
    assert [answer.code for answer in connection.answers] == [codes.MESSAGE_ILLEGAL]
    assert not broker.records()


def test_handles_of_pop_and_old_stamps_are_not_stored(broker: Broker) -> None:
    properties = {"UNIQ_KEY": "1", "POP_CK": "0 1 2", "MSG_REGION": "Elsewhere"}
    broker.handle(Connection(), [request(1, properties=properties)])
    [record] = broker.records()
    assert decode_record(record).property_map() == {"UNIQ_KEY": "1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def test_a_send_to_a_retry_topic_goes_where_its_rule_says_and_keeps_its_turn(broker: Broker) -> None:
    connection = Connection()
    retry = {"b": "%RETRY%g", "j": "17", "l": "16", "e": "0"}
    broker.handle(connection, [request(1), request(2, **retry), request(3)])
    broker.acknowledger.complete()
    assert [(answer.code, answer.opaque) for answer in sorted(connection.answers, key=lambda each: each.opaque)] == [
        (0, 1),
        (0, 2),
        (0, 3),
    ]
    assert broker.asked == [("%RETRY%g", 17, 16, codes.VERSION)]
    found = sorted((decode_record(each).physical_offset, decode_record(each).topic) for each in broker.records())
    assert [topic for _, topic in found] == ["T", "%DLQ%g", "T"]


def test_long_field_names_and_missing_unique_keys_are_accepted(broker: Broker) -> None:
    connection = Connection()
    ext = {
        "topic": "T",
        "queueId": "-1",
        "sysFlag": "0",
        "bornTimestamp": "17",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
    }
    commands = [Command(codes.SEND_MESSAGE, n, dict(ext), b"x") for n in range(4)]
    broker.processor.handle_long_names(connection, commands)  # type: ignore[arg-type]
    broker.next_turn()
    broker.acknowledger.complete()
    assert sorted(answer.ext["queueId"] for answer in connection.answers) == ["0", "1", "2", "3"]
    keys = {decode_record(record).property_map()["UNIQ_KEY"] for record in broker.records()}
    assert len(keys) == 4


def test_a_one_way_send_is_stored_and_not_answered(broker: Broker) -> None:
    connection = Connection()
    oneway = request(1)
    oneway.flag = codes.FLAG_ONEWAY
    broker.handle(connection, [oneway])
    broker.acknowledger.complete()
    assert not connection.answers
    assert len(broker.records()) == 1


def test_a_send_that_does_not_wait_is_answered_at_once(broker: Broker) -> None:
    connection = Connection()
    broker.handle(connection, [request(1, properties={"UNIQ_KEY": "1", "WAIT": "false"})])
    assert [answer.code for answer in connection.answers] == [0]


def test_a_replica_refuses_everything(broker: Broker) -> None:
    broker.acknowledger.error = NotMaster()
    connection = Connection()
    broker.handle(connection, [request(1), request(2, m="true")])
    assert [answer.code for answer in connection.answers] == [codes.SERVICE_NOT_AVAILABLE] * 2
    outcomes: list[SendOutcome] = []
    broker.sender.send([Draft("T", 0, b"x", b"", 1, pack_host("10.0.0.1", 1))], outcomes.extend)
    assert outcomes[0].status is PutStatus.SERVICE_NOT_AVAILABLE
    assert outcomes[0].error is not None


def test_a_peer_over_ipv6_is_recorded_with_its_address(broker: Broker) -> None:
    broker.handle(Connection("fe80::1"), [request(1)])
    [record] = broker.records()
    assert decode_record(record).born_host == pack_host("fe80::1", 40000)


def test_a_refusing_disk_takes_no_number_and_answers_each(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> None:
    connection = Connection()
    broker.handle(connection, [request(1)])

    def refuse(*_: object) -> int:
        raise StorageError("cannot write commitlog: I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(broker.store.commitlog, "append", refuse)
        broker.handle(connection, [request(2), request(3)])
    assert [answer.code for answer in connection.answers] == [codes.SERVICE_NOT_AVAILABLE] * 2
    assert broker.store.queue_offsets.table["T", 1] == 1


# ---- half messages, requests


def test_a_half_message_is_answered_with_its_own_offsets_and_the_queue_of_its_message(broker: Broker) -> None:
    connection = Connection()
    properties = {"UNIQ_KEY": "K1", "TRAN_MSG": "true", "PGROUP": "pg"}
    broker.handle(
        connection, [request(1, properties={"UNIQ_KEY": "K0"}), request(2, b"half", properties, f="4", e="3")]
    )
    broker.acknowledger.complete()
    answer = connection.answers[-1]
    [offset] = broker.halves.offsets
    assert (answer.code, answer.ext["queueId"], answer.ext["queueOffset"]) == (0, "3", "0")
    assert answer.ext["transactionId"] == "K1"
    assert int(answer.ext["msgId"][16:], 16) == offset > 0
    stored = [decode_record(record) for record in broker.records()]
    assert {record.topic for record in stored} == {"T", "RMQ_SYS_TRANS_HALF_TOPIC"}


def test_a_batch_cannot_be_part_of_a_transaction(broker: Broker) -> None:
    good, half = (
        encode_properties({"UNIQ_KEY": "1"}),
        encode_properties({"UNIQ_KEY": "2", "TRAN_MSG": "true", "PGROUP": "p"}),
    )
    body = encode_batch_body([(0, b"x", good), (0, b"y", half)])
    connection = Connection()
    plain = encode_batch_body([(0, b"x", good)])
    broker.handle(connection, [request(1, body, m="true"), request(2, plain, m="true", f="4")])
    assert [answer.code for answer in connection.answers] == [codes.MESSAGE_ILLEGAL] * 2
    assert not broker.records()


def test_a_request_learns_in_which_cluster_it_is_answered(broker: Broker) -> None:
    properties = {"UNIQ_KEY": "1", "REPLY_TO_CLIENT": "me", "CORRELATION_ID": "7", "CLUSTER": "elsewhere"}
    broker.handle(Connection(), [request(1, properties=properties), request(2)])
    asked, plain = (decode_record(record).property_map() for record in broker.records())
    assert asked["CLUSTER"] == "c"
    assert "CLUSTER" not in plain


# ---- which requests are batches, which queues there are


def test_a_field_makes_a_batch_and_not_the_code(broker: Broker) -> None:
    connection = Connection()
    body = encode_batch_body(
        [(0, b"x", encode_properties({"UNIQ_KEY": "1"})), (0, b"y", encode_properties({"UNIQ_KEY": "2"}))]
    )
    single, batch = request(1, body, m="false"), request(2, body, m="true")
    single.code, batch.code = codes.SEND_BATCH_MESSAGE, codes.SEND_MESSAGE_V2
    broker.handle(connection, [single, batch])
    long_names = {"topic": "T", "queueId": "1", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "batch": "true"}
    long_names |= {"producerGroup": "g", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "properties": ""}
    broker.processor.handle_long_names(connection, [Command(codes.SEND_MESSAGE, 3, long_names, body)])  # type: ignore[arg-type]
    broker.next_turn()
    broker.acknowledger.complete()
    assert [answer.code for answer in connection.answers] == [0] * 3
    assert [answer.ext["msgId"].count(",") for answer in connection.answers] == [0, 1, 1]
    assert sorted(decode_record(record).body for record in broker.records()) == sorted([body, b"x", b"y", b"x", b"y"])


def test_a_queue_that_can_be_read_can_be_written_to() -> None:
    topics = {"T": TopicConfig("T", 8, 4, 6)}
    broker = Broker(topics=topics)
    connection = Connection()
    broker.handle(connection, [request(1, e="7"), request(2, e="8")])
    broker.acknowledger.complete()
    assert {answer.opaque: answer.code for answer in connection.answers} == {1: 0, 2: codes.INVALID_PARAMETER}
    assert [decode_record(record).queue_id for record in broker.records()] == [7]
    assert next(answer for answer in connection.answers if answer.opaque == 1).ext["queueId"] == "7"


@pytest.mark.parametrize("status", [PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.PUT_OK])
def test_a_stored_half_message_is_answered_in_full_whatever_its_status(broker: Broker, status: PutStatus) -> None:
    connection = Connection()
    broker.handle(connection, [request(1, properties={"UNIQ_KEY": "K", "TRAN_MSG": "true", "PGROUP": "g"}, f="4")])
    broker.acknowledger.complete(status)
    [answer] = connection.answers
    wanted = {
        PutStatus.FLUSH_DISK_TIMEOUT: codes.FLUSH_DISK_TIMEOUT,
        PutStatus.FLUSH_SLAVE_TIMEOUT: codes.FLUSH_SLAVE_TIMEOUT,
    }
    assert answer.code == wanted.get(status, codes.SUCCESS)
    assert set(answer.ext) == {"msgId", "queueId", "queueOffset", "transactionId", "MSG_REGION", "TRACE_ON"}


def test_a_compressed_body_is_kept_as_it_was_sent(broker: Broker) -> None:
    body = bytes(range(256))
    for n, sys_flag in enumerate((0x1, 0x101, 0x201, 0x301)):
        broker.handle(
            Connection(), [request(n, body, f=str(sys_flag), properties={"UNIQ_KEY": str(n), "REPLY_TO_CLIENT": "c"})]
        )
        broker.handle(Connection(), [request(n, body, f=str(sys_flag))])
    records = [decode_record(record) for record in broker.records()]
    assert sorted(record.sys_flag for record in records) == [0x1, 0x1, 0x101, 0x101, 0x201, 0x201, 0x301, 0x301]
    assert all(record.body == body and body_is_intact(record) for record in records)


def test_the_fast_path_follows_the_topics_one_by_one() -> None:
    broker = Broker()
    connection = Connection()

    def fast(topic: str) -> bool:
        """Whether the kernel takes a message of the topic, without another look at the topics."""
        taken = broker.kernel.take_decoded(broker.store.begin_run(), [request(b=topic)], 0, connection.packed_peer)
        return taken.position == 1

    assert fast("T")
    assert not fast("New")
    broker.kernel.topics_changed({"New": TopicConfig("New", 2, 2)})
    assert fast("New")
    broker.kernel.topics_changed({"New": TopicConfig("New", 2, 2, 4), "T": None})
    assert not fast("New")
    assert not fast("T")
    broker.kernel.topics_changed({"New": TopicConfig("New", 2, 2), "T": TopicConfig("T", 1, 1)})
    assert fast("New")
    assert not fast("T"), "its second queue is gone"
    assert broker.kernel.topics == {"New", "T", "%DLQ%g"}


def test_stored_bytes_are_counted_alike_whichever_way_a_message_takes(broker: Broker) -> None:
    broker.handle(Connection(), [request(properties={"UNIQ_KEY": "A" * 32, "WAIT": "true"})])
    broker.sender.send([Draft("T", 0, b"hello", b"UNIQ_KEY\x01B\x02", 0, pack_host("127.0.0.1", 1))], list)
    assert broker.counters.in_messages == 2
    assert broker.counters.in_bytes == sum(map(len, broker.records())) == broker.store.commitlog.end_offset
