"""The attributes of a group that say how long its messages may be hidden."""

from __future__ import annotations

import pytest

from brokerd.metadata.invisible_times import InvisibleTimes, check_invisible_times, invisible_times
from remoting.errors import InvalidParameter

HOURS_12 = 12 * 3_600_000


@pytest.mark.parametrize(
    ("attributes", "bounds"),
    [
        ({}, InvisibleTimes(10_000, HOURS_12, 0)),
        ({"order.scope": "MESSAGE_GROUP"}, InvisibleTimes(10_000, HOURS_12, 0)),
        ({"invisible.min.ms": "20000"}, InvisibleTimes(20_000, HOURS_12, 0)),
        ({"invisible.max.ms": "30000", "invisible.default.ms": "25000"}, InvisibleTimes(10_000, 30_000, 25_000)),
        ({"invisible.min.ms": "1", "invisible.default.ms": "2"}, InvisibleTimes(10_000, HOURS_12, 10_000)),
        ({"invisible.max.ms": "31536000000"}, InvisibleTimes(10_000, HOURS_12, 0)),
        ({"invisible.max.ms": "5000"}, InvisibleTimes(10_000, 10_000, 0)),
        ({"invisible.min.ms": "ten", "invisible.max.ms": "30000"}, InvisibleTimes(10_000, HOURS_12, 0)),
    ],
)
def test_a_group_is_bounded_within_what_the_broker_allows(attributes, bounds) -> None:
    assert invisible_times(attributes, 10_000, HOURS_12) == bounds


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"invisible.min.ms": ""}, "invisible.min.ms is a number of milliseconds, at most 31536000000, not ''"),
        ({"invisible.min.ms": "-1"}, "not '-1'"),
        ({"invisible.max.ms": "١٢"}, "not '١٢'"),
        ({"invisible.max.ms": "9" * 5000}, "not '" + "9" * 32 + "'"),
        ({"invisible.max.ms": "31536000001"}, "not '31536000001'"),
        ({"invisible.min.ms": "2", "invisible.max.ms": "1"}, "must not be more than invisible.max.ms, 1"),
        ({"invisible.min.ms": "5", "invisible.default.ms": "4"}, "invisible.default.ms is 4 and must be from 5"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(attributes, reason) -> None:
    with pytest.raises(InvalidParameter, match=reason.replace("(", r"\(")):
        check_invisible_times(attributes)
