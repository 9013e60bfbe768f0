"""Consumer groups come into being when a client first names them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from brokerd.metadata.configs import GroupConfig, Metadata
from remoting.errors import RequestError

log = logging.getLogger(__name__)

Ensured = Callable[[RequestError | None], None]

_MAX_WAITING = 10000


class Groups:
    """Creates each missing group once, whoever asks at the same time."""

    def __init__(self, metadata: Metadata, auto_create: bool) -> None:
        self._metadata = metadata
        self._auto_create = auto_create
        self._waiting: dict[str, list[Ensured]] = {}

    def get(self, name: str) -> GroupConfig | None:
        return self._metadata.group(name)

    def ensure(self, name: str, ensured: Ensured) -> None:
        """Call `ensured` when the group exists, or with the reason why not; at once when it is there (or may stay unknown)."""
        waiting = self._waiting.get(name)
        if waiting is not None and len(waiting) < _MAX_WAITING:
            waiting.append(ensured)
        elif self._metadata.group(name) is not None or not self._auto_create:
            ensured(None)
        else:
            self._waiting[name] = [ensured]
            log.info("creating consumer group %s for its first client", name)
            self._metadata.put_group(GroupConfig(name), lambda error: self._created(name, error))

    def _created(self, name: str, error: RequestError | None) -> None:
        for ensured in self._waiting.pop(name, ()):
            ensured(error)
