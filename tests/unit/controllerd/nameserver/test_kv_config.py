"""Key-value configuration: what it keeps and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from controllerd.nameserver.kv_config import KvConfig
from remoting.disk import LocalDisk
from remoting.errors import CorruptedFile, RequestError


def test_kv_configuration_survives_a_restart(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "d")
    kv = KvConfig(disk)
    kv.put("ns", "k", "v")
    assert KvConfig(disk).get("ns", "k") == "v"
    kv.delete("ns", "k")
    with pytest.raises(RequestError, match="no value"):
        KvConfig(disk).get("ns", "k")
    with pytest.raises(RequestError, match="no namespace"):
        kv.table("other")
    with pytest.raises(RequestError, match="must not be empty"):
        kv.put("", "k", "v")
    disk.close()


def test_a_damaged_file_is_said_so(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "d")
    disk.replace_bytes("kvConfig.json", b"{")
    with pytest.raises(CorruptedFile, match="restore or remove it"):
        KvConfig(disk)
    disk.close()
