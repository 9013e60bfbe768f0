"""Topics and rates, from the brokers' own counts (pure)

For each broker group one broker speaks: its master, else the replica with the longest log. When nobody of a group answers, its
queues keep their places with unknown offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.snapshot.inputs import BrokerKey, Counted, Look, Memory, Sample, whole
from tasks.snapshot.topology import state_of

RATE_WINDOW_MS = 2_500
RATE_LEAST_MS = 400
STALE_AFTER_MS = 3_000
SAMPLES_KEPT_MS = 10_000
HISTORY_EVERY_MS = 1_000
HISTORY_POINTS = 120
_ELECTED_MASTER = 2  # it says that it is the master and the controllers say so too
_COUNTERS = ("inMessages", "outMessages", "inBytes", "outBytes")


@dataclass(frozen=True, slots=True)
class Speakers:
    """Who speaks for each broker group, and whether every group's master is among them."""

    states: Mapping[str, Mapping[str, Any]]
    silent: frozenset[str]
    all_masters: bool


def speakers(look: Look, groups: Sequence[Mapping[str, Any]]) -> Speakers:
    """Choose the broker that speaks for each group."""
    chosen: dict[str, Mapping[str, Any]] = {}
    all_masters = bool(groups)
    for group in groups:
        best: tuple[tuple[int, int], Mapping[str, Any]] | None = None
        for replica in group["replicas"]:
            place = {"address": replica["address"], "brokerId": replica["id"]}
            state = state_of(look, group["cluster"], group["name"], place)
            if state is None:
                continue
            serves = state.get("role") == "master"
            rank = (serves + (serves and replica["id"] == group["master_id"]), whole(state.get("endOffset")) or 0)
            if best is None or rank > best[0]:
                best = (rank, state)
        if best is None or best[0][0] < _ELECTED_MASTER:
            all_masters = False
        if best is not None:
            chosen[str(group["name"])] = best[1]
    silent = frozenset(str(group["name"]) for group in groups) - set(chosen)
    return Speakers(chosen, silent, all_masters)


# ---- topics


def topics(speaking: Speakers, previous: Mapping[str, Any] | None, rates: Mapping[str, float]) -> list[dict[str, Any]]:
    """Every topic with its queues over all groups."""
    found: dict[str, dict[str, Any]] = {}
    for group, state in speaking.states.items():
        for each in state.get("topics") or ():
            topic = found.setdefault(each["name"], _topic(each["name"], each))
            topic["queues"] += [_queue(group, queue) for queue in each.get("queues") or ()]
    for each in (previous or {}).get("topics") or ():
        lost = [queue for queue in each["queues"] if queue["group"] in speaking.silent]
        if lost:
            topic = found.setdefault(each["name"], {**each, "queues": []})
            topic["queues"] += [{**queue, "min_offset": None, "max_offset": None} for queue in lost]
    for topic in found.values():
        topic["queues"].sort(key=lambda queue: (queue["group"], queue["queue_id"]))
        topic["message_count"] = _message_count(topic["queues"])
        topic["in_per_s"] = rates.get(topic["name"])
    return sorted(found.values(), key=lambda topic: (topic["system"], topic["name"]))


def _topic(name: str, each: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "type": each.get("type") or "NORMAL",
        "perm": whole(each.get("perm")),
        "system": bool(each.get("system")),
        "queues": [],
        "message_count": None,
        "in_per_s": None,
    }


def _queue(group: str, queue: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": group,
        "queue_id": queue["queueId"],
        "min_offset": whole(queue.get("minOffset")),
        "max_offset": whole(queue.get("maxOffset")),
        "last_store_ms": whole(queue.get("lastStoreMs")) or None,
    }


def _message_count(queues: Iterable[Mapping[str, Any]]) -> int | None:
    count = 0
    for queue in queues:
        if queue["min_offset"] is None or queue["max_offset"] is None:
            return None
        count += max(0, queue["max_offset"] - queue["min_offset"])
    return count


# ---- rates


