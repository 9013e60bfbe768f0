"""Users and permissions as values: what the controllers agree on and brokers keep a copy of (pure)

A permission is an entry of a user's list: a resource (`Topic:orders`, `Group:pay*`, `Cluster:*`, `*`), actions, the addresses it
counts for, and Allow or Deny. A list has at most one entry for a resource in each of its two policies; Default is looked at only
when nothing of Custom fits. Names and words are the protocol's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from remoting.errors import InvalidParameter, ProtocolError

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
CUSTOM: Final = "Custom"
DEFAULT: Final = "Default"
ALLOW: Final = "Allow"
DENY: Final = "Deny"

ANY: Final = "*"
TOPIC: Final = "Topic"
GROUP: Final = "Group"
CLUSTER: Final = "Cluster"
TYPES: Final = (TOPIC, GROUP, CLUSTER)

ALL: Final = "All"
PUB: Final = "Pub"
SUB: Final = "Sub"
CREATE: Final = "Create"
UPDATE: Final = "Update"
DELETE: Final = "Delete"
GET: Final = "Get"
LIST: Final = "List"
ACTIONS: Final = (ALL, PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST)

MAX_USERS: Final = 10_000
MAX_ENTRIES: Final = 1000
MAX_SOURCES: Final = 100
MAX_RESOURCE: Final = 300
USER_NAME: Final = re.compile(r"[A-Za-z0-9_.@-]{1,64}")

_USER: Final = "User:"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class User:
    """Who may sign in. `sealed` is the secret, encrypted (see `sealing`)."""

    name: str
    sealed: str = field(repr=False)
    user_type: str = NORMAL
    status: str = ENABLE

    @property
    def is_super(self) -> bool:
        return self.user_type == SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status == ENABLE


@dataclass(frozen=True, slots=True)
class Resource:
    """A type and a name: literal, a prefix, or (None) any name. The type `*` is everything."""

    type: str
    name: str | None = None
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.type == ANY:
            return ANY
        if self.name is None:
            return f"{self.type}:{ANY}"
        return f"{self.type}:{self.name}{ANY if self.is_prefix else ''}"

    def covers(self, type: str, name: str) -> bool:
        """Whether something of this type and name is meant."""
        if self.type == ANY:
            return True
        if self.type != type:
            return False
        if self.name is None:
            return True
        return name.startswith(self.name) if self.is_prefix else name == self.name


@dataclass(frozen=True, slots=True)
class Entry:
    """One permission. Without `sources` it counts for every address."""

    resource: Resource
    actions: tuple[str, ...]
    decision: str
    sources: tuple[str, ...] = ()


Policies = Mapping[str, tuple[Entry, ...]]


@dataclass(frozen=True, slots=True)
class AccessState:
    """All users and their permissions. `version` grows with every change. `derived` is what somebody made of it to decide by."""

    version: int = 0
    users: Mapping[str, User] = field(default_factory=dict)
    acls: Mapping[str, Policies] = field(default_factory=dict)  # user name -> policy -> entries
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_user(self, user: User) -> AccessState:
        return replace(self, version=self.version + 1, users={**self.users, user.name: user})

    def without_user(self, name: str) -> AccessState:
        """Without the user and the permissions of that user."""
        users = {key: user for key, user in self.users.items() if key != name}
        acls = {key: policies for key, policies in self.acls.items() if key != name}
        return AccessState(self.version + 1, users, acls)

    def with_entries(self, name: str, policies: Policies) -> AccessState:
        """With entries added to a user's list; those for a resource that has one already take its place."""
        present = dict(self.acls.get(name, {}))
        for policy, entries in policies.items():
            table = {entry.resource: entry for entry in present.get(policy, ())}
            table |= {entry.resource: entry for entry in entries}
            present[policy] = tuple(table.values())
        return replace(self, version=self.version + 1, acls={**self.acls, name: present})

    def without_entries(self, name: str, policy: str, resource: Resource | None) -> AccessState:
        """Without one entry of a user's list, or without the list."""
        present = dict(self.acls.get(name, {}))
        if resource is None:
            present = {}
        else:
            present[policy] = tuple(entry for entry in present.get(policy, ()) if entry.resource != resource)
        remaining = {policy: entries for policy, entries in present.items() if entries}
        acls = {key: policies for key, policies in self.acls.items() if key != name}
        return replace(self, version=self.version + 1, acls={**acls, name: remaining} if remaining else acls)


# ---- words of the protocol


def user_name(name: object) -> str:
    """A user's name. Raises InvalidParameter with the rule."""
    if not isinstance(name, str) or not USER_NAME.fullmatch(name):
        raise InvalidParameter("a user's name has 1 to 64 letters, digits, and any of _ . @ -")
    return name


def subject_name(subject: object) -> str:
    """The name in `User:name`. Raises InvalidParameter."""
    if not isinstance(subject, str) or not subject.startswith(_USER):
        raise InvalidParameter(f"the subject must be User:NAME, not {str(subject)[:80]!r}")
    return user_name(subject[len(_USER) :])


def subject(name: str) -> str:
    return _USER + name


def user_type(text: object) -> str:
    return _word(text, (SUPER, NORMAL), "userType")


def user_status(text: object) -> str:
    return _word(text, (ENABLE, DISABLE), "userStatus")


def policy_type(text: object) -> str:
    return _word(text or CUSTOM, (CUSTOM, DEFAULT), "policyType")


