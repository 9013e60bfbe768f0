"""Network namespaces by name: enter one, give orders to `ip`, and find out why none can be made here.

A run's namespaces share a prefix with a random part. What a killed run left behind is recognised by the lock on its directory,
which nobody holds any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, TextIO

from tests.chaos.addresses import NODES

_CLONE_NEWNET: Final = 0x40000000
_RUN_NAMESPACE: Final = re.compile(r"(lbc[0-9a-f]{6})-[a-z0-9]+")
_NETNS_DIRECTORY: Final = Path("/run/netns")
_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
    """One sentence that says why this machine cannot do it, or None."""
    if os.name != "posix" or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need root: run it as root (sudo make chaos)"
    for program, package in (("ip", "iproute2"), ("mount", "mount")):
        if shutil.which(program) is None:
            return f"the program {program!r} is missing: apt-get install {package}"
    if not os.path.exists("/dev/net/tun"):
        return "/dev/net/tun is missing: load the kernel module tun (modprobe tun)"
    probe = f"lbc{secrets.token_hex(3)}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None


def namespace_of(prefix: str, node: str) -> str:
    return f"{prefix}-{node}"


def existing_nodes(prefix: str) -> list[str]:
    """The nodes that have a namespace under this prefix."""
    return [node for node in NODES if (_NETNS_DIRECTORY / namespace_of(prefix, node)).exists()]


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread, and what it starts meanwhile, is in the namespace."""
    with open("/proc/thread-self/ns/net") as before:
        enter(namespace)
        try:
            yield
        finally:
            _set(before)


def enter(namespace: str) -> None:
    """Move the calling thread; threads and processes that it starts from now on are there too."""
    with open(_NETNS_DIRECTORY / namespace) as target:
        _set(target)


def _set(target: TextIO) -> None:
    if _libc.setns(target.fileno(), _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def ip_batch(namespace: str | None, lines: Sequence[str]) -> None:
    """Give orders to `ip`, all in one process; raises RuntimeError with its words when one is refused."""
    command = ["ip", *(("-n", namespace) if namespace else ()), "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()} (of {lines})")


class RunDirectory:
    """The place of one run's files; its lock says that the run lives."""

    def __init__(self) -> None:
        self.prefix = f"lbc{secrets.token_hex(3)}"
        self.path = _directory_of(self.prefix)
        # locked before it has the name by which others look for it: a directory without a lock is taken for a dead run's
        unseen = self.path.with_name(f"{self.prefix}-new")
        unseen.mkdir(mode=0o755)
        self._lock = open(unseen / "lock", "w")  # noqa: SIM115 - held until `remove`
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unseen.rename(self.path)

    def remove(self) -> None:
        """Everything under this prefix goes: processes, namespaces, mounts, files."""
        sweep(self.prefix)
        self._lock.close()


def sweep_leftovers() -> list[str]:
    """Remove what killed runs left; the prefixes of those."""
    names = [entry.name for entry in _NETNS_DIRECTORY.iterdir()] if _NETNS_DIRECTORY.exists() else []
    found = {match[1] for name in names if (match := _RUN_NAMESPACE.fullmatch(name))}
    found |= {
        path.name.removeprefix("logboom-chaos-") for path in Path(tempfile.gettempdir()).glob("logboom-chaos-lbc*")
    }
    dead = sorted(prefix for prefix in found if not _is_alive(prefix))
    for prefix in dead:
        sweep(prefix)
    return dead


def _is_alive(prefix: str) -> bool:
    try:
        with open(_directory_of(prefix) / "lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def sweep(prefix: str) -> None:
    """Kill what runs in the prefix's namespaces, delete them, unmount and delete the run's directory."""
    names = [entry.name for entry in _NETNS_DIRECTORY.iterdir()] if _NETNS_DIRECTORY.exists() else []
    for name in names:
        if name.startswith(prefix + "-"):
            _end_processes(name)
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    directory = _directory_of(prefix)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(f"{directory}/"):
            subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
    shutil.rmtree(directory, ignore_errors=True)


def _end_processes(namespace: str) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
        pids = [int(pid) for pid in listed.stdout.split() if int(pid) != os.getpid()]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _directory_of(prefix: str) -> Path:
    return Path(tempfile.gettempdir()) / f"logboom-chaos-{prefix}"
