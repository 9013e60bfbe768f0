"""What changed between two snapshots, as sentences (pure)

Each kind is kept in a number of its own, so that a script which makes a hundred topics pushes nothing else out. What a fault or
an election was about, how long it took and why is in the history (`tasks.snapshot.history`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from remoting.facts.snapshot import ClusterSnapshot, Event, Group, Quorum
from remoting.facts.words import ControllerRole

EVENTS_KEPT_OF_A_KIND = 50


def timeline(
    previous: ClusterSnapshot | None,
    snapshot: ClusterSnapshot,
    topics: tuple[frozenset[str], frozenset[str]] | None,
) -> tuple[Event, ...]:
    """The events so far, newest first. `topics` are the names before and now, when both are known for certain."""
    if previous is None:
        return ()
    told = list(_changes(previous, snapshot))
    if topics is not None:
        before, now = topics
        told += [("topic", f"topic {name} was created") for name in sorted(now - before)]
        told += [("topic", f"topic {name} was deleted") for name in sorted(before - now)]
    events = [Event(at=snapshot.as_of, kind=kind, text=text) for kind, text in reversed(told)]
    return tuple(_newest_of_each_kind((*events, *previous.timeline)))


def _newest_of_each_kind(events: Iterable[Event]) -> Iterator[Event]:
    kept: Counter[str] = Counter()
    for each in events:
        kept[each.kind] += 1
        if kept[each.kind] <= EVENTS_KEPT_OF_A_KIND:
            yield each


def _changes(previous: ClusterSnapshot, snapshot: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    yield from _controllers(previous, snapshot)
    before = {(group.cluster, group.name): group for group in previous.groups}
    for group in snapshot.groups:
        yield from _group(before.get((group.cluster, group.name)), group)
    yield from _processes(previous, snapshot)


def _controllers(previous: ClusterSnapshot, snapshot: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    before, now = _leader(previous), _leader(snapshot)
    if now == before:
        return
    if now is not None:
        yield "election", f"controller {now[0]} leads in term {now[1]}"
    elif before is not None:
        yield "election", f"controller {before[0]} does not lead any more; there is no leader"


def _leader(snapshot: ClusterSnapshot) -> tuple[str, int | None] | None:
    for each in snapshot.controllers:
        if each.role is ControllerRole.LEADER:
            return each.id, each.term
    return None


def _group(before: Group | None, group: Group) -> Iterator[tuple[str, str]]:
    name = group.name
    if before is None:
        yield "election", f"{name} is there, {_master_text(group)}"
        return
    if (before.master_id, before.master_epoch) != (group.master_id, group.master_epoch):
        if group.master_id is None:
            was = "" if before.master_id is None else f"; {before.label(before.master_id)} was it"
            yield "election", f"{name} has no master{was}"
        else:
            yield "election", f"{name}: {_master_text(group)}"
    if before.sync_state_set != group.sync_state_set:
        left = sorted(set(before.sync_state_set) - set(group.sync_state_set))
        joined = sorted(set(group.sync_state_set) - set(before.sync_state_set))
        moves = [
            f"{', '.join(map(either.label, ids))} {verb}"
            for ids, verb, either in ((left, "left", before), (joined, "joined", group))
            if ids
        ]
        members = ", ".join(map(str, group.sync_state_set)) or "nobody"
        yield "sync_set", f"{name}: {' and '.join(moves)} the sync-state set, now {members}"
    yield from _quorum(name, before.quorum, group.quorum)


def _quorum(name: str, before: Quorum | None, now: Quorum | None) -> Iterator[tuple[str, str]]:
    """Only what two answers of masters differ in; one that did not answer says nothing."""
    if before is None or now is None:
        return
    if now.refused != before.refused:
        told = "refuses messages: too few replicas are in sync" if now.refused else "takes messages again"
        yield "sync_set", f"{name} {told}"
    if now.downgraded != before.downgraded:
        copies, wanted = now.copies, now.wanted_copies
        fewer = f"an acknowledgement means {copies} instead of {wanted} copies"
        yield "sync_set", f"{name}: {fewer if now.downgraded else f'an acknowledgement means {copies} copies again'}"


def _master_text(group: Group) -> str:
    if group.master_id is None:
        return "without a master"
    return f"{group.label(group.master_id)} is the master in epoch {group.master_epoch}"


def _processes(previous: ClusterSnapshot, snapshot: ClusterSnapshot) -> Iterator[tuple[str, str]]:
    before = {each.name: each for each in previous.processes}
    for each in snapshot.processes:
        old = before.get(each.name)
        if old is None:
            continue
        if (each.restarts or 0) > (old.restarts or 0):
            yield "process", f"{each.name} ended and was started again (restart {each.restarts})"
        elif each.state == "failed" and old.state != "failed":
            yield "process", f"{each.name} cannot be started"
