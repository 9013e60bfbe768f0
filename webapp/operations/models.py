"""One row for every change that somebody asked for: what, by whom, how far it got, what each node answered.

`webapp.operations.services.submit` makes it, `webapp.operations.progress` moves it on.

`parameters` is validated before the row exists. `nodes` is a list of `{"node", "outcome", "detail"}` where outcome is one of
`remoting.facts.words.Outcome`. `progress` is `{"done": int, "total": int | null, "text": str}`. `result` is what the kind
promises, or null.
"""

from __future__ import annotations

from django.conf import settings
from django.db import models

from webapp.lifecycle import State, Work, state_field


class Operation(Work):
    """A change to the cluster or to the console's own objects."""

    NOUN = "operation"
    STATES = tuple(state for state in State if state not in (State.STARTING, State.SKIPPED))

    kind = models.CharField(max_length=60, db_index=True)
    target = models.CharField(max_length=300, blank=True, default="")
    parameters = models.JSONField(default=dict)
    state = state_field(STATES)
    nodes = models.JSONField(default=list)
    result = models.JSONField(null=True, default=None)
    error_code = models.CharField(max_length=60, blank=True, default="")
    error = models.TextField(blank=True, default="")
    requested_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="operations"
    )
    requested_by_name = models.CharField(max_length=150)
    ip = models.CharField(max_length=45, blank=True, default="")
    idempotency_key = models.CharField(max_length=120, null=True, default=None)
    idempotency_digest = models.CharField(max_length=64, blank=True, default="")

    class Meta(Work.Meta):
        constraints = [  # noqa: RUF012
            models.UniqueConstraint(fields=["requested_by", "idempotency_key"], name="operation_idempotency"),
        ]

    @property
    def failure(self) -> dict[str, str] | None:
        """Why it was not made."""
        return {"code": self.error_code, "detail": self.error} if self.error_code else None
