"""A guard that asks nobody, for tests of what is behind it."""

from __future__ import annotations

from typing import Final

from remoting.guarding.guard import AccessSettings, Guard

OPEN: Final = Guard(AccessSettings(), "c", (), lambda: 0)
