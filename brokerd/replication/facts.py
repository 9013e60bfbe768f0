"""What a person wants to know of a broker's replication, as JSON values (pure).

Times are durations: the broker's monotonic clock means nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from brokerd.replication.required_set.quorum import ALL, kind_of, weaknesses
from brokerd.replication.roles.followership import Following
from brokerd.replication.roles.mastership import Leading
from brokerd.replication.roles.role_machine import ReplicaCore
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


def core_facts(core: ReplicaCore, settings: ReplicationSettings, now_ms: int) -> dict[str, Any]:
    """The role, the log, and whoever is followed or follows."""
    position = core.log
    facts: dict[str, Any] = {
        "role": core.role.value,
        "brokerId": core.broker_id,
        "masterEpoch": core.master_epoch,
        "highestEpochSeen": core.highest_epoch,
        "minOffset": position.min_offset,
        "maxOffset": position.end_offset,
        "flushedOffset": position.flushed_offset,
        "confirmOffset": core.confirm_offset,
        "acknowledgedOffset": core.acknowledged_offset,
        "failure": core.failure,
        "staleView": core.stale_view,
        "learner": settings.learner,
        "weaknesses": weaknesses(settings),
        "epochs": [{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in core.epochs.entries],
        "loop": core.awake.as_json(),
    }
    if core.view is not None:
        facts["masterId"] = core.view.master_id
        facts["masterAddress"] = core.view.master_address
        facts["syncStateSet"] = sorted(core.view.members)
        facts["syncStateSetEpoch"] = core.view.set_epoch
    if core.leading is not None:
        facts |= _leading_facts(core.leading, settings, position.end_offset, now_ms)
        facts["quorum"] = quorum_facts(core.leading, settings, now_ms)
    if core.following is not None:
        facts["following"] = _following_facts(core.following)
    return facts


def _leading_facts(leading: Leading, settings: ReplicationSettings, end_offset: int, now_ms: int) -> dict[str, Any]:
    sync = leading.sync
    return {
        "syncStateSet": sorted(sync.local),
        "syncStateSetEpoch": sync.set_epoch,
        "requiredSet": sorted(sync.required),
        "enoughReplicas": leading.enough_replicas,
        "replicas": [
            {
                "brokerId": peer.broker_id,
                "stage": peer.stage.value,
                "learner": peer.learner,
                "layout": peer.layout.value,
                "address": peer.address,
                "ackOffset": peer.ack_offset,
                "sentOffset": peer.next_offset,
                "gapBytes": end_offset - peer.ack_offset if peer.ack_offset >= 0 else None,
                "inSync": peer.broker_id in sync.local,
                "silentMs": peer.silence.silent_ms(now_ms),
                "silenceLimitMs": settings.plain_silence_limit_ms if peer.layout.is_plain else peer.silence.limit_ms,
                "longestSilenceMs": peer.silence.worst_ms,
            }
            for peer in leading.peers
        ],
    }


def _following_facts(following: Following) -> dict[str, Any]:
    return {
        "masterId": following.master_id,
        "address": following.address,
        "stage": following.stage.value,
        "layout": following.layout.value,
        "lastError": following.last_error,
        "stuck": following.stuck,
        "cuts": following.cuts,
        "copies": following.copies,
    }
