"""What is told of files of the log that topics want kept: to the console, and as metrics."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.store.settings import RetentionSettings
from brokerd.store.store import MessageStore
from remoting.exposition import Family
from remoting.facts.broker_state import RetentionState


def retention_state(store: MessageStore, settings: RetentionSettings) -> RetentionState:
    """As of the last round of retention."""
    kept = store.wanted.kept
    return RetentionState(
        reserved_ms=settings.reserved_time_ms,
        kept_files=kept.files,
        kept_bytes=kept.files * store.commitlog.segment_size_bytes,
        kept_topic=kept.topic,
        overruled_files=kept.overruled,
        overruled_topic=kept.overruled_topic,
        overruled_ms=kept.overruled_ms,
    )


def retention_families(store: MessageStore) -> Sequence[Family]:
    kept = store.wanted.kept
    return (
        Family(
            "logboom_retention_kept_files",
            "gauge",
            "files of the log that are older than files stay, and do since topics want messages in them",
        ).add(kept.files),
        Family(
            "logboom_retention_overruled_files_total",
            "counter",
            "files of the log that went as the disk was full, although topics wanted messages in them",
        ).add(kept.overruled),
    )
