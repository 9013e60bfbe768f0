"""What a report says of where its messages came from: brokers, the tier's segments, or files that were exported there (pure)"""

from __future__ import annotations

from collections.abc import Callable

from tasks.spark.meter import ReadFrom


def sources(rows: int, rows_from: Callable[[ReadFrom], int]) -> list[str]:
    """A sentence, where not all came from brokers; `rows` were read. Those who read may have been heard only in part."""
    segments, files, brokers = (rows_from(each) for each in (ReadFrom.SEGMENTS, ReadFrom.FILES, ReadFrom.BROKERS))
    if not segments + files:
        return []
    at_least = "" if segments + files + brokers >= rows else "at least "
    *most, last = [
        f"{where} ({at_least}{count:,})"
        for count, where in (
            (files, "Parquet files that were exported to the tier"),
            (segments, "the tier's own objects"),
            (brokers, "brokers"),
        )
        if count
    ]
    return [f"The messages were read from {', '.join(most)}{' and ' if most else ''}{last}."]
