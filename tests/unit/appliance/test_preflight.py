from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from remoting.errors import SettingsError
from tests.support.ports import free_ports
from webapp.appliance import preflight, state
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, Shape, Tier
from webapp.appliance.place import PROJECT_DIR
from webapp.appliance.plan import Plan, RedisPart, make_plan
from webapp.appliance.reach import Secure


def plan_with(layout: DataLayout, options: Options) -> Plan:
    return make_plan(options, Shape(controllers=1, replicas=1), layout, sys.executable, RedisPart("Redis"), {})


def options_with_free_ports() -> Options:
    """Four ports that are free at this moment, with the next one free as well."""
    http, controller, broker, grpc = free_ports(4, in_a_row=2)
    return Options(http_port=http, controller_port=controller, broker_port=broker, grpc_port=grpc)


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    preflight.check_system()
    monkeypatch.delattr("os.pidfd_open")
    with pytest.raises(SettingsError, match="Linux"):
        preflight.check_system()


def test_directories_are_made_for_the_owner_only(tmp_path: Path) -> None:
    layout = DataLayout(tmp_path / "a" / "b")
    preflight.make_directories(layout)
    preflight.make_directories(layout)
    assert all(directory.is_dir() for directory in layout.directories())
    assert stat.S_IMODE(layout.root.stat().st_mode) == 0o700


def test_an_unwritable_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"cannot write to .*file/data \(Not a directory\).*--data"):
        preflight.make_directories(DataLayout(tmp_path / "file" / "data"))


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(SettingsError, match="is full; free some space or choose another directory with --data"):
        preflight.make_directories(DataLayout(tmp_path / "data"))


def test_too_little_space_is_one_sentence(layout: DataLayout) -> None:
    preflight.check_space(layout, free_bytes=preflight.LEAST_FREE_BYTES)
    with pytest.raises(SettingsError, match=r"only 12 MiB are free .* at least 512 MiB"):
        preflight.check_space(layout, free_bytes=12 * 2**20)


def test_a_second_instance_is_refused_and_told_who_runs(layout: DataLayout) -> None:
    assert not state.is_locked(layout.lock_file)
    lock = preflight.InstanceLock(layout)
    try:
        assert state.is_locked(layout.lock_file)
        with pytest.raises(SettingsError, match=rf"another appliance \(process {os.getpid()}\) is running .*--data"):
            preflight.InstanceLock(layout)
    finally:
        lock.close()
    preflight.InstanceLock(layout).close()


def test_a_killed_instance_leaves_no_lock(layout: DataLayout) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from webapp.appliance import preflight, layout\n"
            "lock = preflight.InstanceLock(layout.DataLayout(Path(sys.argv[1])))\n"
            "sys.stdout.write('locked\\n'); sys.stdout.flush(); sys.stdin.read()",
            str(layout.root),
        ],
        cwd=PROJECT_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert state.is_locked(layout.lock_file)
        holder.kill()
    preflight.InstanceLock(layout).close()


def test_free_ports_pass(layout: DataLayout) -> None:
    preflight.check_ports(plan_with(layout, options_with_free_ports()))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_names_its_holder_and_the_option(layout: DataLayout, host: str) -> None:
    options = options_with_free_ports()
    with (
        socket.create_server((host, options.grpc_port)),
        pytest.raises(
            SettingsError, match=rf"port {options.grpc_port}, which broker-a-1 needs.*--grpc-port PORT"
        ) as refusal,
    ):
        preflight.check_ports(plan_with(layout, options))
    assert f"(process {os.getpid()})" in str(refusal.value)


@pytest.mark.parametrize("tier", [None, Tier("s3://bucket/prefix"), Tier("file:///srv/tier", "/etc/options.json")])
def test_size_and_tier_are_remembered(layout: DataLayout, tier: Tier | None) -> None:
    assert preflight.read_remembered(layout) is None
    for secure in (None, Secure("logs.example.com", 9443, "/etc/console.pem", "/etc/console.key")):
        preflight.write_remembered(layout, preflight.Remembered(Shape(1, 2, 3), tier, secure))
        assert preflight.read_remembered(layout) == (Shape(controllers=1, groups=2, replicas=3), tier, secure)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"tier": {"url": 1}}',
        '{"tier": "s3://x"}',
        '{"controllers": 2}',
        '{"other": 1}',
        '{"replicas": 0}',
        '{"groups": "x"}',
    ],
)
def test_a_damaged_size_is_one_sentence(layout: DataLayout, content: str) -> None:
    layout.shape_file.write_text(content)
    with pytest.raises(SettingsError, match=r"appliance.json is damaged; it should look like"):
        preflight.read_remembered(layout)
