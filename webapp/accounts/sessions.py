"""How long a session of a browser lasts, and how long ago its person gave the password: two times, kept with the session.

Whoever does nothing for `IDLE_S` is logged out; a page that only listens does nothing. What is dangerous asks for the password
again when it was given more than `CONFIRMED_S` ago (`Actor.is_confirmed`), so a browser that was left alone, or a stolen cookie,
deletes nothing and makes no key that lasts.
"""

from __future__ import annotations

import hashlib
import logging
import time
from typing import Any

from django.contrib.auth.signals import user_logged_in
from django.contrib.sessions.backends.base import SessionBase, UpdateError
from django.db import DatabaseError
from django.dispatch import receiver
from django.http import HttpRequest

log = logging.getLogger(__name__)

IDLE_S = 3600
CONFIRMED_S = 900
NOTED_AGAIN_S = 60  # so that not every request writes to the database
_SEEN, _CONFIRMED = "seen", "confirmed"


@receiver(user_logged_in)
def began(sender: Any, request: HttpRequest, **more: Any) -> None:
    """Somebody logged in, by a password just now."""
    request.session[_SEEN] = request.session[_CONFIRMED] = int(time.time())


def confirmed(session: SessionBase) -> None:
    """The person gave the password again."""
    session[_CONFIRMED] = int(time.time())


def is_confirmed(session: SessionBase) -> bool:
    return _age_s(session, _CONFIRMED) < CONFIRMED_S


def name_of(session: SessionBase) -> str:
    """Tells it apart from others, and opens nothing; empty when it is none."""
    key = session.session_key
    return f"session:{hashlib.sha256(key.encode()).hexdigest()[:32]}" if key else ""


def is_idle(session: SessionBase) -> bool:
    """Whether it ended because nobody did anything. One of before there was this limit is as old as can be."""
    return _age_s(session, _SEEN) > IDLE_S


def note_use(session: SessionBase) -> None:
    """Somebody did something. Who only reads is served also while nothing can be written, as on a full disk."""
    if _age_s(session, _SEEN) < NOTED_AGAIN_S:
        return
    was_modified = session.modified
    session[_SEEN] = int(time.time())
    try:
        session.save()
    except (DatabaseError, UpdateError) as error:
        log.warning("the use of a session cannot be noted: %s", error)
    session.modified = was_modified


def _age_s(session: SessionBase, name: str) -> float:
    return time.time() - float(session.get(name, 0))
