"""What gRPC clients say about themselves is remembered within bounds."""

from __future__ import annotations

from brokerd.proxy.calls import Peer
from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code
from tests.unit.brokerd.proxy.calls import METADATA
from tests.unit.brokerd.proxy.test_methods import consumer, producer, resource, settings_of


def test_what_all_connections_make_us_remember_is_bounded(bench, monkeypatch) -> None:
    """Who ends makes room for others, and so does who sends less; the others are told."""
    settings = settings_of(producer("Normal"))
    size = len(settings.SerializeToString())
    monkeypatch.setattr("brokerd.proxy.sessions.MAX_SETTINGS_BYTES", 3 * size + 1)
    peers = [Peer("a", b"", object()) for _ in range(3)]

    def told(number, peer, command=settings) -> int:
        metadata = {**METADATA, "x-mq-client-id": f"c{number}"}
        call = bench.begin("Telemetry", command, metadata=metadata, peer=peer)
        return service.TelemetryCommand.FromString(call.answers[0]).status.code

    assert [told(number, peers[number % 3]) for number in range(5)] == [Code.OK] * 3 + [Code.TOO_MANY_REQUESTS] * 2
    assert told(0, peers[0]) == Code.OK, "instead of what it said before"
    bench.methods.sessions.connection_closed(peers[1].connection)
    assert told(3, peers[0]) == Code.OK
    bench.methods.sessions.forget("c3", peers[0].connection)
    assert [told(number, peers[2]) for number in (3, 4)] == [Code.OK, Code.TOO_MANY_REQUESTS]


def test_an_expression_that_no_receive_may_have_is_not_remembered(bench) -> None:
    command = settings_of(consumer("G"))
    entry = command.settings.subscription.subscriptions.add(topic=resource("Normal"))
    for length, code in ((16_384, Code.OK), (16_385, Code.ILLEGAL_FILTER_EXPRESSION)):
        entry.expression.expression = "a" * length
        call = bench.begin("Telemetry", command)
        assert service.TelemetryCommand.FromString(call.answers[0]).status.code == code


def test_what_one_connection_says_at_length_takes_the_place_of_what_it_said_before(bench, monkeypatch) -> None:
    settings = settings_of(producer("Normal"))
    monkeypatch.setattr(
        "brokerd.proxy.sessions.MAX_SETTINGS_BYTES_PER_CONNECTION", 2 * len(settings.SerializeToString()) + 1
    )
    peer = Peer("a", b"", object())
    for number in range(4):
        bench.begin("Telemetry", settings, metadata={**METADATA, "x-mq-client-id": f"c{number}"}, peer=peer)
    sessions = bench.methods.sessions
    assert [sessions.get(f"c{number}", peer.connection) is not None for number in range(4)] == [False] * 2 + [True] * 2


def test_what_is_told_again_is_bounded(bench, monkeypatch) -> None:
    """Room comes back when a stream ends, and when its client was told often enough; who does not read is told nothing."""
    settings = consumer()
    settings.subscription.subscriptions.add(topic=resource("T2"))

    def begin(number):
        metadata = {"x-mq-client-id": f"c{number}", "x-mq-language": "HTTP"}
        return bench.begin("Telemetry", settings_of(settings), metadata=metadata)

    size = len(begin(0).answers[0])
    bench.turns.run(60_000)
    monkeypatch.setattr("brokerd.proxy.methods.telling_again.MAX_KEPT_BYTES", 2 * size + 1)
    calls = [begin(number) for number in range(1, 4)]
    calls[1].writable = False
    bench.turns.run(60_000)
    assert [len(call.answers) for call in calls] == [5, 1, 1]
    begin(4).cancel()
    begin(5)
    bench.turns.run(1000)
    last = begin(6)
    bench.turns.run(60_000)
    assert len(last.answers) == 5
    assert bench.turns.waiting == 0
