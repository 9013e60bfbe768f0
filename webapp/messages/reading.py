"""What of a message somebody is shown: all of it, or where it is and how long, without what it says.

Who reads the messages of a topic is decided by `webapp.accounts.read_rights`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from webapp.accounts.permissions import Actor
from webapp.accounts.read_rights import Reader
from webapp.messages.browse import Message

_SHOWN: Final = ("UNIQ_KEY", "KEYS", "TAGS")  # by which messages are found


def shown_to(actor: Actor, messages: Iterable[Message]) -> list[Message]:
    """The messages as the actor is shown them."""
    reader = Reader(actor)
    return [each if reader.may_read(each.record.topic) else each.hidden(_SHOWN) for each in messages]
