"""How long a start waits: until all is healthy, or nothing but a tier lacks, which somebody has to mend first."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from remoting.facts.broker_state import BrokerState
from remoting.facts.words import BrokerRole, Health
from webapp.appliance import probes
from webapp.appliance.plan import Plan

_EVERY_S: Final = 0.2


async def wait_healthy(plan: Plan) -> Sequence[str]:
    """What the tiers of broker groups lack, when all else is well; a sentence each."""
    while True:
        verdict = await _verdict(plan)
        if verdict == Health.HEALTHY:
            return ()
        if verdict == Health.DEGRADED:
            groups = plan.broker_groups
            addresses = [broker.address for brokers in groups.values() for broker in brokers if broker.address]
            states = await asyncio.gather(*map(probes.told_state, addresses))
            if lacking := lacking_tiers(states, {group: len(brokers) for group, brokers in groups.items()}):
                return lacking
        await asyncio.sleep(_EVERY_S)


def lacking_tiers(states: Sequence[BrokerState | None], replicas: dict[str, int]) -> Sequence[str]:
    """What tiers lack, if nothing else lacks by what the brokers say; `replicas` are how many each group has."""
    told = [state for state in states if state is not None]
    if len(told) < sum(replicas.values()) or any(
        state.last_error or state.controllers_error or state.stale_view for state in told
    ):
        return ()
    masters: dict[str, list[BrokerState]] = defaultdict(list)
    for state in told:
        if state.role is BrokerRole.MASTER:
            masters[state.broker_name].append(state)
    for group, count in replicas.items():
        if len(masters[group]) != 1 or not _is_whole(masters[group][0], count):
            return ()
    return [
        f"{group}: {master.tier.trouble}"
        for group, (master,) in sorted(masters.items())
        if master.tier is not None and master.tier.trouble
    ]


def _is_whole(master: BrokerState, replicas: int) -> bool:
    quorum = master.quorum
    return len(master.sync_state_set) == replicas and quorum is not None and not (quorum.missing or quorum.refused)


async def _verdict(plan: Plan) -> Any:
    try:
        return (await probes.http_get_json(plan.http, "/api/v1/health")).get("status")
    except (OSError, ValueError):
        return None
