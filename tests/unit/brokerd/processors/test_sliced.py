"""Requests that are answered in portions: how much in a turn, who goes first, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.processors.sliced import LOOKS_AT_ONCE, MOST_REQUESTS, Slices, in_portions
from brokerd.store.cold import ColdMiss
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.frame import Command
from tests.support.remoting_broker import Peer
from tests.support.turns import Turns


class Bench:
    def __init__(self) -> None:
        self.turns = Turns()
        self.slices = Slices(self.turns.call_soon, FetchWaits(self.turns))
        self.looks: list[tuple[int, int]] = []  # (request, queue)
        self.peer = Peer()
        self._handler = self.slices.handler(self._answer)
        self._opaque = 0
        self.miss: ColdMiss | None = None
        self.error: Exception | None = None

    def _answer(self, connection: Any, request: Command) -> Iterator[int]:
        found = yield from in_portions(
            lambda queue: self._look(request.opaque, queue), range(int(request.ext["count"]))
        )
        connection.respond(request, body=str(len(found)).encode())

    def _look(self, opaque: int, queue: int) -> int:
        self.looks.append((opaque, queue))
        if self.error is not None:
            raise self.error
        if self.miss is not None:
            raise self.miss
        return queue

    def ask(self, count: int, peer: Peer | None = None) -> int:
        self._opaque += 1
        peer = peer or self.peer
        self._handler(peer, [Command(1, self._opaque, {"count": str(count)})])  # type: ignore[arg-type,list-item]
        return self._opaque


def test_little_is_answered_at_once() -> None:
    bench = Bench()
    opaque = bench.ask(100)
    assert bytes(bench.peer.answers[opaque].body) == b"100"


def test_much_takes_turns_with_others() -> None:
    bench = Bench()
    long, short = bench.ask(10 * LOOKS_AT_ONCE), bench.ask(64)
    assert bench.peer.answers == {}
    assert len(bench.looks) <= LOOKS_AT_ONCE + 32
    before = len(bench.looks)
    bench.turns.run_one()
    assert short in bench.peer.answers
    assert LOOKS_AT_ONCE <= len(bench.looks) - before <= LOOKS_AT_ONCE + 32
    bench.turns.run()
    assert bytes(bench.peer.answers[long].body) == str(10 * LOOKS_AT_ONCE).encode()


def test_what_a_closed_connection_asked_for_is_dropped() -> None:
    bench, gone = Bench(), Peer()
    bench.ask(10 * LOOKS_AT_ONCE, gone)
    bench.slices.connection_closed(gone)
    before = len(bench.looks)
    bench.turns.run()
    assert (len(bench.looks), gone.answers) == (before, {})


def test_so_many_may_run() -> None:
    bench = Bench()
    asked = [bench.ask(2 * LOOKS_AT_ONCE) for _ in range(MOST_REQUESTS + 1)]
    assert bench.peer.answers[asked[-1]].code == codes.SYSTEM_BUSY
    bench.turns.run()
    assert all(bench.peer.answers[each].code == codes.SUCCESS for each in asked[:-1])


@pytest.mark.parametrize(("error", "code"), [(InvalidParameter("no"), codes.INVALID_PARAMETER), (KeyError(), 1)])
def test_an_error_in_a_later_turn_is_the_answer(error: Exception, code: int) -> None:
    bench = Bench()
    opaque = bench.ask(2 * LOOKS_AT_ONCE)
    bench.error = error
    bench.turns.run()
    assert bench.peer.answers[opaque].code == code


def test_what_has_to_be_fetched_is_waited_for_in_any_turn() -> None:
    bench = Bench()
    opaque = bench.ask(2 * LOOKS_AT_ONCE)
    fetched: list[Any] = []

    def when_fetched(callback: Callable[[], None]) -> Callable[[], None]:
        fetched.append(callback)
        return fetched.clear

    bench.miss = ColdMiss("it", when_fetched)
    bench.turns.run()
    assert bench.peer.answers == {}
    [again] = fetched
    bench.miss = None
    again()
    bench.turns.run()
    assert bytes(bench.peer.answers[opaque].body) == str(2 * LOOKS_AT_ONCE).encode()
    assert not fetched
