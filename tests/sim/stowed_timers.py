"""A tier in which timers wait, too: files of the log go at once, so what is due some seconds after that is put into the object
store, and comes back.

Their log is not there in the end, so it is about what was delivered, which is read from the tier as any message: what was
acknowledged came once from each place at which it waited, or was taken back; and nothing of them is left in the store.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from brokerd.store.log.retention import RetentionDecision
from brokerd.timers.codes import PLACE
from remoting.record.codec import Record
from remoting.tier.names import STOWED
from tests.sim.checks import fetch
from tests.sim.records import look_at
from tests.sim.tiered import Tiered
from tests.sim.timed import TIMED_TOPIC, FarTimedClient, Wanted, make_clients

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster

STOWED_TIMERS: Final = "timers in the tier"
_LONGEST_DOUBT_MS: Final = 200_000  # of a clock that was set
_ENOUGH_MS: Final = 12_000  # longer than any timer waits


class StowedTimers(Tiered):
    """The ingredient."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self._wanted = Wanted()
        self._began_to_rest_ms = -1.0

    def decide(self, broker: SimBroker, decision: RetentionDecision) -> RetentionDecision:
        store = broker.core.store
        store.going_offset = max((each.start for each in store.file_ages()), default=0)
        return super().decide(broker, decision)

    def begin(self) -> None:
        super().begin()
        self._cluster.clients += make_clients(self._cluster, self._wanted, FarTimedClient)

    def is_settled(self) -> bool:
        master, now_ms = self._cluster.master(), self._world.now_ms
        if self._began_to_rest_ms < 0:
            self._began_to_rest_ms = now_ms
        if master is None or master.core.metadata.topic(TIMED_TOPIC) is None:
            return False
        has_waited = now_ms - self._began_to_rest_ms > _ENOUGH_MS and self._cluster.injector.clocks_were_set
        return super().is_settled() and (has_waited or not master.core.timers.state().waiting)

    def check(self) -> None:
        master = self._cluster.master()
        assert master is not None
        timers = master.core.timers
        self._cluster.injector.set_clocks_right()  # one that is behind makes timers late by that, which may be an hour
        is_over = self._world.run_until(lambda: not timers.state().waiting, _LONGEST_DOUBT_MS, every=50)
        self._world.require(is_over, f"timers wait for ever: {timers.state()}")
        self._cluster.wait_until_settled("when all timers came")
        self._check_tables(master)
        self._check_delivered(master)
        super().check()

    def _count(self) -> None:
        super()._count()
        history = self._cluster.history
        history.operations["tier", "timers stowed"] += sum(name.startswith(STOWED) for name in self.node.stored.puts)
        for broker in self._cluster.brokers:
            history.operations["tier", "timers returned"] += broker.core.timers.counters.returned

    def _check_delivered(self, master: SimBroker) -> None:
        require, wanted = self._world.require, self._wanted
        delivered = self._delivered(master)
        places = Counter(each.property_map()[PLACE] for each in delivered if PLACE in each.property_map())
        twice = [place for place, count in places.items() if count > 1]
        require(not twice, f"what waited at {twice[:3]} is delivered more than once")
        counts = Counter(each.body for each in delivered)
        for body, count in counts.items():
            most = wanted.attempts[body] - (body in wanted.recalled)
            require(count <= most, f"{body[:20]!r} is delivered {count} times, and may be {most} times")
        for body, _ in wanted.acknowledged:
            is_there = counts[body] > 0 or body in wanted.perhaps_recalled
            require(is_there, f"{body[:20]!r} was acknowledged, and is never delivered")

    def _delivered(self, master: SimBroker) -> list[Record]:
        store = master.core.store
        found: list[Record] = []
        while len(found) < store.max_offset(TIMED_TOPIC, 0):
            records = fetch(self._cluster, master, TIMED_TOPIC, 0, len(found)).records
            self._world.require(bool(records), f"{TIMED_TOPIC} of {master.name} ends early, at {len(found)}")
            found += [look_at(each)[0] for each in records]
        return found

    def _check_tables(self, master: SimBroker) -> None:
        require = self._world.require
        for broker in self._cluster.brokers:
            rows = [sorted(map(repr, each.core.timers.table.snapshot_rows())) for each in (master, broker)]
            require(rows[0] == rows[1], f"the timers' tables of {master.name} and {broker.name} differ: {rows}")
        for entry in master.core.timers.table.objects.values():
            require(entry.name in self.node.stored.objects, f"{entry.name}, which has timers, is not in the store")
