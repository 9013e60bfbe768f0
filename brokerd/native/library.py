"""The native library as the broker uses it: loaded, of the right version, and right about what it was asked at load.

Whoever has a loop in C declares its functions from the `Library` he is given (`function`), and hands a check to `choose`: it
compares C and its Python twin. A library that fails one is not used. Calls release the interpreter's lock.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brokerd.native.building import CannotBuild, build, cache_dir, find_compiler
from brokerd.native.settings import AUTO, NATIVE, PYTHON
from remoting.checksum import crc32
from remoting.errors import SettingsError

log = logging.getLogger(__name__)

ABI: Final = 33  # native.h has the same number


class Library:
    """A loaded library. Raises CannotBuild when it cannot be loaded, or is of another version."""

    def __init__(self, path: Path) -> None:
        try:
            self._dll = ctypes.CDLL(str(path))
            version = self.function("native_begin", ctypes.c_int32)()
        except (OSError, AttributeError) as error:
            raise CannotBuild(f"{path} cannot be loaded: {error}") from error
        if version != ABI:
            raise CannotBuild(f"{path} has version {version} of the calls, not {ABI}")
        self.path = path

    def function(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """The function of that name, with its ctypes. Raises AttributeError when there is none."""
        found = self._dll[name]
        found.restype, found.argtypes = result, arguments
        return found


Check = Callable[[Library], bool]


def crc_agrees(library: Library) -> bool:
    """Whether the library's checksums are those of `remoting.checksum`, at several lengths and places, also of joined pieces."""
    joined = library.function(
        "native_crc32_joined", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_size_t, ctypes.c_int32
    )
    native = library.function(
        "native_crc32", ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int32
    )
    data = bytes(number * number % 251 for number in range(300))
    return all(
        native(before, data[start:end], end - start, plainly) == crc32(data[start:end], before)
        and joined(before, crc32(data[start:end]), end - start, plainly) == crc32(data[start:end], before)
        for start in (0, 1, 7)
        for end in (7, 15, 63, 64, 80, 127, 128, 209, 300)
        for before in (0, 0x80000001)
        for plainly in (0, 1)
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen: `library` is None where loops run in Python, and `reason` then says why."""

    library: Library | None
    reason: str = ""

    @property
    def mode(self) -> str:
        """For people: `native` or `python`."""
        return PYTHON if self.library is None else NATIVE


def load(checks: Sequence[Check] = ()) -> Library:
    """The library, built if need be, that passed the checks. Raises CannotBuild."""
    path = build(cache_dir(os.environ), find_compiler())
    library = Library(path)
    for check in (crc_agrees, *checks):
        if not check(library):
            raise CannotBuild(f"{path} gives other results than Python ({check.__name__})")
    return library


def choose(mode: str, checks: Sequence[Check] = ()) -> Choice:
    """What `kernel.mode` asks for. Raises SettingsError when only the library will do and there is none."""
    if mode == PYTHON:
        return Choice(None, "kernel.mode=python")
    try:
        library = load(checks)
    except CannotBuild as error:
        if mode != AUTO:
            raise SettingsError(f"kernel.mode={mode}: {error}") from error
        log.warning("loops over messages run in Python: %s", error)
        return Choice(None, str(error))
    log.info("loops over messages run in C: %s", library.path)
    return Choice(library)
