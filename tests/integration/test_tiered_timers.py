"""Messages for a moment of their own that wait in the tier, with real brokers over a directory: each comes once, and on time,
though the master is killed while they are there and while they come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remoting import codes
from remoting.client.socket_connection import SocketConnection
from remoting.facts.broker_state import BrokerState, TimerState
from remoting.facts.codec import decode
from remoting.facts.timers import RecallOutcome, RecallRequest, TimerPage, TimerStanding
from remoting.record.codec import Record
from tests.integration.test_timers import ahead_ms, configure, delivered, make_topic, never_early, recall, send
from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import FILLER, SHORT_LIVES, make_cold
from tests.support.cold_reading import make_topic as make_plain_topic

pytestmark = pytest.mark.slow

AHEAD_S = 20
TIMERS = 120


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def cluster(tmp_path: Path, tier: Path) -> Iterator[Cluster]:
    settings = [f"tiers.url=file://{tier}", *SHORT_LIVES, f"timers.tier_ahead_s={AHEAD_S}", "timers.tier_back_s=8"]
    with Cluster(tmp_path / "cluster", controllers=1, broker_settings=settings) as cluster:
        cluster.start()
        make_plain_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
        yield cluster


def timers_of(cluster: Cluster) -> TimerState:
    """What the present master tells."""
    address = cluster.broker_addresses[cluster.master()]
    with SocketConnection(address, identity=cluster.identity, timeout_ms=5000) as connection:
        found = decode(BrokerState, connection.call(codes.BROKER_STATE).body).timers
    assert found is not None
    return found


def objects_in(tier: Path) -> list[str]:
    return [path.name for path in tier.glob("*/broker-a/timers/*") if path.is_file()]


def keys_of(records: list[Record]) -> Counter[str]:
    return Counter(each.body.decode() for each in records)


def test_each_comes_once_though_masters_are_killed(cluster: Cluster, tier: Path) -> None:
    topic = make_topic(cluster, "Stowed")
    make_cold(cluster)  # the tier is open
    moment_ms = ahead_ms(75_000)
    wanted = [f"K{number:03d}" for number in range(TIMERS)]
    handles = {key: send(cluster, topic, key, TIMER_DELIVER_MS=moment_ms).ext["recallHandle"] for key in wanted}
    before, there, later = wanted[0], wanted[1], wanted[2]
    assert recall(cluster, topic, handles[before]).code == codes.SUCCESS
    make_cold(cluster)
    state = eventually("they are in the tier", lambda: state if (state := timers_of(cluster)).in_tier else None)
    assert state.in_tier == TIMERS - 1
    assert len(objects_in(tier)) == state.tier_objects > 0
    assert recall(cluster, topic, handles[there]).code == codes.SUCCESS
    old = cluster.master()
    cluster.brokers[old].kill()
    eventually("another master", lambda: cluster.master() != old)
    assert recall(cluster, topic, handles[there]).code != codes.SUCCESS, "it is recalled already, and that is known"
    assert recall(cluster, topic, handles[later]).code == codes.SUCCESS
    assert timers_of(cluster).in_tier == TIMERS - 1
    cluster.make_whole()
    eventually("they come back", lambda: timers_of(cluster).returned > 0, 90)
    old = cluster.master()
    cluster.brokers[old].kill()
    records = delivered(cluster, topic, TIMERS - 3)
    assert keys_of(records) == dict.fromkeys(wanted[3:], 1)
    assert never_early(records)
    state = timers_of(cluster)
    assert (state.in_tier, state.tier_objects, state.tier_trouble, state.lost) == (0, 0, "", 0)


def test_a_store_that_is_away_makes_them_late_and_loses_none(cluster: Cluster, tier: Path) -> None:
    topic = make_topic(cluster, "Late")
    make_cold(cluster)
    moment_ms = ahead_ms(45_000)
    wanted = [f"K{number:03d}" for number in range(TIMERS)]
    for key in wanted:
        send(cluster, topic, key, TIMER_DELIVER_MS=moment_ms)
    make_cold(cluster)
    eventually("they are in the tier", lambda: timers_of(cluster).in_tier == TIMERS)
    away = tier.with_name("away")
    tier.rename(away)
    tier.touch()
    try:
        state = eventually("it says why", lambda: state if (state := timers_of(cluster)).tier_trouble else None, 90)
        assert "timers cannot come back from timers/" in state.tier_trouble
        eventually("they are late", lambda: timers_of(cluster).overdue_ms > 1000, 90)
    finally:
        tier.unlink()
        away.rename(tier)
    records = delivered(cluster, topic, TIMERS)
    assert keys_of(records) == dict.fromkeys(wanted, 1)
    assert never_early(records)
    eventually("all is well again", lambda: timers_of(cluster).tier_trouble == "")


def test_what_waits_there_is_found_counted_and_recalled(cluster: Cluster, tier: Path) -> None:
    topic = make_topic(cluster, "Sought")
    make_cold(cluster)
    moment_ms = (ahead_ms(100_000) // 1000 + 1) * 1000 + 500
    for number in range(TIMERS):
        send(cluster, topic, f"K{number:03d}", KEYS=f"order-{number}", TIMER_DELIVER_MS=moment_ms + number % 3 * 1000)
    make_cold(cluster)
    eventually("they are in the tier", lambda: timers_of(cluster).in_tier == TIMERS)
    send(cluster, topic, "near", TIMER_DELIVER_MS=moment_ms - 10_000)
    assert found(cluster, topic=topic) == {f"K{number:03d}": True for number in range(TIMERS)} | {"near": False}
    second = {"from_ms": moment_ms, "to_ms": moment_ms + 1}
    assert found(cluster, topic=topic, **second) == {f"K{number:03d}": True for number in range(0, TIMERS, 3)}
    assert found(cluster, key="K007") == found(cluster, key="order-7") == {"K007": True}
    # the limit of each second counts them, also after a change of master
    configure(cluster, f"timers.max_per_slot={TIMERS // 3 + 1}".encode())
    old = cluster.master()
    cluster.brokers[old].kill()
    eventually("another master", lambda: cluster.master() != old)
    cluster.make_whole()

    def has_room() -> bool:
        answer = send(cluster, topic, "more", (codes.FLOW_CONTROL, codes.SYSTEM_BUSY), TIMER_DELIVER_MS=moment_ms)
        return answer.code not in (codes.FLOW_CONTROL, codes.SYSTEM_BUSY)

    eventually("one more has room", has_room)
    assert not has_room()
    configure(cluster, b"timers.max_per_slot=0")
    # a dead store takes nothing of the rest away, and is told of
    away = tier.with_name("away")
    tier.rename(away)
    tier.touch()
    try:
        page = cluster.admin.find_timers("broker-a", topic=topic)
        assert (page.unread_in_tier, page.next) == (TIMERS, None)
        assert page.problem
        assert {each.unique_key for each in page.items} == {"near", "more"}
    finally:
        tier.unlink()
        away.rename(tier)
    items = [each for page in pages(cluster, topic=topic, **second) for each in page.items]
    wanted = [
        RecallRequest(topic=topic, unique_key=each.unique_key, place=each.place, due_ms=each.due_ms) for each in items
    ]
    assert len(wanted) == TIMERS // 3 + 1
    recalls = cluster.admin.recall_timers("broker-a", wanted, "ann")
    assert {each.outcome for each in recalls} == {RecallOutcome.RECALLED}
    assert found(cluster, topic=topic, **second) == {}
    left = {f"K{number:03d}" for number in range(TIMERS) if number % 3} | {"near"}
    eventually("they come back", lambda: not timers_of(cluster).in_tier, 120)
    records = delivered(cluster, topic, len(left))
    assert keys_of(records) == dict.fromkeys(left, 1)


def pages(cluster: Cluster, **wanted: Any) -> list[TimerPage]:
    """All of a search, of which nothing is missing."""
    found = [cluster.admin.find_timers("broker-a", **wanted)]
    while found[-1].next is not None:
        found.append(cluster.admin.find_timers("broker-a", after=found[-1].next, **wanted))
    assert not any(page.unread_in_tier for page in found), found
    return found


def found(cluster: Cluster, **wanted: Any) -> dict[str, bool]:
    """By its id, whether a timer that waits is in the tier."""
    items = [each for page in pages(cluster, **wanted) for each in page.items]
    return {each.unique_key: each.is_in_tier for each in items if each.standing is TimerStanding.WAITING}
