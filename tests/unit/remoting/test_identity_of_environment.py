"""What the console and its tasks dial with: a daemon has to show a certificate for the address that was dialled."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.client.identity import identity_of_environment
from remoting.errors import ConnectionLost, SettingsError
from remoting.transport.identity import NOBODY
from tests.support.certificates import Authority
from tests.unit.remoting.test_tls import echoed, serving, settings


async def test_a_daemon_is_known_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("LOGBOOM_TLS_CA", str(authority.ca))
    async with serving(settings(authority.sign("own"), "enforcing")) as address:
        assert await echoed(address, identity_of_environment()) == b"hello"
    async with serving(settings(authority.sign("other", "IP:192.0.2.7,DNS:other.example"), "enforcing")) as address:
        with pytest.raises(ConnectionLost):
            await echoed(address, identity_of_environment())
        monkeypatch.setenv("LOGBOOM_TLS_CHECK_HOST", "0")
        assert await echoed(address, identity_of_environment()) == b"hello", "the same process, told otherwise"
        monkeypatch.setenv("LOGBOOM_TLS_CHECK_HOST", "1")
        with pytest.raises(ConnectionLost):
            await echoed(address, identity_of_environment())


def test_without_an_authority_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGBOOM_CLUSTER_SECRET_FILE", raising=False)
    assert identity_of_environment() == NOBODY
    monkeypatch.setenv("LOGBOOM_TLS_CHECK_HOST", "no")
    with pytest.raises(SettingsError, match="is 0 or 1, not 'no'"):
        identity_of_environment()
