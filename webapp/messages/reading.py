"""What of a message somebody is shown: all of it, or where it is and how long, without what it says.

Who has `messages.bodies` reads the messages of all topics, viewers those of the topics in `settings.VIEWERS_READ`. Half messages
and what else brokers keep for themselves say secrets of transactions: they are read by those who manage the users of clients.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from django.conf import settings

from remoting.names import is_brokers_topic
from webapp.accounts.permissions import Actor
from webapp.messages.browse import Message

_SHOWN: Final = ("UNIQ_KEY", "KEYS", "TAGS")  # by which messages are found


def may_read(actor: Actor, topic: str) -> bool:
    """Whether the actor is shown what messages of the topic say."""
    if is_brokers_topic(topic):
        return actor.may("access.write")
    return actor.may("messages.bodies") or any(_fits(each, topic) for each in settings.VIEWERS_READ)


def shown_to(actor: Actor, messages: Iterable[Message]) -> list[Message]:
    """The messages as the actor is shown them."""
    return [each if may_read(actor, each.record.topic) else each.hidden(_SHOWN) for each in messages]


def _fits(pattern: str, topic: str) -> bool:
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
