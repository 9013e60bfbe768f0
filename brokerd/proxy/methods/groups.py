"""Consumer groups come into being when a client first names them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.metadata.configs import BY_MESSAGE_GROUP, ORDER_SCOPE, GroupConfig, Metadata
from remoting.errors import RequestError
from remoting.names import RETRY_PREFIX

log = logging.getLogger(__name__)

Ensured = Callable[[RequestError | None], None]

_MAX_WAITING = 10000


@dataclass(slots=True, eq=False)
class Groups:
    """Creates each missing group once, whoever asks at the same time."""

    metadata: Metadata
    auto_create: bool
    waiting: dict[str, list[Ensured]] = field(default_factory=dict)

    def get(self, name: str) -> GroupConfig | None:
        return self.metadata.group(name)

    def ensure(self, name: str, ensured: Ensured) -> None:
        """Call `ensured` when the group exists, or with the reason why not; at once when it is there (or may stay unknown)."""
        waiting = self.waiting.get(name)
        if waiting is not None and len(waiting) < _MAX_WAITING:
            waiting.append(ensured)
        elif self.metadata.group(name) is not None or not self.auto_create:
            ensured(None)
        else:
            self.waiting[name] = [ensured]
            log.info("creating consumer group %s for its first client", name)
            config = GroupConfig(name, attributes={ORDER_SCOPE: BY_MESSAGE_GROUP})
            self.metadata.put_group(config, lambda error: self._created(name, error))

    def ensure_retry_topic(self, name: str) -> None:
        """Make a group's retry topic if it is missing, as heartbeats of remoting do: tools find the brokers of a group by it."""
        config = self.metadata.group(name)
        if config is None or config.retry_queue_nums < 1:
            return
        error = self.metadata.ensure_topic(f"{RETRY_PREFIX}{name}", config.retry_queue_nums)
        if error is not None:
            log.warning("the retry topic of %s could not be made: %s", name, error)

    def _created(self, name: str, error: RequestError | None) -> None:
        for ensured in self.waiting.pop(name, ()):
            ensured(error)
