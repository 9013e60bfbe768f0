"""Waiting for the end of an operation: by its announcements, with the row as the last word, and with nothing left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.test import AsyncClient
from redis.exceptions import ConnectionError as RedisConnectionError

from webapp import lifecycle
from webapp.announce import hearing
from webapp.lifecycle import State
from webapp.operations import progress, waiting
from webapp.operations.models import Operation

pytestmark = pytest.mark.django_db(transaction=True)

LONG_S = 30.0
SHORT_S = 0.2


class Layer(InMemoryChannelLayer):
    """The layer in memory, which says when somebody joins, and can be told to fail."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.joined: asyncio.Queue[str] = asyncio.Queue()
        self.listening: asyncio.Queue[str] = asyncio.Queue()
        self.before_joining: Callable[[], Awaitable[Any]] | None = None
        self.broken: Exception | None = None
        self.broken_calls: tuple[str, ...] = ()

    async def group_add(self, group: str, channel: str) -> None:
        self._check("group_add")
        if self.before_joining is not None:
            await self.before_joining()
        await super().group_add(group, channel)
        self.joined.put_nowait(group)

    async def receive(self, channel: str) -> Any:
        self._check("receive")
        self.listening.put_nowait(channel)
        return await super().receive(channel)

    async def group_discard(self, group: str, channel: str) -> None:
        self._check("group_discard")
        await super().group_discard(group, channel)

    async def group_send(self, group: str, message: dict[str, Any]) -> None:
        self._check("group_send")
        await super().group_send(group, message)

    def _check(self, call: str) -> None:
        if self.broken is not None and call in self.broken_calls:
            raise self.broken


@pytest.fixture
def layer(console: None, settings: Any) -> Layer:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": f"{__name__}.Layer"}}
    found = get_channel_layer()
    assert isinstance(found, Layer)
    return found


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The state that each look at the row found."""
    seen: list[str] = []
    look = Operation.refresh_from_db

    def remembered(self: Operation, *arguments: Any, **options: Any) -> None:
        look(self, *arguments, **options)
        seen.append(str(self.state))

    monkeypatch.setattr(Operation, "refresh_from_db", remembered)
    return seen


async def running() -> Operation:
    return await Operation.objects.acreate(kind="topic.create", target="t", requested_by_name="x", state=State.RUNNING)


def waiting_for(operation: Operation, seconds: float) -> asyncio.Task[Operation]:
    """The wait as a request does it: in a thread, with the server's loop beside it."""
    return asyncio.create_task(sync_to_async(waiting.wait, thread_sensitive=False)(operation, seconds))


async def test_the_end_is_heard_and_the_row_is_not_asked_again_and_again(layer: Layer, looks: list[str]) -> None:
    operation = await running()
    waiter = waiting_for(operation, LONG_S)
    assert await asyncio.wait_for(layer.joined.get(), LONG_S / 2) == f"operation.{operation.pk}"
    await asyncio.wait_for(layer.listening.get(), LONG_S / 2)
    await sync_to_async(progress.node)(operation.pk, "broker-a", "CONFIRMED")
    await sync_to_async(progress.succeed)(operation.pk, {"queues": 4})
    done = await asyncio.wait_for(waiter, LONG_S / 2)
    assert (done.state, done.result) == ("succeeded", {"queues": 4})
    assert looks == ["running", "succeeded"], "once after joining, once when the end was announced"
    assert (layer.groups, layer.channels) == ({}, {})


async def test_an_end_between_the_first_look_and_joining_is_not_missed(layer: Layer, looks: list[str]) -> None:
    operation = await running()

    async def end() -> None:
        await sync_to_async(progress.succeed)(operation.pk)

    layer.before_joining = end
    assert (await asyncio.wait_for(waiting_for(operation, LONG_S), LONG_S / 2)).state == "succeeded"
    assert looks == ["succeeded"]
    assert (layer.groups, layer.channels) == ({}, {})


