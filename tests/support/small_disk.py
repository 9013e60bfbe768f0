"""A file system of its own, in memory, that is full soon."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[None]:
    """One at that path, which is made for it, as the options of `mount` for tmpfs say. Skips the test where nobody may mount."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "logboom-test", str(path)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a file system of its own cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