def resource(text: object) -> Resource:
    """A resource as it is written. Raises InvalidParameter with the rule."""
    if isinstance(text, str) and len(text) <= MAX_RESOURCE:
        if text == ANY:
            return Resource(ANY)
        type, colon, name = text.partition(":")
        known = next((each for each in TYPES if each.lower() == type.lower()), None)
        if known is not None and colon and name:
            if name == ANY:
                return Resource(known)
            if ANY not in name[:-1]:
                return Resource(known, name.removesuffix(ANY), name.endswith(ANY))
    raise InvalidParameter(
        f"a resource is Topic:NAME, Group:NAME or Cluster:NAME, where a * may end the name, or * alone; not {str(text)[:80]!r}"
    )


def read_entry(fields: Any) -> Entry:
    """One entry as the protocol writes it. Raises InvalidParameter."""
    if not isinstance(fields, dict):
        raise InvalidParameter("an entry of a policy must be an object")
    actions, sources = _texts(fields.get("actions"), "actions"), _texts(fields.get("sourceIps") or (), "sourceIps")
    if not actions:
        raise InvalidParameter(f"an entry needs actions: any of {', '.join(ACTIONS)}")
    if len(sources) > MAX_SOURCES:
        raise InvalidParameter(f"an entry may have {MAX_SOURCES} sourceIps")
    for source in sources:
        try:
            ipaddress.ip_network(source, strict=False)
        except ValueError as error:
            raise InvalidParameter(
                f"{source[:80]!r} is neither an IP address nor a range such as 10.0.0.0/8"
            ) from error
    return Entry(
        resource(fields.get("resource")),
        tuple(dict.fromkeys(_word(each, ACTIONS, "an action") for each in actions)),
        _word(fields.get("decision"), (ALLOW, DENY), "decision"),
        tuple(dict.fromkeys(sources)),
    )


def read_policies(fields: Any) -> dict[str, tuple[Entry, ...]]:
    """The `policies` of an AclInfo. Raises InvalidParameter."""
    if not isinstance(fields, list) or not fields:
        raise InvalidParameter("policies must be a list with at least one policy")
    found: dict[str, tuple[Entry, ...]] = {}
    for each in fields:
        if not isinstance(each, dict) or not isinstance(each.get("entries"), list) or not each["entries"]:
            raise InvalidParameter("each policy needs entries")
        if len(each["entries"]) > MAX_ENTRIES:
            raise InvalidParameter(f"a policy may have {MAX_ENTRIES} entries")
        found[policy_type(each.get("policyType"))] = tuple(read_entry(entry) for entry in each["entries"])
    return found


def user_info(user: User, password: str | None) -> dict[str, str]:
    """UserInfo; the password only for those who may see it."""
    shown = {} if password is None else {"password": password}
    return {"username": user.name, **shown, "userType": user.user_type, "userStatus": user.status}


def acl_info(name: str, policies: Policies) -> dict[str, Any]:
    """AclInfo."""
    return {
        "subject": subject(name),
        "policies": [
            {"policyType": policy, "entries": [_entry_fields(entry) for entry in entries]}
            for policy, entries in policies.items()
        ],
    }


def users_like(state: AccessState, text: str) -> list[User]:
    """Users whose name contains the text, by name."""
    return [user for name, user in sorted(state.users.items()) if text in name]


def acls_like(state: AccessState, subject_text: str, resource_text: str) -> list[dict[str, Any]]:
    """AclInfo of all lists whose subject contains one text, with the entries whose resource contains the other."""
    found = []
    for name, policies in sorted(state.acls.items()):
        if subject_text not in subject(name):
            continue
        kept = {
            policy: tuple(entry for entry in entries if resource_text in str(entry.resource))
            for policy, entries in policies.items()
        }
        if kept := {policy: entries for policy, entries in kept.items() if entries}:
            found.append(acl_info(name, kept))
    return found


# ---- the state as bytes


def encode_state(state: AccessState) -> bytes:
    """In one canonical form: equal states give equal bytes."""
    users = [[user.name, user.sealed, user.user_type, user.status] for _, user in sorted(state.users.items())]
    acls = [acl_info(name, dict(sorted(policies.items()))) for name, policies in sorted(state.acls.items())]
    content = {"format": _FORMAT, "version": state.version, "users": users, "acls": acls}
    return orjson.dumps(content, option=orjson.OPT_SORT_KEYS)


def decode_state(content: bytes) -> AccessState:
    """As written by `encode_state`. Raises ProtocolError for anything else."""
    try:
        fields = orjson.loads(content)
        if fields["format"] != _FORMAT:
            raise ProtocolError(
                f"users and permissions of format {fields['format']} are not understood, only {_FORMAT}"
            )
        users = {each[0]: User(*each) for each in fields["users"]}
        acls = {subject_name(each["subject"]): read_policies(each["policies"]) for each in fields["acls"]}
        return AccessState(int(fields["version"]), users, acls)
    except (ValueError, KeyError, TypeError, IndexError, InvalidParameter) as error:
        raise ProtocolError(f"undecodable users and permissions: {error}") from error


def _entry_fields(entry: Entry) -> dict[str, Any]:
    sources = {"sourceIps": list(entry.sources)} if entry.sources else {}
    return {"resource": str(entry.resource), "actions": list(entry.actions), **sources, "decision": entry.decision}


def _word(text: object, known: Iterable[str], what: str) -> str:
    for each in known:
        if isinstance(text, str) and text.lower() == each.lower():
            return each
    raise InvalidParameter(f"{what} must be one of {', '.join(known)}, not {str(text)[:80]!r}")


def _texts(value: Any, what: str) -> Sequence[str]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise InvalidParameter(f"{what} must be a list of texts")
    return value