async def test_the_row_has_the_last_word_at_the_deadline(layer: Layer) -> None:
    operation = await running()
    assert (await waiting_for(operation, SHORT_S)).state == "running"
    layer.broken, layer.broken_calls = OSError("lost"), ("group_send",)
    waiter = waiting_for(operation, SHORT_S)
    await layer.joined.get()
    await sync_to_async(lifecycle.move)(Operation, operation.pk, State.CANCELLED)
    assert (await waiter).state == "cancelled", "though nobody announced it"
    assert (layer.groups, layer.channels) == ({}, {})


@pytest.mark.parametrize("broken", [OSError("refused"), RedisConnectionError("restarted"), TimeoutError("no answer")])
@pytest.mark.parametrize("calls", [("group_add", "group_discard"), ("receive",), ("receive", "group_discard")])
async def test_a_channel_layer_that_fails_leaves_it_to_the_row(
    layer: Layer, broken: Exception, calls: tuple[str, ...], looks: list[str]
) -> None:
    operation = await running()
    layer.broken, layer.broken_calls = broken, calls
    assert (await waiting_for(operation, SHORT_S)).state == "running"
    assert len(looks) <= 2, "no look in a circle"


async def test_leaving_that_fails_does_not_hold_up_the_answer(layer: Layer) -> None:
    operation = await running()
    layer.broken, layer.broken_calls = OSError("gone"), ("group_discard",)
    waiter = waiting_for(operation, LONG_S)
    await layer.joined.get()
    await sync_to_async(progress.succeed)(operation.pk)
    assert (await asyncio.wait_for(waiter, LONG_S / 2)).state == "succeeded"


async def test_what_nobody_waited_for_is_not_kept(layer: Layer) -> None:
    for heard in (0, 1, 3):
        async with hearing("g", asyncio.get_running_loop().time() + LONG_S) as hear:
            for _ in range(3):
                await layer.group_send("g", {"type": "work.changed"})
            for _ in range(heard):
                await hear()
        assert (layer.groups, layer.channels) == ({}, {})


async def test_who_does_not_wait_asks_nobody(layer: Layer, looks: list[str]) -> None:
    operation = await running()
    layer.broken, layer.broken_calls = OSError("down"), ("group_add",)
    for seconds in (0.0, -1.0):
        assert (await waiting_for(operation, seconds)).state == "running"
    operation.state = State.SUCCEEDED
    assert (await waiting_for(operation, LONG_S)).state == "succeeded"
    assert looks == []


async def test_an_end_in_another_place_than_a_server_is_seen_too(layer: Layer, looks: list[str]) -> None:
    """Without a loop beside it (a management command, a test's client) the wait runs one of its own."""
    operation = await running()
    loop = asyncio.get_running_loop()
    assert (await loop.run_in_executor(None, waiting.wait, operation, SHORT_S)).state == "running"
    await sync_to_async(progress.succeed)(operation.pk)
    assert (await loop.run_in_executor(None, waiting.wait, operation, LONG_S)).state == "succeeded"


async def test_many_who_wait_hold_nobody_up(
    layer: Layer, bearer: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_WAIT_S", LONG_S)
    token = (await sync_to_async(bearer)("viewer", "operations.read"))["Authorization"]
    operation = await running()
    path = f"/api/v1/operations/{operation.pk}"
    waiters = [asyncio.create_task(ask(path, token, "wait=30")) for _ in range(20)]
    async with asyncio.timeout(LONG_S / 2):
        for _ in waiters:
            await layer.listening.get()
    assert (await asyncio.wait_for(ask(path, token), LONG_S / 2))["state"] == "running"
    await sync_to_async(progress.succeed)(operation.pk)
    answers = await asyncio.wait_for(asyncio.gather(*waiters), LONG_S / 2)
    assert {answer["state"] for answer in answers} == {"succeeded"}
    assert (layer.groups, layer.channels) == ({}, {})


async def ask(path: str, token: str, prefer: str = "") -> dict[str, Any]:
    """A request as Django's ASGI handler carries it out: with a thread of its own for everything synchronous."""
    async with ThreadSensitiveContext():
        response = await AsyncClient().get(path, headers={"Authorization": token, "Prefer": prefer})
    assert response.status_code == 200, response.content
    return dict(response.json())
