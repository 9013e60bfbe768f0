from __future__ import annotations

import pytest

from brokerd.metadata import tier_policy
from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.local_policy import TopicWishes, reserved_hours
from brokerd.metadata.tables import Change, MetadataTables
from brokerd.store.settings import HOUR_MS
from brokerd.store.wanted_files import Wish

# What looks like a number of hours as far as its first digits go, and numbers of other scripts
HIDDEN = ("0" * 15 + "19", "0" * 15 + "1" + "9" * 30, "0" * 15 + "1" + "9" * 5000, "0" * 20 + "5", "\u0661\u0662")


def test_only_topics_that_say_something_want_something() -> None:
    tables = MetadataTables()
    told = {"Plain": None, "Kept": "48", "AsTheBroker": "-1", "rmq_sys_x": "48", "%RETRY%g": "1"}
    for name, hours in told.items():
        tables.topics[name] = TopicConfig(name, attributes={} if hours is None else {"local.reserve.time": hours})
    wishes = TopicWishes(tables)
    assert wishes.now() == {"Kept": Wish(48 * HOUR_MS), "%RETRY%g": Wish(HOUR_MS)}
    tables.topics_deleted_at["Kept"] = 700
    tables.topics["New"] = TopicConfig("New", attributes={"local.reserve.time": "2"})
    wishes.metadata_changed(Change(groups_put=("g",)))
    assert "New" not in wishes.now(), "topics are looked at when some changed"
    wishes.metadata_changed(Change(topics_put=("New",)))
    assert wishes.now()["New"] == Wish(2 * HOUR_MS)
    assert wishes.now()["Kept"] == Wish(48 * HOUR_MS, begin=700)
    del tables.topics["New"]
    wishes.metadata_changed(Change(rebuilt=True))
    assert "New" not in wishes.now()


@pytest.mark.parametrize("value", ["", "soon", "0", "1e3", "-5", "1" * 30, *HIDDEN])
def test_what_was_taken_over_and_is_no_time_means_as_the_broker_says(value: str) -> None:
    assert reserved_hours({"local.reserve.time": value}) == -1
    assert tier_policy.reserved_hours({"tier.reserve.time": value}) == -1
