"""The history of the cluster: one row for each election and each fault, written by the collector alone (`webapp.history.store`).

The model stands alone, without relations: the collector loads no other one.
"""

from __future__ import annotations

from django.db import models

from remoting.facts.history import HistoryEntry
from remoting.facts.words import HistoryKind


class HistoryRow(models.Model):
    """See `remoting.facts.history.HistoryEntry`. A row without end is not over."""

    key = models.CharField(max_length=700, unique=True)
    kind = models.CharField(max_length=20, choices=[(each.value, each.value) for each in HistoryKind], db_index=True)
    cluster = models.CharField(max_length=127, blank=True, default="")
    group = models.CharField(max_length=127, blank=True, default="", db_index=True)
    subject = models.CharField(max_length=300, blank=True, default="")
    text = models.CharField(max_length=1000)
    cause = models.CharField(max_length=1000, blank=True, default="")
    previous = models.CharField(max_length=300, blank=True, default="")
    elected = models.CharField(max_length=300, blank=True, default="")
    epoch = models.BigIntegerField(null=True)
    started_at = models.DateTimeField(db_index=True)
    ended_at = models.DateTimeField(null=True, db_index=True)
    start_unwatched = models.BooleanField(default=False)
    end_unwatched = models.BooleanField(default=False)

    class Meta:
        ordering = ("-started_at", "-pk")

    @property
    def duration_ms(self) -> int | None:
        """None while it lasts."""
        if self.ended_at is None:
            return None
        return max(0, round((self.ended_at - self.started_at).total_seconds() * 1000))

    @property
    def is_election(self) -> bool:
        return HistoryKind(self.kind).is_election


TEXTS = ("kind", "cluster", "group", "subject", "text", "cause", "previous", "elected")


def texts_of(entry: HistoryEntry) -> dict[str, str]:
    """An entry's texts, cut to what a row takes: a database may refuse what is longer."""
    longest = {name: HistoryRow._meta.get_field(name).max_length for name in TEXTS}
    return {name: str(getattr(entry, name))[: longest[name]] for name in TEXTS}
