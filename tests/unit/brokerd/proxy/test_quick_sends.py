"""Ordinary sends over gRPC: what is stored and answered is what the general path would store and answer, and order is kept."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.placement.rules import Owner, Waiting
from brokerd.proxy.calls import Peer
from brokerd.proxy.methods.placing import PLACED, Anywhere, Unplaced
from brokerd.proxy.methods.quick_sends import Quick
from brokerd.proxy.methods.send_message import send_message
from brokerd.proxy.methods.several import messages_of
from brokerd.proxy.native_sends import SendReader
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.errors import NotMaster, RequestError
from remoting.message_groups import queue_of_group
from remoting.record.codec import Record, decode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import decode_properties
from tests.support.kernels import native_kernels
from tests.support.native_library import native_library
from tests.unit.brokerd.proxy.calls import FakeCall
from tests.unit.brokerd.sending.test_send import Broker

TOPICS = {
    name: TopicConfig(name, 4, 4, 6, attributes={"message.type": name.upper()})
    for name in ("Normal", "Fifo", "Delay", "Mixed", "Transaction", "Priority")
} | {"ReadOnly": TopicConfig("ReadOnly", 4, 4, 4)}


class Elsewhere(Anywhere):
    """Other broker groups own what begins with "other"; the calls handed over are kept."""

    def __init__(self) -> None:
        self.given: list[Unplaced] = []

    def owner(self, topic: str, message_group: str) -> Owner | Waiting | None:
        return ("broker-b", 0) if message_group.startswith("other") else None

    def elsewhere(self, unplaced: Unplaced) -> None:
        self.given.append(unplaced)


class Bench:
    """A broker with the method over it; without `library` all of it takes the general path."""

    def __init__(self, *, quick: bool = True, segment_size_bytes: int = 1 << 16) -> None:
        self.broker = broker = Broker(segment_size_bytes, topics=TOPICS)
        self.general = 0
        self.placing = Elsewhere()
        self.handler = send_message(
            self,
            self,  # type: ignore[arg-type]
            "broker-a",
            lambda: broker.timed.max_ahead_ms,
            lambda: broker.now,
            lambda: "5ec2e7" * 5 + "00",
            Quick(SendReader(native_library()), broker.turns) if quick else None,
            self.placing,
        )

    def topic(self, name: str) -> TopicConfig | None:
        return TOPICS.get(name)

    def send(self, drafts: Any, done: Any) -> None:
        """The general path."""
        self.general += len(drafts)
        self.broker.sender.send(drafts, done)

    def call(self, *calls: FakeCall) -> list[Any]:
        """What the calls of one read event are answered."""
        self.handler(calls)
        self.broker.acknowledger.complete()
        return [call.response(service.SendMessageResponse) for call in calls]

    def stored(self) -> list[Record]:
        return sorted((decode_record(each) for each in self.broker.records()), key=lambda each: each.physical_offset)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with native_kernels(native_library()):
        bench = Bench()
    yield bench
    bench.broker.store.close()


def sending(topic: str = "Normal", number: int = 0, body: bytes = b"body", **system: Any) -> FakeCall:
    request = service.SendMessageRequest()
    message = request.messages.add()
    message.topic.name, message.body = topic, body
    message.system_properties.message_id = f"{number:032X}"
    message.system_properties.born_timestamp.seconds = 1_700_000_000
    for name, value in system.items():
        setattr(message.system_properties, name, value)
    return FakeCall(request)


def delayed(ahead_ms: int, number: int = 0, topic: str = "Delay") -> FakeCall:
    call = sending(topic, number)
    request = service.SendMessageRequest.FromString(call.message)
    request.messages[0].system_properties.delivery_timestamp.FromMilliseconds(1_700_000_000_000 + ahead_ms)
    return FakeCall(request)


def together(*calls: FakeCall) -> FakeCall:
    """One call of the messages of all."""
    call = FakeCall(service.SendMessageRequest.FromString(b"".join(each.message for each in calls)))
    call.metadata, call.peer = calls[0].metadata, calls[0].peer
    return call


def of_peer(call: FakeCall, host: str) -> FakeCall:
    call.peer = Peer(host, pack_host(host, 5000), object())
    return call


def random_calls(rng: Random) -> list[FakeCall]:
    calls = []
    for number in range(rng.choice((1, 3, 20))):
        topic = rng.choice(
            ("Normal", "Normal", "Fifo", "Delay", "Mixed", "Transaction", "Priority", "Missing", "ReadOnly")
        )
        if rng.random() < 0.2:
            calls.append(delayed(rng.choice((-5, 0, 5000, 1 << 40)), number, topic))
            continue
        system: dict[str, Any] = {}
        if rng.random() < (0.8 if topic == "Fifo" else 0.2):
            system["message_group"] = f"{rng.choice(('', 'other'))}group{rng.randrange(3)}"
        if rng.random() < 0.2:
            system["tag"] = rng.choice(("a", "ä", "|", ""))
        if rng.random() < (0.8 if topic == "Transaction" else 0.1):
            system["message_type"] = 4
        if rng.random() < (0.8 if topic == "Priority" else 0.05):
            system["priority"] = rng.choice((0, 3, 100))
        if rng.random() < 0.1:
            system["delivery_attempt"] = 2
        body = rng.choice((b"b", b"b" * 1024, b"", bytes(30_000)))
        call = sending(topic, number, body, **system)
        if rng.random() < 0.1:
            call.metadata = rng.choice(({}, {"x-mq-client-id": ""}))
        calls.append(of_peer(call, rng.choice(("10.0.0.1", "10.0.0.1", "10.0.0.2", "fe80::1"))))
    return joined(rng, calls)


def joined(rng: Random, calls: list[FakeCall]) -> list[FakeCall]:
    """Some of the calls become one, mostly of messages to the same topic."""
    found: list[FakeCall] = []
    for call in calls:
        earlier = found[-1] if found else call
        topics = [
            service.SendMessageRequest.FromString(each.message).messages[0].topic.name for each in (earlier, call)
        ]
        if found and rng.random() < (0.5 if topics[0] == topics[1] else 0.03):
            found[-1] = together(earlier, call)
        else:
            found.append(call)
    return found


def plainly(answer: Any) -> Any:
    """Of an answer, what does not depend on which queue the broker chose."""
    return (
        answer.status.code,
        answer.status.message,
        [
            (each.status.code, each.message_id, bool(each.recall_handle), bool(each.transaction_id))
            for each in answer.entries
        ],
    )


def message_of(record: Record) -> Any:
    grouped = not {"__SHARDINGKEY", "_SYS_MSG_PRIORITY_"}.isdisjoint(record.property_map())
    properties = decode_properties(record.properties)
    for name in ("__CRC32#", "REAL_QID"):
        properties.pop(name, None)
    host = record.born_host, record.sys_flag, record.born_timestamp_ms
    return record.topic, record.queue_id if grouped else -1, bytes(record.body), host, properties


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_stored_and_answered_as_by_the_general_path(seed: int) -> None:
    with native_kernels(native_library()):
        ours, theirs = Bench(), Bench(quick=False)
    for part in range(5):
        found, wanted = random_calls(Random(100 * seed + part)), random_calls(Random(100 * seed + part))
        for bench, calls in ((ours, found), (theirs, wanted)):
            bench.handler(calls)
            bench.broker.acknowledger.complete()
        for one, other in zip(found, wanted, strict=True):
            assert len(one.answers) == len(other.answers)
            for answer, its in zip(one.answers, other.answers, strict=True):
                both = [service.SendMessageResponse.FromString(each) for each in (answer, its)]
                assert plainly(both[0]) == plainly(both[1])
    key = str
    assert sorted(map(message_of, ours.stored()), key=key) == sorted(map(message_of, theirs.stored()), key=key)
    assert [each.call.message for each in ours.placing.given] == [each.call.message for each in theirs.placing.given]
    assert ours.broker.counters.in_messages == theirs.broker.counters.in_messages
    ours.broker.store.close()
    theirs.broker.store.close()


def test_ordinary_sends_make_no_drafts_and_are_one_append(bench: Bench) -> None:
    calls = [sending("Normal", n) for n in range(5)] + [sending("Fifo", 9, message_group="g"), delayed(5000, 10)]
    answers = bench.call(*calls)
    assert bench.general == 0
    assert [each.status.code for each in answers] == [Code.OK] * 7
    assert answers[-1].entries[0].recall_handle
    assert [each.entries[0].message_id for each in answers[:5]] == [f"{n:032X}" for n in range(5)]
    grouped = next(each for each in bench.stored() if each.topic == "Fifo")
    assert grouped.queue_id == queue_of_group("g", 4)
    offsets = {(each.queue_id, each.queue_offset) for each in bench.stored() if each.topic == "Normal"}
    assert len(offsets) == 5
    assert bench.broker.counters.in_messages == 7
    assert sum(bench.broker.counters.puts.counts) == 7


def test_neither_is_a_time_that_has_passed_nor_a_recovery_time_for_the_general_path(bench: Bench) -> None:
    request = service.SendMessageRequest.FromString(sending("Transaction", 1, message_type=4).message)
    request.messages[0].system_properties.orphaned_transaction_recovery_duration.seconds = 40
    passed, half = bench.call(delayed(-5000, 0), FakeCall(request))
    assert bench.general == 0
    assert (passed.status.code, half.status.code) == (Code.OK, Code.OK)
    assert (passed.entries[0].recall_handle, passed.entries[0].transaction_id) == ("", "")
    assert half.entries[0].transaction_id
    assert [each.topic for each in bench.stored()] == ["Delay", "RMQ_SYS_TRANS_HALF_TOPIC"]
    (begun,) = bench.broker.halves.laid_out
    assert begun.immunity_ms == 40_000


def test_nobody_is_answered_before_the_message_is_acknowledged(bench: Bench) -> None:
    call = sending()
    bench.handler([call])
    assert not call.answers
    bench.broker.acknowledger.complete(PutStatus.FLUSH_DISK_TIMEOUT)
    answer = call.response(service.SendMessageResponse)
    assert answer.status.code == answer.entries[0].status.code == Code.MASTER_PERSISTENCE_TIMEOUT
    lost = sending()
    bench.handler([lost])
    bench.broker.acknowledger.complete(PutStatus.SERVICE_NOT_AVAILABLE)
    assert "unknown" in lost.response(service.SendMessageResponse).status.message


def test_more_than_a_file_of_the_log_has_room_for_goes_on_in_the_next(bench: Bench) -> None:
    calls = [sending("Normal", n, bytes(10_000)) for n in range(20)]
    answers = bench.call(*calls)
    assert bench.general == 0
    assert [each.status.code for each in answers] == [Code.OK] * 20
    assert [each.property_map()["UNIQ_KEY"] for each in bench.stored()] == [f"{n:032X}" for n in range(20)]


def test_while_nothing_is_taken_the_general_path_says_why(bench: Bench) -> None:
    bench.broker.acknowledger.error = NotMaster()
    (answer,) = bench.call(sending())
    assert answer.status.code == Code.HA_NOT_AVAILABLE
    bench.broker.acknowledger.error = None
    bench.broker.store.set_appendable(False)
    (answer,) = bench.call(sending())
    assert answer.status.code == Code.HA_NOT_AVAILABLE


def test_what_the_disk_refuses_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(run: object) -> None:
        raise RequestError(codes.SERVICE_NOT_AVAILABLE, "the disk is full")

    monkeypatch.setattr(bench.broker.store, "append_laid_out", refuse)
    (answer,) = bench.call(sending())
    assert (answer.status.code, answer.status.message) == (Code.HA_NOT_AVAILABLE, "the disk is full")


def test_messages_of_a_group_keep_their_order_when_one_is_not_ordinary(bench: Bench) -> None:
    """One of four is left for its attempt; those of its topic's groups behind it wait for it, and others do not."""
    calls = [
        *(sending("Fifo", 1, message_group="g"), sending("Fifo", 2, message_group="g", delivery_attempt=0x8000)),
        *(sending("Normal", 9), sending("Fifo", 3, message_group="g"), sending("Fifo", 4, message_group="g")),
    ]
    bench.call(*calls)
    order = [each.property_map()["UNIQ_KEY"][-1] for each in bench.stored() if each.topic == "Fifo"]
    assert order == ["1", "2", "3", "4"]
    assert bench.general == 3


