"""How long a dead or frozen master stops the sends, in both systems: three replicas, default settings of each.

One sender per broker knows its address, nothing else, and tries all the time; the time is taken from the fault to the first
acknowledgement of a message that was sent after it to another broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from tests.bench.compare.systems import REPLICAS, Running
from tests.bench.harness import Row
from tests.support.cluster import Process, eventually
from tests.support.senders import Senders

_BETWEEN_SENDS_S: Final = 0.002
_HOLD_S: Final = 4.0  # a freeze that ends as soon as it is noticed is a hiccup
_WARM_UP_S: Final = 10.0
_LONGEST_S: Final = {"kill -9": 1.0, "freeze": 2.0}


@dataclass
class Faults:
    """Seconds without a send, by kind of fault; `ended` says why no more faults were made."""

    took_s: dict[str, list[float]] = field(default_factory=lambda: {"kill -9": [], "freeze": []})
    ended: str = ""

    def figure(self, kind: str) -> str:
        values = sorted(self.took_s[kind])
        ended = f", {len(values)} times, then {self.ended}" if self.ended else ""
        if not values:
            return f"not measured{ended}"
        return f"{values[len(values) // 2] * 1000:.0f} ms ({values[0] * 1000:.0f}-{values[-1] * 1000:.0f}){ended}"


def measure(start: Callable[[str], AbstractContextManager[Running]], count: int) -> Faults:
    """So many kills and freezes, each of a group that is whole."""
    faults = Faults()
    with start(REPLICAS) as running:
        topic = running.new_topic(1)
        senders = Senders(running.addresses, topic, _BETWEEN_SENDS_S)
        senders.start()
        eventually("the first sends", lambda: senders.acknowledged > 20, 60)
        time.sleep(_WARM_UP_S)
        try:
            _inject(running, senders, faults, count)
            running.master = running.wait_whole()
        except (
            AssertionError
        ) as error:  # a group that does not become whole again is a finding, not the end of the comparison
            faults.ended = str(error)
            print(f"    {running.name}: {error}", flush=True)
            senders.stop()
            return faults
        histories = senders.stop()
        acknowledged = sum(len(history.acknowledged) for history in histories)
        stored = running.stored(topic, 1)
        print(f"    {running.name}: {acknowledged} acknowledged, {stored} stored", flush=True)
    return faults


def _inject(running: Running, senders: Senders, faults: Faults, count: int) -> None:
    for kind, inject, heal in (("kill -9", Process.kill, Process.start), ("freeze", Process.freeze, Process.thaw)):
        for _ in range(count):
            running.master = running.wait_whole()
            process = running.brokers[running.master]
            start_s = time.monotonic()
            inject(process)
            faults.took_s[kind].append(senders.first_success_elsewhere(running.master, start_s) - start_s)
            # not a wait for anything: every fault lasts equally long in both systems, however soon it was noticed
            time.sleep(max(0.0, start_s + _HOLD_S - time.monotonic()))
            heal(process)


def rows(ours: Faults, theirs: Faults) -> list[Row]:
    """What the final table says."""
    found = []
    for kind, longest_s in _LONGEST_S.items():
        figure = f"{ours.figure(kind)}; Apache RocketMQ {theirs.figure(kind)}"
        met = not ours.ended and max(ours.took_s[kind]) <= longest_s
        found.append(Row(f"{kind} of the master to the next send, {REPLICAS}", figure, f"<= {longest_s:.0f} s", met))
    return found
