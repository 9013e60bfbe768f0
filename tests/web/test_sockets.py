"""Websockets: who may open them, what they send, how they end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.testing import WebsocketCommunicator
from django.test import Client

from tests.web.conftest import PASSWORD
from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import feeds, live, push
from webapp.accounts import services, sessions
from webapp.accounts.models import User
from webapp.accounts.permissions import Actor
from webapp.asgi import application
from webapp.clusters import consumers as cluster_consumers
from webapp.operations import progress
from webapp.operations.models import Operation
from webapp.reports import consumers as report_consumers
from webapp.reports import stream
from webapp.reports.catalogue import Row
from webapp.reports.models import ReportRun

pytestmark = pytest.mark.django_db(transaction=True)

HOST = "127.0.0.1:8000"
TIMEOUT_S = 5


def cookies_of(user: User) -> bytes:
    client = Client()
    client.force_login(user)
    return f"logboom_session={client.cookies['logboom_session'].value}".encode()


@pytest.fixture
def cookie(users: dict[str, User]) -> Callable[[str], bytes]:
    made = {role: cookies_of(user) for role, user in users.items()}
    return lambda role: made[role]


def socket(path: str, cookie: bytes = b"", origin: bytes | None = b"http://127.0.0.1:8000") -> WebsocketCommunicator:
    headers = [(b"host", HOST.encode())]
    if cookie:
        headers.append((b"cookie", cookie))
    if origin is not None:
        headers.append((b"origin", origin))
    return WebsocketCommunicator(application, path, headers)


@asynccontextmanager
async def opened(path: str, cookie: bytes) -> AsyncIterator[WebsocketCommunicator]:
    communicator = socket(path, cookie)
    connected, _ = await communicator.connect(TIMEOUT_S)
    assert connected
    try:
        yield communicator
    finally:
        await communicator.disconnect()


async def receive(communicator: WebsocketCommunicator, acknowledge: bool = True) -> dict[str, Any]:
    message = json.loads(await communicator.receive_from(TIMEOUT_S))
    if acknowledge:
        await communicator.send_to(json.dumps({"type": "ack", "seq": message["seq"]}))
    return message


async def announce_snapshot(document: dict[str, Any]) -> None:
    MemorySnapshots.put(document)
    await get_channel_layer().group_send("snapshot", {"type": "snapshot.changed", "seq": document["seq"]})


async def closed(communicator: WebsocketCommunicator) -> int:
    """The close code, passing over what is sent before."""
    while True:
        event = await communicator.receive_output(TIMEOUT_S)
        if event["type"] == "websocket.close":
            return int(event["code"])


PATHS = (
    "/ws/snapshot",
    "/ws/operations/00000000-0000-0000-0000-000000000001",
    "/ws/report-runs/00000000-0000-0000-0000-000000000001",
)


@pytest.mark.parametrize("path", PATHS)
async def test_anonymous_is_not_let_in(path: str) -> None:
    communicator = socket(path)
    connected, _ = await communicator.connect(TIMEOUT_S)
    assert not connected


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "origin",
    [
        b"http://evil.example",
        None,
        b"null",
        b"http://127.0.0.1:8001",
        b"http://127.0.0.1",
        b"http://127.0.0.1:x",
        b"ws://[",
    ],
)
async def test_pages_of_others_are_not_let_in(cookie: Callable[[str], bytes], path: str, origin: bytes | None) -> None:
    communicator = socket(path, cookie("admin"), origin)
    connected, _ = await communicator.connect(TIMEOUT_S)
    assert not connected


@pytest.mark.parametrize("path", [*PATHS[1:], "/ws/snapshot?view=nope"])
async def test_what_is_not_there_closes(cookie: Callable[[str], bytes], path: str) -> None:
    communicator = socket(path, cookie("viewer"))
    await communicator.connect(TIMEOUT_S)
    assert await closed(communicator) == push.NOT_FOUND
    await communicator.disconnect()


async def test_the_snapshot_comes_at_once_and_then_as_it_changes(cookie: Callable[[str], bytes]) -> None:
    async with opened("/ws/snapshot", cookie("viewer")) as communicator:
        first = await receive(communicator)
        assert (first["version"], first["type"], first["seq"], first["snapshot_seq"]) == (1, "snapshot", 1, "1")
        assert first["snapshot"]["groups"][0]["replicas"][0]["max_offset"] == "9007199254740993"
        await announce_snapshot(snapshot_document(7))
        second = await receive(communicator)
        assert (second["seq"], second["snapshot_seq"]) == (2, "7")


async def test_a_burst_of_announcements_is_one_message(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "PAUSE_S", 0.5)  # longer than the burst, also on a machine that is busy
    async with opened("/ws/snapshot?view=bar", cookie("viewer")) as communicator:
        await receive(communicator)
        for seq in range(2, 40):
            await announce_snapshot(snapshot_document(seq))
        last, messages = "", 0
        while last != "39":
            last = (await receive(communicator))["snapshot_seq"]
            messages += 1
        assert messages <= 3


async def test_a_lost_announcement_is_made_up_for(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", 0.05)
    async with opened("/ws/snapshot?view=bar", cookie("viewer")) as communicator:
        await receive(communicator)
        MemorySnapshots.put(snapshot_document(2, verdict={"status": "down", "reasons": []}))  # and nobody says so
        assert (await receive(communicator))["status"] == "down"


async def test_a_silent_collector_shows(cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", 0.05)
    async with opened("/ws/snapshot?view=landing", cookie("viewer")) as communicator:
        assert (await receive(communicator))["freshness"] == "fresh"
        MemorySnapshots.put(snapshot_document(1, as_of="2026-01-01T00:00:00.000Z"))
        stale = await receive(communicator)
        assert (stale["freshness"], stale["status"]) == ("stale", "degraded")
        assert "has not reported for" in stale["html"]


async def test_a_live_part_is_rendered_as_the_page_asked(cookie: Callable[[str], bytes]) -> None:
    async with opened("/ws/snapshot?view=topics&query=system%3Don%26q%3Drmq", cookie("viewer")) as communicator:
        html = (await receive(communicator))["html"]
        assert "rmq_sys_logboom_metadata" in html
        assert "orders" not in html
        assert "topic-edit" not in html


async def test_buttons_are_for_those_who_may(cookie: Callable[[str], bytes]) -> None:
    for role, expected in (("viewer", False), ("operator", True)):
        async with opened("/ws/snapshot?view=landing", cookie(role)) as communicator:
            assert ("Elect master" in (await receive(communicator))["html"]) is expected


# ---- what viewers share


class Calls:
    """Counts the calls of a function that is still called; the first ones can be made to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, failures: int = 0) -> None:
        self.count = 0
        self._failures = failures
        self._function = getattr(owner, name)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: Any) -> Any:
        self.count += 1
        if self.count <= self._failures:
            raise RuntimeError("a build that fails")
        return self._function(*args)


