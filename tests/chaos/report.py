"""What a run is told as: a document of plain values for JSON and for the picture, and a table for the terminal (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from tests.chaos.addresses import NODES
from tests.chaos.history import FaultWindow, History, Outcome
from tests.chaos.run import Options, Played
from tests.chaos.verdict import Verdict

STEP_S: Final = 0.25
_COLUMNS: Final = (
    ("scenario", "<", "scenario"),
    ("what", "<", "title"),
    ("faults", ">", "faults"),
    ("ok", ">", "ok"),
    ("failed", ">", "failed"),
    ("unknown", ">", "unknown"),
    ("lost", ">", "lost"),
    ("again", ">", "duplicated"),
    ("RTO p50", ">", "rto_p50_s"),
    ("max", ">", "rto_max_s"),
    ("limit", ">", "rto_limit_s"),
    ("gRPC", ">", "grpc_pause_max_s"),
    ("rejoin", ">", "rejoin_max_s"),
    ("elections", ">", "elections"),
)


def document_of(played: Sequence[Played], options: Options, started: str) -> dict[str, Any]:
    """Everything that the report shows. `started` is a date and time for people."""
    return {"started": started, "options": asdict(options), "scenarios": [scenario_of(each) for each in played]}


def scenario_of(played: Played) -> dict[str, Any]:
    """One scenario; times are seconds since its clients began."""
    history, verdict = played.history, played.verdict
    zero_s = min((each.start_s for each in history.operations), default=played.began_s)
    length_s = played.ended_s - zero_s
    return {
        **{name: value for name, value in asdict(verdict).items() if name != "problems"},
        "passed": verdict.passed,
        "problems": {name: list(found) for name, found in verdict.problems.items()},
        "length_s": round(length_s, 3),
        "windows": [_window(window, zero_s) for window in history.faults],
        "recoveries": [asdict(each) for each in played.aftermath.recoveries],
        "rates": rates(history, zero_s, length_s),
        "lanes": lanes(history, zero_s, length_s),
        "masters": [
            _at(view.end_s, zero_s) | {"epoch": view.master_epoch, "node": view.master}
            for view in _first_views(history)
        ],
        "sets": sync_state_sets(history, zero_s),
        "sends_end_s": round(max((each.end_s for each in history.sends()), default=zero_s) - zero_s, 3),
        "marks": [_at(at_s, zero_s) | {"text": text} for at_s, text in history.marks],
        "log": list(played.log),
    }


def _at(moment_s: float, zero_s: float) -> dict[str, Any]:
    return {"at_s": round(moment_s - zero_s, 3)}


def _window(window: FaultWindow, zero_s: float) -> dict[str, Any]:
    return {
        "name": window.name,
        "start_s": round(window.start_s - zero_s, 3),
        "end_s": round(window.end_s - zero_s, 3),
        "details": dict(window.details),
        "evidence": [{"what": what, "in_force": held} for what, held in window.evidence],
    }


def _first_views(history: History) -> list[Any]:
    """The first time that anybody named each epoch's master."""
    first: dict[int, Any] = {}
    for view in sorted(history.views, key=lambda each: each.end_s):
        if view.master is not None:
            first.setdefault(view.master_epoch, view)
    return [first[epoch] for epoch in sorted(first)]


def rates(history: History, zero_s: float, length_s: float) -> dict[str, Any]:
    """Sends per second that ended ok, failed and unknown, step by step."""
    steps = max(1, int(length_s / STEP_S) + 1)
    counted = {outcome: [0] * steps for outcome in Outcome}
    for each in history.sends():
        place = int((each.end_s - zero_s) / STEP_S)
        if 0 <= place < steps:
            counted[each.outcome][place] += 1
    return {"step_s": STEP_S} | {str(outcome): [n / STEP_S for n in values] for outcome, values in counted.items()}


def lanes(history: History, zero_s: float, length_s: float) -> dict[str, list[dict[str, Any]]]:
    """For each node, from when to when it was seen as what."""
    seen: dict[str, list[tuple[float, str]]] = {}
    for view in history.views:
        seen.setdefault(view.node, []).append((view.end_s, "leader" if view.is_leader else "follower"))
    for said in history.broker_views:
        seen.setdefault(said.node, []).append((said.end_s, "master" if said.role == "master" else "replica"))
    for at_s, node in history.silences:
        seen.setdefault(node, []).append((at_s, "silent"))
    drawn = {}
    for node in sorted(seen, key=lambda name: (name[0] != "b", NODES.index(name))):
        segments: list[dict[str, Any]] = []
        for at_s, state in sorted(seen[node]):
            start_s = max(0.0, round(at_s - zero_s, 3))
            if segments and segments[-1]["state"] == state:
                continue
            if segments:
                segments[-1]["end_s"] = start_s
            segments.append({"state": state, "start_s": start_s, "end_s": round(length_s, 3)})
        drawn[node] = segments
    return drawn


def sync_state_sets(history: History, zero_s: float) -> list[dict[str, Any]]:
    """Each version of the sync-state set when it was first seen."""
    first: dict[int, Any] = {}
    for view in sorted(history.views, key=lambda each: each.end_s):
        first.setdefault(view.set_epoch, view)
    return [_at(first[epoch].end_s, zero_s) | {"members": list(first[epoch].members)} for epoch in sorted(first)]


def table(verdicts: Iterable[Verdict]) -> str:
    """For the terminal."""
    rows = [
        [_cell(getattr(verdict, name), name) for _, _, name in _COLUMNS] + [_result(verdict)] for verdict in verdicts
    ]
    heads = [head for head, _, _ in _COLUMNS] + ["result"]
    widths = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    sides = [side for _, side, _ in _COLUMNS] + ["<"]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, sides, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    )


def _cell(value: object, name: str) -> str:
    if value is None:
        return "-"
    return f"{value:.2f} s" if name.endswith("_s") else str(value)


def _result(verdict: Verdict) -> str:
    return "passed" if verdict.passed else "FAILED " + " ".join(verdict.problems)


def summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the whole run."""
    scenarios = document["scenarios"]
    return {
        "scenarios": len(scenarios),
        "passed": sum(each["passed"] for each in scenarios),
        "faults": sum(each["faults"] for each in scenarios),
        "operations": sum(each["ok"] + each["failed"] + each["unknown"] for each in scenarios),
        "acknowledged": sum(each["ok"] for each in scenarios),
        "lost": sum(each["lost"] for each in scenarios),
    }
