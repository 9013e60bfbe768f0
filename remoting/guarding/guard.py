"""Who asks, and whether it may: the checks in front of request handlers and gRPC methods.

Off, `protect` gives back the very handlers that it was given, so nothing is added to any request. On, each request's signature is
checked: a component's by its own scheme (`access/component.py`), all others by RocketMQ's, which covers the body, so there is
nothing to remember. What users may do is remembered until a user or a permission changes, for a bounded number of (user, address,
resource, actions).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remoting import codes
from remoting.access.component import INNER_USER, ComponentKey, objection, read_claims
from remoting.access.decision import Demand, Verdict, decide
from remoting.access.demands import COMPONENT, INTRODUCED
from remoting.access.model import AccessState
from remoting.access.sealing import CannotOpen, unseal
from remoting.access.signature import (
    AUTHORIZATION,
    DATE_TIME,
    GrpcSignature,
    SigningKey,
    access_key,
    date_age_ms,
    is_date,
    is_date_signed_by,
    is_signed_by,
    read_authorization,
)
from remoting.errors import RequestError, SettingsError
from remoting.exposition import Family
from remoting.frame import Command
from remoting.guarding.replays import Replays
from remoting.registry import ROWS, demands_of
from remoting.settings import setting
from remoting.transport.connection import Handler, RemotingConnection

log = logging.getLogger(__name__)

_MAX_REMEMBERED: Final = 65_536
_NOBODY: Final = SigningKey(b"")  # for a check that takes as long as one of somebody
_INNER: Final = frozenset(code for code, row in ROWS.items() if row.need is COMPONENT)
_OPEN: Final = frozenset(code for code, row in ROWS.items() if row.need is INTRODUCED)
_MANAGES_USERS: Final = frozenset(code for code, row in ROWS.items() if row.need.super_user)


@dataclass(frozen=True, slots=True)
class AccessSettings:
    """Who may do what; users and permissions themselves are kept by the controllers."""

    authentication: bool = setting(False, "take signed requests of known users only; needs the cluster's secret file")
    cluster: str = setting("", "the name in Cluster:NAME of permissions; a broker's is its --cluster")
    authorization: bool = setting(False, "let users do only what their permissions allow; needs authentication")
    open_routes: bool = setting(
        False,
        "answer unsigned questions for routes, as the original's name server does: some clients sign all but these",
    )
    max_date_age_s: int = setting(
        0,
        "refuse gRPC calls whose date header is farther off; 0 = no limit, as clients may write local time",
        minimum=0,
    )


class Guard:
    """One daemon's checks."""

    def __init__(
        self,
        settings: AccessSettings,
        cluster: str,
        cluster_secrets: Sequence[bytes],
        wall_ms: Callable[[], int],
        own_address: str = "",
    ) -> None:
        """`own_address` is what others dial to get here. Raises SettingsError when the settings contradict one another."""
        if settings.authorization and not settings.authentication:
            raise SettingsError(
                "access.authorization needs access.authentication=true: without it nobody knows who asks"
            )
        if settings.authentication and not cluster_secrets:
            raise SettingsError(
                "access.authentication needs the cluster's secret, by which its components know one another: make a file with "
                "openssl rand -hex 32, run chmod 600 on it, and name it on every controller and broker"
            )
        self.settings = settings
        self.state = AccessState()
        self.refused = 0
        self.revision = 0  # another one when users or permissions changed
        self._cluster = cluster
        self._cluster_secrets = tuple(cluster_secrets)
        self._own_address = own_address
        self._inner = tuple(ComponentKey(each) for each in cluster_secrets)
        self._replays = Replays()
        self._wall_ms = wall_ms
        self._keys: dict[str, SigningKey | None] = {}
        self._remembered: dict[tuple[str, str, Demand], Verdict] = {}

    @property
    def is_on(self) -> bool:
        return self.settings.authentication

    def update(self, state: AccessState) -> None:
        """Users or permissions changed."""
        self.state = state
        self.revision += 1
        self._keys.clear()
        self._remembered.clear()

    # ---- remoting

    def protect(self, handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
        """The handlers behind the checks."""
        if not self.is_on:
            return handlers
        return {code: handler if code in _OPEN else self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def guarded(connection: RemotingConnection, requests: Sequence[Command]) -> None:
            host, here = connection.peer_host, connection.own_address
            refused = {}
            for request in requests:
                try:
                    name = self.check(request, host, here)
                except RequestError as error:
                    refused[id(request)] = error
                else:
                    if name and name != connection.user:
                        connection.prove(name)
            if not refused:
                handler(connection, requests)
                return
            self.refused += len(refused)
            if len(refused) < len(requests):
                handler(connection, [request for request in requests if id(request) not in refused])
            for request in requests:
                if (refusal := refused.get(id(request))) is not None:
                    log.info("refused request %d of %s: %s", request.code, connection.peer, refusal)
                    connection.respond_error(request, refusal)

        return guarded

    def let_in(self, connection: RemotingConnection, requests: Sequence[Command]) -> int:
        """How many of a connection's requests, from the first on, may be carried out: what is behind them is to be decoded and
        handled, and so checked and refused, one by one. Nobody's is among them, and no component's, whose check uses it up."""
        host, here = connection.peer_host, connection.own_address
        for index, request in enumerate(requests):
            name = access_key(request)
            if not name or name == INNER_USER:
                return index
            try:
                self.check(request, host, here)
            except RequestError:
                return index
            if name != connection.user:
                connection.prove(name)
        return len(requests)

    def check(self, request: Command, host: str, here: str) -> str:
        """Who sent a request from a host that may be carried out; "" = anybody may. `here` is the address it came to.

        Raises RequestError NO_PERMISSION otherwise."""
        if self.settings.open_routes and request.code == codes.GET_ROUTEINFO_BY_TOPIC and not access_key(request):
            return ""
        name = access_key(request)
        if name == INNER_USER:
            self._check_component(request, here)
            return name
        self._authenticate(name, request)
        self._authorize(name, request, host)
        return name

    def _authorize(self, name: str, request: Command, host: str) -> None:
        if request.code in _INNER:
            raise _refusal(f"request {request.code} is for the components of this cluster alone")
        if self.settings.authorization:
            for demand in demands_of(request, self._cluster):
                self.demand(name, demand, host)
        elif request.code in _MANAGES_USERS and not self.state.users[name].is_super:
            raise _refusal(f"{name} is no super user; while access.authorization is off, only those manage users")

    def may_ask(self, name: str, request: Command, host: str) -> bool:
        """Whether a user whose signature was checked may ask for this, as long as `revision` stays."""
        try:
            self._authorize(name, request, host)
        except RequestError:
            return False
        return True

    @property
    def may_send_much(self) -> Callable[[Command], bool] | None:
        """Asked for the header of a long request whose sender has not shown yet who he is: whether he names somebody. Who that is
        cannot be told before all of it is there, as signatures cover the body. None: nobody is asked who he is."""
        return self._names_somebody if self.is_on else None

    def _names_somebody(self, request: Command) -> bool:
        name = access_key(request)
        return name == INNER_USER or self.key_of(name) is not None

    def _check_component(self, request: Command, here: str) -> None:
        claims = read_claims(request, self._inner)
        if claims is None:
            raise _refusal("the signature is not that of a component of this cluster")
        now_ms = self._wall_ms()
        if reason := objection(claims, {here, self._own_address}, now_ms):
            raise _refusal(reason)
        if not self._replays.is_new(claims, now_ms):
            raise _refusal("the request was carried out before, or comes from one of too many connections")

    def _authenticate(self, name: str, request: Command) -> None:
        if not name:
            raise _refusal("this cluster takes signed requests only: give the client an access key and a secret key")
        key = self.key_of(name)
        if not is_signed_by(request, key or _NOBODY) or key is None:
            raise _refusal(f"the access key {name[:80]} and the signature do not fit: check both keys of the client")

    # ---- gRPC

    def check_call(self, metadata: Mapping[str, str]) -> str:
        """Who makes a gRPC call. Raises RequestError NO_PERMISSION when that cannot be told, or is nobody who may."""
        try:
            signature = read_authorization(metadata.get(AUTHORIZATION, ""))
        except ValueError as error:
            raise _refusal(str(error)) from error
        if signature is None:
            raise _refusal("this cluster takes signed calls only: give the client an access key and an access secret")
        date_time = metadata.get(DATE_TIME, "")
        if not date_time:
            raise _refusal(f"the header {DATE_TIME} is missing, which the signature covers")
        if not is_date(date_time):
            raise _refusal(f"the header {DATE_TIME} holds no date, but {date_time[:40]!r}: write 20260102T030405Z")
        self._check_age(date_time)
        return self._authenticate_call(signature, date_time)

    def _authenticate_call(self, signature: GrpcSignature, date_time: str) -> str:
        name = signature.access_key
        key = self.key_of(name)
        if not is_date_signed_by(date_time, signature, key or _NOBODY) or key is None:
            raise _refusal(f"the access key {name[:80]} and the signature do not fit: check both keys of the client")
        return name

    def _check_age(self, date_time: str) -> None:
        limit_ms = self.settings.max_date_age_s * 1000
        if not limit_ms:
            return
        age_ms = date_age_ms(date_time, self._wall_ms())
        if age_ms is None or age_ms > limit_ms:
            raise _refusal(f"the date of the call, {date_time[:40]!r}, is too far off; set the client's clock and zone")

    # ---- both

    def demand(self, name: str, demand: Demand, host: str) -> None:
        """Raise RequestError NO_PERMISSION unless the user may do it."""
        verdict = self._verdict(name, demand, host)
        if not verdict.allowed:
            raise _refusal(f"{name} may not {demand} from {host}: {verdict.reason}")

    def _verdict(self, name: str, demand: Demand, host: str) -> Verdict:
        key = name, host, demand
        verdict = self._remembered.get(key)
        if verdict is None:
            verdict = decide(self.state, name, demand, host)
            if len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = verdict
        return verdict

    def may(self, name: str, demand: Demand, host: str) -> bool:
        """Whether somebody whose requests are let in may do this as well."""
        if not self.settings.authorization or name == INNER_USER:
            return True
        return self._verdict(name, demand, host).allowed

    def demand_for(self, request: Command, host: str, demand: Demand) -> None:
        """Raise RequestError NO_PERMISSION unless the sender of a request that was let in may do this as well: for handlers that
        find out what a request is about when they carry it out."""
        name = access_key(request)
        if self.settings.authorization and name != INNER_USER:
            self.demand(name, demand, host)

    def key_of(self, name: str) -> SigningKey | None:
        """What an enabled user signs with; None when there is no such user. A component is none."""
        user = self.state.users.get(name)
        if user is None or not user.is_enabled or name == INNER_USER:
            return None
        if name not in self._keys:
            try:
                self._keys[name] = SigningKey(unseal(self._cluster_secrets, name, user.sealed).encode())
            except CannotOpen as error:
                log.error("%s", error)
                self._keys[name] = None
        return self._keys[name]


def _refusal(text: str) -> RequestError:
    return RequestError(codes.NO_PERMISSION, text)


def access_families(guard: Guard | None) -> list[Family]:
    """What access control shows to metrics, the same on brokers and controllers; nothing without a guard."""
    if guard is None:
        return []
    return [
        Family("logboom_access_authentication", "gauge", "1 when only signed requests are taken").add(int(guard.is_on)),
        Family("logboom_access_authorization", "gauge", "1 when permissions are checked").add(
            int(guard.settings.authorization)
        ),
        Family("logboom_access_version", "gauge", "version of users and permissions here").add(guard.state.version),
        Family("logboom_access_refused_total", "counter", "requests refused for who sent them").add(guard.refused),
    ]