def test_the_kernel_may_leave_a_message_of_a_group_too(bench: Bench) -> None:
    """What has no room in any file is refused, and nothing overtakes it."""
    calls = [sending("Fifo", n, bytes(70_000 if n == 2 else 10), message_group="g") for n in range(1, 5)]
    answers = bench.call(*calls)
    assert [each.status.code == Code.OK for each in answers] == [True, False, True, True]
    assert [each.property_map()["UNIQ_KEY"][-1] for each in bench.stored()] == ["1", "3", "4"]
    assert bench.general == 3


def test_what_another_broker_group_owns_is_handed_over(bench: Bench) -> None:
    bench.handler([sending("Fifo", 1, message_group="other")])
    (unplaced,) = bench.placing.given
    assert (unplaced.where, unplaced.method, bench.stored()) == ("broker-b", PLACED, [])


def test_clients_of_several_addresses_share_an_append(bench: Bench) -> None:
    """As when a replica forwards them."""
    calls = [of_peer(sending("Normal", n), f"10.0.0.{n % 2}") for n in range(4)]
    bench.handler(calls)
    assert len(bench.broker.acknowledger.waiting) == 1
    bench.broker.acknowledger.complete()
    assert [each.born_host for each in bench.stored()] == [call.peer.packed_host for call in calls]
    assert bench.general == 0


