"""What a report says of where its messages came from."""

from __future__ import annotations

from collections import Counter

import pytest

from tasks.reports.sources import sources
from tasks.spark.meter import ReadFrom


@pytest.mark.parametrize(
    ("files", "segments", "brokers", "rows", "sentences"),
    [
        (0, 0, 9, 9, []),
        (0, 0, 0, 0, []),
        (1200, 0, 0, 1200, ["The messages were read from Parquet files that were exported to the tier (1,200)."]),
        (0, 5, 3, 8, ["The messages were read from the tier's own objects (5) and brokers (3)."]),
        (
            *(1, 2, 3, 7),
            [
                "The messages were read from Parquet files that were exported to the tier (at least 1), the tier's own objects "
                "(at least 2) and brokers (at least 3)."
            ],
        ),
    ],
)
def test_a_sentence_where_not_all_came_from_brokers(
    files: int, segments: int, brokers: int, rows: int, sentences: list[str]
) -> None:
    told = Counter({ReadFrom.FILES: files, ReadFrom.SEGMENTS: segments, ReadFrom.BROKERS: brokers})
    assert sources(rows, told.__getitem__) == sentences
