"""What replication needs of a session: the one with controllers (`control`), or that of a fixed group (`fixed`) (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from brokerd.replication.controllers.controller_session import SessionRequest
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.settings import ReplicationSettings
from remoting.disk import Bytes


class Session(Protocol):
    """Requests go out through `take_requests`; each is answered with `answered` or `failed`, by its token."""

    addresses: tuple[str, ...]
    last_error: str
    answered_ms: int | None

    @property
    def leader(self) -> str | None: ...

    def reconfigure(self, settings: ReplicationSettings) -> None: ...

    def take_requests(self) -> list[SessionRequest]: ...

    def request_sync(self) -> None: ...

    def request_election(self) -> None: ...

    def request_members(self) -> None: ...

    def propose(self, proposal: Proposal, master_epoch: int) -> None: ...

    def tick(self, now_ms: int, wall_ms: int) -> None: ...

    def connected(self, address: str, now_ms: int) -> None: ...

    def disconnected(self, address: str, now_ms: int) -> None: ...

    def notified(self, now_ms: int) -> None: ...

    def answered(self, token: int, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None: ...

    def failed(self, token: int, reason: str, now_ms: int) -> None: ...
