"""Who may do what: the one table of permissions, the smallest role that has each, and the answer for one request.

Roles are ordered, and a role has what the ones below it have. A permission's name is also the scope of a token: a token may do
what is in its scopes and in its owner's role.
"""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django.conf import settings
from django.contrib.auth.models import AnonymousUser, Group
from django.http import HttpRequest

from webapp.accounts.sessions import is_confirmed, name_of
from webapp.errors import PermissionRefused, ReadOnly

if TYPE_CHECKING:
    from webapp.accounts.models import ApiToken, User


class Role(enum.IntEnum):
    """In rising order of what they may do."""

    NONE = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower()


ROLE_NAMES = ("viewer", "operator", "admin")

PERMISSIONS: dict[str, tuple[Role, str]] = {
    "cluster.read": (Role.VIEWER, "see the cluster, topics and consumer groups"),
    "messages.read": (Role.VIEWER, "browse messages, without what they say"),
    "messages.bodies": (Role.VIEWER, "read what messages say, of topics that one has the right to read"),
    "operations.read": (Role.VIEWER, "see operations and their outcome"),
    "reports.read": (Role.VIEWER, "see reports and download their results"),
    "tokens.write": (Role.VIEWER, "make and revoke one's own tokens"),
    "topics.write": (Role.OPERATOR, "create, change and delete topics"),
    "groups.write": (Role.OPERATOR, "create and delete consumer groups"),
    "messages.write": (Role.OPERATOR, "send test messages"),
    "transactions.write": (Role.OPERATOR, "commit and roll back transactions that were given up"),
    "timers.write": (Role.OPERATOR, "recall messages that wait for their moment"),
    "elections.write": (Role.OPERATOR, "make a replica the master of its group"),
    "reports.write": (Role.OPERATOR, "run, cancel and schedule reports"),
    "access.read": (Role.OPERATOR, "see the users of clients and their permissions"),
    "access.write": (Role.ADMIN, "manage the users of clients and their permissions"),
    "controllers.write": (Role.ADMIN, "add and remove controllers, choose which one leads"),
    "broker-groups.write": (Role.ADMIN, "retire broker groups, switch them off and on, mount them and give them back"),
    "audit.read": (Role.ADMIN, "read the audit trail"),
    "users.write": (Role.ADMIN, "manage users and everybody's tokens"),
}
READ_PERMISSIONS = frozenset(name for name in PERMISSIONS if name.endswith(".read"))


def role_of(user: User | AnonymousUser) -> Role:
    """What somebody may do: nothing who is nobody, or locked out."""
    if not user.is_authenticated or not user.is_active:
        return Role.NONE
    return given_role(user)


def given_role(user: User) -> Role:
    """The highest role that a user was given, and has again when he is not locked out any more."""
    if user.is_superuser:
        return Role.ADMIN
    cached: Role | None = getattr(user, "_logboom_role", None)
    if cached is None:
        names = set(user.groups.values_list("name", flat=True))
        cached = max((Role[name.upper()] for name in ROLE_NAMES if name in names), default=Role.NONE)
        user._logboom_role = cached
    return cached


def set_role(user: User, role: str) -> None:
    """Give `user` this role and no other."""
    if role not in ROLE_NAMES:
        raise ValueError(f"no such role: {role}")
    user.groups.set([Group.objects.get_or_create(name=role)[0]])
    user._logboom_role = None


def permissions_of(role: Role) -> frozenset[str]:
    """What a role may do."""
    return frozenset(name for name, (needed, _) in PERMISSIONS.items() if needed <= role)


@dataclass(frozen=True, slots=True)
class Actor:
    """Somebody who asks for something: a person in a browser, or a token acting for its owner."""

    user: User | AnonymousUser
    ip: str = ""
    token: ApiToken | None = None
    permissions: frozenset[str] = field(default_factory=frozenset)
    is_confirmed: bool = True  # False for a browser whose person gave the password long ago; nobody else can be asked
    session: str = ""  # which one a browser has, told apart from others by nothing that opens it

    @property
    def name(self) -> str:
        return self.user.get_username() or "anonymous"

    def may(self, permission: str) -> bool:
        assert permission in PERMISSIONS, permission
        return permission in self.permissions

    def require(self, permission: str) -> None:
        """Raise the refusal, with the way out of it, unless the actor has the permission."""
        if self.may(permission):
            if settings.READ_ONLY and permission not in READ_PERMISSIONS:
                raise ReadOnly(
                    "The console is in read-only mode (LOGBOOM_READ_ONLY); nothing can be changed through it."
                )
            return
        role, meaning = PERMISSIONS[permission]
        if self.token is not None and permission in permissions_of(role_of(self.user)):
            raise PermissionRefused(
                f"This token may not {meaning}: its scopes lack {permission}. Make one with that scope.",
                code="scope-missing",
            )
        raise PermissionRefused(f"Only the role {role.label} or higher may {meaning}.")


def actor_for(
    user: User | AnonymousUser,
    *,
    ip: str = "",
    token: ApiToken | None = None,
    is_confirmed: bool = True,
    session: str = "",
) -> Actor:
    """The actor that `user` is, within the scopes of `token` if one is used."""
    allowed = permissions_of(role_of(user))
    if token is not None:
        allowed &= frozenset(token.scopes)
    return Actor(user=user, ip=ip, token=token, permissions=allowed, is_confirmed=is_confirmed, session=session)


def actor_of(request: HttpRequest) -> Actor:
    """Who makes this request. `request.auth` is the token when REST authentication found one."""
    from webapp.accounts.models import ApiToken

    auth = getattr(request, "auth", None)
    token = auth if isinstance(auth, ApiToken) else None
    user = getattr(request, "user", None) or AnonymousUser()  # a request that was refused early has none
    if token is not None or not user.is_authenticated:
        return actor_for(user, ip=client_ip(request), token=token)
    return actor_for(
        user, ip=client_ip(request), is_confirmed=is_confirmed(request.session), session=name_of(request.session)
    )


def client_ip(request: HttpRequest) -> str:
    """The address that the connection came from. From a proxy that is trusted: the last one in X-Forwarded-For that is none of
    these. What a client can invent stands before that, and is not looked at."""
    address = str(request.META.get("REMOTE_ADDR") or "")[:45]
    told = [each.strip() for each in str(request.META.get("HTTP_X_FORWARDED_FOR") or "").split(",")]
    while told and _is_proxy(address):
        try:
            address = str(ipaddress.ip_address(told.pop()))
        except ValueError:
            break
    return address


def _is_proxy(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in settings.TRUSTED_PROXIES)