def sample(look: Look, speaking: Speakers) -> Sample:
    """This look's counters."""
    brokers: dict[BrokerKey, Counted] = {}
    heard: dict[BrokerKey, int] = {}
    for address, state in look.states.items():
        counters = state.get("counters") or {}
        known = {name: counters[name] for name in _COUNTERS if whole(counters.get(name)) is not None}
        heard[_key(state)] = look.heard_ms.get(address, look.now_ms)
        brokers[_key(state)] = Counted(heard[_key(state)], known)
    groups = {
        group: Counted(heard.get(_key(state), look.now_ms), _high_offsets(state))
        for group, state in speaking.states.items()
    }
    return Sample(look.now_ms, brokers, groups)


def _key(state: Mapping[str, Any]) -> BrokerKey:
    return str(state.get("clusterName")), str(state.get("brokerName")), int(state.get("brokerId") or 0)


def _high_offsets(state: Mapping[str, Any]) -> dict[str, int]:
    """Topic -> sum of its queues' max offsets, where all of them are known."""
    sums = {}
    for topic in state.get("topics") or ():
        highs = [whole(queue.get("maxOffset")) for queue in topic.get("queues") or ()]
        known = [high for high in highs if high is not None]
        if len(known) == len(highs):
            sums[topic["name"]] = sum(known)
    return sums


def keep(samples: Sequence[Sample], newest: Sample) -> tuple[Sample, ...]:
    """The samples that later rates may still be measured against. A clock that was set back starts anew."""
    return (
        *(each for each in samples if newest.at_ms - SAMPLES_KEPT_MS <= each.at_ms < newest.at_ms),
        newest,
    )


def _per_s(series: Sequence[tuple[int, int | None]], now_ms: int) -> float | None:
    """How fast a counter grew lately, from (when, value) pairs, oldest first.

    None when that is not known: too few values, an old one as the last, or a counter that began again.
    """
    known = [(at_ms, value) for at_ms, value in series if value is not None]
    if not known or now_ms - known[-1][0] > STALE_AFTER_MS:
        return None
    last_at, last = known[-1]
    old_enough = [each for each in known if last_at - each[0] >= RATE_LEAST_MS]
    if not old_enough:
        return None
    at_ms, value = min(old_enough, key=lambda each: abs(last_at - each[0] - RATE_WINDOW_MS))
    return None if value > last else (last - value) * 1000 / (last_at - at_ms)


def rates(memory: Memory, samples: Sequence[Sample]) -> dict[str, Any]:
    """Messages and bytes per second over all brokers, and the course of the last two minutes."""
    newest = samples[-1]
    per_s = _counter_rates(samples)
    history = [list(point) for point in ((memory.snapshot or {}).get("rates") or {}).get("history") or ()]
    if history and history[-1][0] > newest.at_ms:
        history = []  # the clock was set back
    if not history or newest.at_ms - history[-1][0] >= HISTORY_EVERY_MS:
        history.append([newest.at_ms, per_s["inMessages"], per_s["outMessages"]])
    return {
        "in_messages_per_s": per_s["inMessages"],
        "out_messages_per_s": per_s["outMessages"],
        "in_bytes_per_s": per_s["inBytes"],
        "out_bytes_per_s": per_s["outBytes"],
        "history": history[-HISTORY_POINTS:],
    }


def _counter_rates(samples: Sequence[Sample]) -> dict[str, float | None]:
    newest = samples[-1]
    found: dict[str, float | None] = {}
    for name in _COUNTERS:
        speeds = [
            _per_s(
                [
                    (each.brokers[key].at_ms, each.brokers[key].counters.get(name))
                    for each in samples
                    if key in each.brokers
                ],
                newest.at_ms,
            )
            for key in newest.brokers
        ]
        known = [speed for speed in speeds if speed is not None]
        found[name] = round(sum(known), 1) if known else None
    return found


def topic_rates(samples: Sequence[Sample], silent: frozenset[str]) -> dict[str, float]:
    """Topic -> messages stored per second, where that is known; nothing while a part of every topic may be missing."""
    newest = samples[-1]
    if silent:
        return {}
    speeds: dict[str, list[float | None]] = {}
    for group, counted in newest.groups.items():
        for topic in counted.counters:
            series = [
                (each.groups[group].at_ms, each.groups[group].counters.get(topic))
                for each in samples
                if group in each.groups
            ]
            speeds.setdefault(topic, []).append(_per_s(series, newest.at_ms))
    return {
        topic: round(sum(each for each in of_groups if each is not None), 1)
        for topic, of_groups in speeds.items()
        if None not in of_groups
    }
