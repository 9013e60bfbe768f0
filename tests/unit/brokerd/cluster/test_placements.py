"""What a master reports of its topics to the controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from brokerd.cluster import placements
from brokerd.cluster.placements import PlacementFollower
from brokerd.metadata.configs import PERM_READ, TopicConfig
from controllerd.placements.news import Changes, news_of
from controllerd.placements.state import PlacementsState
from remoting import codes
from remoting.facts.codec import decode, encode
from remoting.facts.placements import PlacementFact, PlacementNews, PlacementReport, ShareFact, TopicPlacement
from remoting.frame import Command
from tests.unit.brokerd.placement.test_service import Placed


class Master:
    broker_id, is_master, master_epoch = 1, True, 3


class Following:
    broker_id, is_master, master_epoch = 2, False, 3


async def reported(topics: Mapping[str, TopicConfig]) -> Mapping[str, int] | None:
    """The topics of the first report."""
    told: asyncio.Future[PlacementReport] = asyncio.get_running_loop().create_future()

    async def ask(_code: int, _ext: Mapping[str, str], body: bytes) -> Command:
        if not told.done():
            told.set_result(decode(PlacementReport, body))
        return Command(codes.SUCCESS, body=encode(PlacementNews(0, 0)))

    follower = PlacementFollower(Placed().service, Master(), lambda: topics, ask, "a")
    follower.start()
    try:
        return (await told).topics
    finally:
        await follower.close()


async def test_topics_with_message_groups_are_reported_with_the_queues_that_are_written() -> None:
    fifo = {"attributes": {"message.type": "FIFO"}}
    topics = {
        "orders": TopicConfig("orders", 8, 4, **fifo),
        "resting": TopicConfig("resting", 8, 8, perm=PERM_READ, **fifo),
        "plain": TopicConfig("plain", 8, 8),
    }
    assert await reported(topics) == {"orders": 4, "resting": 0}


@pytest.mark.parametrize("replica", [Master(), Following()])
async def test_only_a_master_whose_topics_are_wanted_reports_again_soon(
    replica: Master | Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica is never told that its topics are known, and would hurry for ever."""
    pauses_s: list[float] = []

    async def until(within_s: float, _event: asyncio.Event) -> None:
        pauses_s.append(within_s)
        await asyncio.sleep(0)

    async def ask(_code: int, _ext: Mapping[str, str], _body: bytes) -> Command:
        return Command(codes.SUCCESS, body=encode(PlacementNews(0, 0, wants_topics=True)))

    monkeypatch.setattr(placements, "until_last_beat", until)
    follower = PlacementFollower(Placed().service, replica, dict, ask, "a")
    follower.start()
    try:
        while len(pauses_s) < 3:
            await asyncio.sleep(0)
        assert set(pauses_s) == {placements._SOON_S if replica.is_master else placements._REPORT_S}
    finally:
        await follower.close()


async def test_others_have_their_turns_while_news_of_many_topics_are_read() -> None:
    placed = Placed()
    share = (ShareFact("a", 8),)
    many = tuple(TopicPlacement(f"t{number}", number, PlacementFact(number, share)) for number in range(1, 1001))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask(_code: int, _ext: Mapping[str, str], _body: bytes) -> Command:
        return Command(codes.SUCCESS, body=encode(PlacementNews(1000, 1000, many)))

    counting = asyncio.create_task(count())
    taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    placed.service.listeners.append(lambda: taken.done() or taken.set_result(turns))
    follower = PlacementFollower(placed.service, Master(), dict, ask, "a")
    follower.start()
    try:
        assert await taken >= 10
        assert len(placed.service.table.topics) == 1000
    finally:
        counting.cancel()
        await follower.close()


@pytest.mark.parametrize("whole", [False, True])
async def test_news_in_parts_are_asked_for_until_all_is_known(whole: bool) -> None:
    """By a controller of an earlier release they are told at once, and what is gone is forgotten some at a time, too."""
    placed = Placed()
    a = PlacementFact(1, (ShareFact("a", 8),))
    gone = tuple(TopicPlacement(f"gone{number}", 1, a) for number in range(350))
    placed.service.take(PlacementNews(1, 1, gone), lambda: None)
    placed.service.step_down()
    placed.service.catch_up()
    placed.service.lead()
    topics = {f"t{number}": TopicPlacement(f"t{number}", 2 + number, a) for number in range(40)}
    state, changes, asked = PlacementsState(topics, 99, 9, 50), Changes(), 0

    async def ask(_code: int, ext: Mapping[str, str], _body: bytes) -> Command:
        nonlocal asked
        asked += 1
        revision, most = int(ext["revision"]), min(7, int(ext["most"]))
        news = news_of(state, changes, revision, int(ext["complete"]), most, is_placing=True)
        return Command(
            codes.SUCCESS, body=encode(PlacementNews(99, 9, tuple(topics.values()), True) if whole else news)
        )

    known: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    placed.service.listeners.append(lambda: known.done() or known.set_result(asked))
    follower = PlacementFollower(placed.service, Master(), dict, ask, "a")
    follower.start()
    try:
        assert await known == (1 if whole else 6)
        assert placed.service.table.topics.keys() == topics.keys()
        assert placed.service.complete == placed.service.revision == 99
    finally:
        await follower.close()


async def test_news_that_are_none_change_nothing() -> None:
    placed = Placed()
    answers = [
        b"[",
        b"[]",
        b'{"revision": 1}',
        b'{"revision": 1, "last_version": 1, "topics": {}}',
        encode(PlacementNews(7, 7)),
    ]
    heard = asyncio.Event()
    placed.service.listeners.append(heard.set)

    async def ask(_code: int, _ext: Mapping[str, str], _body: bytes) -> Command:
        asyncio.get_running_loop().call_soon(follower.wake)
        return Command(codes.SUCCESS, body=answers.pop(0) if len(answers) > 1 else answers[0])

    follower = PlacementFollower(placed.service, Master(), dict, ask, "a")
    follower.start()
    try:
        await heard.wait()
        assert placed.service.revision == 7
    finally:
        await follower.close()
