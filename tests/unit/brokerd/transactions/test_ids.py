"""Ids of transactions that began over gRPC: one way to write each, and no way to guess one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from brokerd.transactions.decide import EndTransaction, Outcome, WrongTransaction
from brokerd.transactions.ids import SECRET_LENGTH, TransactionId, parse_transaction_id
from brokerd.transactions.records import SECRET, EndedAs
from brokerd.transactions.settings import TransactionSettings
from remoting import codes
from remoting.errors import RequestError
from remoting.names import HALF_TOPIC
from tests.support.transactions import Producer, Stream, TransactionBroker

MINE = "0123456789abcdef" * 2
THEIRS = "fedcba9876543210" * 2


@pytest.fixture
def broker() -> TransactionBroker:
    return TransactionBroker().topic()


def begin(
    broker: TransactionBroker, secret: str = MINE, properties: Mapping[str, str] | None = None, **given: Any
) -> TransactionId:
    """As a producer of gRPC does: whoever publishes the topic is its group."""
    half = broker.half(group="T", properties={SECRET: secret, **(properties or {})}, **given)
    return TransactionId(half.physical_offset, half.queue_offset, secret, "broker-a")


def end(
    broker: TransactionBroker,
    identity: TransactionId,
    outcome: Outcome = Outcome.COMMIT,
    *,
    group: str = "T",
    secret: str | None = None,
    from_check: bool = False,
    unique_key: str | None = None,
) -> RequestError | None:
    shown = identity.secret if secret is None else secret
    return broker.decide(
        EndTransaction(group, identity.queue_offset, identity.physical_offset, outcome, from_check, shown, unique_key)
    )


def parsed(text: str) -> TransactionId:
    identity = parse_transaction_id(text)
    assert identity is not None
    return identity


# ---- the text


@pytest.mark.parametrize("name", ["broker-a", "a-b-c", "b", "Gruppe ä"])
def test_an_id_says_what_it_was_made_of(name: str) -> None:
    for numbers in ((0, 0), (1, 2), (884_213, 17), ((1 << 62), 1 << 40)):
        identity = TransactionId(*numbers, MINE, name)
        assert parse_transaction_id(str(identity)) == identity


def _altered(text: str) -> Iterator[str]:
    yield from ("", " ", "T1", text + "\n", text.upper(), text.replace("T1", "T2"), text.replace("-17-", "-017-"))
    yield from (text.replace("-17-", "-٣-"), text.replace("-17-", "-+17-"), text.replace("-17-", "- 17-"))
    yield from (text.replace("-17-", "-1_7-"), text.replace("-17-", "--17-"), text.replace(MINE, MINE[1:]))
    yield from (text.replace(MINE, MINE + "0"), text.replace(MINE, MINE.upper()), text.replace("broker-a", ""))
    yield text.replace("-17-", f"-{'9' * 20}-")


def test_there_is_one_way_to_write_an_id() -> None:
    text = str(TransactionId(884_213, 17, MINE, "broker-a"))
    assert text == f"T1-884213-17-{MINE}-broker-a"
    for altered in _altered(text):
        assert parse_transaction_id(altered) is None, altered


# ---- what it proves


def test_only_who_knows_the_secret_ends_the_transaction(broker: TransactionBroker) -> None:
    identity = begin(broker)
    rng = random.Random(5)
    guesses = [THEIRS, "", MINE[:-1], MINE.upper(), f"{MINE} "]
    guesses += [f"{rng.getrandbits(4 * SECRET_LENGTH):0{SECRET_LENGTH}x}" for _ in range(1000)]
    for guess in guesses:
        assert isinstance(end(broker, identity, secret=guess), WrongTransaction)
    assert broker.bodies() == []
    assert end(broker, identity) is None
    assert broker.bodies() == [b"m"]


def test_every_part_must_fit_the_stored_half_message(broker: TransactionBroker) -> None:
    mine, theirs = begin(broker, key="A" * 32), begin(broker, THEIRS, key="B" * 32)
    assert isinstance(end(broker, mine._replace(physical_offset=theirs.physical_offset)), WrongTransaction)
    assert isinstance(end(broker, mine._replace(queue_offset=theirs.queue_offset)), WrongTransaction)
    assert isinstance(end(broker, mine, group="other"), WrongTransaction)
    assert isinstance(end(broker, mine, unique_key="B" * 32), WrongTransaction)
    for nowhere in (mine.physical_offset + 1, 0, 1 << 62):
        assert isinstance(end(broker, mine._replace(physical_offset=nowhere)), WrongTransaction)
    assert broker.bodies() == []
    assert end(broker, mine, unique_key="A" * 32) is None
    assert end(broker, theirs, Outcome.ROLLBACK) is None
    assert isinstance(end(broker, mine, Outcome.ROLLBACK), WrongTransaction), "it ended the other way"
    assert end(broker, mine) is None, "who asks again is told the same"


def test_a_producer_of_remoting_shows_no_secret_and_needs_none(broker: TransactionBroker) -> None:
    half = broker.half()
    shown = EndTransaction("pg", half.queue_offset, half.physical_offset, Outcome.COMMIT, secret=MINE)
    assert isinstance(broker.decide(shown), WrongTransaction)
    assert broker.end(half) is None


def test_the_secret_stays_with_brokers(broker: TransactionBroker) -> None:
    asked, connection = Stream(), Producer()
    broker.streams["T"], broker.producers["T"] = [asked], [connection]
    committed, open_one = begin(broker), begin(broker, THEIRS)
    assert end(broker, committed) is None
    [record] = broker.records()
    assert SECRET not in record.property_map()
    assert record.property_map()["__transactionId__"] == record.property_map()["UNIQ_KEY"]
    broker.look()
    broker.look()
    [(question, _)] = asked.asked
    [(ext, sent)] = connection.asked
    for each in (question, sent):
        assert (each.topic, each.body, SECRET in each.property_map()) == ("T", b"m", False)
    assert parsed(ext["transactionId"]).secret == THEIRS
    assert [half.property_map().get(SECRET) for half in broker.halves] == [MINE, THEIRS, THEIRS, THEIRS]
    assert open_one.secret == THEIRS


# ---- checks


def test_who_publishes_the_topic_is_asked_in_turn(broker: TransactionBroker) -> None:
    first, second, other = Stream(), Stream(), Stream()
    broker.streams |= {"T": [first, second], "U": [other]}
    identity = begin(broker)
    for _ in range(4):
        broker.look()
    assert (len(first.asked), len(second.asked), other.asked) == (2, 2, [])
    ids = {text for _, text in first.asked + second.asked}
    assert len(ids) == 4, "each check is about a record of its own"
    assert str(identity) not in ids
    last = parsed((first.asked + second.asked)[-1][1])
    assert end(broker, last) is None, "some clients do not say that they were asked"
    assert broker.bodies() == [b"m"]


def test_a_stream_that_takes_nothing_costs_no_check(broker: TransactionBroker) -> None:
    deaf, closed, fine = Stream(), Stream(), Stream()
    deaf.takes, closed.is_open = False, False
    broker.streams["T"] = [deaf, closed, fine]
    begin(broker)
    for _ in range(3):
        broker.look()
    assert (len(fine.asked), deaf.asked, closed.asked) == (3, [], [])
    assert broker.service.counters.unasked == 0


def test_what_a_proxy_of_the_original_began_is_asked_about_over_grpc(broker: TransactionBroker) -> None:
    """Its half messages are of the group that is named like the topic, and have no secret."""
    stream = Stream()
    broker.streams["T"] = [stream]
    half = broker.half(group="T")
    broker.look()
    broker.look()
    first, second = (parsed(text) for _, text in stream.asked)
    assert first.secret == second.secret
    assert SECRET not in stream.asked[1][0].property_map()
    assert broker.end(half, group="T") is None, "what nobody was told a secret of is ended as it began"
    assert broker.bodies() == [b"m"]


def test_where_a_producer_of_remoting_is_there_it_is_asked(broker: TransactionBroker) -> None:
    stream, connection = Stream(), Producer()
    broker.streams["pg"], broker.producers["pg"] = [stream], [connection]
    broker.half()
    broker.look()
    [(ext, _)] = connection.asked
    assert (stream.asked, ext["transactionId"]) == ([], ext["msgId"])
    assert broker.answer_check(ext) is None
    assert broker.bodies() == [b"m"]


class Counted(dict[str, list[Stream]]):
    """Who is connected, and how often somebody asked."""

    def __init__(self, streams: dict[str, list[Stream]]) -> None:
        super().__init__(streams)
        self.lookups: list[str] = []

    def get(self, topic: str, default: Any = None) -> Any:
        self.lookups.append(topic)
        return super().get(topic, default)


def test_who_is_connected_is_looked_up_once_for_many(broker: TransactionBroker) -> None:
    stream = Stream()
    broker.streams = counted = Counted({"T": [stream]})
    for _ in range(100):
        begin(broker)
    broker.look()
    assert len(stream.asked) == 100
    assert counted.lookups == ["T"]


def test_immunity_is_honoured(broker: TransactionBroker) -> None:
    stream = Stream()
    broker.streams["T"] = [stream]
    identity = begin(broker, properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "70"})
    broker.look()
    broker.look()
    assert stream.asked == []
    broker.look()
    assert len(stream.asked) == 1
    refused = end(broker, identity)
    assert refused is not None
    assert refused.code == codes.ILLEGAL_OPERATION
    assert end(broker, parsed(stream.asked[0][1])) is None
    assert broker.bodies() == [b"m"]


def test_commits_that_cross_checks_are_visible_once() -> None:
    """200 of 200: in every order of the producer's own commit, a check, its answer, and what was asked before."""
    broker = TransactionBroker(settings=TransactionSettings(timeout_ms=0, check_interval_ms=1000)).topic()
    stream = Stream()
    broker.streams["T"] = [stream]
    rng = random.Random(17)
    begun = {body: begin(broker, f"{number:032x}", body=body) for number, body in enumerate(_bodies(200))}
    waiting = list(begun)
    for _ in range(4):
        stream.asked.clear()
        broker.turns.run(1000)
        asked = {half.body: parsed(text) for half, text in stream.asked}
        late = []
        for body in rng.sample(waiting, len(waiting) // 2):
            ways = [begun[body], *([asked[body]] if body in asked else [])]
            rng.shuffle(ways)
            for way in ways:
                assert end(broker, way, from_check=rng.random() < 0.5) is None
            late += ways
            waiting.remove(body)
        for way in late:
            assert end(broker, way) is None, "asked again, each is told the same"
    for body in waiting:
        assert end(broker, begun[body]) is None
    assert sorted(broker.bodies()) == sorted(begun)
    assert broker.service.state().open == 0


def _bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_ids_outlive_a_restart_and_checks(broker: TransactionBroker) -> None:
    identity, other = begin(broker), begin(broker, THEIRS)
    broker.look()
    broker = broker.restart()
    assert isinstance(end(broker, identity, secret=THEIRS), WrongTransaction)
    assert end(broker, identity) is None
    assert end(broker, other, Outcome.ROLLBACK) is None
    assert broker.bodies() == [b"m"]


def test_what_was_given_up_is_committed_without_the_secret() -> None:
    broker = TransactionBroker(settings=TransactionSettings(check_max=1)).topic()
    begin(broker)
    broker.look()
    broker.look()
    [given_up] = broker.given_up
    answers: list[object] = []
    broker.service.end_given_up(given_up.queue_offset, EndedAs.COMMIT, "ann", answers.append)
    broker.turns.run()
    assert answers == [None]
    [record] = broker.records()
    assert SECRET not in record.property_map()
    assert [half.topic for half in broker.halves] == [HALF_TOPIC, HALF_TOPIC]
