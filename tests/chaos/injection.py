"""Carries out faults, proves from the kernel's side that they are in force, and heals them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from tests.chaos.addresses import Link
from tests.chaos.daemons import ChaosCluster
from tests.chaos.history import FaultWindow
from tests.chaos.network import Network
from tests.chaos.plan import CUT, Faults

_PROBES: Final = 50
# Of 50 datagrams at 80 % loss 10 arrive; that all but a few do, or none does, has a probability below one in ten thousand.
_MOST_THAT_PASS_A_LOSS: Final = 25


class Injection:
    """Faults of one time: `inject`, let it last, `verify`, `heal`."""

    def __init__(self, cluster: ChaosCluster, faults: Faults, window: FaultWindow) -> None:
        self._cluster = cluster
        self._network: Network = cluster.network
        self._faults = faults
        self._window = window
        self._before = self._network.counters()
        self._told_before = {name: clock.times_told for name, clock in cluster.clocks.items()}

    def inject(self) -> None:
        if self._faults.links:
            self._network.impair_more(self._faults.links)
        for name in self._faults.freezes:
            self._cluster.daemons[name].freeze()
        for name in self._faults.kills:
            self._cluster.daemons[name].strike()
        for name in self._faults.kills:
            self._cluster.daemons[name].kill()
        for name, offset_s in self._faults.clocks_s.items():
            self._cluster.clocks[name].jump(offset_s)
        self.look("at the start")

    def verify(self) -> None:
        """The last look, before the fault ends."""
        self.look("at the end")
        if self._faults.links:
            self._count_packets()
        for name in self._faults.clocks_s:
            told = self._cluster.clocks[name].times_told - self._told_before[name]
            self._window.note(f"{name} was told a wrong time {told} times", told > 0)

    def heal(self) -> None:
        if self._faults.links:
            left = {link: how for link, how in self._network.impaired.items() if link not in self._faults.links}
            self._network.impair(left)
            healed = self._network.probe(self._faults.links, 5, 1.0)
            silent = [str(link) for link, arrived in healed.items() if not arrived]
            self._window.note(
                f"every link is whole after the heal{' but ' + ', '.join(silent) if silent else ''}", not silent
            )
        for name in self._faults.freezes:
            self._cluster.daemons[name].thaw()
        for name in self._faults.kills:
            self._cluster.daemons[name].start()
        for name in self._faults.clocks_s:
            self._cluster.clocks[name].jump(0)

    def look(self, when: str) -> None:
        for name in self._faults.kills:
            self._window.note(f"{name} is gone {when}", self._cluster.daemons[name].is_gone)
        for name in self._faults.freezes:
            deadline_s = time.monotonic() + 1  # a thread in a system call stops when it comes back from it
            while not self._cluster.daemons[name].is_stopped and time.monotonic() < deadline_s:
                time.sleep(0.005)
            self._window.note(f"all threads of {name} are stopped {when}", self._cluster.daemons[name].is_stopped)
        if self._faults.links:
            self._probe(when)

    def _probe(self, when: str) -> None:
        arrived = self._network.probe(self._faults.links, _PROBES)
        wrong = [str(link) for link, count in arrived.items() if not self._is_as_wanted(link, count)]
        told = Counter(arrived.values())
        self._window.note(
            f"of {_PROBES} datagrams on each of {len(arrived)} links {min(told)} to {max(told)} arrived {when}"
            + (f"; not as wanted: {', '.join(wrong)}" if wrong else ""),
            not wrong,
        )

    def _is_as_wanted(self, link: Link, arrived: int) -> bool:
        how = self._faults.links[link]
        if how == CUT or how.delay_ms:
            return arrived == 0  # none at all, or none yet
        return 0 < arrived < _MOST_THAT_PASS_A_LOSS

    def _count_packets(self) -> None:
        after = self._network.counters()
        hit = Counter[str]()
        for link in self._faults.links:
            before = self._before.get(link, {})
            for name in ("tcp_dropped", "tcp_delayed"):
                hit[name] += after[link][name] - before.get(name, 0)
        total = sum(hit.values())
        self._window.note(
            f"{hit['tcp_dropped']} TCP packets of the daemons and clients were dropped, {hit['tcp_delayed']} delayed",
            total > 0,
        )
