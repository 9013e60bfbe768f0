"""The native library for tests, which are skipped where it cannot be built."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from brokerd.native.building import CannotBuild
from brokerd.native.library import Library, load

NAMED_BY: Final = "NATIVE_LIBRARY_UNDER_TEST"  # a variable with the path of another build


@cache
def _loaded() -> Library | str:
    named = os.environ.get(NAMED_BY)
    try:
        return Library(Path(named)) if named else load()
    except CannotBuild as error:
        return str(error)


def library_if_any() -> Library | None:
    """The library; None where it cannot be built."""
    found = _loaded()
    return None if isinstance(found, str) else found


def native_library() -> Library:
    """The library; skips the test that asks where there is none."""
    found = _loaded()
    if isinstance(found, str):
        pytest.skip(f"no native library: {found}")
    return found
