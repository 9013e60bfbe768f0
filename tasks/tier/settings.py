"""Where the tier is, for programs that are not brokers, from the environment (pure)

- LOGBOOM_TIER_URL: what the brokers have as `tiers.url`; absent = the tier is not read, and nothing is exported
- LOGBOOM_TIER_OPTIONS: what they have as `tiers.options_path`: a file, mode 0600, on the machine that reads
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from remoting.tier.object_stores import StorePlace

URL: Final = "LOGBOOM_TIER_URL"
OPTIONS: Final = "LOGBOOM_TIER_OPTIONS"
_REQUEST_TIMEOUT_MS: Final = 30_000


def tier_place(variables: Mapping[str, str]) -> StorePlace | None:
    """None without a tier."""
    return place_of(variables.get(URL, ""), variables.get(OPTIONS, ""), (URL, OPTIONS))


def place_of(url: str, options_path: str, names: tuple[str, str]) -> StorePlace | None:
    """None when the url is empty; `names` are those of the settings, for sentences."""
    return StorePlace(url, options_path, _REQUEST_TIMEOUT_MS, names) if url else None


def source_options(variables: Mapping[str, str]) -> dict[str, str]:
    """What the Spark source has to be told."""
    place = tier_place(variables)
    return {} if place is None else {"tierUrl": place.url, "tierOptions": place.options_path}
