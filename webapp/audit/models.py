"""The audit trail: one row per attempted change, chained by hashes.

A row is written once. `save` refuses a row that exists, `delete`, `update` and bulk writes refuse always, and no view offers
them. Each row's hash covers its content and the hash of the row before it, under a key that is not in the database, so a row
that was changed or removed behind our back breaks the chain at that place (`webapp.audit.services.verify`). `AuditHead` is the
lock that keeps the chain from forking.
"""

from __future__ import annotations

from typing import Any, NoReturn

from django.conf import settings
from django.db import models


class AppendOnlyError(TypeError):
    """Somebody tried to change or remove audit rows."""


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise AppendOnlyError("audit rows are append-only: use webapp.audit.services.record")


class AppendOnlyQuerySet(models.QuerySet):
    """Reads only; the one write is `AuditEntry.save` of a new row."""

    update = _refuse
    delete = _refuse
    bulk_create = _refuse
    bulk_update = _refuse
    update_or_create = _refuse
    get_or_create = _refuse


class AuditEntry(models.Model):
    """Who asked for what, from where, and whether it was let through."""

    class Outcome(models.TextChoices):
        ACCEPTED = "accepted"
        REFUSED = "refused"

    sequence = models.BigIntegerField(unique=True)
    at = models.DateTimeField(db_index=True)
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.DO_NOTHING, db_constraint=False, related_name="+"
    )
    actor_name = models.CharField(max_length=150, db_index=True)
    token_prefix = models.CharField(max_length=12, blank=True, default="")
    ip = models.CharField(max_length=45, blank=True, default="")
    action = models.CharField(max_length=60, db_index=True)
    target = models.CharField(max_length=300, blank=True, default="")
    outcome = models.CharField(max_length=10, choices=Outcome)
    detail = models.CharField(max_length=500, blank=True, default="")
    parameters = models.JSONField(default=dict)
    operation_id = models.CharField(max_length=36, blank=True, default="")
    previous_hash = models.CharField(max_length=64, unique=True)
    hash = models.CharField(max_length=64)

    objects = AppendOnlyQuerySet.as_manager()

    class Meta:
        ordering = ("-sequence",)
        base_manager_name = "objects"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            _refuse()
        kwargs["force_insert"] = True
        super().save(*args, **kwargs)

    delete = _refuse


class AuditHead(models.Model):
    """The end of the chain; one row, locked by whoever appends."""

    sequence = models.BigIntegerField(default=0)
    hash = models.CharField(max_length=64)
