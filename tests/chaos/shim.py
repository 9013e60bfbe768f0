"""Compiles a small library that is loaded before libc into daemons of a scenario: their own code has no seam for its faults."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_PRELOAD: Final = "LD_PRELOAD"
_COMPILER: Final = "gcc"


def compiler_missing() -> str | None:
    """One sentence that says what is missing here, or None."""
    if shutil.which(_COMPILER) is None:
        return f"the program {_COMPILER!r} is missing: apt-get install gcc libc6-dev"
    return None


def compile_shim(source: Path, directory: Path) -> Path:
    """The shared object of a C source, made once for each directory; raises RuntimeError with the compiler's words."""
    target = directory / f"{source.stem}.so"
    if not target.exists():
        command = [_COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the shim {source.name} does not compile: {done.stderr}")
    return target


def preloading(shim: Path, variable: str, file: Path) -> dict[str, str]:
    """The environment of a process that loads the shim, which finds its orders in the file."""
    return {_PRELOAD: str(shim), variable: str(file)}


def together(environments: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The environment of a process that loads several shims."""
    merged: dict[str, str] = {}
    for each in environments:
        shims = [merged[_PRELOAD]] if _PRELOAD in merged else []
        merged |= each
        merged[_PRELOAD] = ":".join((*shims, each[_PRELOAD]))
    return merged
