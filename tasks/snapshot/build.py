"""One look and the memory of earlier ones -> one snapshot and the memory for the next (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tasks.snapshot.consumers import consumer_groups
from tasks.snapshot.inputs import VERSION, Look, Memory
from tasks.snapshot.timeline import timeline
from tasks.snapshot.topology import controllers, groups
from tasks.snapshot.traffic import keep, rates, sample, speakers, topic_rates, topics
from tasks.snapshot.verdict import verdict


def build(look: Look, memory: Memory) -> tuple[dict[str, Any], Memory]:
    """The snapshot of this look, numbered one higher than the one before."""
    previous = memory.snapshot
    found_groups = groups(look, previous)
    speaking = speakers(look, found_groups)
    samples = keep(memory.samples, sample(look, speaking))
    snapshot: dict[str, Any] = {
        "version": VERSION,
        "seq": int((previous or {}).get("seq") or 0) + 1,
        "as_of": timestamp(look.now_ms),
        "verdict": None,
        "controllers": controllers(look),
        "groups": found_groups,
        "rates": rates(memory, samples),
        "topics": topics(speaking, previous, topic_rates(samples, speaking.silent)),
        "consumer_groups": consumer_groups(look, speaking),
        "timeline": [],
        "processes": _processes(look.supervisor),
        "spark": _spark(look.spark),
    }
    snapshot["verdict"] = verdict(look, snapshot)
    topic_names = memory.topic_names
    topic_changes = None
    if speaking.all_masters:
        topic_names = frozenset(each["name"] for each in snapshot["topics"] if not each["system"])
        topic_changes = None if memory.topic_names is None else (memory.topic_names, topic_names)
    snapshot["timeline"] = timeline(previous, snapshot, topic_changes)
    return snapshot, Memory(snapshot, samples, topic_names)


def recall(stored: Any) -> Memory:
    """The memory that a stored snapshot gives to a collector that starts anew; empty when it is of no use."""
    if not isinstance(stored, dict) or stored.get("version") != VERSION or not isinstance(stored.get("seq"), int):
        return Memory()
    return Memory(snapshot=stored)


def differs(snapshot: Mapping[str, Any], previous: Mapping[str, Any] | None) -> bool:
    """Whether something changed that a person waits for: who leads, who is master, who is in sync, who is alive."""
    return previous is None or _essence(snapshot) != _essence(previous)


def _essence(snapshot: Mapping[str, Any]) -> Any:
    return (
        [(each["id"], each["role"], each["term"]) for each in snapshot["controllers"]],
        [
            (
                group["name"],
                group["master_id"],
                group["master_epoch"],
                group["sync_state_set"],
                [(each["id"], each["alive"], each["role"]) for each in group["replicas"]],
            )
            for group in snapshot["groups"]
        ],
        [(each["name"], each["state"], each["pid"]) for each in snapshot["processes"]],
    )


def timestamp(now_ms: int) -> str:
    """RFC 3339, UTC, with milliseconds."""
    seconds, ms = divmod(now_ms, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03d}Z"


def _processes(supervisor: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return [
        {name: each.get(name) for name in ("name", "state", "pid", "restarts", "since", "kind", "address", "last_exit")}
        for each in (supervisor or {}).get("processes") or ()
    ]


def _spark(spark: Mapping[str, Any] | None) -> dict[str, Any]:
    if spark is None:
        return {"state": "unknown", "detail": "the Spark process has not reported"}
    return {"state": spark.get("state") or "unknown", "detail": spark.get("detail") or ""}
