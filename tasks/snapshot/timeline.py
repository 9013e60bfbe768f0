"""What changed between two snapshots, as sentences for the page's timeline (pure)"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

EVENTS_KEPT = 100


def timeline(
    previous: Mapping[str, Any] | None,
    snapshot: Mapping[str, Any],
    topics: tuple[frozenset[str], frozenset[str]] | None,
) -> list[dict[str, Any]]:
    """The events so far, newest first. `topics` are the names before and now, when both are known for certain."""
    events: list[dict[str, Any]] = []
    if previous is not None:
        at = snapshot["as_of"]
        events = [{"at": at, "kind": kind, "text": text} for kind, text in _changes(previous, snapshot)]
        if topics is not None:
            before, now = topics
            events += [
                {"at": at, "kind": "topic", "text": f"topic {name} was created"} for name in sorted(now - before)
            ]
            events += [
                {"at": at, "kind": "topic", "text": f"topic {name} was deleted"} for name in sorted(before - now)
            ]
    return [*reversed(events), *((previous or {}).get("timeline") or [])][:EVENTS_KEPT]


def _changes(previous: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _controllers(previous, snapshot)
    before = {(group["cluster"], group["name"]): group for group in previous.get("groups") or ()}
    for group in snapshot["groups"]:
        yield from _group(before.get((group["cluster"], group["name"])), group)
    yield from _processes(previous, snapshot)


def _controllers(previous: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    before, now = _leader(previous), _leader(snapshot)
    if now == before:
        return
    if now is not None:
        yield "election", f"controller {now[0]} leads in term {now[1]}"
    elif before is not None:
        yield "election", f"controller {before[0]} does not lead any more; there is no leader"


def _leader(snapshot: Mapping[str, Any]) -> tuple[str, int | None] | None:
    for each in snapshot.get("controllers") or ():
        if each["role"] == "leader":
            return each["id"], each["term"]
    return None


def _group(before: Mapping[str, Any] | None, group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    name = group["name"]
    if before is None:
        yield "election", f"{name} is there, {_mastered(group)}"
        return
    if (before["master_id"], before["master_epoch"]) != (group["master_id"], group["master_epoch"]):
        if group["master_id"] is None:
            yield "election", f"{name} has no master; replica {before['master_id']} was it"
        else:
            yield "election", f"{name}: {_mastered(group)}"
    if before["sync_state_set"] != group["sync_state_set"]:
        left = sorted(set(before["sync_state_set"]) - set(group["sync_state_set"]))
        joined = sorted(set(group["sync_state_set"]) - set(before["sync_state_set"]))
        moves = [f"{_replicas(ids)} {verb}" for ids, verb in ((left, "left"), (joined, "joined")) if ids]
        members = ", ".join(map(str, group["sync_state_set"])) or "nobody"
        yield "sync_set", f"{name}: {' and '.join(moves)} the sync-state set, now {members}"
    yield from _quorum(name, before.get("quorum"), group["quorum"])


def _quorum(name: str, before: Mapping[str, Any] | None, now: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    """Only what two answers of masters differ in; one that did not answer says nothing."""
    if before is None or now is None:
        return
    if now["refused"] != before["refused"]:
        told = "refuses messages: too few replicas are in sync" if now["refused"] else "takes messages again"
        yield "sync_set", f"{name} {told}"
    if now["downgraded"] != before["downgraded"]:
        copies, wanted = now["copies"], now["wanted_copies"]
        fewer = f"an acknowledgement means {copies} instead of {wanted} copies"
        yield "sync_set", f"{name}: {fewer if now['downgraded'] else f'an acknowledgement means {copies} copies again'}"


def _replicas(ids: Sequence[int]) -> str:
    numbers = ", ".join(map(str, ids))
    return f"replica {numbers}" if len(ids) == 1 else f"replicas {numbers}"


def _mastered(group: Mapping[str, Any]) -> str:
    if group["master_id"] is None:
        return "without a master"
    return f"replica {group['master_id']} is the master in epoch {group['master_epoch']}"


def _processes(previous: Mapping[str, Any], snapshot: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    before = {each["name"]: each for each in previous.get("processes") or ()}
    for each in snapshot["processes"]:
        old = before.get(each["name"])
        if old is None:
            continue
        if (each["restarts"] or 0) > (old["restarts"] or 0):
            yield "process", f"{each['name']} ended and was started again (restart {each['restarts']})"
        elif each["state"] == "failed" and old["state"] != "failed":
            yield "process", f"{each['name']} cannot be started"
