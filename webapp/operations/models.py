"""One row for every change that somebody asked for: what, by whom, how far it got, what each node answered.

The row is the truth about a change, whichever process works on it. It moves only along `TRANSITIONS`; the web process makes it
(`webapp.operations.services.submit`), the worker moves it on (`webapp.operations.progress`).

`parameters` is validated before the row exists. `nodes` is a list of `{"node", "outcome", "detail"}` where outcome is one of
`NodeOutcome`. `progress` is `{"done": int, "total": int | null, "text": str}`. `result` is what the kind promises, or null.
"""

from __future__ import annotations

import uuid

from django.conf import settings
from django.db import models


class NodeOutcome(models.TextChoices):
    """What one node made of its part of a change."""

    CONFIRMED = "CONFIRMED"
    UNCHANGED = "UNCHANGED"
    UNKNOWN = "UNKNOWN"
    NOT_ATTEMPTED = "NOT_ATTEMPTED"
    REFUSED = "REFUSED"


class Operation(models.Model):
    """A change to the cluster or to the console's own objects."""

    class State(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        SUCCEEDED = "succeeded"
        FAILED = "failed"
        CANCELLED = "cancelled"

    TRANSITIONS = {  # noqa: RUF012
        State.QUEUED: {State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED},
        State.RUNNING: {State.SUCCEEDED, State.FAILED, State.CANCELLED},
        State.SUCCEEDED: set(),
        State.FAILED: set(),
        State.CANCELLED: set(),
    }
    FINISHED = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=60, db_index=True)
    target = models.CharField(max_length=300, blank=True, default="")
    parameters = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED, db_index=True)
    progress = models.JSONField(default=dict)
    nodes = models.JSONField(default=list)
    result = models.JSONField(null=True, default=None)
    error_code = models.CharField(max_length=60, blank=True, default="")
    error = models.TextField(blank=True, default="")
    cancel_requested = models.BooleanField(default=False)
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="operations"
    )
    requested_by_name = models.CharField(max_length=150)
    ip = models.CharField(max_length=45, blank=True, default="")
    idempotency_key = models.CharField(max_length=120, null=True, default=None)
    idempotency_digest = models.CharField(max_length=64, blank=True, default="")
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-created_at",)
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["requested_by", "idempotency_key"], name="operation_idempotency"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.target} ({self.state})"

    @property
    def finished(self) -> bool:
        return self.state in self.FINISHED
