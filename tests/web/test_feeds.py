"""What the viewers of one subject share: a build is made once for all, never for others, and a failure ends with itself."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from channels.layers import get_channel_layer

from webapp import feeds
from webapp.feeds import MOST_BUILDS, Moment, following

# A build runs in a thread that may have a connection to the database from an earlier test, and looks at that first.
pytestmark = pytest.mark.django_db

DEADLINE_S = 5.0


class Counting:
    """A builder that counts its calls, and fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.calls = 0
        self._failures = failures

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise OSError("the database is away")
        return self.calls


async def announce(group: str) -> None:
    await get_channel_layer().group_send(group, {"type": "work.changed"})


async def woken(wake: asyncio.Event) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await wake.wait()
    wake.clear()


async def test_many_who_ask_cause_one_build_and_so_does_one_who_comes_late() -> None:
    moment, build = Moment(), Counting()
    assert await asyncio.gather(*(moment.built("page", build) for _ in range(50))) == [1] * 50
    assert await moment.built("page", build) == 1
    assert build.calls == 1


async def test_who_asks_for_something_else_gets_something_else() -> None:
    moment, build = Moment(), Counting()
    found = await asyncio.gather(*(moment.built(key, build) for key in ("viewer", "operator", "viewer")))
    assert build.calls == 2
    assert found[0] == found[2] != found[1]


async def test_a_failed_build_reaches_those_who_waited_and_nobody_else() -> None:
    moment, build = Moment(), Counting(failures=1)
    found = await asyncio.gather(*(moment.built("page", build) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [OSError] * 3
    assert build.calls == 1
    assert await asyncio.gather(*(moment.built("page", build) for _ in range(3))) == [2, 2, 2]


async def test_one_who_leaves_takes_the_build_from_nobody() -> None:
    moment, may_end = Moment(), threading.Event()
    began = asyncio.Event()
    loop = asyncio.get_running_loop()

    def build() -> str:
        loop.call_soon_threadsafe(began.set)
        assert may_end.wait(DEADLINE_S)
        return "built"

    leaving = asyncio.create_task(moment.built("page", build))
    staying = asyncio.create_task(moment.built("page", build))
    await woken(began)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    may_end.set()
    assert await staying == "built"


async def test_a_moment_keeps_so_many_builds_and_no_more() -> None:
    moment, build = Moment(), Counting()
    for key in range(MOST_BUILDS + 1):
        await moment.built(key, build)
    assert await moment.built(MOST_BUILDS, build) == MOST_BUILDS + 1, "the newest are kept"
    assert await moment.built(0, build) == MOST_BUILDS + 2, "the oldest had to go"


async def test_followers_of_one_subject_are_one_member_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", DEADLINE_S)
    wakes = [asyncio.Event() for _ in range(20)]
    async with following("run.1", wakes[0]) as first:
        await woken(wakes[0])  # it belongs to the group now
        others = [following("run.1", wake) for wake in wakes[1:]]
        assert {await other.__aenter__() for other in others} == {first}
        assert len(get_channel_layer().groups["run.1"]) == 1
        before = first.moment
        await announce("run.1")
        for wake in wakes:
            await woken(wake)
        assert first.moment is not before
        for other in others:
            await other.__aexit__(None, None, None)
        assert len(get_channel_layer().groups["run.1"]) == 1
    assert not get_channel_layer().groups.get("run.1")


async def test_a_subject_is_looked_at_again_while_its_announcements_are_not_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", 0.02)
    layer = get_channel_layer()
    hears = False

    async def receive(channel: str) -> dict[str, Any]:
        if not hears:
            raise ConnectionError("the channel layer is away")
        return await type(layer).receive(layer, channel)

    monkeypatch.setattr(layer, "receive", receive)
    wake = asyncio.Event()
    async with following("run.1", wake):
        for _ in range(3):
            await woken(wake)
        hears = True
        monkeypatch.setattr(feeds, "LOOK_AGAIN_S", DEADLINE_S)
        while not layer.groups.get("run.1"):
            await asyncio.sleep(0)
        await announce("run.1")
        await woken(wake)


async def test_the_next_moment_waits_until_nothing_is_being_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", DEADLINE_S)
    monkeypatch.setattr(feeds, "PAUSE_S", 0.0)
    wake, may_end = asyncio.Event(), threading.Event()
    async with following("run.1", wake) as feed:
        await woken(wake)
        before = feed.moment
        building = asyncio.create_task(before.built("page", lambda: may_end.wait(DEADLINE_S)))
        await asyncio.sleep(0)
        await announce("run.1")
        for _ in range(20):
            await asyncio.sleep(0)
        assert feed.moment is before
        may_end.set()
        assert await building
        await woken(wake)
        assert feed.moment is not before
