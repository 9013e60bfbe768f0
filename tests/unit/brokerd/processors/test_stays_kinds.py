"""What a connection that stays with the carrier's thread asks of each kind: its own offsets, files, bounds and rights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.native.stays import Kind
from brokerd.native.wanted import MIN_OFFSET
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION
from remoting import codes, frame
from remoting.transport import taking
from tests.support.pulled_broker import PATIENT_S, Broker, Peer, check, on_both_loops, serving, stay_for_long
from tests.support.pulls import pull_fields
from tests.unit.brokerd.store.stores import dispatch_all, draft, put

FLAGS = FLAG_SUBSCRIPTION | FLAG_COMMIT
MOST_BYTES = 2048  # that are read of a connection before it is a matter for the loop (STAY_BYTES)


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    stay_for_long(monkeypatch)
    monkeypatch.setattr(taking, "_LONG", 0)  # who asked for little stays again soon


def write(peer: Peer, opaque: int, offset: int, code: int = codes.PULL_MESSAGE, **changes: Any) -> None:
    """A pull of a message; of what is None nothing is said."""
    fields = pull_fields(offset, **{"maxMsgNums": 1, "sysFlag": FLAGS, **changes})
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    peer.writer.write(frame.encode_request(code, opaque, texts))


async def ask_round(broker: Broker, peer: Peer, *requests: dict[str, Any]) -> None:
    """Each of these in turn until the connection stays for all of them, or for the only one."""
    async with asyncio.timeout(PATIENT_S):
        while not any(len(stay.kinds) == len(requests) for stay in broker.carrier._stays._of.values()):
            await broker.all_back()
            for request in requests:
                write(peer, 0, 0, **request)
                await peer.answer()


@on_both_loops
async def test_who_says_no_offset_commits_none(directory: Path) -> None:
    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        queue = {"consumerGroup": "g", "topic": "t", "queueId": 0}
        broker.inner.ask(codes.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": 30})
        await ask_round(broker, peer, {"commitOffset": -1})
        for offset in (31, 32):
            write(peer, 1, offset, commitOffset=-1)
            check(await peer.answer(), broker.expected(offset, 0, 1), offset + 1)
        told = (await broker.all_back())[-1]
        assert [(kind.answers, kind.commit_offset) for kind in told.kinds] == [(2, -1)]
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 0) == 30


@on_both_loops
async def test_an_offset_is_of_the_request_that_says_it_alone(directory: Path) -> None:
    """Not of the next one, of another queue, which says none."""
    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        says, silent = {"queueId": 0}, {"queueId": 1, "commitOffset": None}
        await ask_round(broker, peer, silent, says)
        for offset in (31, 32):
            for request in ({**says, "commitOffset": offset}, silent):
                write(peer, 1, offset, **request)
                check(await peer.answer(), broker.expected(offset, request["queueId"], 1), offset + 1)
        told = (await broker.all_back())[-1]
        assert sorted(kind.commit_offset for kind in told.kinds) == [-1, 32]
        assert min(kind.answers for kind in told.kinds) >= 2
        broker.inner.turns.run(100)
        assert broker.inner.progress.consumer_offset("g", "t", 0) == 32
        assert broker.inner.progress.consumer_offset("g", "t", 1) is None


class Watched:
    """A file of the log; `held` is how often it is held now."""

    def __init__(self, kind: Kind) -> None:
        self.file = kind.file
        self.held = 0

    def hold(self) -> Watched:
        self.held += 1
        self._inner = self.file.hold()
        return self

    def release(self) -> None:
        self.held -= 1
        self._inner.release()


@contextmanager
def changed_kinds(broker: Broker, change: Callable[[Kind], Kind]) -> Any:
    """Stays begin with what becomes of their kinds by that."""
    begin = broker.carrier._stays.begin

    def begin_changed(lender: Any, descriptor: Any, tickets: Any, asked: Any, kinds: Any, told: Any) -> None:
        begin(lender, descriptor, tickets, asked, [change(kind) for kind in kinds], told)

    broker.carrier._stays.begin = begin_changed
    yield
    broker.carrier._stays.begin = begin


@on_both_loops
async def test_the_files_of_all_kinds_are_there_until_who_stays_is_back(directory: Path) -> None:
    files: list[Watched] = []

    def watched(kind: Kind) -> Kind:
        files.append(Watched(kind))
        return kind._replace(file=files[-1])

    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        with changed_kinds(broker, watched):
            await ask_round(broker, peer, {"queueId": 0}, {"queueId": 1}, {"queueId": 2})
        assert len(files) >= 3
        assert [each.held for each in files[-3:]] == [1, 1, 1]
        await broker.all_back()
        assert {each.held for each in files} == {0}


@on_both_loops
async def test_what_lies_before_the_begin_of_the_queue_is_for_the_loop(directory: Path) -> None:
    """As it was when the stay began, whatever is known of the units before it."""

    def begins_at_five(kind: Kind) -> Kind:
        kind.wanted.numbers[MIN_OFFSET] = 5
        return kind

    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        with changed_kinds(broker, begins_at_five):
            await ask_round(broker, peer, {})
        for offset in (5, 4):
            write(peer, 1, offset)
            answer = await peer.answer()
            check(answer, broker.expected(offset, 0, 1), offset + 1)
        await broker.until(lambda: len(broker.carrier.stays) > 0)
        assert [each.answers for each in broker.carrier.stays if each.answers] == [1]


@on_both_loops
async def test_a_request_for_which_there_is_no_room_is_for_the_loop_though_no_more_of_it_comes(directory: Path) -> None:
    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        await ask_round(broker, peer, {})
        over = broker.carrier.begun
        texts = {name: str(value) for name, value in pull_fields(3, maxMsgNums=1, more="x" * MOST_BYTES).items()}
        content = frame.encode_request(codes.PULL_MESSAGE, 7, texts)
        peer.writer.write(content[:MOST_BYTES])
        await broker.until(lambda: len(broker.carrier.stays) == over)
        peer.writer.write(content[MOST_BYTES:])
        check(await peer.answer(), broker.expected(3, 0, 1), 4)


def another_topic(broker: Broker) -> None:
    broker.inner.topic("u", queues=1)
    put(broker.store, *(draft(b"another", topic="u") for _ in range(50)))
    dispatch_all(broker.store)


@on_both_loops
async def test_what_may_not_be_pulled_any_more_is_not_beside_what_may(directory: Path) -> None:
    async with serving(directory, messages=100) as broker:
        another_topic(broker)
        [peer] = await broker.connected(1)
        await ask_round(broker, peer, {"topic": "u"}, {})
        broker.inner.topic("u", queues=1, perm=2)
        await ask_round(broker, peer, {})
        write(peer, 1, 1, topic="u")
        assert (await peer.answer()).code == codes.NO_PERMISSION


@on_both_loops
async def test_pulls_of_lite_consumers_that_are_switched_off_are_not_beside_others(directory: Path) -> None:
    async with serving(directory, messages=100) as broker:
        [peer] = await broker.connected(1)
        lite = {"code": codes.LITE_PULL_MESSAGE, "queueId": 1}
        await ask_round(broker, peer, lite, {})
        broker.inner.pull_settings.change(PullSettings(lite_pull=False))
        await ask_round(broker, peer, {})
        write(peer, 1, 1, **lite)
        assert (await peer.answer()).code == codes.NO_PERMISSION
