"""A real S3 server behind the proxy that fails: a broker learns of a request what its interface says; nothing is half there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.tiers.objects.backend import Backend, open_backend
from brokerd.tiers.objects.interface import AlreadyThere, NotThere, ObjectStoreError, Unknown
from brokerd.tiers.settings import TierSettings
from tests.support.object_faults import FAULTS, Fault, FaultProxy, evenly
from tests.support.object_servers import S3Server, write_options

BUCKET = "faults"
OBJECTS = 60


@pytest.fixture(scope="module")
def proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    s3_server.make_bucket(BUCKET)
    with FaultProxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def store(proxy: FaultProxy, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Backend]:
    options = write_options(tmp_path / "options", proxy.port)
    url = f"s3://{BUCKET}/{request.node.name}"
    yield open_backend(TierSettings(url=url, options_path=str(options), request_timeout_ms=5000), "g")
    proxy.chances = {}
    proxy.is_dead = False


async def test_without_faults_it_is_the_server(store: Backend) -> None:
    content = random.Random(1).randbytes(5_000_000)
    await store.put("a", content)
    assert await store.get("a", 0, len(content)) == content
    assert [each.name for each in await store.list("")] == ["a"]
    await store.remove(["a"])
    with pytest.raises(NotThere):
        await store.get("a", 0, 1)


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.BROKEN, Fault.REFUSED, Fault.LOST])
async def test_a_request_that_always_fails_has_an_unknown_outcome(
    store: Backend, proxy: FaultProxy, fault: Fault
) -> None:
    proxy.chances = {fault: 1}
    is_done = fault in (Fault.BROKEN, Fault.LOST)
    with pytest.raises((Unknown, AlreadyThere)):
        await store.put("a", b"abc")
    proxy.chances = {}
    assert [each.name for each in await store.list("")] == (["a"] if is_done else [])


async def test_a_store_that_turns_everybody_away(store: Backend, proxy: FaultProxy) -> None:
    proxy.is_dead = True
    for asked in (
        store.put("a", b""),
        store.get("a", 0, 1),
        store.get_all("a", 1),
        store.list(""),
        store.remove(["a"]),
    ):
        with pytest.raises(Unknown):
            await asked


async def test_among_all_faults_what_was_said_to_be_there_is(store: Backend, proxy: FaultProxy) -> None:
    proxy.faults.clear()
    proxy.chances = evenly(0.4)
    contents = {f"m/{number}": random.Random(number).randbytes(10_000) for number in range(OBJECTS)}
    stored: list[str] = []

    async def put(name: str) -> None:
        try:
            await store.put(name, contents[name])
            stored.append(name)
        except (Unknown, AlreadyThere):
            """It may be there."""

    await asyncio.gather(*map(put, contents))
    assert all(proxy.faults[fault] for fault in FAULTS), proxy.faults
    assert len(stored) > OBJECTS / 2
    for name in stored:
        assert await until_known(store, name, len(contents[name])) == contents[name]
    proxy.chances = {}
    for each in await store.list("m/"):
        assert await store.get_all(each.name, 10_000) == contents[each.name], "there as a whole, or not at all"


async def until_known(store: Backend, name: str, length: int) -> bytes:
    for _ in range(20):
        try:
            return await store.get(name, 0, length)
        except Unknown:
            await asyncio.sleep(0)
        except ObjectStoreError as error:
            raise AssertionError(f"{name} was stored") from error
    raise AssertionError(f"{name} cannot be read")
