"""Changes of users and permissions as log entries (pure)

Passwords are sealed before they get here: neither the log nor a snapshot holds one that can be read without the cluster's secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from remoting.access.model import Entry, Policies, Resource, acl_info, read_policies, resource
from remoting.errors import LogboomError, ProtocolError

# The first byte of such an entry; other commands are JSON objects.
MARK: Final = b"\x01"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class CreateUser:
    """`by_super`: the one who asks is a super user; others make none. `only_first`: only while there was never a user."""

    name: str
    sealed: str
    user_type: str
    status: str
    by_super: bool
    only_first: bool = False


@dataclass(frozen=True, slots=True)
class UpdateUser:
    """What is None stays. `by_super`: the one who asks is a super user; others may not touch super users or make one."""

    name: str
    sealed: str | None
    user_type: str | None
    status: str | None
    by_super: bool


@dataclass(frozen=True, slots=True)
class DeleteUser:
    name: str
    by_super: bool


@dataclass(frozen=True, slots=True)
class PutEntries:
    """Add permissions to a user's list; those for a resource that has one take its place."""

    name: str
    policies: Policies


@dataclass(frozen=True, slots=True)
class RemoveEntries:
    """Remove one permission of a user's list, or (without resource) all."""

    name: str
    policy: str
    resource: Resource | None


AccessCommand = CreateUser | UpdateUser | DeleteUser | PutEntries | RemoveEntries


def encode_access(command: AccessCommand) -> bytes:
    """A command as a log entry."""
    fields: dict[str, Any]
    match command:
        case PutEntries(name, policies):
            fields = {"name": name, "policies": acl_info(name, policies)["policies"]}
        case RemoveEntries(name, policy, wanted):
            fields = {"name": name, "policy": policy, "resource": None if wanted is None else str(wanted)}
        case _:
            fields = {each: getattr(command, each) for each in command.__dataclass_fields__}
    return MARK + orjson.dumps({"format": _FORMAT, "kind": type(command).__name__, **fields})


def decode_access(content: bytes) -> AccessCommand:
    """A command as written by `encode_access`. Raises ProtocolError for anything else."""
    try:
        fields: dict[str, Any] = orjson.loads(content[len(MARK) :])
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        return _KINDS[fields.pop("kind")](fields)
    except (ValueError, KeyError, TypeError, AttributeError, LogboomError) as error:
        raise ProtocolError(f"undecodable change of users or permissions: {error}") from error


def _put_entries(fields: Mapping[str, Any]) -> PutEntries:
    policies: dict[str, tuple[Entry, ...]] = read_policies(fields["policies"])
    return PutEntries(fields["name"], policies)


def _remove_entries(fields: Mapping[str, Any]) -> RemoveEntries:
    wanted = fields["resource"]
    return RemoveEntries(fields["name"], fields["policy"], None if wanted is None else resource(wanted))


_KINDS: Final[Mapping[str, Callable[[Mapping[str, Any]], AccessCommand]]] = {
    "CreateUser": lambda fields: CreateUser(**fields),
    "UpdateUser": lambda fields: UpdateUser(**fields),
    "DeleteUser": lambda fields: DeleteUser(**fields),
    "PutEntries": _put_entries,
    "RemoveEntries": _remove_entries,
}
