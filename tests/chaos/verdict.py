"""Whether a scenario passed: the checks, what it promised while the fault lasts, and that it did not pass for nothing (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.chaos.checks import CHECKS, GRPC_CLIENT, POPPING, PULLING, Aftermath, duplicated_deliveries, lost_messages
from tests.chaos.history import SET_LOST, FaultWindow, History, Kind, Outcome
from tests.chaos.recovery import longest_pause, median
from tests.chaos.scenarios import LEAST_OPERATIONS, LEAST_OPERATIONS_IN_VAIN, MOST_CHANGES_PER_S, Scenario

NOT_VACUOUS: Final = "IN FORCE"
PROMISED: Final = "PROMISE"


@dataclass(frozen=True)
class Verdict:
    """A row of the table. `problems` holds, for each check that does not hold, what contradicts it."""

    scenario: str
    title: str
    faults: int
    evidence: int
    ok: int
    failed: int
    unknown: int
    during_faults: int
    lost: int
    duplicated: int
    rto_p50_s: float | None
    rto_max_s: float | None
    rto_limit_s: float | None
    grpc_pause_max_s: float | None
    rejoin_max_s: float | None
    elections: int
    problems: Mapping[str, Sequence[str]]

    @property
    def passed(self) -> bool:
        return not self.problems


def judge(scenario: Scenario, history: History, aftermath: Aftermath) -> Verdict:
    """Look at everything that was recorded."""
    aftermath = replace(aftermath, may_expire=scenario.small_disk)
    problems = {name: found for name, check in CHECKS.items() if (found := check(history, aftermath))}
    if found := in_force(scenario, history):
        problems[NOT_VACUOUS] = found
    if found := kept_promises(scenario, history):
        problems[PROMISED] = found
    sends = history.sends()
    took = [each.took_s for each in aftermath.recoveries]
    known = [each for each in took if each is not None]
    limits = [each.limit_s for each in aftermath.recoveries if each.limit_s is not None]
    rejoined = [each for each in aftermath.rejoined_s if each is not None]
    return Verdict(
        scenario.id,
        scenario.title,
        faults=len(history.faults),
        evidence=sum(len(window.evidence) for window in history.faults),
        ok=sum(each.outcome is Outcome.OK for each in sends),
        failed=sum(each.outcome is Outcome.FAILED for each in sends),
        unknown=sum(each.outcome is Outcome.UNKNOWN for each in sends),
        during_faults=sum(len(history.during(window)) for window in history.faults),
        lost=len(lost_messages(history, aftermath)),
        duplicated=duplicated_deliveries(history),
        rto_p50_s=median(known),
        rto_max_s=max(known) if known and None not in took else None,
        rto_limit_s=min(limits) if limits else None,
        grpc_pause_max_s=_grpc_pause(history),
        rejoin_max_s=max(rejoined) if rejoined and None not in aftermath.rejoined_s else None,
        elections=len(_masters(history)) - 1,
        problems=problems,
    )


def _grpc_pause(history: History) -> float | None:
    """The longest time that the gRPC client sent nothing with success, faults and what follows them together."""
    sends = [each.end_s for each in history.sends() if each.client == GRPC_CLIENT]
    if not history.faults or not sends:
        return None
    return longest_pause(history, history.faults[0].start_s, max(sends), grpc=True)


def in_force(scenario: Scenario, history: History) -> list[str]:
    """Each fault was really there, and enough was tried meanwhile."""
    if not history.faults:
        return ["no fault was injected"]
    problems = [f"nobody saw or did this: {what}" for what, count in _watched(history).items() if not count]
    for window in history.faults:
        if not window.evidence:
            problems.append(f"{window.name}: nothing was looked at to see whether the fault is there")
        problems += [f"{window.name}: not so: {what}" for what, held in window.evidence if not held]
        tried = len(history.during(window))
        least = LEAST_OPERATIONS if scenario.recovers else LEAST_OPERATIONS_IN_VAIN
        if tried < least and not window.quiet:
            problems.append(f"{window.name}: {tried} sends during the fault, fewer than {least}")
    return problems


def _watched(history: History) -> dict[str, int]:
    """What the checks look at: each must have happened at all."""
    done = Counter(each.kind for each in history.operations if each.outcome is Outcome.OK)
    return {
        "a controller's view": len(history.views),
        "a broker's state": len(history.broker_views),
        "a linearizable read": len(history.reads),
        **{f"a {kind} with success": done[kind] for kind in Kind},
    }


def kept_promises(scenario: Scenario, history: History) -> list[str]:
    """What users may expect of this scenario while the fault lasts."""
    problems = []
    for window in history.faults:
        sends = history.during(window)
        # begun when the fault was there, and answered before it was healed
        began_s = max(window.start_s, window.in_force_s) + _settling(window)
        done = [
            each
            for each in sends
            if each.outcome is Outcome.OK and each.start_s > began_s and each.end_s <= window.end_s
        ]
        if SET_LOST in window.details:
            late = [each for each in done if each.start_s > (window.start_s + window.end_s) / 2]
            if late:
                problems.append(f"{window.name}: {len(late)} sends were acknowledged although {SET_LOST}")
        elif scenario.recovers and not done and not window.quiet:
            problems.append(f"{window.name}: no send was acknowledged during the fault")
        if scenario.refuses and done:
            by = sorted({each.broker or each.client for each in done})
            problems.append(f"{window.name}: {len(done)} sends were acknowledged during the fault, by {', '.join(by)}")
        if scenario.steadies and (changes := _changes(history, window)) > MOST_CHANGES_PER_S * (
            window.end_s - window.start_s
        ):
            problems.append(f"{window.name}: the set or the master changed {changes} times")
        if scenario.untouched:
            got = {each.client for each in history.deliveries if window.start_s <= each.start_s <= window.end_s}
            problems += [
                f"{window.name}: the consumer {consumer} got nothing during the fault"
                for consumer in (PULLING, POPPING, GRPC_CLIENT)
                if consumer not in got
            ]
    if scenario.untouched:
        first_s = min(window.start_s for window in history.faults) if history.faults else 0.0
        hurt = [each for each in history.sends() if each.outcome is not Outcome.OK and each.end_s >= first_s]
        if hurt:
            example = next((each for each in hurt if each.client != GRPC_CLIENT), hurt[0])
            problems.append(
                f"{len(hurt)} sends did not succeed, first {example.message} at {example.broker}: {example.detail}"
            )
        if len(masters := _masters(history)) > 1:
            problems.append(f"the master changed: {' > '.join(f'{who} (epoch {epoch})' for epoch, who in masters)}")
    return problems


def _changes(history: History, window: FaultWindow) -> int:
    """How often the sync-state set changed during a fault; each new master counts, since it begins with a new set."""
    epochs = [view.set_epoch for view in history.views if window.start_s <= view.end_s <= window.end_s]
    return max(epochs) - min(epochs) if epochs else 0


def _settling(window: FaultWindow) -> float:
    """What was under way when links were cut may still be answered a moment later."""
    return 0.5 if window.details.get("cut") else 0.0


def _masters(history: History) -> list[tuple[int, str]]:
    """The masters that controllers named, by epoch."""
    return sorted({(view.master_epoch, view.master) for view in history.views if view.master is not None})