@asynccontextmanager
async def all_opened(path: str, cookies: list[bytes]) -> AsyncIterator[list[WebsocketCommunicator]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(opened(path, cookie)) for cookie in cookies]


async def until_snapshot(communicator: WebsocketCommunicator, seq: str) -> dict[str, Any]:
    while (message := await receive(communicator))["snapshot_seq"] != seq:
        pass
    return message


async def test_a_page_is_built_once_for_all_who_look_at_it(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with all_opened("/ws/snapshot?view=landing", [cookie("viewer")] * 12) as viewers:
        for viewer in viewers:
            await receive(viewer)
        rendered = Calls(monkeypatch, live, "render")
        await announce_snapshot(snapshot_document(2))
        messages = [await until_snapshot(viewer, "2") for viewer in viewers]
        assert rendered.count == 1
        assert len({message["html"] for message in messages}) == 1


async def test_viewers_with_other_rights_zones_or_questions_never_share(users: dict[str, User]) -> None:
    def prepare() -> dict[str, bytes]:
        users["operator"].time_zone = "Asia/Tokyo"
        users["operator"].save()
        return {role: cookies_of(user) for role, user in users.items()}

    cookies = await sync_to_async(prepare)()
    event = {"at": "2026-01-01T20:00:00.000Z", "kind": "topic", "text": "something"}
    async with (
        opened("/ws/snapshot?view=landing", cookies["viewer"]) as viewer,
        opened("/ws/snapshot?view=landing", cookies["operator"]) as operator,
        opened("/ws/snapshot?view=topics&query=q%3Dnothing", cookies["viewer"]) as filtered,
    ):
        for each in (viewer, operator, filtered):
            await receive(each)
        await announce_snapshot(snapshot_document(2, timeline=[event]))
        for each, may_elect, at in ((viewer, False, "2026-01-01 20:00:00"), (operator, True, "2026-01-02 05:00:00")):
            html = (await until_snapshot(each, "2"))["html"]
            assert ("Elect master" in html) is may_elect
            assert at in html
        assert "No topic has this in its name" in (await until_snapshot(filtered, "2"))["html"]


def test_a_live_part_is_told_nothing_of_a_person_but_rights_and_zone(actor: Callable[[str], Actor]) -> None:
    asking = actor("operator")
    viewpoint = live.Viewpoint.of(asking)
    assert viewpoint.actor.permissions == asking.permissions
    assert (viewpoint.actor.name, viewpoint.actor.ip, viewpoint.actor.token) == ("anonymous", "", None)


async def test_a_build_that_fails_ends_those_who_waited_for_it_and_no_others(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    Calls(monkeypatch, live, "render", failures=1)
    communicator = socket("/ws/snapshot?view=landing", cookie("viewer"))
    await communicator.connect(TIMEOUT_S)
    assert await closed(communicator) == 1011
    await communicator.disconnect()
    async with opened("/ws/snapshot?view=landing", cookie("viewer")) as again:
        assert "html" in await receive(again)


async def test_who_has_no_news_hears_that_it_is_connected(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "BEAT_S", 0.05)
    async with opened("/ws/snapshot?view=bar", cookie("viewer")) as communicator:
        await receive(communicator)
        for _ in range(3):
            beat = json.loads(await communicator.receive_from(TIMEOUT_S))
            assert beat == {"version": 1, "type": "beat"}
        await announce_snapshot(snapshot_document(2))
        while (message := json.loads(await communicator.receive_from(TIMEOUT_S)))["type"] == "beat":
            pass
        assert message["snapshot_seq"] == "2"


async def test_a_snapshot_that_stays_old_says_again_how_old_it_is(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr(cluster_consumers, "OLDER_EVERY_MS", 200)
    MemorySnapshots.put(snapshot_document(1, as_of="2026-01-01T00:00:00.000Z"))
    async with opened("/ws/snapshot?view=landing", cookie("viewer")) as communicator:
        first, second = await receive(communicator), await receive(communicator)
        assert first["freshness"] == second["freshness"] == "stale"
        assert second["age_ms"] > first["age_ms"] > 1000 * 3600


# ---- the end of access


async def test_logging_out_closes_the_sockets_of_that_session_only(users: dict[str, User]) -> None:
    def log_in() -> Client:
        client = Client()
        client.post("/login", {"username": "viewer", "password": PASSWORD})
        return client

    one, two = await sync_to_async(log_in)(), await sync_to_async(log_in)()
    cookies = [f"logboom_session={client.cookies['logboom_session'].value}".encode() for client in (one, two)]
    async with opened("/ws/snapshot?view=bar", cookies[1]) as staying:
        await receive(staying)
        leaving = socket("/ws/snapshot?view=bar", cookies[0])
        await leaving.connect(TIMEOUT_S)
        await receive(leaving)
        await sync_to_async(one.post)("/logout")
        assert await closed(leaving) == push.ACCESS_ENDED
        await leaving.disconnect()
        await announce_snapshot(snapshot_document(2))
        assert (await receive(staying))["snapshot_seq"] == "2"


async def test_losing_rights_closes_at_once(cookie: Callable[[str], bytes], users: dict[str, User]) -> None:
    communicator = socket("/ws/snapshot?view=bar", cookie("operator"))
    await communicator.connect(TIMEOUT_S)
    await receive(communicator)
    await sync_to_async(services.revoke_access)(users["operator"])
    assert await closed(communicator) == push.ACCESS_ENDED
    await communicator.disconnect()


async def test_access_is_looked_at_again(
    cookie: Callable[[str], bytes], users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RECHECK_S", 0.05)
    communicator = socket("/ws/snapshot?view=bar", cookie("viewer"))
    await communicator.connect(TIMEOUT_S)
    await receive(communicator)
    await User.objects.filter(username="viewer").aupdate(is_active=False)
    assert await closed(communicator) == push.ACCESS_ENDED
    await communicator.disconnect()


async def test_a_session_that_is_idle_opens_no_socket_and_closes_those_it_has(
    users: dict[str, User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "RECHECK_S", 0.05)
    client = Client()
    await sync_to_async(client.force_login)(users["viewer"])
    cookie = f"logboom_session={client.cookies['logboom_session'].value}".encode()
    communicator = socket("/ws/snapshot?view=bar", cookie)
    await communicator.connect(TIMEOUT_S)
    await receive(communicator)
    monkeypatch.setattr(sessions, "IDLE_S", -1)
    assert await closed(communicator) == push.ACCESS_ENDED
    await communicator.disconnect()
    connected, _ = await socket("/ws/snapshot?view=bar", cookie).connect(TIMEOUT_S)
    assert not connected


async def test_who_does_not_acknowledge_gets_no_more_and_is_closed(
    cookie: Callable[[str], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "ACK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(feeds, "PAUSE_S", 0.0)
    monkeypatch.setattr(feeds, "LOOK_AGAIN_S", 0.01)
    communicator = socket("/ws/snapshot?view=bar", cookie("viewer"))
    await communicator.connect(TIMEOUT_S)
    for seq in range(2, 2 + push.WINDOW):
        await receive(communicator, acknowledge=False)
        MemorySnapshots.put(snapshot_document(seq))
    assert await closed(communicator) == push.NOT_ACKNOWLEDGED
    await communicator.disconnect()


@pytest.mark.parametrize(("text", "code"), [("not json", 1007), ("[1]", 1007), ("x" * 5000, 1009)])
async def test_nonsense_from_a_client_closes(cookie: Callable[[str], bytes], text: str, code: int) -> None:
    communicator = socket("/ws/snapshot?view=bar", cookie("viewer"))
    await communicator.connect(TIMEOUT_S)
    await receive(communicator)
    await communicator.send_to(text)
    assert await closed(communicator) == code
    await communicator.disconnect()


# ---- operations


async def test_an_operation_is_followed_to_its_end(cookie: Callable[[str], bytes]) -> None:
    operation = await Operation.objects.acreate(kind="topic.create", target="t", requested_by_name="x")
    async with opened(f"/ws/operations/{operation.pk}", cookie("viewer")) as communicator:
        assert (await receive(communicator))["state"] == "queued"
        await sync_to_async(progress.start)(operation.pk)
        assert (await receive(communicator))["state"] == "running"
        await sync_to_async(progress.node)(operation.pk, "broker-a", "CONFIRMED", "as asked")
        assert "as asked" in (await receive(communicator))["html"]
        await sync_to_async(progress.succeed)(operation.pk)
        last = await receive(communicator)
        assert (last["state"], last["finished"]) == ("succeeded", True)


async def test_times_of_an_operation_are_in_the_zone_of_who_looks(users: dict[str, User]) -> None:
    def prepare() -> tuple[Operation, bytes]:
        users["viewer"].time_zone = "Asia/Tokyo"
        users["viewer"].save()
        operation = Operation.objects.create(kind="topic.create", target="t", requested_by_name="x")
        Operation.objects.filter(pk=operation.pk).update(created_at="2026-01-01T20:00:00Z")
        return operation, cookies_of(users["viewer"])

    operation, cookie = await sync_to_async(prepare)()
    async with opened(f"/ws/operations/{operation.pk}", cookie) as communicator:
        assert "2026-01-02 05:00:00" in (await receive(communicator))["html"]


# ---- reports


def minute(number: int, messages: int) -> Row:
    at = f"2026-01-01T00:{number:02}:00Z"
    return Row("throughput", f"orders|{number}", {"topic": "orders", "minute": at, "messages": messages})


@pytest.fixture
def run(users: dict[str, User]) -> ReportRun:
    run = ReportRun.objects.create(report="throughput", parameters={})
    stream.starting(run.pk)
    stream.running(run.pk)
    return run


def keep(rows: dict[str, int], message: dict[str, Any]) -> None:
    for row in message["rows"]:
        rows[row["key"]] = row["data"]["messages"]


async def test_a_late_viewer_sees_what_was_streamed_and_then_follows(
    cookie: Callable[[str], bytes], run: ReportRun
) -> None:
    publish = sync_to_async(stream.publish)
    await publish(run.pk, [minute(number, 1) for number in range(5)])
    await publish(run.pk, [minute(4, 9)], {"text": "half way", "tasks_done": 3, "tasks_total": 6})
    rows: dict[str, int] = {}
    async with opened(f"/ws/report-runs/{run.pk}", cookie("viewer")) as communicator:
        first = await receive(communicator)
        keep(rows, first)
        assert rows == {"orders|0": 1, "orders|1": 1, "orders|2": 1, "orders|3": 1, "orders|4": 9}
        assert first["progress"]["tasks_done"] == 3
        await publish(run.pk, [minute(5, 2)])
        second = await receive(communicator)
        assert [row["key"] for row in second["rows"]] == ["orders|5"], "only what is new"
        await sync_to_async(stream.succeeded)(run.pk, [minute(0, 100)])
        last = await receive(communicator)
        assert (last["state"], last["finished"], last["complete"]) == ("succeeded", True, True)


async def test_a_viewer_who_comes_after_the_end_sees_the_result(cookie: Callable[[str], bytes], run: ReportRun) -> None:
    await sync_to_async(stream.succeeded)(run.pk, [minute(0, 7)])
    async with opened(f"/ws/report-runs/{run.pk}", cookie("viewer")) as communicator:
        message = await receive(communicator)
        assert message["finished"]
        assert [row["final"] for row in message["rows"]] == [True]


async def test_many_rows_come_in_parts_that_lose_none(
    cookie: Callable[[str], bytes], run: ReportRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webapp.reports.consumers.MAX_ROWS", 7)
    for step in range(10):
        await sync_to_async(stream.publish)(run.pk, [minute(step * 5 + number, 1) for number in range(5)])
    rows: dict[str, int] = {}
    async with opened(f"/ws/report-runs/{run.pk}", cookie("viewer")) as communicator:
        while True:
            message = await receive(communicator)
            keep(rows, message)
            if message["complete"]:
                break
    assert len(rows) == 50


async def test_a_gap_is_filled_on_request(cookie: Callable[[str], bytes], run: ReportRun) -> None:
    await sync_to_async(stream.publish)(run.pk, [minute(0, 1)])
    await sync_to_async(stream.publish)(run.pk, [minute(1, 1)])
    async with opened(f"/ws/report-runs/{run.pk}", cookie("viewer")) as communicator:
        first = await receive(communicator)
        await communicator.send_to(json.dumps({"type": "resync", "after": first["seq"] - 1}))
        again = await receive(communicator)
        assert [row["key"] for row in again["rows"]] == ["orders|1"]
        for nonsense in (None, "x", True, -5, 10**30):
            await communicator.send_to(json.dumps({"type": "resync", "after": nonsense}))
        await sync_to_async(stream.publish)(run.pk, [minute(2, 1)])
        assert [row["key"] for row in (await receive(communicator))["rows"]] == ["orders|2"]


async def test_a_step_of_a_run_is_built_once_for_all_who_follow_it(
    cookie: Callable[[str], bytes], run: ReportRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with all_opened(f"/ws/report-runs/{run.pk}", [cookie("viewer"), cookie("operator")] * 5) as viewers:
        for viewer in viewers:
            await receive(viewer)
        read = Calls(monkeypatch, report_consumers, "rows_after")
        for step in range(3):
            await sync_to_async(stream.publish)(run.pk, [minute(step, 1)])
            messages = [await receive(viewer) for viewer in viewers]
            assert [[row["key"] for row in message["rows"]] for message in messages] == [[f"orders|{step}"]] * 10
        assert read.count == 3


@pytest.mark.parametrize("path", ["/", "/ws/nothing", "/ws/operations/none", "/ws/snapshot/more"])
async def test_an_address_that_is_none_is_denied_like_any_other(path: str) -> None:
    assert (await socket(path).connect(TIMEOUT_S))[0] is False
