"""Facts about users and permissions, and how each changes the state; every one raises its version by one (pure)

`apply` runs on every controller, whatever its version, so it decides nothing: what a record of a version does never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from controllerd.records.subject import Format, plain
from remoting.access.model import AccessState, Policies, Resource, User, acl_info, read_policies, resource
from remoting.errors import InvalidParameter, ProtocolError


@dataclass(frozen=True, slots=True)
class UserPut:
    """There is this user now, in place of one of the same name."""

    user: User


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """The user is gone, and so are its permissions."""

    name: str


@dataclass(frozen=True, slots=True)
class EntriesPut:
    """A user has these permissions too; those for a resource that had one took its place."""

    name: str
    policies: Policies


@dataclass(frozen=True, slots=True)
class EntriesRemoved:
    """A user lost the permission for a resource, or (without resource) all."""

    name: str
    policy: str
    resource: Resource | None


Record = UserPut | UserDeleted | EntriesPut | EntriesRemoved


def apply(state: AccessState, record: Record) -> AccessState:
    if isinstance(record, UserPut):
        return state.with_user(record.user)
    if isinstance(record, UserDeleted):
        return state.without_user(record.name)
    if isinstance(record, EntriesPut):
        return state.with_entries(record.name, record.policies)
    return state.without_entries(record.name, record.policy, record.resource)


def _encode_put(record: EntriesPut) -> Mapping[str, Any]:
    return {"name": record.name, "policies": acl_info(record.name, record.policies)["policies"]}


def _decode_put(fields: Any) -> EntriesPut:
    match fields:
        case {"name": str(name), "policies": policies} if len(fields) == 2:
            try:
                return EntriesPut(name, read_policies(policies))
            except InvalidParameter as error:
                raise ProtocolError(f"permissions that cannot be: {error}") from error
    raise ProtocolError(f"permissions need name and policies, and are {repr(fields)[:80]}")


def _encode_removed(record: EntriesRemoved) -> Mapping[str, Any]:
    wanted = None if record.resource is None else str(record.resource)
    return {"name": record.name, "policy": record.policy, "resource": wanted}


def _decode_removed(fields: Any) -> EntriesRemoved:
    match fields:
        case {"name": str(name), "policy": str(policy), "resource": str() | None as wanted} if len(fields) == 3:
            try:
                return EntriesRemoved(name, policy, None if wanted is None else resource(wanted))
            except InvalidParameter as error:
                raise ProtocolError(f"a permission that cannot be: {error}") from error
    raise ProtocolError(f"a removed permission needs name, policy and resource, and is {repr(fields)[:80]}")


FORMATS: Final[tuple[Format[Any], ...]] = (
    plain("user_put", UserPut),
    plain("user_deleted", UserDeleted),
    Format("entries_put", EntriesPut, _encode_put, _decode_put),
    Format("entries_removed", EntriesRemoved, _encode_removed, _decode_removed),
)
