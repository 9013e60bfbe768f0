"""What others hand to the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from brokerd.native.library import Library
from brokerd.store.cold import Cold
from brokerd.store.log.derive import NO_RULES, CodeRules
from brokerd.store.read_levels import ReadLevel
from brokerd.store.wanted_files import Wishes, no_wishes


class StoreSeams(NamedTuple):
    """`rules` make the codes of some topics' consume-queue entries, the same on every replica; with the library, loops over
    records run in C; `cold` has messages that the files have no more, and maybe others, of which `read_level` says when they are
    read there; `wishes` says which topics want their messages longer than the broker keeps files."""

    rules: CodeRules = NO_RULES
    library: Library | None = None
    cold: Cold | None = None
    read_level: ReadLevel = ReadLevel.NOT_IN_DISK
    wishes: Callable[[], Wishes] = no_wishes


NO_SEAMS: Final = StoreSeams()
