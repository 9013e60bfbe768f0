"""Many requests at once, and websockets that are opened while their access ends: what the console promises then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.test import Client

from remoting.errors import SettingsError
from tests.web.conftest import PASSWORD, console, users  # noqa: F401
from tests.web.fakes import snapshot_document
from tests.web.test_sockets import TIMEOUT_S, announce_snapshot, closed, receive, socket
from webapp import push
from webapp.accounts import services
from webapp.accounts.models import User
from webapp.accounts.permissions import set_role
from webapp.crowd import HEALTH, MOST_OF_HEALTH, BoundedRequests, most_requests

MOST = 10


class Answers:
    """An application that answers when it may, and who asked it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        self.asked.append(scope["path"])
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Asking:
    """Requests to the application in a crowd."""

    def __init__(self) -> None:
        self.answers = Answers()
        self._bounded = BoundedRequests(self.answers, MOST)
        self.tasks: list[asyncio.Task[Any]] = []

    def ask(self, host: str, path: str = "/") -> asyncio.Task[Any]:
        self.tasks.append(asyncio.create_task(self._ask(host, path)))
        return self.tasks[-1]

    async def _ask(self, host: str, path: str) -> dict[str, Any]:
        said: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        await self._bounded({"type": "http", "path": path, "client": (host, 1)}, None, send)  # type: ignore[arg-type]
        return said[0]

    async def full(self) -> None:
        for number in range(MOST):
            self.ask(f"10.0.0.{number % 2}")
        await asyncio.sleep(0)
        assert len(self.answers.asked) == MOST


async def test_beyond_a_number_requests_are_told_to_come_again() -> None:
    asking = Asking()
    await asking.full()
    refused = await asking.ask("10.0.0.9")
    assert (refused["status"], dict(refused["headers"])[b"retry-after"]) == (503, b"1")
    assert len(asking.answers.asked) == MOST, "nobody is asked for what is refused"
    healthy = [asking.ask("10.0.0.9", HEALTH) for _ in range(MOST_OF_HEALTH)]
    await asyncio.sleep(0)
    assert (await asking.ask("10.0.0.9", HEALTH))["status"] == 503, "this, too, is bounded"
    asking.answers.may_answer.set()
    assert [(await each)["status"] for each in healthy] == [200] * MOST_OF_HEALTH
    assert [each["status"] for each in await asyncio.gather(*asking.tasks[:MOST])] == [200] * MOST
    assert (await asking.ask("10.0.0.9"))["status"] == 200


@pytest.mark.parametrize(("host", "other"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8:0:1::1")])
async def test_one_address_has_half(host: str, other: str) -> None:
    asking = Asking()
    for _ in range(MOST // 2):
        asking.ask(host)
    await asyncio.sleep(0)
    assert (await asking.ask(host))["status"] == 503
    asking.ask(other)
    await asyncio.sleep(0)
    assert len(asking.answers.asked) == MOST // 2 + 1
    asking.answers.may_answer.set()
    await asyncio.gather(*asking.tasks)


async def test_who_went_away_has_no_place() -> None:
    asking = Asking()
    await asking.full()
    for each in asking.tasks:
        each.cancel()
    await asyncio.gather(*asking.tasks, return_exceptions=True)
    asking.answers.may_answer.set()
    assert (await asking.ask("10.0.0.0"))["status"] == 200


@pytest.mark.parametrize("text", ["x", "7", "10001", "9" * 30, "-1", "²"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="LOGBOOM_MAX_REQUESTS"):
        most_requests({"LOGBOOM_MAX_REQUESTS": text})
    assert most_requests({"LOGBOOM_MAX_REQUESTS": "8"}) == 8


def _log_out(client: Client, _user: User) -> None:
    client.post("/logout")


def _change_password(_client: Client, user: User) -> None:
    user.set_password("another long secret")
    user.save(update_fields=["password"])
    services.revoke_access(user)


def _take_rights(_client: Client, user: User) -> None:
    set_role(user, "viewer")
    user.is_active = False
    user.save(update_fields=["is_active"])
    services.revoke_access(user)


ENDS = (_log_out, _change_password, _take_rights)


@pytest.fixture
def session(users: dict[str, User]) -> tuple[Client, bytes, User]:  # noqa: F811
    client = Client()
    assert client.post("/login", {"username": "operator", "password": PASSWORD}).status_code == 302
    return client, f"logboom_session={client.cookies['logboom_session'].value}".encode(), users["operator"]


def _before(monkeypatch: pytest.MonkeyPatch, name: str, end: Callable[[], None]) -> None:
    """Access ends right before a websocket's first call of that method."""
    original, ended = getattr(push.PushConsumer, name), []

    async def method(self: push.PushConsumer, *arguments: Any) -> Any:
        if not ended:
            ended.append(True)
            await sync_to_async(end)()
        return await original(self, *arguments)

    monkeypatch.setattr(push.PushConsumer, name, method)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ENDS)
async def test_access_that_ends_between_a_websockets_check_and_its_join(
    session: tuple[Client, bytes, User],
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Client, User], None],
) -> None:
    client, cookie, user = session
    _before(monkeypatch, "_join", partial(end, client, user))
    communicator = socket("/ws/snapshot?view=bar", cookie)
    connected, _ = await communicator.connect(TIMEOUT_S)
    assert not connected
    await communicator.disconnect()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("end", ENDS)
async def test_access_that_ends_behind_it(
    session: tuple[Client, bytes, User],
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Client, User], None],
) -> None:
    client, cookie, user = session
    _before(monkeypatch, "accept", partial(end, client, user))
    communicator = socket("/ws/snapshot?view=bar", cookie)
    connected, _ = await communicator.connect(TIMEOUT_S)
    assert connected
    assert await closed(communicator) == push.ACCESS_ENDED
    await communicator.disconnect()


@pytest.mark.django_db(transaction=True)
async def test_the_end_of_access_is_told_when_it_is_durable(session: tuple[Client, bytes, User]) -> None:
    """Who heard of it before would look again and find that he still may."""
    _, cookie, user = session

    def end(*, is_durable: bool) -> None:
        with transaction.atomic():
            services.revoke_access(user)
            transaction.set_rollback(not is_durable)

    communicator = socket("/ws/snapshot?view=bar", cookie)
    await communicator.connect(TIMEOUT_S)
    await receive(communicator)
    await sync_to_async(end)(is_durable=False)
    await announce_snapshot(snapshot_document(2))
    assert (await receive(communicator))["snapshot_seq"] == "2", "it goes on"
    await sync_to_async(end)(is_durable=True)
    assert await closed(communicator) == push.ACCESS_ENDED
    await communicator.disconnect()
