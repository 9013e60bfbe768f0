"""Users and permissions: codes 3001 to 3010 for tools and brokers, answered by the serving leader, and the whole for brokers.

Who asks is the one who signed the request, or, when a broker passes it on under the cluster's own signature, the one that
the broker checked. The components themselves (the console) count as super users, and see no secret.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from controllerd.access.requests import CreateUser, DeleteUser, PutEntries, RemoveEntries, Request, UpdateUser
from controllerd.metrics import Counters
from controllerd.processors.serving import Handles
from controllerd.raft.driver import RaftDriver
from controllerd.records.decision import Applied
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.access.answers import answer_query
from remoting.access.component import INNER_USER
from remoting.access.model import (
    ENABLE,
    NORMAL,
    SUPER,
    AccessState,
    User,
    encode_state,
    policy_type,
    read_policies,
    resource,
    subject_name,
    user_name,
    user_status,
    user_type,
)
from remoting.access.sealing import MAX_PASSWORD_BYTES, CannotOpen, unseal
from remoting.access.signature import access_key
from remoting.errors import InvalidParameter, RequestError
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_CALLER: Final = "caller"
_LEAST_PASSWORD: Final = 8


class Sealer:
    """Encrypts passwords under the cluster's secret. `nonce` draws fresh random bytes."""

    def __init__(self, secrets: tuple[bytes, ...], seal: Callable[[bytes, str, str], str]) -> None:
        self._secrets = secrets
        self._seal = seal

    def seal(self, owner: str, password: str) -> str:
        """Raises RequestError when there is no secret to encrypt under."""
        if not self._secrets:
            raise RequestError(
                codes.SYSTEM_ERROR,
                "passwords cannot be kept: start every controller with --cluster-secret FILE, the same file as the brokers'",
            )
        return self._seal(self._secrets[0], owner, password)

    def sealed_anew(self, user: User) -> str | None:
        """The user's secret under the first of several cluster secrets; None when it is sealed so, or cannot be opened."""
        password = self.open(user) if len(self._secrets) > 1 else None
        if password is None:
            return None
        try:
            unseal(self._secrets[:1], user.name, user.sealed)
        except CannotOpen:
            return self.seal(user.name, password)
        return None

    def open(self, user: User) -> str | None:
        try:
            return unseal(self._secrets, user.name, user.sealed)
        except CannotOpen:
            return None


