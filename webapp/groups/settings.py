"""The settings that a consumer group may be given: their rules, and what the brokers have."""

from __future__ import annotations

from collections.abc import Mapping

from remoting.group_settings import MOST_INVISIBLE_MS, ORDER_SCOPES, Setting
from webapp import gateway
from webapp.errors import NotFound
from webapp.operations.kinds import Parameters
from webapp.rules import Rules

BOUNDS = LEAST, LONGEST, DEFAULT = "invisible_min_ms", "invisible_max_ms", "invisible_default_ms"


def configured(name: str) -> Mapping[str, Setting]:
    """A group's settings as the brokers have them now, those of the first one. Raises NotFound."""
    with gateway.cluster() as client:
        found = client.group_settings(name)
    if not found:
        raise NotFound(f"There is no consumer group {name}.", code="group-not-found")
    return {**next(iter(found.values()))}


def check_settings(rules: Rules, given: Parameters, present: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of what is given that are settings; a bound that is empty is taken away, which is None. They must fit one another,
    and what stays of those that are `present`."""
    cleaned: dict[str, Setting] = {}
    if "order_scope" in given:
        cleaned["order_scope"] = rules.choice("order_scope", ORDER_SCOPES)
    for name in BOUNDS:
        if name in given:
            cleaned[name] = rules.integer(name, least=1, most=MOST_INVISIBLE_MS) if rules.has(name) else None
    if not rules.broken:
        _check_fit(rules, cleaned, {**present, **cleaned})
    return cleaned


def _check_fit(rules: Rules, named: Mapping[str, Setting], together: Mapping[str, Setting]) -> None:
    """Each rule is told at a field that was named. A default of 0, which tools can set, is none."""
    for low, high in ((LEAST, LONGEST), (LEAST, DEFAULT), (DEFAULT, LONGEST)):
        least, most = together.get(low), together.get(high)
        if high == DEFAULT and not most:
            continue
        if not isinstance(least, int) or not isinstance(most, int) or least <= most:
            continue
        if low in named:
            rules.refuse(
                low, f"must not be more than {high}, which is {most}: lower it, raise that, or leave one empty"
            )
        elif high in named:
            rules.refuse(
                high, f"must not be less than {low}, which is {least}: raise it, lower that, or leave one empty"
            )
