"""What a session with those who decide roles says and hears, be they controllers or a fixed group's settings (pure)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.effects import Ask
from brokerd.replication.settings import ReplicationSettings
from remoting.disk import Bytes

_CLOCK_HEARD_MS: Final = 60_000


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
    """Who this broker is to others: its group, the addresses under which it is reached, and which start of it this is (0: not
    told)."""

    cluster: str
    broker_name: str
    address: str
    ha_address: str
    grpc_address: str
    incarnation: int = 0


class Session(ABC):
    """Requests go out through `take_requests`; each is answered with `answered` or `failed`, by its token."""

    def __init__(self, settings: ReplicationSettings, names: BrokerNames, driver: ReplicationDriver) -> None:
        self.addresses: tuple[str, ...] = ()  # whom the shell keeps connections to
        self.last_error = ""  # what is wrong now between this broker and who tells it its role; "" = nothing
        self.acts_as_master = False  # this replica stands in for its master
        self._clocks: dict[str, tuple[int, int]] = {}  # by controller: what its wall clock said, and when
        self._settings = settings
        self._names = names
        self._driver = driver
        self._asked: set[Ask] = set()
        self._requests: list[SessionRequest] = []
        self._next_token = 1

    @property
    @abstractmethod
    def name_servers(self) -> tuple[str, ...]:
        """Those of the addresses where the broker registers."""

    @property
    def is_calm(self) -> bool:
        """Whether nothing is owed to anybody: what is asked regularly can wait a little."""
        return False

    def take_requests(self) -> list[SessionRequest]:
        """What is to be sent, in order."""
        if not self._requests:  # it is asked after every event
            return []
        requests, self._requests = self._requests, []
        return requests

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    def ask(self, what: Ask) -> None:
        self._asked.add(what)

    @property
    def clocks(self) -> Sequence[str]:
        """Those of the addresses where somebody is asked for the time of day."""
        return ()

    @property
    def has_other_clocks(self) -> bool:
        """Whether other machines are asked for it."""
        return any(self._is_elsewhere(address) for address in self.clocks)

    def other_clocks_ms(self, now_ms: int) -> list[int]:
        """What the wall clocks of controllers on other machines say now, of those that told it in the last minute."""
        return [
            said_ms + now_ms - heard_ms
            for address, (said_ms, heard_ms) in self._clocks.items()
            if now_ms - heard_ms <= _CLOCK_HEARD_MS and self._is_elsewhere(address)
        ]

    def _is_elsewhere(self, address: str) -> bool:
        return not _is_same_machine(self._names.address.rpartition(":")[0], address.rpartition(":")[0])

    @abstractmethod
    def propose(self, proposal: Proposal, master_epoch: int) -> None: ...

    @abstractmethod
    def tick(self, now_ms: int, wall_ms: int) -> None:
        """Send what is due; also called right after anything that may have made something due."""

    @abstractmethod
    def connected(self, address: str, now_ms: int) -> None: ...

    @abstractmethod
    def disconnected(self, address: str, now_ms: int) -> None: ...

    @abstractmethod
    def notified(self, now_ms: int) -> None:
        """Somebody says that the role changed. Anybody can say that, so it is only a reason to ask at once."""

    def min_id_changed(self, now_ms: int) -> None:
        """A name server says that another id is the smallest of the group (905)."""
        self.notified(now_ms)

    def exchange_fields(self) -> Mapping[str, str]:
        """What else a master answers to brokers that ask who it is (906)."""
        return {}

    @abstractmethod
    def answered(self, token: int, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        """A controller answered a request."""

    @abstractmethod
    def failed(self, token: int, reason: str, now_ms: int) -> None:
        """No answer came, or the request could not be sent; its outcome is unknown."""

    def _request(self, address: str, code: int, ext: dict[str, str], body: bytes = b"") -> SessionRequest:
        """Send a request that is to be answered."""
        self._next_token += 1
        request = SessionRequest(self._next_token, address, code, ext, body)
        self._requests.append(request)
        return request


def _is_same_machine(own: str, other: str) -> bool:
    """Whether the hosts certainly share a clock: one name, or a loopback address."""
    return other == own or other.startswith("127.") or other in ("localhost", "[::1]")