class AccessProcessor:
    def __init__(
        self,
        guard: Guard,
        sealer: Sealer,
        driver: RaftDriver,
        machine: ControllerMachine,
        timeout_ms: int,
        counters: Counters,
    ) -> None:
        self._guard = guard
        self._sealer = sealer
        self._driver = driver
        self._machine = machine
        self._timeout_ms = timeout_ms
        self._counters = counters

    def handles(self) -> Handles:
        return {
            codes.AUTH_CREATE_USER: self._create_user,
            codes.AUTH_UPDATE_USER: self._update_user,
            codes.AUTH_DELETE_USER: self._delete_user,
            codes.AUTH_CREATE_ACL: self._put_acl,
            codes.AUTH_UPDATE_ACL: self._put_acl,
            codes.AUTH_DELETE_ACL: self._delete_acl,
            codes.AUTH_GET_USER: self._query,
            codes.AUTH_LIST_USERS: self._query,
            codes.AUTH_GET_ACL: self._query,
            codes.AUTH_LIST_ACLS: self._query,
            codes.ACCESS_STATE: self._get_state,
        }

    async def create_first(self, name: str, password: str) -> bool:
        """Create the first user, a super user; False when there is one already. Raises as proposals do."""
        wanted = CreateUser(name, self._sealer.seal(name, password), SUPER, ENABLE, by_super=True, only_first=True)
        return (await self._propose(wanted)).reply.remark is None

    async def reseal(self) -> None:
        """While the cluster's secret is being changed: seal what was sealed under an earlier one. Raises as proposals do."""
        for user in list(self._machine.access.users.values()):
            if (sealed := self._sealer.sealed_anew(user)) is not None:
                await self._propose(UpdateUser(user.name, sealed, None, None, by_super=True))
                log.info("sealed the secret of %s under the cluster's new secret", user.name)

    # ---- changes

    async def _create_user(self, connection: RemotingConnection, request: Command) -> None:
        name, body = user_name(request.ext.get("username")), _object(request)
        password = _password(body)
        if password is None:
            raise InvalidParameter("a new user needs a password, which is the secret key of its clients")
        kind = user_type(body.get("userType") or NORMAL)
        status = user_status(body.get("userStatus") or ENABLE)
        present = self._machine.access.users.get(name)
        if present is not None and (self._sealer.open(present), present.user_type, present.status) == (
            password,
            kind,
            status,
        ):
            connection.respond(request, remark="unchanged")  # another group's broker brought it before
            return
        sealed = self._sealer.seal(name, password)
        await self._answer(connection, request, CreateUser(name, sealed, kind, status, self._is_super(request)))

    async def _update_user(self, connection: RemotingConnection, request: Command) -> None:
        name, body = user_name(request.ext.get("username")), _object(request)
        password, present = _password(body), self._machine.access.users.get(name)
        if password is not None and present is not None and self._sealer.open(present) == password:
            password = None
        wanted = UpdateUser(
            name,
            None if password is None else self._sealer.seal(name, password),
            user_type(body["userType"]) if body.get("userType") else None,
            user_status(body["userStatus"]) if body.get("userStatus") else None,
            self._is_super(request),
        )
        await self._answer(connection, request, wanted)

    async def _delete_user(self, connection: RemotingConnection, request: Command) -> None:
        wanted = DeleteUser(user_name(request.ext.get("username")), self._is_super(request))
        await self._answer(connection, request, wanted)

    async def _put_acl(self, connection: RemotingConnection, request: Command) -> None:
        name, body = subject_name(request.ext.get("subject")), _object(request)
        await self._answer(connection, request, PutEntries(name, read_policies(body.get("policies"))))

    async def _delete_acl(self, connection: RemotingConnection, request: Command) -> None:
        ext = request.ext
        target = resource(ext["resource"]) if ext.get("resource") else None
        wanted = RemoveEntries(subject_name(ext.get("subject")), policy_type(ext.get("policyType")), target)
        await self._answer(connection, request, wanted)

    async def _answer(self, connection: RemotingConnection, request: Command, wanted: Request) -> None:
        applied = await self._propose(wanted)
        reply, version = applied.reply, applied.state.version
        if reply.code != codes.SUCCESS:
            raise RequestError(reply.code, reply.remark or f"refused with code {reply.code}")
        who = self._caller(request) or f"a component at {connection.peer}"
        log.info("%s: %s %s (version %d)", who, type(wanted).__name__, wanted.name, version)
        connection.respond(request, ext={"accessVersion": str(version)}, remark=reply.remark)

    async def _propose(self, wanted: Request) -> Applied[AccessState]:
        self._counters.proposals += 1
        applied: Applied[AccessState] = await self._driver.propose(wanted, self._timeout_ms)
        return applied

    # ---- questions

    async def _query(self, connection: RemotingConnection, request: Command) -> None:
        await self._driver.read_barrier(self._timeout_ms)
        shows = self._guard.is_on and self._caller(request) is not None and self._is_super(request)
        password = self._sealer.open if shows else lambda _user: None
        document = answer_query(self._machine.access, request.code, request.ext, password)
        connection.respond(request, body=b"" if document is None else orjson.dumps(document))

    async def _get_state(self, connection: RemotingConnection, request: Command) -> None:
        await self._driver.read_barrier(self._timeout_ms)
        connection.respond(
            request,
            ext={"cluster": self._driver.node.core.configuration.cluster},
            body=encode_state(self._machine.access),
        )

    # ---- who asks

    def _caller(self, request: Command) -> str | None:
        """None = a component of the cluster, or (without authentication) anybody; "" = somebody whom a broker did not ask."""
        if not self._guard.is_on:
            return request.ext.get(_CALLER) or None
        return access_key(request) if access_key(request) != INNER_USER else request.ext.get(_CALLER)

    def _is_super(self, request: Command) -> bool:
        caller = self._caller(request)
        if caller is None:
            return True
        user = self._machine.access.users.get(caller)
        return user is not None and user.is_super and user.is_enabled


def _object(request: Command) -> Mapping[str, Any]:
    try:
        body = orjson.loads(request.body)
    except ValueError as error:
        raise InvalidParameter(f"the body must be a JSON object: {error}") from error
    if not isinstance(body, dict):
        raise InvalidParameter("the body must be a JSON object")
    return body


def _password(body: Mapping[str, Any]) -> str | None:
    password = body.get("password")
    if not password:
        return None
    if not isinstance(password, str) or not _LEAST_PASSWORD <= len(password.encode()) <= MAX_PASSWORD_BYTES:
        raise InvalidParameter(f"a password has {_LEAST_PASSWORD} to {MAX_PASSWORD_BYTES} bytes")
    return password
