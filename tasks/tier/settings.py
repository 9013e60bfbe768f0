"""Where the tier is, for programs that are not brokers, from the environment (pure)

- LOGBOOM_TIER_URL: what the brokers have as `tiers.url`; absent = the tier is not read, and nothing is exported
- LOGBOOM_TIER_OPTIONS: what they have as `tiers.options_path`: a file, mode 0600, on the machine that reads
"""

from __future__ import annotations

from collections.abc import Mapping

from remoting.tier.object_stores import StorePlace
from tasks.tier.objects import place_of
from webapp.appliance.environment import TIER_OPTIONS, TIER_URL


def tier_place(variables: Mapping[str, str]) -> StorePlace | None:
    """None without a tier."""
    return place_of(variables.get(TIER_URL, ""), variables.get(TIER_OPTIONS, ""), (TIER_URL, TIER_OPTIONS))


def source_options(variables: Mapping[str, str]) -> dict[str, str]:
    """What the Spark source has to be told."""
    place = tier_place(variables)
    return {} if place is None else {"tierUrl": place.url, "tierOptions": place.options_path}
