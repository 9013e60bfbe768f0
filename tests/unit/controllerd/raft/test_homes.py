"""Who is at home at an address, when what comes back is a life, silence, a refusal or nothing."""

from __future__ import annotations

import pytest

from controllerd.raft import homes
from controllerd.raft.homes import Homes
from remoting.errors import ConnectionLost
from remoting.transport.connection import RemotingConnection
from remoting.transport.identity import NOBODY
from tests.support.ports import free_ports


async def test_an_address_that_refuses_connections_is_empty_at_once() -> None:
    assert await Homes(NOBODY).life("n0", f"127.0.0.1:{free_ports(1)[0]}", {}) == ""


async def test_an_address_that_nothing_comes_back_from_is_empty_after_some_looks_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reason: type[OSError] = TimeoutError

    async def unreachable(address: str, **_: object) -> RemotingConnection:
        raise ConnectionLost(f"cannot connect to {address}") from reason()

    monkeypatch.setattr(homes, "connect", unreachable)
    looking = Homes(NOBODY)
    assert [await looking.life("n0", "10.0.0.1:7", {}) for _ in range(homes._LOOKS)] == [None] * (homes._LOOKS - 1) + [
        ""
    ]
    assert await looking.life("n1", "10.0.0.2:7", {}) is None
    reason = ConnectionRefusedError
    assert await looking.life("n1", "10.0.0.2:7", {}) == ""
    reason = TimeoutError
    assert [await looking.life("n1", "10.0.0.2:7", {}) for _ in range(2)] == [None, None]
