"""A guard that asks nobody, and the rights of who is asked nothing, for tests of what is behind."""

from __future__ import annotations

from typing import Final

from remoting.guarding.guard import AccessSettings, Guard

OPEN: Final = Guard(AccessSettings(), "c", (), lambda: 0)


def anybody_may(*_what: object) -> None:
    """For what raises an error where somebody may not."""


def yes(*_what: object) -> bool:
    """For what says whether somebody may."""
    return True
