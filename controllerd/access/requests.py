"""What may be asked about users and permissions (pure)

Passwords are sealed before they get here: neither the log nor a snapshot holds one that can be read without the cluster's secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.access.model import Policies, Resource


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


Request = CreateUser | UpdateUser | DeleteUser | PutEntries | RemoveEntries
