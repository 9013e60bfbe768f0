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
from typing import NamedTuple

from remoting.access.model import ALL, ANY, CUSTOM, DEFAULT, DENY, TOPIC, AccessState, Entry
from remoting.names import is_brokers_topic


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
    policies = state.acls.get(user_name, {})
    for policy in (CUSTOM, DEFAULT):
        fitting = fitting_entries(policies.get(policy, ()), demand, source)
        if fitting:
            entry = fitting[0]
            allowed = entry.decision != DENY
            verb = "allows" if allowed else "denies"
            return Verdict(allowed, f"the entry for {entry.resource} {verb} {'/'.join(entry.actions)}", entry, policy)
    return Verdict(False, f"no permission of {user_name} fits {demand} from {source}")


def fitting_entries(entries: Sequence[Entry], demand: Demand, source: str) -> list[Entry]:
    """The entries that count for the demand, the deciding one first."""
    fitting = [
        entry
        for entry in entries
        if entry.resource.covers(demand.type, demand.name)
        and (ALL in entry.actions or not set(demand.actions).isdisjoint(entry.actions))
        and _counts_for(entry, source)
    ]
    return sorted(fitting, key=_rank)


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
