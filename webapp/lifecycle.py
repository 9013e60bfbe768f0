"""The life of work that somebody asked for, an operation or a report run: its states, its moves, and how its row is changed.

The row is the truth about the work, whichever process does it. Each change locks the row, refuses what is over, stores, and
announces once that is durable, so that whoever hears it reads what was announced. `webapp.operations.progress` and
`webapp.reports.stream` say what the moves mean for their kind of work; nothing else changes the state of a stored row.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

from django.db import models, transaction
from django.utils import timezone

from webapp.announce import announce_after_commit


class State(models.TextChoices):
    """How far work is."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


TRANSITIONS: Final = {
    State.QUEUED: {State.STARTING, State.RUNNING, State.FAILED, State.CANCELLED},
    State.STARTING: {State.RUNNING, State.FAILED, State.CANCELLED},
    State.RUNNING: {State.SUCCEEDED, State.FAILED, State.CANCELLED},
    State.SUCCEEDED: set(),
    State.FAILED: set(),
    State.CANCELLED: set(),
    State.SKIPPED: set(),  # made so: work that was due and was not to be done
}
FINISHED: Final = frozenset(state for state, following in TRANSITIONS.items() if not following)


class WorkOver(Exception):
    """The work is over, or somebody else has it already: the caller should not work on it (again)."""


def state_field(states: Iterable[State]) -> models.CharField:
    """The column for the state of work that has these states."""
    choices = [(state.value, state.label) for state in states]
    return models.CharField(max_length=10, choices=choices, default=State.QUEUED, db_index=True)


class Work(models.Model):
    """What every kind of work has."""

    NOUN: ClassVar[str]
    STATES: ClassVar[tuple[State, ...]] = tuple(State)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    state = state_field(STATES)
    progress = models.JSONField(default=dict)
    cancel_requested = models.BooleanField(default=False)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        abstract = True
        ordering = ("-created_at",)

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    def number_change(self) -> None:
        """Called on the locked row before each change; for kinds that count their changes."""

    @classmethod
    def group_of(cls, key: uuid.UUID | str) -> str:
        """The channels group of one piece of work. It hears `{"type": "work.changed", "finished": bool}` and looks at the row."""
        return f"{cls.NOUN}.{key}"

    def announce_after_commit(self) -> None:
        """Tell whoever follows this work to look at its row, once the surrounding transaction is durable."""
        announce_after_commit(self.group_of(self.pk), {"type": "work.changed", "finished": self.finished})


SomeWork = TypeVar("SomeWork", bound=Work)


@contextmanager
def changing(kind: type[SomeWork], key: uuid.UUID | str, *, also_over: bool = False) -> Iterator[SomeWork]:
    """The row, locked; what the block makes of it is stored and announced. Raises WorkOver unless `also_over`."""
    with transaction.atomic():
        work = kind.objects.select_for_update().get(pk=key)
        if work.finished and not also_over:
            raise WorkOver(f"{kind.NOUN} {key} is {work.state}")
        work.number_change()
        yield work
        work.save()
        work.announce_after_commit()


def enter(work: Work, state: State, **fields: Any) -> None:
    """Take work that is being changed to its next state, with the fields given; raises WorkOver if there is no such move."""
    if state not in work.STATES or state not in TRANSITIONS[State(work.state)]:
        raise WorkOver(f"{work.NOUN} {work.pk} is {work.state} and cannot become {state}")
    work.state = state
    if state in FINISHED:
        work.finished_at = timezone.now()
    elif work.started_at is None:
        work.started_at = timezone.now()
    for name, value in fields.items():
        setattr(work, name, value)


def move(kind: type[SomeWork], key: uuid.UUID | str, state: State, **fields: Any) -> SomeWork:
    """One move and nothing else."""
    with changing(kind, key) as work:
        enter(work, state, **fields)
    return work


def request_cancel(kind: type[SomeWork], key: uuid.UUID | str, **if_not_started: Any) -> SomeWork:
    """Ask for a stop; what nobody has started is over at once, with the fields given."""
    with changing(kind, key) as work:
        work.cancel_requested = True
        if work.state == State.QUEUED:
            enter(work, State.CANCELLED, **if_not_started)
    return work
