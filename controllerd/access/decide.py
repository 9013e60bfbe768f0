"""A request about users or permissions against the state: a reply, and the record that changes the state; read-only (pure)

What is there already, and what is gone already, is answered as done: a tool that asks every broker group in turn brings the same
change several times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

from controllerd.access.records import EntriesPut, EntriesRemoved, Record, UserDeleted, UserPut
from controllerd.access.requests import CreateUser, DeleteUser, PutEntries, RemoveEntries, Request, UpdateUser
from controllerd.records.decision import Decision, answered, refused
from remoting import codes
from remoting.access.component import INNER_USER
from remoting.access.model import MAX_ENTRIES, MAX_USERS, SUPER, AccessState, User

UNCHANGED: Final = "unchanged"
Decided: TypeAlias = Decision[Record]


def decide(state: AccessState, request: Request) -> Decided:
    if isinstance(request, CreateUser):
        return _create(state, request)
    if isinstance(request, UpdateUser):
        return _update(state, request)
    if isinstance(request, DeleteUser):
        return _delete(state, request)
    if isinstance(request, PutEntries):
        return _put(state, request)
    return _remove(state, request)


def _create(state: AccessState, request: CreateUser) -> Decided:
    if request.name == INNER_USER:
        return _forbidden(f"the name {INNER_USER} belongs to the cluster's own components")
    if request.only_first and (state.users or state.version):
        return answered(UNCHANGED)
    if request.name in state.users:
        return _forbidden(f"the user {request.name} exists already, with another password, type or status: update it")
    if request.user_type == SUPER and not request.by_super:
        return _forbidden("only a super user may make a super user")
    if len(state.users) >= MAX_USERS:
        return _forbidden(f"there are {MAX_USERS} users already; delete some")
    user = User(request.name, request.sealed, request.user_type, request.status)
    return Decision((UserPut(user),))


def _update(state: AccessState, request: UpdateUser) -> Decided:
    user = state.users.get(request.name)
    if user is None:
        return _missing(request.name)
    if not request.by_super and SUPER in (user.user_type, request.user_type):
        return _forbidden("only a super user may change a super user or make one")
    changes = {"sealed": request.sealed, "user_type": request.user_type, "status": request.status}
    changed = replace(user, **{name: value for name, value in changes.items() if value is not None})
    if changed == user:
        return answered(UNCHANGED)
    return Decision((UserPut(changed),))


def _delete(state: AccessState, request: DeleteUser) -> Decided:
    user = state.users.get(request.name)
    if user is None:
        return answered(UNCHANGED)
    if user.is_super and not request.by_super:
        return _forbidden("only a super user may delete a super user")
    return Decision((UserDeleted(request.name),))


def _put(state: AccessState, request: PutEntries) -> Decided:
    if request.name not in state.users:
        return _missing(request.name)
    after = state.with_entries(request.name, request.policies)
    if sum(map(len, after.acls[request.name].values())) > MAX_ENTRIES:
        return _forbidden(f"a user may have {MAX_ENTRIES} permissions; use prefixes such as Topic:orders*")
    if after.acls[request.name] == state.acls.get(request.name):
        return answered(UNCHANGED)
    return Decision((EntriesPut(request.name, request.policies),))


def _remove(state: AccessState, request: RemoveEntries) -> Decided:
    if request.name not in state.acls:
        return answered(UNCHANGED)
    after = state.without_entries(request.name, request.policy, request.resource)
    if after.acls == state.acls:
        return answered(UNCHANGED)
    return Decision((EntriesRemoved(request.name, request.policy, request.resource),))


def _missing(name: str) -> Decided:
    return refused(codes.USER_NOT_EXIST, f"there is no user {name}; create it first")


def _forbidden(remark: str) -> Decided:
    return refused(codes.NO_PERMISSION, remark)
