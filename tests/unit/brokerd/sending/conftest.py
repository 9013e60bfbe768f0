"""Both kernels for tests of what either does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kernels import native_kernels
from tests.support.native_library import native_library


@pytest.fixture(scope="module", params=["python", "native"])
def both_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the module with each kernel; that in C is skipped where it cannot be built."""
    if request.param == "python":
        yield
    else:
        with native_kernels(native_library()):
            yield
