"""What a broker reports about the tier of its group (pure)

Totals are since the broker started, and whatever has a default may be missing in what a broker of another version tells.
"""

from __future__ import annotations

from dataclasses import dataclass

from remoting.facts.words import TierCondition


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """The tier of a broker that has one; `url` has no secrets. `trouble`, since `trouble_since_ms`, is why nothing is uploaded.

    `waiting_messages` are not uploaded yet, the first of them for `oldest_waiting_ms`, and the log from it on is
    `waiting_log_bytes`; `gone_log_bytes` of these went with their files, because the disk was full. In the tier are `segments`,
    with `messages` and `bytes`, entries included; between them `missing_messages` that never came there. `expiring_objects` are
    named by nobody any more, and are removed soon. What was uploaded and downloaded is counted since the start, with all
    `requests` and those that failed. `reserved_time_ms` is for topics that say nothing else, 0 = for ever; so is `archive`:
    what is merged is compressed. `state_rounds`: so often since this broker leads, topics, groups and consumer offsets were in
    the tier as they had been when the round began.
    """

    url: str
    condition: TierCondition
    trouble: str | None = None
    trouble_since_ms: int | None = None
    waiting_messages: int = 0
    waiting_log_bytes: int = 0
    gone_log_bytes: int = 0
    oldest_waiting_ms: int = 0
    segments: int = 0
    messages: int = 0
    bytes: int = 0
    missing_messages: int = 0
    expiring_objects: int = 0
    uploaded_segments: int = 0
    uploaded_messages: int = 0
    uploaded_bytes: int = 0
    downloaded_messages: int = 0
    downloaded_bytes: int = 0
    requests: int = 0
    failed_requests: int = 0
    cache_bytes: int = 0
    cache_limit_bytes: int | None = None
    cache_hits: int = 0
    cache_misses: int = 0
    reserved_time_ms: int = 0
    archive: bool = False
    state_rounds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredQueueState:
    """What of a queue is where: the broker's files have it from `local_min_offset` on, the tier up to `end_offset`, in `bytes`;
    `missing` messages before the local ones are in neither."""

    local_min_offset: int
    end_offset: int
    bytes: int
    missing: int = 0
