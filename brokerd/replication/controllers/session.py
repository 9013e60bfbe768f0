"""What a session with those who decide roles says and hears, be they controllers or a fixed group's settings (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.effects import RoleView
from brokerd.replication.settings import ReplicationSettings
from remoting.disk import Bytes


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A request for the shell to send to one controller; `token` 0 = one-way."""

    token: int
    address: str
    code: int
    ext: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class BrokerNames:
    """Who this broker is to others: its group, and the addresses under which it is reached."""

    cluster: str
    broker_name: str
    address: str
    ha_address: str
    grpc_address: str


class SessionObserver(Protocol):
    """Who learns what the session found out: the replication driver."""

    def identified(self, broker_id: int) -> None: ...

    def lineage_known(self, name: str) -> None: ...

    def observed(self, view: RoleView, now_ms: int) -> None: ...

    def members_known(self, broker_ids: frozenset[int], learners: frozenset[int], now_ms: int) -> None: ...

    def proposal_accepted(self, token: int, members: Iterable[int], set_epoch: int, now_ms: int) -> None: ...

    def proposal_answered(self, token: int, code: int, now_ms: int) -> None: ...

    def proposal_unanswered(self, token: int, now_ms: int) -> None: ...


class Session(Protocol):
    """Requests go out through `take_requests`; each is answered with `answered` or `failed`, by its token."""

    addresses: tuple[str, ...]
    last_error: str

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
