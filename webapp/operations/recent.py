"""What is known from operations about a thing that the snapshot does not show yet, or shows still."""

from __future__ import annotations

from datetime import datetime, timedelta

from webapp import snapshot
from webapp.errors import Conflict
from webapp.lifecycle import State
from webapp.operations.models import Operation

SHOWN_AFTER = timedelta(seconds=5)  # a change is in every snapshot that was taken so long after it

_WORDS = {"create": "creation", "delete": "deletion"}


def was_made(kind: str, name: str) -> bool | None:
    """Whether a `topic` or `group` of that name was created (True) or deleted (False) a moment ago; None: the snapshot knows.

    Raises Conflict while either is under way.
    """
    kinds = [f"{kind}.{verb}" for verb in _WORDS]
    last = Operation.objects.filter(kind__in=kinds, target=name).order_by("-created_at").first()
    if last is None:
        return None
    verb = last.kind.rpartition(".")[2]
    if not last.finished:
        raise Conflict(
            f"The {_WORDS[verb]} of {name} is under way; try again when its operation {last.pk} is over.",
            code=f"{_WORDS[verb]}-under-way",
        )
    if last.state != State.SUCCEEDED or _is_shown(last):
        return None
    return verb == "create"


def _is_shown(operation: Operation) -> bool:
    """Whether the snapshot is young enough to show what a finished operation did."""
    as_of = snapshot.current().as_of
    return as_of is not None and datetime.fromisoformat(as_of) > operation.finished_at + SHOWN_AFTER