def test_each_type_goes_to_topics_that_take_it(bench: Bench) -> None:
    (answer,) = bench.call(sending("Fifo", 1))
    assert answer.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    (answer,) = bench.call(sending("Mixed", 1))
    assert answer.status.code == Code.OK


def test_several_messages_of_a_request_make_no_drafts_either(bench: Bench) -> None:
    several = together(*(sending("Normal", n) for n in range(3)))
    grouped = together(*(sending("Fifo", n, message_group=f"g{n % 2}") for n in range(3, 7)))
    answers = bench.call(sending("Normal", 9), several, grouped)
    assert bench.general == 0
    assert [each.status.code for each in answers] == [Code.OK] * 3
    assert [each.message_id for each in answers[1].entries] == [f"{n:032X}" for n in range(3)]
    assert [each.message_id for each in answers[2].entries] == [f"{n:032X}" for n in range(3, 7)]
    assert len(several.answers) == 1
    assert bench.broker.counters.puts.counts[0] == 8, "all of a turn are one append"


def test_several_messages_are_answered_when_all_are_acknowledged(bench: Bench) -> None:
    several = together(*(sending("Normal", n, bytes(20_000)) for n in range(5)))
    bench.handler([several])
    waiting = list(bench.broker.acknowledger.waiting)
    assert len(waiting) > 1, "they are in two files of the log"
    assert not several.answers
    bench.broker.acknowledger.complete()
    assert [each.status.code for each in several.response(service.SendMessageResponse).entries] == [Code.OK] * 5
    lost = together(sending("Normal", 1), sending("Normal", 2))
    bench.handler([lost])
    bench.broker.acknowledger.complete(PutStatus.FLUSH_DISK_TIMEOUT)
    answer = lost.response(service.SendMessageResponse)
    assert answer.status.code == Code.MASTER_PERSISTENCE_TIMEOUT
    assert [each.status.code for each in answer.entries] == [Code.MASTER_PERSISTENCE_TIMEOUT] * 2


