"""Who reads what messages say: rights to read, of a role or a person, for a topic or all whose names begin alike.

The most specific topic decides, a person's right before a role's, and of two that are left the one that denies. Where none fits,
operators read and viewers do not. Roles are ordered: what a role is allowed, those above it are; what it is denied, those
below it are. Administrators read all, as they give the rights. What brokers keep for themselves (half messages, delayed ones)
says secrets of transactions: it is read by who manages the users of clients, whatever right there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from django.db.models import Q

from remoting.names import is_brokers_topic
from webapp.accounts.models import ReadRight, User
from webapp.accounts.permissions import Actor, Role, role_of

MOST: Final = 1000
ROLES: Final = (Role.VIEWER.label, Role.OPERATOR.label)
ALLOW: Final = "allow"
DENY: Final = "deny"
EVERYTHING: Final = "*"


class Right(NamedTuple):
    """One right: of a role, or of the person with that id."""

    topics: str  # a topic's name, or the beginning of names and a *
    role: str
    user_id: int | None
    allows: bool
    readers: str = ""  # for people


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether somebody reads a topic's messages, and why, for people."""

    allowed: bool
    reason: str


def decide(rights: Iterable[Right], role: Role, user_id: int | None, topic: str) -> Verdict:
    """Whether the person with that role and id reads what messages of the topic say (pure)."""
    if role is Role.ADMIN:
        return Verdict(True, "administrators read all topics")
    if role is Role.NONE:
        return Verdict(False, "who has no role reads nothing")
    fitting = [each for each in rights if _covers(each.topics, topic) and _is_for(each, role, user_id)]
    if not fitting:
        reads = role >= Role.OPERATOR
        which = "all topics" if reads else "no topic"
        return Verdict(reads, f"no right fits, and {role.label}s read {which} without one")
    found = min(fitting, key=_rank)
    return Verdict(
        found.allows,
        f"the right of {found.readers or found.role} to {found.topics} {'allows' if found.allows else 'denies'} it",
    )


class Reader:
    """What one actor reads. A token has to be made for reading what messages say, whatever its owner may."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def may_read(self, topic: str) -> bool:
        """Whether the actor is shown what messages of the topic say."""
        if is_brokers_topic(topic):
            return self._actor.may("access.write")
        if not self._actor.may("messages.bodies"):
            return False
        user = self._actor.user
        return decide(self._rights, role_of(user), user.pk, topic).allowed

    @cached_property
    def _rights(self) -> list[Right]:
        return rights_of(self._actor.user.pk)


def rights_of(user_id: int | None) -> list[Right]:
    """Those that can concern a person: of roles, and that person's own."""
    rows = ReadRight.objects.select_related("user").filter(Q(user=None) | Q(user=user_id))
    return [Right(each.topics, each.role, each.user_id, each.allows, each.readers) for each in rows]


def explain(user: User, topic: str) -> Verdict:
    """What is decided for a person at the console."""
    if is_brokers_topic(topic):
        reads = role_of(user) is Role.ADMIN
        return Verdict(reads, f"{topic} is the brokers' own, which administrators alone read")
    return decide(rights_of(user.pk), role_of(user), user.pk, topic)


def all_rights() -> Sequence[ReadRight]:
    """In the order in which people look for them."""
    return list(ReadRight.objects.select_related("user").order_by("topics", "user__username", "role"))


def _covers(topics: str, topic: str) -> bool:
    return topic.startswith(topics[:-1]) if topics.endswith("*") else topics == topic


def _is_for(right: Right, role: Role, user_id: int | None) -> bool:
    if right.user_id is not None:
        return right.user_id == user_id
    named = Role[right.role.upper()]
    return named <= role if right.allows else named >= role


def _rank(right: Right) -> tuple[bool, int, bool, bool]:
    return right.topics.endswith("*"), -len(right.topics), right.user_id is None, right.allows
