"""A transaction over gRPC, one rule at a time: the half message, the id that it is answered with, and its end."""

from __future__ import annotations

import pytest

from brokerd.proxy.protobuf import definition, service
from brokerd.proxy.status import Code
from brokerd.store.put_status import PutStatus
from brokerd.transactions.decide import EndTransaction, Outcome, WrongTransaction
from brokerd.transactions.ids import TransactionId, parse_transaction_id
from remoting import codes
from remoting.errors import RequestError
from remoting.record.codec import decode_record
from tests.unit.brokerd.proxy.test_methods import resource, sending

TRANSACTION = definition.MessageType.Value("TRANSACTION")
COMMIT, ROLLBACK = (definition.TransactionResolution.Value(name) for name in ("COMMIT", "ROLLBACK"))
CLIENT, CHECK = (definition.TransactionSource.Value(name) for name in ("SOURCE_CLIENT", "SOURCE_SERVER_CHECK"))
SECRET = "0123456789abcdef" * 2


def begin(bench, *bodies, topic="Transaction"):
    request = sending(*bodies or (b"half",), topic=topic, message_type=TRANSACTION)
    return bench.call("SendMessage", request, service.SendMessageResponse)


def ending(text: str, **changes):
    fields = {"topic": resource("Transaction"), "message_id": "m-1", "resolution": COMMIT, "source": CLIENT, **changes}
    return service.EndTransactionRequest(transaction_id=text, **fields)


def end(bench, text: str, **changes):
    return bench.call("EndTransaction", ending(text, **changes), service.EndTransactionResponse).status


@pytest.mark.parametrize("topic", ["Transaction", "Mixed"])
def test_a_half_message_is_answered_with_the_id_that_ends_it(bench, topic) -> None:
    first, second = begin(bench, topic=topic), begin(bench, topic=topic)
    assert (first.status.code, [entry.status.code for entry in first.entries]) == (Code.OK, [Code.OK])
    ids = [parse_transaction_id(response.entries[0].transaction_id) for response in (first, second)]
    for identity, stored in zip(ids, bench.broker.log, strict=True):
        assert identity is not None
        properties = decode_record(stored.record).property_map()
        assert (properties["TRAN_MSG"], properties["PGROUP"]) == ("true", topic)
        assert identity == TransactionId(
            stored.physical_offset, stored.queue_offset, properties["TRAN_SECRET"], "broker-a"
        )
    assert ids[0].secret != ids[1].secret


def test_other_messages_have_no_transaction(bench) -> None:
    response = bench.call("SendMessage", sending(b"one", b"two"), service.SendMessageResponse)
    assert [entry.transaction_id for entry in response.entries] == ["", ""]


def test_a_half_message_is_the_only_one_of_its_request(bench) -> None:
    response = begin(bench, b"one", b"two")
    assert response.status.code == Code.BAD_REQUEST
    assert bench.broker.log == []


def test_a_half_message_that_may_not_be_replicated_can_be_ended_all_the_same(bench) -> None:
    bench.broker.send_status = PutStatus.FLUSH_SLAVE_TIMEOUT
    response = begin(bench)
    assert response.status.code == Code.SLAVE_PERSISTENCE_TIMEOUT
    assert response.entries[0].transaction_id == "", "the fake stored nothing"


@pytest.mark.parametrize(
    ("resolution", "outcome"), [(COMMIT, Outcome.COMMIT), (ROLLBACK, Outcome.ROLLBACK), (0, Outcome.UNKNOWN)]
)
@pytest.mark.parametrize(("source", "from_check"), [(CLIENT, False), (CHECK, True), (0, False)])
def test_what_a_producer_decided(bench, resolution, outcome, source, from_check) -> None:
    text = str(TransactionId(4711, 3, SECRET, "broker-a"))
    assert end(bench, text, resolution=resolution, source=source).code == Code.OK
    assert bench.broker.ends == [EndTransaction("Transaction", 3, 4711, outcome, from_check, SECRET, "m-1")]


@pytest.mark.parametrize(
    "text",
    ["", "made up", "01A2B3", str(TransactionId(4711, 3, SECRET, "broker-b")), f"T1-1-2-{SECRET.upper()}-broker-a"],
)
def test_a_made_up_id(bench, text) -> None:
    status = end(bench, text)
    assert (status.code, bool(status.message)) == (Code.INVALID_TRANSACTION_ID, True)
    assert bench.broker.ends == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WrongTransaction("not open"), Code.INVALID_TRANSACTION_ID),
        (RequestError(codes.SYSTEM_ERROR, "the disk"), Code.INTERNAL_SERVER_ERROR),
        (RequestError(codes.ILLEGAL_OPERATION, "too late"), Code.BAD_REQUEST),
        (RequestError(codes.SLAVE_NOT_AVAILABLE, "a replica"), Code.HA_NOT_AVAILABLE),
        (RequestError(codes.FLUSH_SLAVE_TIMEOUT, "not known"), Code.SLAVE_PERSISTENCE_TIMEOUT),
    ],
)
def test_why_it_is_not_ended(bench, error, code) -> None:
    bench.broker.end_error = error
    assert end(bench, str(TransactionId(4711, 3, SECRET, "broker-a"))).code == code
