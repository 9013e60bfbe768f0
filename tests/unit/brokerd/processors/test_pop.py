"""POP on remoting: headers from which clients rebuild handles, acks one by one and in batches, and what both protocols share."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from remoting import codes
from remoting.frame import Command
from remoting.record.codec import Record, decode_records
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

INFO = ("popTime", "invisibleTime", "reviveQid", "restNum")


@pytest.fixture
def broker() -> RemotingBroker:
    return remoting_master()


def ext(broker: RemotingBroker, **changes: Any) -> dict[str, Any]:
    return {
        "consumerGroup": "g",
        "topic": "t",
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 10_000,
        "pollTime": 0,
        "bornTime": broker.turns.wall_ms(),
        "initMode": 1,
        **changes,
    }


def pop(broker: RemotingBroker, **changes: Any) -> Command:
    return broker.answer(codes.POP_MESSAGE, ext(broker, **changes))


def handles_of(answer: Command) -> list[tuple[Record, str]]:
    """What a client makes of an answer: each message with its handle."""
    starts = dict(entry.rsplit(" ", 1) for entry in answer.ext["startOffsetInfo"].split(";"))
    offsets = {
        key: [int(offset) for offset in listed.split(",")]
        for key, listed in (entry.rsplit(" ", 1) for entry in answer.ext["msgOffsetInfo"].split(";"))
    }
    assert len(starts) == answer.ext["startOffsetInfo"].count(";") + 1, "no key twice"
    found = []
    received: dict[str, list[int]] = {}
    for record in decode_records(answer.body):
        own = record.property_map().get("POP_CK")
        if own is not None:
            found.append((record, own))
            flag = own.split(" ")[4]
            received.setdefault(f"{flag} {record.queue_id}", []).append(record.queue_offset)
            continue
        key = f"0 {record.queue_id}"
        received.setdefault(key, []).append(record.queue_offset)
        fields = [starts[key], *(answer.ext[name] for name in INFO[:3]), "0", "broker-a", record.queue_id]
        found.append((record, " ".join(map(str, [*fields, record.queue_offset]))))
    assert received == offsets
    return found


def named(record: Record, handle: str, **changes: Any) -> dict[str, Any]:
    flag = handle.split(" ")[4]
    topic = {"0": record.topic, "1": f"%RETRY%g_{record.topic}", "2": f"%RETRY%g+{record.topic}"}[flag]
    return {
        "consumerGroup": "g",
        "topic": topic,
        "queueId": record.queue_id,
        "offset": record.queue_offset,
        "extraInfo": handle,
        **changes,
    }


def test_messages_are_popped_and_acked(broker: RemotingBroker) -> None:
    broker.topic("t", 3)
    for number in range(9):
        broker.send(str(number), queue_id=number % 3)
    answer = pop(broker)
    assert answer.code == 0
    assert set(answer.ext) >= {*INFO, "startOffsetInfo", "msgOffsetInfo"}
    messages = handles_of(answer)
    assert sorted(record.body for record, _ in messages) == [str(number).encode() for number in range(9)]
    for record, handle in messages:
        assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    before = broker.log.end_offset
    for record, handle in messages:
        assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0, "it is asked again"
    assert broker.log.end_offset == before
    assert not any(queue.batches for queue in broker.pop_service.ledger.queues())
    assert broker.pop_service.counters.popped_messages == 9


def test_a_message_of_a_retry_topic_carries_its_handle(broker: RemotingBroker) -> None:
    broker.send("a", "b", tag="x", KEYS="k")
    broker.receive(1, invisible_time_ms=1000)
    broker.turns.run(1000)
    broker.log.going_offset = broker.log.end_offset
    broker.turns.run(10_000)
    messages = handles_of(pop(broker))
    returned = {record.body: (record, handle) for record, handle in messages}
    record, handle = returned[b"a"]
    assert record.topic == "t"
    assert record.reconsume_times == 1
    assert handle.split(" ")[4] == "2"
    assert len(handle.split(" ")) == 8
    assert record.property_map()["KEYS"] == "k"
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    assert broker.progress.in_flight("g", "%RETRY%g+t", 0) == 0


def test_a_message_that_comes_again_shows_how_often_it_came() -> None:
    """Its handle is built from the header like that of a new one."""
    broker = remoting_master(retry_share_percent=100)
    broker.send("a", "b", tag="x", KEYS="k")
    for _ in range(2):
        broker.receive(1, invisible_time_ms=1000)
        broker.turns.run(1000)
    answer = pop(broker)
    (a, handle), (b, _) = handles_of(answer)
    assert [(each.body, each.reconsume_times) for each in (a, b)] == [(b"a", 2), (b"b", 0)]
    assert (handle.split(" ")[4], a.property_map()["KEYS"]) == ("0", "k")
    assert broker.answer(codes.ACK_MESSAGE, named(a, handle)).code == 0


def test_a_message_of_a_queue_that_is_not_read_any_more_comes_again_and_is_acked(broker: RemotingBroker) -> None:
    broker.topic("t", 2)
    broker.send("a", queue_id=1)
    broker.receive(1, invisible_time_ms=1000)
    broker.metadata.commit_offset("g", "t", 1, 1, None)
    broker.turns.run(100)
    broker.topic("t", 1)
    broker.turns.run(900)
    ((record, handle),) = handles_of(pop(broker))
    assert record.queue_id == 1
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    assert broker.pop_service.ledger.in_flight("g") == 0


def test_empty_answers(broker: RemotingBroker) -> None:
    answer = pop(broker)
    assert answer.code == codes.POLLING_TIMEOUT
    assert set(answer.ext) >= set(INFO)
    broker.send("a")
    answer = pop(broker, bornTime=broker.turns.wall_ms() - 20_000, pollTime=15_000)
    assert answer.code == codes.POLLING_TIMEOUT, "nobody waits for it any more"
    assert pop(broker).code == codes.SUCCESS
    assert pop(broker, bornTime=0).code == codes.POLLING_TIMEOUT


@pytest.mark.parametrize("by_ms", [3_600_000, -3_600_000])
def test_a_wall_clock_that_is_set_makes_no_request_old(broker: RemotingBroker, by_ms: int) -> None:
    client_ms = broker.turns.wall_ms()
    assert pop(broker, bornTime=client_ms).code == codes.POLLING_TIMEOUT
    broker.turns.set_wall_clock(by_ms)
    broker.send("a")
    broker.turns.run(1000)
    assert pop(broker, bornTime=client_ms + 1000, pollTime=5000).code == codes.SUCCESS, "ours was set"
    broker.send("b")
    assert pop(broker, bornTime=client_ms + 1000 + by_ms, pollTime=5000).code == codes.SUCCESS, "the client's was set"
    waiting = broker.send_request(codes.POP_MESSAGE, ext(broker, bornTime=client_ms + 1000 + by_ms, pollTime=5000))
    broker.turns.run(4000)
    assert waiting not in broker.peer.answers, "it waits as long as it asked for"
    broker.send("c")
    broker.turns.run(0)
    assert broker.peer.answers[waiting].code == codes.SUCCESS


def test_a_waiting_pop(broker: RemotingBroker) -> None:
    early = broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=15_000, invisibleTime=60_000))
    late = broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=15_000))
    broker.send("a")
    broker.turns.run()
    assert [record.body for record, _ in handles_of(broker.peer.answers[early])] == [b"a"]
    broker.turns.run(14_949)
    assert late not in broker.peer.answers
    broker.turns.run(1)
    assert broker.peer.answers[late].code == codes.POLLING_TIMEOUT


def test_a_closed_connection_takes_nothing(broker: RemotingBroker) -> None:
    gone = Peer()
    broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=15_000), peer=gone)
    broker.processors.connection_closed(gone)
    broker.send("a")
    broker.turns.run(20_000)
    assert gone.answers == {}
    assert len(handles_of(pop(broker))) == 1


def test_too_many_waiting_pops_are_told() -> None:
    broker = remoting_master(max_waiting_per_client=1)
    broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=15_000))
    answer = broker.answer(codes.POP_MESSAGE, ext(broker, pollTime=15_000))
    assert answer.code == codes.POLLING_FULL
    assert set(answer.ext) >= set(INFO)
    other = Peer(6000)
    broker.send_request(codes.POP_MESSAGE, ext(broker, pollTime=15_000), peer=other)
    assert other.answers == {}, "another client waits"


def test_a_group_that_holds_too_many_messages_is_told() -> None:
    broker = remoting_master(max_in_flight_per_group=1)
    broker.send("a", "b")
    ((record, handle),) = handles_of(pop(broker))
    answer = pop(broker)
    assert (answer.code, "max_in_flight_per_group" in (answer.remark or "")) == (codes.SYSTEM_BUSY, True)
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    assert len(handles_of(pop(broker))) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"maxMsgNums": 33}, codes.INVALID_PARAMETER),
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"queueId": 1}, codes.INVALID_PARAMETER),
        ({"queueId": -2}, codes.INVALID_PARAMETER),
        ({"exp": "a =", "expType": "SQL92"}, codes.SUBSCRIPTION_PARSE_FAILED),
        ({"consumerGroup": ""}, codes.INVALID_PARAMETER),
        ({"initMode": 2}, codes.INVALID_PARAMETER),
        ({"pollTime": "soon"}, codes.INVALID_PARAMETER),
    ],
)
def test_refusals(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    answer = pop(broker, **changes)
    assert (answer.code, bool(answer.remark)) == (code, True)


def test_ordered_pops_report_counts(broker: RemotingBroker) -> None:
    broker.group("g", fifo=True)
    broker.send("a", "b", "c")
    first = pop(broker, maxMsgNums=2, invisibleTime=1000)
    assert first.ext["reviveQid"] == "999"
    assert first.ext["orderCountInfo"] == "0 qo0%0 0;0 qo0%1 0;0 0 0"
    (record, handle), _ = handles_of(first)
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    broker.turns.run(1000)
    again = pop(broker, order="true")
    assert again.ext["orderCountInfo"] == "0 qo0%1 1;0 0 1"


def test_changing_the_invisible_time(broker: RemotingBroker) -> None:
    broker.send("a")
    ((record, handle),) = handles_of(pop(broker))
    change = codes.CHANGE_MESSAGE_INVISIBLETIME
    answer = broker.answer(change, named(record, handle, invisibleTime=2000))
    assert answer.code == 0
    new = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 broker-a 0 0"
    assert broker.answer(change, named(record, handle, invisibleTime=2000)).code == codes.MESSAGE_ILLEGAL
    assert broker.answer(codes.ACK_MESSAGE, named(record, new)).code == 0


def test_no_change_hides_a_message_for_longer_than_its_group_allows(broker: RemotingBroker) -> None:
    broker.group("g", attributes={"invisible.min.ms": "5000", "invisible.max.ms": "30000"})
    broker.send("a")
    ((record, handle),) = handles_of(pop(broker))
    change = codes.CHANGE_MESSAGE_INVISIBLETIME
    refused = broker.answer(change, named(record, handle, invisibleTime=30_001))
    assert (refused.code, refused.remark) == (
        codes.INVALID_PARAMETER,
        "the invisible time of consumer group g is from 0 to 30000 ms, not 30001",
    )
    answer = broker.answer(change, named(record, handle, invisibleTime=30_000))
    assert answer.code == 0, "the handle is still good"
    new = f"0 {answer.ext['popTime']} {answer.ext['invisibleTime']} {answer.ext['reviveQid']} 0 broker-a 0 0"
    soon = broker.answer(change, named(record, new, invisibleTime=1))
    assert soon.code == 0, "what shall come again soon is not bounded"


def test_a_changed_handle_starts_at_its_message(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    _, (record, handle) = handles_of(pop(broker))
    answer = broker.answer(codes.CHANGE_MESSAGE_INVISIBLETIME, named(record, handle, invisibleTime=2000))
    rest = " ".join(answer.ext[name] for name in INFO[:3]) + " 0 broker-a 0 1"
    assert broker.answer(codes.ACK_MESSAGE, named(record, f"0 {rest}")).code == codes.MESSAGE_ILLEGAL
    assert broker.answer(codes.ACK_MESSAGE, named(record, f"1 {rest}")).code == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"topic": "nowhere"}, codes.TOPIC_NOT_EXIST),
        ({"queueId": 7}, codes.MESSAGE_ILLEGAL),
        ({"offset": 1}, codes.NO_MESSAGE),
        ({"extraInfo": "garbage"}, codes.MESSAGE_ILLEGAL),
        ({"extraInfo": ""}, codes.INVALID_PARAMETER),
        ({"consumerGroup": "h"}, codes.MESSAGE_ILLEGAL),
    ],
)
def test_bad_acks(broker: RemotingBroker, changes: dict[str, Any], code: int) -> None:
    broker.send("a")
    ((record, handle),) = handles_of(pop(broker))
    for request in (codes.ACK_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME):
        assert broker.answer(request, named(record, handle, invisibleTime=5, **changes)).code == code


def batch(answer: Command, bits: int, **changes: Any) -> bytes:
    entry = {
        "c": "g",
        "t": "t",
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": 0,
        "pt": int(answer.ext["popTime"]),
        "it": 10_000,
        "b": base64.b64encode(bits.to_bytes(8, "little")).decode(),
        **changes,
    }
    return orjson.dumps({"brokerName": "broker-a", "acks": [entry]})


def test_batches_of_acks(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(10)))
    answer = pop(broker)
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=batch(answer, 0b1000000101)).code == 0
    assert broker.progress.in_flight("g", "t", 0) == 7
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=batch(answer, 0b1111)).code == 0
    assert broker.progress.in_flight("g", "t", 0) == 5
    long_names = {
        "consumerGroup": "g",
        "topic": "t",
        "retry": "0",
        "startOffset": 0,
        "queueId": 0,
        "reviveQueueId": 0,
        "popTime": int(answer.ext["popTime"]),
        "invisibleTime": "10000",
        "bitSet": base64.b64encode((0b11111).to_bytes(1, "little")).decode(),
    }
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=orjson.dumps({"acks": [long_names]})).code == 0
    assert broker.progress.in_flight("g", "t", 0) == 4


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", codes.INVALID_PARAMETER),
        (b"{}", codes.NO_MESSAGE),
        (b'{"acks":[]}', codes.NO_MESSAGE),
        (b'{"acks":[{"c":"g","t":"t","b":"?"}]}', codes.INVALID_PARAMETER),
        (b'{"acks":[{"c":"g","t":"t","r":"7","b":""}]}', codes.INVALID_PARAMETER),
        (b'{"acks":[{"c":"g","t":"t","so":"x","b":"AQ=="}]}', codes.INVALID_PARAMETER),
        (b'{"acks":[{"c":"g","t":"t","so":-5,"q":0,"pt":0,"it":0,"b":"AQ=="}]}', 0),
    ],
)
def test_bad_batches(broker: RemotingBroker, body: bytes, code: int) -> None:
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=body).code == code


def test_a_batch_of_acks_is_not_looked_at_without_end(broker: RemotingBroker) -> None:
    broker.send(*map(str, range(32)))
    answer = pop(broker)
    too_many = batch(answer, (1 << 33) - 1)
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=too_many).code == codes.INVALID_PARAMETER
    [entry] = orjson.loads(batch(answer, (1 << 32) - 1))["acks"]
    for count, code in ((129, codes.INVALID_PARAMETER), (128, 0)):
        body = orjson.dumps({"acks": [{**entry, "pt": entry["pt"] - number} for number in range(count)]})
        assert broker.answer(codes.BATCH_ACK_MESSAGE, body=body).code == code
    assert broker.progress.in_flight("g", "t", 0) == 0


def test_both_protocols_share_messages_each_with_its_own_handles(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    ((record, handle),) = handles_of(pop(broker, maxMsgNums=1))
    other = broker.receive(1).messages[0]
    assert record.body == b"a"
    from_grpc = next(iter(decode_records(other.record)))
    fields = " ".join(other.receipt_handle.split(" ")[:8])
    for request in (codes.ACK_MESSAGE, codes.CHANGE_MESSAGE_INVISIBLETIME):
        changes = {"invisibleTime": 0}
        assert broker.answer(request, named(from_grpc, fields, **changes)).code == codes.MESSAGE_ILLEGAL, "a guess"
    bits = {"so": 1, "pt": int(fields.split(" ")[1])}
    assert broker.answer(codes.BATCH_ACK_MESSAGE, body=batch(pop(broker), 1, **bits)).code == 0
    assert broker.progress.in_flight("g", "t", 0) == 2, "what cannot be acked is skipped"
    assert broker.ack(other)[0].name == "OK"
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    assert broker.progress.in_flight("g", "t", 0) == 0


def test_what_comes_back_is_shared_too(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    broker.receive(1, invisible_time_ms=1000)
    pop(broker, invisibleTime=1000)
    broker.turns.run(1000)
    ((record, handle),) = handles_of(pop(broker, maxMsgNums=1))
    (other,) = broker.receive().messages
    assert broker.answer(codes.ACK_MESSAGE, named(record, handle)).code == 0
    assert broker.ack(other)[0].name == "OK"


def test_the_originals_proxy_appends_the_place_in_the_log(broker: RemotingBroker) -> None:
    broker.send("a", "b")
    messages = handles_of(pop(broker))
    (first, handle), (second, other) = messages
    wrong = named(first, f"{handle} {second.physical_offset}")
    assert broker.answer(codes.ACK_MESSAGE, wrong).code == codes.MESSAGE_ILLEGAL
    for record, eight in messages:
        right = named(record, f"{eight} {record.physical_offset}")
        assert broker.answer(codes.ACK_MESSAGE, right).code == 0
    assert other != handle


def test_who_looks_with_a_filter_sees_what_a_pop_with_it_gets(broker: RemotingBroker) -> None:
    broker.send("a", tag="x")
    broker.send("b", tag="y")
    peeked = broker.answer(codes.PEEK_MESSAGE, ext(broker, exp="y", expType="TAG"))
    assert [record.body for record in decode_records(peeked.body)] == [b"b"]
    for expression, found in (("y", "true"), ("z", "false")):
        notice = broker.answer(codes.NOTIFICATION, ext(broker, exp=expression))
        assert notice.ext["hasMsg"] == found
    popped = pop(broker, exp="y")
    assert [record.body for record, _ in handles_of(popped)] == [b"b"]
    assert popped.ext["restNum"] == peeked.ext["restNum"] == "0"
