"""A change of users or permissions against the state: a reply and the state after it (pure)

What is there already, and what is gone already, is answered as done: a tool that asks every broker group in turn brings the same
change several times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from controllerd.access.commands import AccessCommand, CreateUser, DeleteUser, PutEntries, RemoveEntries, UpdateUser
from remoting import codes
from remoting.access.model import MAX_ENTRIES, MAX_USERS, SUPER, AccessState, User
from remoting.access.sealing import INNER_USER

UNCHANGED: Final = "unchanged"


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """Code and sentence for whoever asked; `state` is None when nothing changes."""

    code: int = codes.SUCCESS
    remark: str | None = None
    state: AccessState | None = None


def decide_access(state: AccessState, command: AccessCommand) -> AccessDecision:
    """Decide one command."""
    if isinstance(command, CreateUser):
        return _create(state, command)
    if isinstance(command, UpdateUser):
        return _update(state, command)
    if isinstance(command, DeleteUser):
        return _delete(state, command)
    if isinstance(command, PutEntries):
        return _put(state, command)
    return _remove(state, command)


def _create(state: AccessState, command: CreateUser) -> AccessDecision:
    if command.name == INNER_USER:
        return _refused(f"the name {INNER_USER} belongs to the cluster's own components")
    if command.only_first and (state.users or state.version):
        return AccessDecision(remark=UNCHANGED)
    if command.name in state.users:
        return _refused(f"the user {command.name} exists already, with another password, type or status: update it")
    if command.user_type == SUPER and not command.by_super:
        return _refused("only a super user may make a super user")
    if len(state.users) >= MAX_USERS:
        return _refused(f"there are {MAX_USERS} users already; delete some")
    user = User(command.name, command.sealed, command.user_type, command.status)
    return AccessDecision(state=state.with_user(user))


def _update(state: AccessState, command: UpdateUser) -> AccessDecision:
    user = state.users.get(command.name)
    if user is None:
        return _missing(command.name)
    if not command.by_super and SUPER in (user.user_type, command.user_type):
        return _refused("only a super user may change a super user or make one")
    changes = {"sealed": command.sealed, "user_type": command.user_type, "status": command.status}
    changed = replace(user, **{name: value for name, value in changes.items() if value is not None})
    if changed == user:
        return AccessDecision(remark=UNCHANGED)
    return AccessDecision(state=state.with_user(changed))


def _delete(state: AccessState, command: DeleteUser) -> AccessDecision:
    user = state.users.get(command.name)
    if user is None:
        return AccessDecision(remark=UNCHANGED)
    if user.is_super and not command.by_super:
        return _refused("only a super user may delete a super user")
    return AccessDecision(state=state.without_user(command.name))


def _put(state: AccessState, command: PutEntries) -> AccessDecision:
    if command.name not in state.users:
        return _missing(command.name)
    after = state.with_entries(command.name, command.policies)
    if sum(map(len, after.acls[command.name].values())) > MAX_ENTRIES:
        return _refused(f"a user may have {MAX_ENTRIES} permissions; use prefixes such as Topic:orders*")
    if after.acls[command.name] == state.acls.get(command.name):
        return AccessDecision(remark=UNCHANGED)
    return AccessDecision(state=after)


def _remove(state: AccessState, command: RemoveEntries) -> AccessDecision:
    if command.name not in state.acls:
        return AccessDecision(remark=UNCHANGED)
    after = state.without_entries(command.name, command.policy, command.resource)
    if after.acls == state.acls:
        return AccessDecision(remark=UNCHANGED)
    return AccessDecision(state=after)


def _missing(name: str) -> AccessDecision:
    return AccessDecision(codes.USER_NOT_EXIST, f"there is no user {name}; create it first")


def _refused(remark: str) -> AccessDecision:
    return AccessDecision(codes.NO_PERMISSION, remark)
