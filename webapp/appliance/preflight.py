"""What must be true before anything starts, each refusal one sentence: system, data directory, space, one instance, ports.

Called by `up` alone, in this order. The lock is held as long as the returned object is open; it goes with the process, so a
killed supervisor never leaves a directory locked.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from remoting.errors import SettingsError
from webapp.appliance import state
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import CONTROLLER_COUNTS, MAX_GROUPS, MAX_REPLICAS, Shape, Tier
from webapp.appliance.plan import Plan, PortUse
from webapp.appliance.reach import Secure

LEAST_FREE_BYTES = 512 * 1024 * 1024

_LOCK_TRIES = 10
_LOCK_RETRY_S = 0.05


def check_system() -> None:
    """Refuse a system without the calls by which children are watched and never outlive the supervisor."""
    if not hasattr(os, "pidfd_open"):
        raise SettingsError(
            "the appliance runs on Linux 5.3 or newer; use a virtual machine or a container of that kind"
        )


def make_directories(layout: DataLayout) -> None:
    """Make the data directory and prove that it can be written to."""
    try:
        for directory in layout.directories():
            directory.mkdir(parents=True, exist_ok=True)
        layout.root.chmod(0o700)
        layout.secrets.chmod(0o700)
        layout.tls.chmod(0o700)
        check = layout.run / "writable"
        check.write_bytes(b"x" * 4096)
        check.unlink()
    except OSError as error:
        raise SettingsError(_cannot_write(layout.root, error)) from error


def check_space(layout: DataLayout, free_bytes: int | None = None) -> None:
    """Refuse to start brokers on a disk that is as good as full."""
    free = shutil.disk_usage(layout.root).free if free_bytes is None else free_bytes
    if free < LEAST_FREE_BYTES:
        raise SettingsError(
            f"only {free // 2**20} MiB are free where {layout.root} lies, and the brokers need at least "
            f"{LEAST_FREE_BYTES // 2**20} MiB; free some space or choose another directory with --data"
        )


class InstanceLock:
    """The exclusive use of a data directory."""

    def __init__(self, layout: DataLayout) -> None:
        try:
            self._descriptor = os.open(layout.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SettingsError(_cannot_write(layout.root, error)) from error
        try:
            self._lock(layout)
        except SettingsError:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Let another instance have the directory."""
        os.close(self._descriptor)

    def _lock(self, layout: DataLayout) -> None:
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOCK_RETRY_S)  # somebody may just be looking whether it is locked
            else:
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
                return
        holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
        raise SettingsError(
            f"another appliance{f' (process {holder})' if holder else ''} is running on {layout.root}; "
            f"stop that one, or choose another directory with --data"
        )


class Remembered(NamedTuple):
    """What the data directory was made with, and has since: `appliance.json`."""

    shape: Shape
    tier: Tier | None = None
    secure: Secure | None = None

    def document(self) -> dict[str, Any]:
        """As it is in the file."""
        parts = {"tier": self.tier, "secure": self.secure}
        return {**asdict(self.shape), **{name: asdict(part) for name, part in parts.items() if part is not None}}


def read_remembered(layout: DataLayout) -> Remembered | None:
    """None on the first start. Raises SettingsError."""
    try:
        content = json.loads(layout.shape_file.read_text())
        tier, secure = content.pop("tier", None), content.pop("secure", None)
        remembered = Remembered(
            Shape(**content),
            Tier(**tier) if tier is not None else None,
            Secure(**secure) if secure is not None else None,
        )
        _check(remembered)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        tier, secure = Tier("s3://bucket/prefix", "/path/to/options.json"), Secure("logs.example.com")
        example = json.dumps(Remembered(Shape(), tier, secure).document())
        raise SettingsError(
            f'{layout.shape_file} is damaged; it should look like {example}, "tier" and "secure" where there are: restore it, '
            "or delete it and give --controllers, --groups, --replicas, --tier and --secure as they were"
        ) from error
    return remembered


def _check(remembered: Remembered) -> None:
    """Raises ValueError for what no start wrote."""
    shape, tier, secure = remembered
    if (
        shape.controllers not in CONTROLLER_COUNTS
        or not 1 <= shape.groups <= MAX_GROUPS
        or not 1 <= shape.replicas <= MAX_REPLICAS
    ):
        raise ValueError(shape)
    if tier is not None and not (isinstance(tier.url, str) and tier.url and isinstance(tier.options_path, str)):
        raise ValueError(tier)
    if secure is not None and not (
        all(isinstance(each, str) for each in (secure.host, secure.certificate_path, secure.key_path))
        and isinstance(secure.https_port, int)
        and 1 <= secure.https_port <= 65535
        and secure.host
    ):
        raise ValueError(secure)


def write_remembered(layout: DataLayout, remembered: Remembered) -> None:
    """Have it for later starts. Raises SettingsError."""
    try:
        state.publish(layout.shape_file, remembered.document())
    except OSError as error:
        raise SettingsError(_cannot_write(layout.root, error)) from error


def check_ports(plan: Plan) -> None:
    """Refuse to start when somebody else already listens where the appliance is going to."""
    for process, use in plan.ports:
        if not is_free(use):
            holder = _listener(use.port)
            raise SettingsError(
                f"port {use.port}, which {process.name} needs, is taken{f' by {holder}' if holder else ''}; "
                f'stop that program, or move ours with {use.option} (make up ARGS="{use.option} '
                f'{"HOST:PORT" if use.option == "--http" else "PORT"}")'
            )


def is_free(use: PortUse) -> bool:
    """Whether nobody listens there. Raises SettingsError when this user cannot."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(use.host, use.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free for us
            probe.bind(address)
            probe.listen(1)  # two sockets with that option may bind; only one may listen
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        if error.errno == errno.EACCES:
            raise SettingsError(
                f"port {use.port} needs more rights than this user has; choose one above 1023 with {use.option}"
            ) from error
        raise SettingsError(f"cannot listen on {use.host}:{use.port} ({error.strerror}); see {use.option}") from error
    return True


def _listener(port: int) -> str | None:
    """The program that listens on the port, as far as this user may know."""
    inodes = _listening_inodes(port)
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and _has_socket(process, inodes):
            try:
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            return f"{name} (process {process.name})"
    return None


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines: Sequence[str] = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _has_socket(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(entry) in inodes for entry in (process / "fd").iterdir())
    except OSError:  # gone meanwhile, or another user's
        return False


def _cannot_write(root: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"the disk that holds {root} is full; free some space or choose another directory with --data"
    return f"cannot write to {root} ({error.strerror}); make it writable or choose another directory with --data"
