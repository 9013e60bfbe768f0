"""Answers to requests that were sent as messages: who gets them, what the answering client learns, what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from brokerd.members.consumer_groups import ClientInfo
from brokerd.members.registry import ClientRegistry
from brokerd.processors.sending import replies
from brokerd.processors.sending.replies import ReplyProcessor
from brokerd.sending.outcomes import SendOutcome
from brokerd.sending.sender import Ready
from brokerd.store.draft import Draft
from brokerd.store.put_status import PutStatus
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import LogboomError, NotMaster, RequestError, RequestTimeout
from remoting.frame import Command
from remoting.record.hosts import pack_host
from remoting.record.properties import decode_properties, encode_properties
from tests.support.garbage import collected
from tests.support.open_guard import yes

STORE_HOST = pack_host("10.0.0.2", 10911)
NOW_MS = 1_700_000_000_000


class Client:
    """A connection: what it was answered, and what it was asked."""

    def __init__(self) -> None:
        self.peer = "10.0.0.1:40000"
        self.packed_peer = pack_host("10.0.0.1", 40000)
        self.answers: list[Command] = []
        self.pushed: list[tuple[int, Mapping[str, str], Bytes, int]] = []
        self.waiting: list[Callable[[Command | LogboomError], None]] = []

    def respond(
        self, request: Command, code: int = 0, ext: Any = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        self.answers.append(Command(code, request.opaque, dict(ext or {}), body, codes.FLAG_RESPONSE, remark))

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.respond(request, error.code, remark=str(error))

    def request(
        self,
        code: int,
        ext: Mapping[str, str] | None,
        body: Bytes,
        timeout_ms: int,
        answered: Callable[[Command | LogboomError], None],
    ) -> None:
        self.pushed.append((code, ext or {}, body, timeout_ms))
        self.waiting.append(answered)

    def notify(self, *_: object) -> bool:
        raise AssertionError("nobody is to be notified")


class Sender:
    """Stores, or refuses."""

    def __init__(self) -> None:
        self.stored: list[Draft] = []
        self.error: RequestError | None = None
        self.status = PutStatus.PUT_OK

    def prepare(self, drafts: Sequence[Draft]) -> tuple[list[SendOutcome], list[Ready]]:
        if self.error is not None:
            return [SendOutcome(PutStatus.MESSAGE_ILLEGAL, error=self.error)], []
        return [SendOutcome(PutStatus.PUT_OK, 0)], [Ready(0, drafts[0]._replace(queue_id=0))]

    def send(self, drafts: Sequence[Draft], done: Callable[[Sequence[SendOutcome]], None]) -> None:
        if self.status is PutStatus.SERVICE_NOT_AVAILABLE:
            done([SendOutcome(self.status, error=RequestError(codes.SERVICE_NOT_AVAILABLE, "no"))])
            return
        self.stored += drafts
        done([SendOutcome(self.status, 0, 17, 4096)])


class Broker:
    def __init__(self, *, stores: bool = True) -> None:
        self.clients = ClientRegistry(lambda: 0, lambda: NOW_MS, yes)
        self.sender = Sender()
        self.requester, self.answerer = Client(), Client()
        self.clients.remoting_heartbeat(self.requester, ClientInfo("asker", "", "JAVA", ""), ["pg"], ())  # type: ignore[arg-type]
        self.processor = ReplyProcessor(self.sender, self.clients, STORE_HOST, lambda: NOW_MS, stores=stores)

    def reply(self, to: str | None = "asker", body: bytes = b"answer", **fields: str) -> None:
        properties = {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000"}
        if to is not None:
            properties["REPLY_TO_CLIENT"] = to
        ext = {
            "a": "g",
            "b": "c_REPLY_TOPIC",
            "c": "TBW102",
            "d": "4",
            "e": "-1",
            "f": "1",
            "g": "5",
            "h": "0",
            "k": "false",
        }
        ext |= {"i": encode_properties(properties).decode(), **fields}
        self.processor.handle(self.answerer, Command(codes.SEND_REPLY_MESSAGE_V2, 9, ext, body))  # type: ignore[arg-type]

    @property
    def answer(self) -> Command:
        [answer] = self.answerer.answers
        return answer


def test_an_answer_reaches_who_asked_and_both_learn_of_it() -> None:
    broker = Broker()
    broker.reply()
    [(code, ext, body, timeout_ms)] = broker.requester.pushed
    assert (code, bytes(body), timeout_ms) == (codes.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer", 10_000)
    properties = decode_properties(ext["properties"].encode())
    assert properties.pop("PUSH_REPLY_TIME") == str(NOW_MS)
    assert properties == {"MSG_TYPE": "reply", "CORRELATION_ID": "c1", "TTL": "3000", "REPLY_TO_CLIENT": "asker"}
    assert {name: value for name, value in ext.items() if name != "properties"} == {
        **{"producerGroup": "g", "topic": "c_REPLY_TOPIC", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"},
        **{
            "queueId": "0",
            "sysFlag": "1",
            "bornTimestamp": "5",
            "flag": "0",
            "reconsumeTimes": "0",
            "unitMode": "false",
        },
        **{"bornHost": "10.0.0.1:40000", "storeHost": "10.0.0.2:10911", "storeTimestamp": str(NOW_MS)},
    }
    assert not broker.answerer.answers
    broker.requester.waiting[0](Command(0, 1))
    assert (broker.answer.code, broker.answer.ext["queueOffset"], broker.answer.ext["queueId"]) == (0, "17", "0")
    assert broker.answer.ext["msgId"] == (STORE_HOST + (4096).to_bytes(8, "big")).hex().upper()
    assert [draft.body for draft in broker.sender.stored] == [b"answer"]


@pytest.mark.parametrize(
    ("result", "reason"),
    [(Command(1, 1, remark="no such request"), "no such request"), (RequestTimeout("too late"), "too late")],
)
def test_an_answer_that_is_not_taken_is_stored_and_said_so(result: Command | LogboomError, reason: str) -> None:
    broker = Broker()
    broker.reply()
    broker.requester.waiting[0](result)
    assert broker.answer.code == codes.SYSTEM_ERROR
    assert reason in (broker.answer.remark or "")
    assert len(broker.sender.stored) == 1


@pytest.mark.parametrize(("to", "reason"), [("stranger", "<stranger> not found"), (None, "REPLY_TO_CLIENT is missing")])
def test_an_answer_to_nobody_is_said_so_at_once(to: str | None, reason: str) -> None:
    broker = Broker()
    broker.reply(to)
    assert broker.answer.code == codes.SYSTEM_ERROR
    assert reason in (broker.answer.remark or "")


def test_a_requester_that_left_is_not_found() -> None:
    broker = Broker()
    broker.clients.connection_closed(broker.requester)
    broker.reply()
    assert broker.answer.code == codes.SYSTEM_ERROR


def test_answers_need_not_be_stored() -> None:
    for broker in (Broker(stores=False), Broker()):
        broker.sender.status = PutStatus.SERVICE_NOT_AVAILABLE
        broker.reply()
        broker.requester.waiting[0](Command(0, 1))
        assert (broker.answer.code, broker.answer.ext["msgId"], broker.answer.ext["queueOffset"]) == (0, "0", "0")
        assert not broker.sender.stored


def test_what_cannot_be_stored_is_not_passed_on() -> None:
    broker = Broker()
    with collected() as garbage:
        broker.sender.error = RequestError(codes.MESSAGE_ILLEGAL, "too long")
        broker.reply()
        broker.sender.error = None
    assert not garbage
    [answer] = broker.answerer.answers
    assert (answer.code, answer.remark) == (codes.MESSAGE_ILLEGAL, "too long")
    with pytest.raises(RequestError, match="one by one"):
        broker.reply(m="true", i="", body=b"\0\0\0\x17" + bytes(12) + b"\0\0\0\1x\0\0")
    assert not broker.requester.pushed


def test_answers_that_wait_for_their_requesters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_PUSHES", 2)
    broker = Broker()
    broker.reply()
    broker.reply()
    with pytest.raises(RequestError) as refusal:
        broker.reply()
    assert refusal.value.code == codes.SYSTEM_BUSY
    broker.requester.waiting[0](NotMaster())
    broker.reply()
    monkeypatch.setattr(replies, "MAX_PUSHED_BYTES", 2 * len(b"answer") + 5)
    broker.requester.waiting[1](Command(0, 1))
    broker.reply(body=b"12345")
    with pytest.raises(RequestError):
        broker.reply(body=b"12345678")


def test_the_long_names_of_other_clients_mean_the_same() -> None:
    broker = Broker()
    ext = {
        "producerGroup": "g",
        "topic": "c_REPLY_TOPIC",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "0",
    }
    ext["properties"] = encode_properties({"REPLY_TO_CLIENT": "asker"}).decode()
    command = Command(codes.SEND_REPLY_MESSAGE, 9, ext, b"answer")
    broker.processor.handle_long_names(broker.answerer, command)  # type: ignore[arg-type]
    assert len(broker.requester.pushed) == 1
