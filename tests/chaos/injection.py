"""Carries out faults, proves from the kernel's side that they are in force, and heals them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Final

from remoting import exit_codes
from tests.chaos.addresses import Link
from tests.chaos.daemons import ChaosCluster
from tests.chaos.history import FaultWindow
from tests.chaos.network import Network
from tests.chaos.plan import CUT, LOG, QUEUE, Faults
from tests.chaos.rot import Change
from tests.support.cluster import comes_true

_PROBES: Final = 50
_END_LIMIT_S: Final = 10
_REPAIR_LIMIT_S: Final = 90
_TAKEN_AGAIN: Final = "the group has taken this controller again"
# Of 50 datagrams at 80 % loss 10 arrive; that all but a few do, or none does, has a probability below one in ten thousand.
_MOST_THAT_PASS_A_LOSS: Final = 25


class Injection:
    """Faults of one time: `inject`, let it last, `verify`, `heal`."""

    def __init__(self, cluster: ChaosCluster, faults: Faults, window: FaultWindow) -> None:
        self._cluster = cluster
        self._network: Network = cluster.network
        self._faults = faults
        self._window = window
        self.changes: dict[str, list[Change]] = {}
        self._before = self._network.counters()
        self._told_before = {name: clock.times_told for name, clock in cluster.clocks.items()}

    def inject(self) -> None:
        brokers = [name for name in self._faults.rots if name in self._cluster.broker_names]
        confirmed = {name: self._cluster.confirmed(name) for name in brokers}
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
        for name, kinds in self._faults.rots.items():
            for kind in kinds:
                self.change(name, kind, confirmed.get(name, 0))
        for name, rule in self._faults.disks.items():
            self._cluster.disks[name].fail(rule)
        self._window.in_force_s = time.monotonic()
        self.look("at the start")

    def verify(self) -> None:
        """The last look, before the fault ends."""
        self.look("at the end")
        if self._faults.links:
            self._count_packets()
        for name in self._faults.clocks_s:
            told = self._cluster.clocks[name].times_told - self._told_before[name]
            self._window.note(f"{name} was told a wrong time {told} times", told > 0)
        self._look_at_rot()
        for name, rule in self._faults.disks.items():
            hits = self._cluster.disks[name].hits
            self._window.note(f"{hits} calls of {name}'s: {rule}", hits > 0)
            if rule.ends:
                code = self._cluster.daemons[name].await_exit(_END_LIMIT_S)
                self._window.note(f"{name} ended by itself with {code}", code == exit_codes.FAILED)

    def change(self, name: str, kind: str, upto: int) -> Change | None:
        """Change a byte in one of a daemon's files of that kind, in what the log has before the offset."""
        change = self._cluster.rots[name].change(kind, upto)
        if change is not None:
            self.changes.setdefault(name, []).append(change)
        return change

    def _look_at_rot(self) -> None:
        for name, changes in self.changes.items():
            counts = Counter(each.kind for each in changes)
            told = ", ".join(f"{count} x {kind}" for kind, count in counts.items())
            # who runs may have written or repaired what was changed
            there = name not in self._faults.kills or all(each.is_there for each in changes)
            self._window.note(f"bytes changed on {name}'s disk: {told}", bool(changes) and there)

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
        for name in self._faults.disks:
            self._cluster.disks[name].obey()
        ended = [name for name, rule in self._faults.disks.items() if rule.ends]
        for name in (*self._faults.kills, *ended):
            self._cluster.daemons[name].start()
        for name in self._faults.clocks_s:
            self._cluster.clocks[name].jump(0)

    def await_repair(self) -> None:
        """After the heal: what was changed of the log and its queues is again what was written, by whatever repaired it; a
        controller whose log was changed was taken again by the others."""
        for name, changes in self.changes.items():
            if name in self._cluster.controller_names:
                self._await_return(name)
                continue
            wanted = [each for each in changes if each.kind in (LOG, QUEUE)]
            comes_true(lambda wanted=wanted: all(each.is_repaired for each in wanted), _REPAIR_LIMIT_S)
            left = [each for each in wanted if not each.is_repaired]
            what = f"{len(wanted) - len(left)} of {len(wanted)} bytes of {name}'s log and queues are what was written"
            self._window.note(what + (f", but {left[0]}" if left else ""), not left)

    def _await_return(self, name: str) -> None:
        daemon = self._cluster.daemons[name]
        taken = comes_true(lambda: _TAKEN_AGAIN in daemon.log_text(), _REPAIR_LIMIT_S)
        self._window.note(f"{name} refused its log and was taken again by the others", taken)

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
