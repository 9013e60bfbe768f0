"""Building the native library: which compiler, which file, and the compilation itself.

The file lies in a directory of the user's cache that nobody else can write. Its name says what it was made of: sources, flags,
compiler and machine; so what is there under the right name is right, and several brokers may build at once, of which the last one
to finish puts its file in place. Nothing is compiled twice on a machine, and nothing that changed is used.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

from remoting.errors import LogboomError

SOURCES: Final = (
    "again.c",
    "answers.c",
    "asked.c",
    "blake2s.c",
    "carrier.c",
    "crc.c",
    "derived_tails.c",
    "due.c",
    "grpc_sends.c",
    "headers.c",
    "hpack.c",
    "keys.c",
    "lane.c",
    "log_files.c",
    "moments.c",
    "properties.c",
    "proven.c",
    "pulls.c",
    "queue_files.c",
    "queue_tails.c",
    "reads.c",
    "runs.c",
    "send.c",
    "sha1.c",
    "signed.c",
    "stays.c",
    "syncs.c",
    "timer_codes.c",
    "timer_notes.c",
    "walk.c",
)
_HEADERS: Final = (
    "asked.h",
    "blake2s.h",
    "headers.h",
    "lane.h",
    "log_files.h",
    "moments.h",
    "native.h",
    "properties.h",
    "pulls.h",
    "queue_tails.h",
    "record.h",
    "record_parts.h",
    "send.h",
    "sha1.h",
    "signed.h",
    "stays.h",
    "syncs.h",
    "text.h",
    "units.h",
    "walk.h",
)
FLAGS: Final = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread")
_COMPILERS: Final = ("cc", "gcc", "clang")
_VERSION_TIMEOUT_S: Final = 10
_TIMEOUT_S: Final = 120
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class CannotBuild(LogboomError):
    """There is no native library on this machine; the text says why."""


def source_dir() -> Path:
    """Where the sources are: beside this module."""
    with resources.as_file(resources.files(__package__)) as path:
        return path


def find_compiler(path: str | None = None) -> str:
    """The first C compiler on the PATH. Raises CannotBuild."""
    for name in _COMPILERS:
        if (found := shutil.which(name, path=path)) is not None:
            return found
    raise CannotBuild(f"no C compiler ({', '.join(_COMPILERS)}) is on the PATH")


def cache_dir(environ: Mapping[str, str]) -> Path:
    """The directory for libraries, made if need be. Raises CannotBuild when there is none that this user alone can write."""
    named = environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(named) if named.startswith("/") else Path.home() / ".cache"
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_owned(base)
        for directory in (base / "logboom", base / "logboom" / "native"):
            directory.mkdir(mode=0o700, exist_ok=True)
            _check_owned(directory)
    except (OSError, RuntimeError) as error:
        raise CannotBuild(f"no directory for the library: {error}") from error
    return directory


def _check_owned(path: Path) -> None:
    """Raise CannotBuild unless the path is this user's, and nobody else can write it."""
    found = path.stat()
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MAY_WRITE:
        raise CannotBuild(f"{path} is not this user's alone")


def file_name(compiler: str, sources: Path, flags: Sequence[str] = FLAGS) -> str:
    """The name of what this compiler makes of the sources. Raises CannotBuild."""
    digest = hashlib.sha256()
    for name in (*_HEADERS, *SOURCES):
        digest.update((sources / name).read_bytes() + b"\0")
    version = _run([compiler, "--version"], _VERSION_TIMEOUT_S)
    digest.update("\0".join([*flags, compiler, version, platform.system(), platform.machine()]).encode())
    return f"{digest.hexdigest()[:32]}.so"


def build(directory: Path, compiler: str) -> Path:
    """The library in the directory, made by that compiler unless it is there. Raises CannotBuild."""
    sources = source_dir()
    library = directory / file_name(compiler, sources)
    if not library.exists():
        compile_to(library, compiler, sources)
    _check_owned(library)
    return library


def compile_to(library: Path, compiler: str, sources: Path, flags: Sequence[str] = FLAGS) -> None:
    """Make the library, whole or not at all. Raises CannotBuild with what the compiler said."""
    try:
        number, temporary = tempfile.mkstemp(dir=library.parent, prefix="building-")
    except OSError as error:
        raise CannotBuild(f"no room for the library: {error}") from error
    try:
        _run([compiler, *flags, "-o", temporary, *(str(sources / name) for name in SOURCES)], _TIMEOUT_S)
        os.chmod(temporary, 0o700)  # a linker may have made the file anew
        os.fsync(number)
        os.replace(temporary, library)
    except OSError as error:
        raise CannotBuild(f"the library cannot be kept: {error}") from error
    finally:
        os.close(number)
        Path(temporary).unlink(missing_ok=True)


def _run(command: Sequence[str], timeout_s: float) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotBuild(f"{command[0]} does not run: {error}") from error
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        raise CannotBuild(f"{command[0]} ended with {done.returncode}: {said[:500]}")
    return done.stdout
