"""The native library for tests, which are skipped where it cannot be built."""

from __future__ import annotations

from functools import cache

import pytest

from brokerd.native.building import CannotBuild
from brokerd.native.library import Library, load


@cache
def _loaded() -> Library | str:
    try:
        return load()
    except CannotBuild as error:
        return str(error)


def native_library() -> Library:
    """The library; skips the test that asks where there is none."""
    found = _loaded()
    if isinstance(found, str):
        pytest.skip(f"no native library: {found}")
    return found
