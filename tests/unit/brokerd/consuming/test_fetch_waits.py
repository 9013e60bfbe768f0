"""Requests that miss something of the tier: carried out again when it is there, bounded in number and time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from brokerd.consuming.fetch_waits import FetchWaits
from brokerd.processors.cold import each_cold
from brokerd.store.cold import ColdMiss, all_of
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.frame import Command
from tests.support.turns import Turns


class Tier:
    """What can be asked of it is not there before it is `fetched`."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.callbacks: dict[str, dict[Callable[[], None], None]] = {}

    def get(self, name: str) -> str:
        if name not in self.known:
            self.callbacks.setdefault(name, {})
            raise ColdMiss(name, partial(self.tell, name))
        return name

    def tell(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        waiting = self.callbacks[name]
        waiting[callback] = None
        return partial(waiting.pop, callback, None)

    def fetched(self, name: str, *, comes: bool = True) -> None:
        if comes:
            self.known.add(name)
        for callback in list(self.callbacks.pop(name, ())):
            callback()


class Asking:
    def __init__(self, most: int = 2) -> None:
        self.turns = Turns()
        self.tier = Tier()
        self.waits = FetchWaits(self.turns, most, 5.0)
        self.answers: list[Any] = []

    def ask(self, *names: str, owner: object = None) -> Any:
        def ask() -> None:
            self.answers.append([self.tier.get(name) for name in names])

        return self.waits.attempt(owner, ask, self.answers.append)


def test_what_is_there_is_answered_at_once() -> None:
    asking = Asking()
    asking.tier.known.add("a")
    assert asking.ask("a") is None
    assert asking.answers == [["a"]]
    assert not len(asking.waits)


def test_each_thing_missed_is_waited_for_and_the_answer_comes_once() -> None:
    asking = Asking()
    asking.ask("a", "b")
    asking.tier.fetched("a")
    assert asking.answers == []
    asking.tier.fetched("b")
    asking.turns.run(60_000)
    assert asking.answers == [["a", "b"]]
    assert not len(asking.waits)


def test_what_never_comes_is_refused_in_time_and_asked_no_more() -> None:
    asking = Asking()
    asking.ask("a")
    asking.tier.fetched("a", comes=False)
    asking.turns.run(4_900)
    assert asking.answers == []
    asking.turns.run(200)
    asking.tier.fetched("a")
    (refusal,) = asking.answers
    assert refusal.code == codes.SYSTEM_BUSY
    assert "within 5 s" in str(refusal)
    assert not len(asking.waits)


def test_who_was_refused_in_time_is_not_kept_by_who_fetches_while_that_hangs() -> None:
    asking = Asking()
    for _ in range(5):
        asking.ask("a")
        asking.ask("a")
        asking.turns.run(5_001)
    assert len(asking.answers) == 10
    assert not asking.tier.callbacks["a"]


def test_more_than_so_many_do_not_wait() -> None:
    asking = Asking(most=2)
    asking.ask("a")
    asking.ask("b")
    with pytest.raises(RequestError, match="2 requests wait") as caught:
        asking.ask("c")
    assert caught.value.code == codes.SYSTEM_BUSY
    asking.tier.fetched("b")
    asking.ask("c")
    assert len(asking.waits) == 2


def test_nobody_answers_who_went_away() -> None:
    asking = Asking(most=3)
    one, other = object(), object()
    asking.ask("a", owner=one)
    asking.ask("a", owner=other)
    waiting = asking.ask("a")
    asking.waits.connection_closed(one)
    asking.waits.cancel(waiting)
    asking.waits.cancel(waiting)
    assert len(asking.waits) == len(asking.tier.callbacks["a"]) == 1
    asking.tier.fetched("a")
    asking.turns.run(60_000)
    assert asking.answers == [["a"]]


def test_what_cannot_be_had_is_refused_and_what_is_not_foreseen_too() -> None:
    for error, text in ((RequestError(codes.NO_PERMISSION, "no"), "no"), (KeyError("x"), "internal error: KeyError")):
        asking = Asking()
        asking.tier.callbacks["a"] = {}
        tries: list[Any] = [error, ColdMiss("a", partial(asking.tier.tell, "a"))]

        def ask(tries: list[Any] = tries) -> None:
            raise tries.pop()

        asking.waits.attempt(None, ask, asking.answers.append)
        asking.tier.fetched("a")
        assert [str(answer) for answer in asking.answers] == [text]


def test_what_is_asked_of_many_queues_is_fetched_of_all_together() -> None:
    tier = Tier()
    tier.known.add("1")
    with pytest.raises(ColdMiss):
        all_of(lambda queue_id: tier.get(str(queue_id)), range(4))
    assert set(tier.callbacks) == {"0", "2", "3"}
    for name in ("0", "2", "3"):
        tier.fetched(name)
    assert all_of(lambda queue_id: tier.get(str(queue_id)), range(4)) == ["0", "1", "2", "3"]


class Connection:
    def __init__(self) -> None:
        self.answers: list[Any] = []

    def respond(self, request: Command, code: int = 0, **more: Any) -> None:
        self.answers.append((code, more.get("remark") or bytes(request.body)))

    def respond_error(self, request: Command, error: LogboomError) -> None:
        self.answers.append((error.code, str(error)))


def test_a_handler_that_is_called_again_has_its_request_as_it_was() -> None:
    asking, connection = Asking(), Connection()

    def handle(connection: Any, request: Command) -> None:
        asking.tier.get("a")
        connection.respond(request)

    request = Command(codes.SEARCH_OFFSET_BY_TIMESTAMP, body=b"its body")
    each_cold(asking.waits, handle)(connection, [request])  # type: ignore[arg-type]
    assert request.body == b""
    asking.turns.call_soon(partial(asking.tier.fetched, "a"))
    asking.turns.run(10)
    assert connection.answers == [(0, b"its body")]
