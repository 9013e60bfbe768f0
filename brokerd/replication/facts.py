"""What a person wants to know of a broker's replication, as JSON values (pure).

Times are durations: the broker's monotonic clock means nothing elsewhere.
"""

from __future__ import annotations

from typing import Any

from brokerd.replication.required_set.quorum import ALL, kind_of, weaknesses
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.followership import Followership
from brokerd.replication.roles.mastership import Mastership
from brokerd.replication.roles.role_machine import RoleMachine
from brokerd.replication.settings import ReplicationSettings


def quorum_facts(mastership: Mastership, settings: ReplicationSettings, now_ms: int) -> dict[str, Any]:
    """How many copies an acknowledgement means, how many it should mean, and who is missing, why, and for how long."""
    quorum = mastership.quorum
    copies, wanted = mastership.copies
    missing = mastership.missing.all
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
        "learners": sorted(mastership.learners),
    }


def driver_facts(driver: ReplicationDriver, now_ms: int) -> dict[str, Any]:
    """All of it, with the sends that wait and whom this broker refused."""
    acks = driver.acks
    return _machine_facts(driver.machine, driver.machine.settings, now_ms) | {
        "waitingSends": len(acks),
        "waitedMs": now_ms - (acks.waiting_since_ms or now_ms),
        "unacknowledged": {status.name: count for status, count in acks.ended.items()},
        "lastErrors": driver.last_errors[-5:],
        "refusedPeers": dict(driver.channels.refused),
    }


def _machine_facts(machine: RoleMachine, settings: ReplicationSettings, now_ms: int) -> dict[str, Any]:
    """The role, the log, and whoever is followed or follows."""
    position = machine.log
    facts: dict[str, Any] = {
        "role": machine.role.value,
        "brokerId": machine.broker_id,
        "masterEpoch": machine.master_epoch,
        "highestEpochSeen": machine.highest_epoch,
        "minOffset": position.min_offset,
        "maxOffset": position.end_offset,
        "flushedOffset": position.flushed_offset,
        "confirmOffset": machine.confirm_offset,
        "acknowledgedOffset": machine.acknowledged_offset,
        "failure": machine.failure,
        "staleView": machine.stale_view,
        "learner": settings.learner,
        "weaknesses": weaknesses(settings),
        "epochs": [{"epoch": entry.epoch, "startOffset": entry.start_offset} for entry in machine.epochs.entries],
        "loop": machine.awake.as_json(),
    }
    if machine.view is not None:
        facts["masterId"] = machine.view.master_id
        facts["masterAddress"] = machine.view.master_address
        facts["syncStateSet"] = sorted(machine.view.members)
        facts["syncStateSetEpoch"] = machine.view.set_epoch
    if machine.mastership is not None:
        facts |= _leading_facts(machine.mastership, settings, position.end_offset, now_ms)
        facts["quorum"] = quorum_facts(machine.mastership, settings, now_ms)
    if machine.followership is not None:
        facts["following"] = _following_facts(machine.followership)
    return facts


def _leading_facts(
    mastership: Mastership, settings: ReplicationSettings, end_offset: int, now_ms: int
) -> dict[str, Any]:
    sync = mastership.sync
    return {
        "syncStateSet": sorted(sync.local),
        "syncStateSetEpoch": sync.set_epoch,
        "requiredSet": sorted(sync.required),
        "enoughReplicas": mastership.enough_replicas,
        "replicas": [
            {
                "brokerId": follower.broker_id,
                "stage": follower.stage.value,
                "learner": follower.learner,
                "layout": follower.layout.value,
                "address": follower.address,
                "ackOffset": follower.ack_offset,
                "sentOffset": follower.next_offset,
                "gapBytes": end_offset - follower.ack_offset if follower.ack_offset >= 0 else None,
                "inSync": follower.broker_id in sync.local,
                "silentMs": follower.silence.silent_ms(now_ms),
                "silenceLimitMs": settings.plain_silence_limit_ms
                if follower.layout.is_rocketmq
                else follower.silence.limit_ms,
                "longestSilenceMs": follower.silence.worst_ms,
            }
            for follower in mastership.followers
        ],
    }


def _following_facts(followership: Followership) -> dict[str, Any]:
    return {
        "masterId": followership.master_id,
        "address": followership.address,
        "stage": followership.stage.value,
        "layout": followership.layout.value,
        "lastError": followership.last_error,
        "stuck": followership.stuck,
        "cuts": followership.cuts,
        "copies": followership.copies,
    }
