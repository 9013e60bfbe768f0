from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting.errors import SettingsError
from webapp.appliance import preflight, redis_server
from webapp.appliance.layout import DataLayout
from webapp.appliance.redis_binary import Server

SERVER = Server("/opt/valkey-server", "Valkey", "9.1.2", "bundled")


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose own path leaves room for a socket's; pytest's may not."""
    path = Path(tempfile.mkdtemp(prefix="redis"))
    yield path
    shutil.rmtree(path)


def test_the_password_is_in_private_files_and_on_no_command_line(layout: DataLayout) -> None:
    embedded = redis_server.prepare_embedded(layout, SERVER)
    password = layout.redis_password_file.read_text().strip()
    assert embedded.socket == layout.redis / "redis.sock"
    assert embedded.url == f"unix://logboom:{password}@{embedded.socket}?db=0"
    assert embedded.argv[0] == "/opt/valkey-server"
    assert password not in " ".join(embedded.argv)
    configuration = Path(embedded.argv[1])
    assert [stat.S_IMODE(each.stat().st_mode) for each in (configuration, layout.redis)] == [0o600, 0o700]
    lines = configuration.read_text().splitlines()
    assert {"port 0", f'unixsocket "{embedded.socket}"', "unixsocketperm 700", "user default reset off"} <= set(lines)
    assert redis_server.prepare_embedded(layout, SERVER) == embedded, "it stays the same"


def test_a_path_is_one_word_of_the_configuration(tmp_path: Path) -> None:
    layout = DataLayout(tmp_path / 'a "b\\ c')
    preflight.make_directories(layout)
    configuration = Path(redis_server.prepare_embedded(layout, SERVER).argv[1])
    assert f'dir "{tmp_path}/a \\"b\\\\ c/redis"' in configuration.read_text()


def test_a_path_that_is_too_long_for_a_socket_is_given_a_short_one_that_is_private(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    layout = DataLayout(short_path / ("d" * 100))
    preflight.make_directories(layout)
    embedded = redis_server.prepare_embedded(layout, SERVER)
    assert embedded.socket.parent.parent == short_path
    assert stat.S_IMODE(embedded.socket.parent.stat().st_mode) == 0o700
    assert redis_server.prepare_embedded(layout, SERVER) == embedded, "a later start finds it again"
    embedded.socket.parent.chmod(0o755)
    with pytest.raises(SettingsError, match=f"{embedded.socket.parent} is not a directory of this user alone"):
        redis_server.prepare_embedded(layout, SERVER)
    embedded.socket.parent.rmdir()
    embedded.socket.parent.symlink_to(short_path)
    with pytest.raises(SettingsError, match="is not a directory of this user alone"):
        redis_server.prepare_embedded(layout, SERVER)
    monkeypatch.setattr("tempfile.tempdir", str(layout.root))
    with pytest.raises(SettingsError, match=r"is short enough for a socket \(107 bytes\); choose .* with --data"):
        redis_server.prepare_embedded(layout, SERVER)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")
def test_a_short_directory_that_somebody_else_made_is_refused(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short_path))
    layout = DataLayout(short_path / ("d" * 100))
    preflight.make_directories(layout)
    os.chown(redis_server.prepare_embedded(layout, SERVER).socket.parent, 65534, 65534)
    with pytest.raises(SettingsError, match="is not a directory of this user alone"):
        redis_server.prepare_embedded(layout, SERVER)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense", "redis://127.0.0.1:x/0"])
def test_a_redis_that_does_not_answer_is_one_sentence(url: str) -> None:
    with pytest.raises(SettingsError, match="correct REDIS_URL, or unset it"):
        redis_server.check_external(url)


def test_commands_of_a_person_find_the_embedded_server(layout: DataLayout) -> None:
    assert redis_server.embedded_url(layout) is None
    embedded = redis_server.prepare_embedded(layout, SERVER)
    assert redis_server.embedded_url(layout) == embedded.url
    assert stat.S_IMODE(layout.redis_url_file.stat().st_mode) == 0o600