def test_one_of_several_that_no_file_has_room_for_is_refused_alone(bench: Bench) -> None:
    sizes = (10, 70_000, 10)
    (answer,) = bench.call(together(*(sending("Normal", n, bytes(size)) for n, size in enumerate(sizes))))
    assert answer.status.code == Code.MULTIPLE_RESULTS
    assert [each.status.code == Code.OK for each in answer.entries] == [True, False, True]
    assert [each.message_id for each in answer.entries] == [f"{n:032X}" for n in range(3)]
    assert len(bench.stored()) == 2
    assert bench.general == 1


def test_of_several_of_a_group_none_overtakes_the_one_that_the_kernel_leaves(bench: Bench) -> None:
    several = together(*(sending("Fifo", n, bytes(70_000 if n == 2 else 10), message_group="g") for n in range(1, 4)))
    answer, behind = bench.call(several, sending("Fifo", 4, message_group="g"))
    assert [each.status.code == Code.OK for each in answer.entries] == [True, False, True]
    assert behind.status.code == Code.OK
    assert [each.property_map()["UNIQ_KEY"][-1] for each in bench.stored()] == ["1", "3", "4"]


def test_a_request_is_refused_whole_for_one_message_that_breaks_a_rule(bench: Bench) -> None:
    for bad in (sending("Normal", 2, tag="|"), sending("Mixed", 2), sending("Normal", 2, message_group="g")):
        (answer,) = bench.call(together(sending("Normal", 1), bad, sending("Normal", 3)))
        assert answer.status.code not in (Code.OK, Code.MULTIPLE_RESULTS)
        assert [each.status.code for each in answer.entries] == [answer.status.code] * 3
    (answer,) = bench.call(together(*(sending("Normal", n) for n in range(1025))))
    assert "at most 1024" in answer.status.message
    assert bench.stored() == []


@pytest.mark.parametrize("cut", [b"\x0a", b"\x0a\x7f", b"\x0a" + b"\xff" * 6, b"\x12\x00", b"\x0a\xff\xff\xff\xff\x7f"])
def test_what_cannot_be_told_apart_is_for_the_general_path(cut: bytes) -> None:
    whole = sending().message
    assert messages_of(whole + whole, 2) == [whole, whole]
    assert messages_of(whole + whole, 1) == []
    assert messages_of(whole + cut, 9) == []
