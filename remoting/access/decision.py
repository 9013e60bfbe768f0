"""Whether a user may do something, and why (pure)

Of the user's entries that fit resource, action and address, the one with the most specific resource decides: a name before a
prefix, a longer prefix before a shorter one, a prefix before all of a type, that before `*`; Deny before Allow. When none fits,
the answer is no. A super user may do everything, and nobody else anything with the topics that brokers keep
their own state in, nor with what has no name: no entry gives that.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from remoting.access.model import ALL, ANY, CUSTOM, DEFAULT, DENY, TOPIC, AccessState, Entry
from remoting.names import is_brokers_topic

_MAX_REMEMBERED: Final = 1024


class Demand(NamedTuple):
    """What a request needs: one of the actions on one resource."""

    type: str
    name: str
    actions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'/'.join(self.actions)} on {self.type}:{self.name}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, with the entry that made it (None: none did) and a sentence for people."""

    allowed: bool
    reason: str
    entry: Entry | None = None
    policy: str | None = None


def decide(state: AccessState, user_name: str, demand: Demand, source: str) -> Verdict:
    """Whether a user may do it from the IP address `source`."""
    user = state.users.get(user_name)
    if user is None:
        return Verdict(False, f"there is no user {user_name}")
    if not user.is_enabled:
        return Verdict(False, f"the user {user_name} is disabled")
    if user.is_super:
        return Verdict(True, f"{user_name} is a super user")
    if not demand.name:
        return Verdict(False, f"the request does not say which {demand.type.lower()} it is about")
    if demand.type == TOPIC and is_brokers_topic(demand.name):
        return Verdict(False, f"{demand.name} is the brokers' own, which super users alone may use")
    for policy in (CUSTOM, DEFAULT):
        fitting = _rights(state, user_name, policy).fitting(demand, source)
        if fitting:
            entry = fitting[0]
            allowed = entry.decision != DENY
            verb = "allows" if allowed else "denies"
            return Verdict(allowed, f"the entry for {entry.resource} {verb} {'/'.join(entry.actions)}", entry, policy)
    return Verdict(False, f"no permission of {user_name} fits {demand} from {source}")


def _rights(state: AccessState, user_name: str, policy: str) -> Rights:
    """Those of a user, put in order when they are first asked for; a state does not change."""
    found: Rights | None = state.derived.get((user_name, policy))
    if found is None:
        found = state.derived[user_name, policy] = Rights(state.acls.get(user_name, {}).get(policy, ()))
    return found


class Rights:
    """The entries of one policy, found by the names that they are for: a request may be about thousands of names, and a user have
    a thousand entries, of which few fit a name."""

    __slots__ = ("_by_name", "_by_prefix", "_counts", "_lengths", "_wide")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._by_name: dict[tuple[str, str], list[Entry]] = {}
        self._by_prefix: dict[tuple[str, str], list[Entry]] = {}
        self._lengths: dict[str, tuple[int, ...]] = {}  # of prefixes, by type
        self._wide: list[Entry] = []  # for all of a type, or everything
        self._counts: dict[tuple[tuple[str, ...], str], bool] = {}  # whether entries with those addresses count for one
        for entry in entries:
            resource = entry.resource
            if resource.type == ANY or resource.name is None:
                self._wide.append(entry)
            else:
                table = self._by_prefix if resource.is_prefix else self._by_name
                table.setdefault((resource.type, resource.name), []).append(entry)
        for type_, prefix in self._by_prefix:
            known = self._lengths.get(type_, ())
            self._lengths[type_] = tuple(sorted({*known, len(prefix)}))

    def fitting(self, demand: Demand, source: str) -> list[Entry]:
        """The entries that count for the demand, the deciding one first."""
        fitting = [
            entry
            for entry in self.candidates(demand.type, demand.name)
            if (ALL in entry.actions or not set(demand.actions).isdisjoint(entry.actions))
            and self._counts_for(entry, source)
        ]
        return sorted(fitting, key=_rank)

    def candidates(self, type: str, name: str) -> list[Entry]:
        """The entries that are for something of this type and name."""
        found = list(self._by_name.get((type, name), ()))
        for length in self._lengths.get(type, ()):
            if length <= len(name):
                found += self._by_prefix.get((type, name[:length]), ())
        return [*found, *(entry for entry in self._wide if entry.resource.covers(type, name))]

    def _counts_for(self, entry: Entry, source: str) -> bool:
        if not entry.sources:
            return True
        key = entry.sources, source
        if key not in self._counts:
            if len(self._counts) >= _MAX_REMEMBERED:
                self._counts.clear()
            self._counts[key] = _counts_for(entry, source)
        return self._counts[key]


def _rank(entry: Entry) -> tuple[bool, bool, bool, int, bool]:
    resource = entry.resource
    length = len(resource.name or "")
    return resource.type == ANY, resource.name is None, resource.is_prefix, -length, entry.decision != DENY


def _counts_for(entry: Entry, source: str) -> bool:
    if not entry.sources:
        return True
    try:
        address = ipaddress.ip_address(source)
    except ValueError:
        return False
    return any(address in ipaddress.ip_network(each, strict=False) for each in entry.sources)
