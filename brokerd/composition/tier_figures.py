"""What is told of the tier: its state, what of a queue is where, and the families of a scrape.

Nothing of it is counted when somebody asks, but for the queues that wait for an upload.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerd.store.store import MessageStore
from brokerd.tiers.objects.counted import Counted
from brokerd.tiers.service import TierService
from remoting.exposition import Family
from remoting.facts.tier_state import TieredQueueState, TierState
from remoting.facts.words import TierCondition

_CONDITIONS: Final = (TierCondition.FOLLOWING, TierCondition.OPENING, TierCondition.OPEN, TierCondition.FENCED)
_CONTENTS: Final = {
    "segments": "segments in the tier",
    "messages": "messages in them",
    "bytes": "bytes of their objects",
    "missing_messages": "messages between segments that never came there: their files went first",
}
_WAITING: Final = {
    "waiting_messages": "messages that are not uploaded yet",
    "waiting_log_bytes": "the log from the first of them on",
    "gone_log_bytes": "of that, what went with its files because the disk was full",
    "expiring_objects": "objects that nobody names any more, and that are removed soon",
}
_COUNTERS: Final = {
    "uploaded_segments": "segments uploaded",
    "uploaded_messages": "messages in them",
    "uploaded_bytes": "bytes that were stored in objects, manifests among them",
    "downloaded_messages": "messages of the tier that were given out",
    "downloaded_bytes": "bytes that were read from it",
    "cache_hits": "reads of the tier that found their messages in memory",
    "cache_misses": "reads that had to wait for a download",
}


def tier_state(tiers: TierService, store: MessageStore) -> TierState | None:
    """None without a tier."""
    objects = tiers.objects
    if objects is None:
        return None
    pending, log, cold, now_ms = tiers.pending, store.commitlog, tiers.cold, tiers.now_ms()
    held, oldest_ms = pending.held_offset(), pending.oldest_ms
    segments, messages, total_bytes, missing = tiers.table.contents.holdings
    puts, appends, gets = (objects.requests[operation] for operation in ("put", "append", "get"))
    return TierState(
        url=tiers.settings.url,
        condition=tiers.condition,
        trouble=tiers.trouble or None,
        trouble_since_ms=tiers.trouble_since_ms if tiers.trouble else None,
        waiting_messages=pending.messages,
        waiting_log_bytes=max(0, store.dispatch_offset - held) if held is not None else 0,
        gone_log_bytes=max(0, log.min_offset - held) if held is not None else 0,
        oldest_waiting_ms=max(0, now_ms - oldest_ms) if oldest_ms is not None else 0,
        segments=segments,
        messages=messages,
        bytes=total_bytes,
        missing_messages=missing,
        expiring_objects=tiers.expiring_objects,
        uploaded_segments=tiers.uploaded_segments,
        uploaded_messages=tiers.uploaded_messages,
        uploaded_bytes=puts.bytes + appends.bytes,
        downloaded_messages=cold.messages_out if cold is not None else 0,
        downloaded_bytes=gets.bytes,
        requests=sum(each.count for each in objects.requests.values()),
        failed_requests=sum(each.failed for each in objects.requests.values()),
        cache_bytes=cold.cache.bytes if cold is not None else 0,
        cache_limit_bytes=tiers.settings.cache_bytes,
        cache_hits=cold.hits if cold is not None else 0,
        cache_misses=cold.misses if cold is not None else 0,
        reserved_time_ms=tiers.settings.reserved_time_ms,
        archive=tiers.settings.archive,
        state_rounds=tiers.states.rounds if tiers.states is not None else 0,
    )


def tiered_queues(tiers: TierService, store: MessageStore) -> Callable[[str, int], TieredQueueState | None] | None:
    """What tells of a queue what of it is where; None without a tier."""
    if tiers.objects is None:
        return None

    def tiered_queue(topic: str, queue_id: int) -> TieredQueueState | None:
        segments = tiers.range_of(topic, queue_id)
        if not segments.end:
            return None
        local = store.local_min_offset(topic, queue_id)
        missing = segments.missing + (max(0, local - segments.end) if len(segments) else 0)
        return TieredQueueState(
            local_min_offset=local, end_offset=segments.end, bytes=segments.object_bytes, missing=missing
        )

    return tiered_queue


def tier_families(tiers: TierService, store: MessageStore) -> list[Family]:
    """Those of one broker; none without a tier."""
    state, objects, line = tier_state(tiers, store), tiers.objects, tiers.line
    if state is None or objects is None or line is None:
        return []
    condition = Family("logboom_tier_condition", "gauge", "1 for what this broker does with the tier of its group")
    for each in _CONDITIONS:
        condition.add(int(state.condition is each), condition=each)
    families = [
        condition,
        Family("logboom_tier_trouble", "gauge", "1 while the object store does not do what it should").add(
            int(state.trouble is not None)
        ),
        *(_plain(name, "gauge", help, getattr(state, name)) for name, help in _CONTENTS.items()),
        *(_plain(name, "counter", help, getattr(state, name)) for name, help in _COUNTERS.items()),
        _plain("cache_bytes", "gauge", "messages of the tier in memory", state.cache_bytes),
        *_requests(objects),
        _plain(
            "forsaken_fetches",
            "counter",
            "fetches that waited for others until nobody waited for them, and were not made",
            tiers.cold.forsaken if tiers.cold is not None else 0,
        ),
        _plain("line_requests", "gauge", "requests that stand in line for messages of the tier", line.standing),
        Family("logboom_tier_line_wait_seconds", "histogram", "how long requests stood in that line").add(line.waits_s),
        _plain("line_used_seconds", "counter", "processor time of the event loop that they took", line.busy_s),
    ]
    if state.condition is not TierCondition.FOLLOWING:  # the others would be counted twice
        families += [_plain(name, "gauge", help, getattr(state, name)) for name, help in _WAITING.items()]
        families.append(
            _plain(
                "oldest_waiting_seconds",
                "gauge",
                "for how long the first of them waits",
                state.oldest_waiting_ms / 1000,
            )
        )
    return families


def _requests(objects: Counted) -> list[Family]:
    seconds = Family("logboom_tier_request_seconds", "histogram", "how long requests to the object store took")
    failed = Family("logboom_tier_requests_failed_total", "counter", "those that failed, or whose end is not known")
    for operation, requests in objects.requests.items():
        seconds.add(requests.seconds, operation=operation)
        failed.add(requests.failed, operation=operation)
    return [seconds, failed]


def _plain(name: str, kind: str, help: str, value: float) -> Family:
    if kind == "counter":
        return Family(f"logboom_tier_{name}_total", "counter", help).add(value)
    return Family(f"logboom_tier_{name}", "gauge", help).add(value)
