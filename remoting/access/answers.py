"""Questions about users and permissions (3004, 3005, 3009, 3010), answered from a state (pure)"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from remoting import codes
from remoting.access.model import AccessState, User, acl_info, acls_like, subject_name, user_info, user_name, users_like

Password = Callable[[User], str | None]  # None = whoever asks may not see it


def answer_query(state: AccessState, code: int, ext: Mapping[str, str], password: Password) -> Any:
    """The JSON document of the answer; None = there is nothing, which tools expect as an answer without a body.

    Raises InvalidParameter.
    """
    if code == codes.AUTH_GET_USER:
        user = state.users.get(user_name(ext.get("username")))
        return None if user is None else user_info(user, password(user))
    if code == codes.AUTH_LIST_USERS:
        return [user_info(user, password(user)) for user in users_like(state, ext.get("filter", ""))] or None
    if code == codes.AUTH_GET_ACL:
        name = subject_name(ext.get("subject"))
        policies = state.acls.get(name)
        return None if policies is None else acl_info(name, policies)
    return acls_like(state, ext.get("subjectFilter", ""), ext.get("resourceFilter", "")) or None
