"""Settings of the pop service (`--set pop.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import check, setting

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class PopSettings:
    """Limits and rhythm of taking messages and bringing them back."""

    max_waiting: int = setting(
        100_000, "most receives that may wait", minimum=1, maximum=10_000_000, original="maxPopPollingSize"
    )
    max_waiting_per_client: int = setting(
        8192, "most receives of one client that may wait", minimum=1, maximum=10_000_000
    )
    min_wait_ms: int = setting(
        5000,
        "a receive over gRPC whose deadline leaves less than this does not wait, and is refused when nothing is there",
        minimum=0,
        maximum=_HOUR_MS,
    )
    max_wait_ms: int = setting(
        20_000,
        "longest time for which a receive over gRPC waits",
        minimum=100,
        maximum=_HOUR_MS,
    )
    max_in_flight_per_group: int = setting(
        100_000,
        "a group gets no new message while it holds so many that are not finished: with clients, or waiting to be taken again",
        minimum=1,
        maximum=1 << 30,
    )
    max_batch_bytes: int = setting(
        1 << 20, "a receive gets messages of about this size in all, at least one", minimum=1024, maximum=8 << 20
    )
    retry_share_percent: int = setting(
        20,
        "how many of 100 receives look for returned messages first",
        minimum=0,
        maximum=100,
        original="popFromRetryProbability",
    )
    min_invisible_time_ms: int = setting(
        10_000,
        "shortest time for which a receive over gRPC may hide messages",
        minimum=0,
        maximum=_HOUR_MS,
    )
    max_invisible_time_ms: int = setting(
        12 * _HOUR_MS,
        "longest time for which a receive, or a change of that time, may hide messages",
        minimum=1000,
        maximum=8760 * _HOUR_MS,
    )
    lease_limit_ms: int = setting(
        3 * _HOUR_MS,
        "how long a push consumer's messages are renewed while it lives",
        minimum=1000,
        maximum=168 * _HOUR_MS,
    )
    lease_grace_ms: int = setting(
        30_000, "after a change of master, how long to wait for the owners of leases", minimum=0, maximum=_HOUR_MS
    )
    inherited_lease_ms: int = setting(
        60_000,
        "after a change of master, how long messages are renewed that push consumers took before it, and perhaps never got: "
        "none that came with them is acknowledged",
        minimum=0,
        maximum=168 * _HOUR_MS,
    )
    gone_client_ms: int = setting(
        1000, "when a push consumer is gone, its messages come back after this time", minimum=0, maximum=_HOUR_MS
    )
    revive_messages: int = setting(
        256, "most messages brought back in one turn of the event loop", minimum=1, maximum=100_000
    )
    revive_retry_ms: int = setting(
        1000, "when bringing back fails, the next try is after this time", minimum=10, maximum=_HOUR_MS
    )
    recent_log_bytes: int = setting(
        4 << 30,
        "a new group gets a queue from its start if that is within this much of the log",
        minimum=0,
        maximum=1 << 50,
    )
    auto_create_groups: bool = setting(
        True, "make a consumer group when a client first names it", original="autoCreateSubscriptionGroup"
    )

    def __post_init__(self) -> None:
        check("pop", self)
