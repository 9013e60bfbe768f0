"""Pulls and reads in bulk of messages that only the tier has: they wait for it, and stand in line again when something came."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from brokerd.loop.cold_line import SHORT_BYTES
from brokerd.processors.pulling import cold_line
from brokerd.processors.pulling.checks import FLAG_SUBSCRIPTION, FLAG_SUSPEND
from remoting import codes
from remoting.frame import Command
from remoting.record.codec import decode_records
from tests.support.native_library import native_library
from tests.support.pulls import pull_fields
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

COLD = 40


class Cold:
    def __init__(self) -> None:
        self.broker: RemotingBroker = remoting_master(share=0.01)
        self.broker.send(*map(str, range(COLD + 10)))
        self.broker.log.cold_ends["t", 0] = COLD
        assert self.broker.line is not None
        self.line = self.broker.line

    def serve_others(self) -> None:
        """All the time from now on."""
        self.broker.others_done += 1
        self.broker.turns.call_later(0.002, self.serve_others)

    def ask(self, peer: Peer, code: int = codes.PULL_MESSAGE, offset: int = 0, **fields: Any) -> None:
        self.broker.ask(code, pull_fields(offset, suspendTimeoutMillis=0) | fields, peer=peer)

    def stand(self, *peers: Peer, **fields: Any) -> None:
        """Have them stand in line for a while, each with a pull that has a large body."""
        self.broker.others_done += 1
        self.line.charge(0.001)
        for peer in peers:
            self.broker.send_request(codes.PULL_MESSAGE, pull_fields(**fields), bytes(1 << 20), peer)

    def fetched(self) -> None:
        self.broker.log.coming.clear()
        self.broker.pull.fetched("t", 0)
        self.broker.processors.bulk.wake("t", 0)


@pytest.fixture(params=["decoded", "as they come"])
def cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cold:
    if request.param == "as they come":
        monkeypatch.setattr(RemotingBroker, "library", native_library())
    return Cold()


def only(peer: Peer) -> Command:
    (answer,) = peer.answers.values()
    return answer


def count(peer: Peer) -> int:
    return len(list(decode_records(only(peer).body)))


@pytest.mark.parametrize("code", [codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE, codes.BULK_READ])
def test_who_waits_for_the_tier_stands_in_line_again_when_it_came(cold: Cold, code: int) -> None:
    one, other = Peer(), Peer()
    cold.broker.log.coming.add(("t", 0))
    cold.ask(one, code)
    cold.ask(other, code)
    cold.broker.turns.run(50)
    cold.serve_others()
    cold.broker.turns.run(5)
    cold.line.charge(0.001)  # of which the line rests for a tenth of a second
    cold.fetched()
    cold.broker.turns.run(20)
    assert (one.answers, other.answers) == ({}, {})
    cold.broker.turns.run(500)
    for peer in (one, other):
        assert count(peer) >= 32


def test_who_closed_or_gave_up_meanwhile_takes_nobodys_turn(cold: Cold) -> None:
    gone, slow, other = Peer(), Peer(), Peer()
    cold.broker.log.coming.add(("t", 0))
    for peer in (gone, slow, other):
        cold.ask(peer)
    cold.broker.turns.run()
    cold.serve_others()
    cold.line.charge(0.001)
    turns = cold.line.turns
    cold.fetched()
    cold.broker.turns.run(20)
    cold.broker.processors.connection_closed(gone)
    slow.is_slow = True
    cold.broker.turns.run(500)
    assert (gone.answers, only(slow).code) == ({}, codes.PULL_RETRY_IMMEDIATELY)
    assert count(other) == 32
    assert cold.line.turns == turns + 2


def test_whose_time_is_over_is_told_to_ask_again_and_nothing_is_read_for_it(cold: Cold) -> None:
    peers = [Peer() for _ in range(5)]
    cold.broker.log.coming.add(("t", 0))
    for peer in peers:
        cold.ask(peer, offset=7)
    bulk = Peer()
    cold.ask(bulk, codes.BULK_READ)
    cold.broker.turns.run(100)
    cold.broker.log.coming.clear()  # but nobody says so
    given = cold.broker.counters.out_messages
    cold.broker.turns.run(11_000)
    for peer in peers:
        answer = only(peer)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (codes.PULL_RETRY_IMMEDIATELY, "7")
    assert only(bulk).code == codes.SYSTEM_BUSY
    assert cold.broker.counters.out_messages == given


@pytest.mark.parametrize("code", [codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE, codes.BULK_READ])
def test_who_waits_for_the_tier_when_the_role_changes_or_the_broker_stops_is_told_to_ask_again(
    cold: Cold, code: int
) -> None:
    waits, in_line = Peer(), Peer()
    cold.broker.log.coming.add(("t", 0))
    for peer in (waits, in_line):
        cold.ask(peer, code, offset=7)
        cold.broker.turns.run(50)
    cold.serve_others()
    cold.line.charge(0.001)
    cold.fetched()
    cold.broker.turns.run(5)
    assert (waits.answers, in_line.answers) == ({}, {}), "both stand in line"
    cold.broker.pull.answer_all()
    cold.broker.processors.bulk.answer_all()
    told = codes.SYSTEM_BUSY if code == codes.BULK_READ else codes.PULL_RETRY_IMMEDIATELY
    assert [only(peer).code for peer in (waits, in_line)] == [told, told]
    cold.broker.turns.run(11_000)  # nobody is answered twice


def test_who_is_past_the_tier_waits_for_new_messages_like_all_others(cold: Cold) -> None:
    peer = Peer()
    cold.broker.log.coming.add(("t", 0))
    fields = {"sysFlag": FLAG_SUBSCRIPTION | FLAG_SUSPEND, "suspendTimeoutMillis": 15_000}
    cold.ask(peer, **fields, subscription="a > 1", expressionType="SQL92")
    cold.broker.turns.run(100)
    assert not peer.answers
    cold.broker.log.coming.clear()
    cold.broker.log.cold_ends["t", 0] = COLD + 10  # all of it, and none of it is admitted
    while not peer.answers and cold.broker.pull.waiting_count:
        before = cold.line.turns
        cold.broker.pull.fetched("t", 0)
        cold.broker.turns.run(100)
        if cold.line.turns == before:
            break
    assert not peer.answers
    cold.broker.send("wanted", a="2")
    cold.broker.turns.run(100)
    (record,) = decode_records(only(peer).body)
    assert record.body == b"wanted"


def test_a_read_in_bulk_is_short_beside_others(cold: Cold) -> None:
    cold.broker.topic("large")
    cold.broker.send(*("x" * 50_000 for _ in range(20)), topic="large")
    cold.broker.log.cold_ends["large", 0] = 20
    alone, beside = Peer(), Peer()
    cold.ask(alone, codes.BULK_READ, topic="large", maxMsgNums=1000)
    cold.broker.turns.run()
    cold.serve_others()
    cold.ask(beside, codes.BULK_READ, topic="large", maxMsgNums=1000)
    cold.broker.turns.run(500)
    assert len(only(alone).body) > 4 * SHORT_BYTES - 60_000
    assert 0 < len(only(beside).body) <= SHORT_BYTES


def test_nobody_keeps_what_he_sends_beside_his_fields(cold: Cold) -> None:
    peers = [Peer() for _ in range(20)]
    cold.ask(Peer())  # what it asks for is known from then on
    cold.broker.turns.run()
    cold.serve_others()
    cold.broker.turns.run(5)
    tracemalloc.start()
    try:
        cold.stand(*peers)
        kept_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cold.line.standing >= len(peers) - 1
    assert kept_bytes < 1 << 20
    cold.broker.turns.run(5000)
    assert [count(peer) for peer in peers] == [32] * len(peers)


def test_what_is_kept_of_all_who_stand_in_line_is_bounded(cold: Cold, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_line, "MOST_HELD_BYTES", 20_000)
    cold.ask(Peer())
    cold.broker.turns.run()
    cold.serve_others()
    cold.broker.turns.run(5)
    for _ in range(3):
        peers = [Peer() for _ in range(15)]
        cold.stand(*peers, remarks="x" * 2000)
        cold.broker.turns.run(5000)
        answered = [only(peer).code for peer in peers]
        assert set(answered) == {codes.SUCCESS, codes.SYSTEM_BUSY}
        assert 6 <= answered.count(codes.SUCCESS) <= 10
        assert answered == sorted(answered), "those who came last are refused"
