"""What clients measured, of all brokers together: they report to whichever broker their settings name (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from remoting.facts.snapshot import ClientTimes
from tasks.snapshot.inputs import Look


class _Key(NamedTuple):
    topic: str
    group: str
    metric: str
    status: str
    language: str
    bounds_ms: tuple[int, ...]


def client_times(look: Look) -> tuple[ClientTimes, ...]:
    """By topic, group and what was measured; sums over the brokers that answer."""
    counts: dict[_Key, list[int]] = {}
    for state in look.states.values():
        for each in state.client_times:
            if len(each.counts) != len(each.bounds_ms) + 1 or not each.bounds_ms:
                continue  # a broker of another version tells it otherwise
            key = _Key(each.topic, each.group, each.metric, each.status, each.language, each.bounds_ms)
            found = counts.setdefault(key, [0] * len(each.counts))
            counts[key] = [one + other for one, other in zip(found, each.counts, strict=True)]
    return tuple(
        ClientTimes(
            metric=key.metric,
            topic=key.topic,
            group=key.group,
            language=key.language,
            status=key.status,
            count=sum(found),
            half_ms=_quantile(key.bounds_ms, found, 0.5),
            most_ms=_quantile(key.bounds_ms, found, 0.99),
            limit_ms=key.bounds_ms[-1],
        )
        for key, found in sorted(counts.items())
        if sum(found)
    )


def _quantile(bounds_ms: Sequence[int], counts: Sequence[int], share: float) -> float | None:
    """The time that this share of values did not exceed, as if values lay evenly between bounds; None = above the last one."""
    wanted = share * sum(counts)
    for place, reached in enumerate(accumulate(counts[:-1])):
        if reached >= wanted:
            low = bounds_ms[place - 1] if place else 0
            part = 1 - (reached - wanted) / counts[place]
            return round(low + (bounds_ms[place] - low) * part, 1)
    return None
