"""Rows that were chained by hashes that anybody can make are chained under the key from now on."""

from __future__ import annotations

import hashlib
from typing import Any

from django.db import migrations

from webapp.audit import services


def seal(apps: Any, schema_editor: Any) -> None:
    """Each row as it stands; where the old chain was broken, the new one is, at the same row."""
    entries, heads = apps.get_model("audit", "AuditEntry").objects, apps.get_model("audit", "AuditHead").objects
    was = previous = services.GENESIS
    sequence = 0
    for entry in entries.order_by("sequence").iterator(chunk_size=500):
        old = hashlib.sha256(services.content_of(entry)).hexdigest()
        holds = (entry.sequence, entry.previous_hash, entry.hash) == (sequence + 1, was, old)
        was, sequence = entry.hash, entry.sequence
        entry.previous_hash = previous if holds else hashlib.sha256(f"broken at {sequence}".encode()).hexdigest()
        entry.hash = services.entry_hash(entry)
        entries.filter(pk=entry.pk).update(previous_hash=entry.previous_hash, hash=entry.hash)
        previous = entry.hash
    head = heads.filter(pk=1).first()
    if head is not None and (head.sequence, head.hash) == (sequence, was):
        heads.filter(pk=1).update(hash=previous)


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunPython(seal, migrations.RunPython.noop)]
