from __future__ import annotations

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from webapp.appliance import secret_files


def test_a_secret_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "secrets" / "key"
    secret = secret_files.read_or_create(path)
    assert len(secret) >= 40
    assert secret_files.read_or_create(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]


def test_those_who_ask_at_the_same_time_get_the_same_secret(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: secret_files.read_or_create(path), range(32)))
    assert len(secrets) == 1


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("\n")
    with pytest.raises(ValueError, match="delete it"):
        secret_files.read_or_create(path)


def test_a_secret_is_replaced_whole_and_by_its_owner_s_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old\n")
    secret_files.write(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new\n", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_that_refuses_leaves_no_copy_of_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "key"
    monkeypatch.setattr(os, "fsync", full)
    for make in (lambda: secret_files.read_or_create(path), lambda: secret_files.write(path, "new")):
        with pytest.raises(OSError, match="No space left"):
            make()
    assert list(tmp_path.iterdir()) == []
