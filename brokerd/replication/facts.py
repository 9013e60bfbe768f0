"""What a person wants to know of the quorum, as JSON values (pure).

Times are durations: the broker's monotonic clock means nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from brokerd.replication.leading import Leading
from brokerd.replication.quorum import ALL, kind_of
from brokerd.replication.settings import ReplicationSettings


def quorum_facts(leading: Leading, settings: ReplicationSettings, now_ms: int) -> dict[str, Any]:
    """How many copies an acknowledgement means, how many it should mean, and who is missing, why, and for how long."""
    quorum = leading.quorum
    copies, wanted = leading.copies
    missing = leading.missing.all
    return {
        "kind": kind_of(settings).value,
        "all": quorum.needed == ALL,
        "copies": copies,
        "wantedCopies": wanted,
        "minCopies": settings.min_in_sync_replicas,
        "refused": quorum.refused,
        "downgraded": copies < wanted,
        "missing": [
            {
                "brokerId": each.broker_id,
                "reason": each.reason,
                "stalls": each.stalls,
                "forMs": max(0, now_ms - each.since_ms),
            }
            for each in missing
        ],
        "learners": sorted(leading.learners),
    }
