"""How long a dead or frozen master stops the sends, in both systems: three replicas, default settings of each.

One sender per broker knows its address, nothing else, and tries all the time; the time is taken from the fault to the first
acknowledgement of a message that was sent after it to another broker. Then the sends stop until the group is whole again: how
long that takes under load is another question.
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
_SENDS_BEFORE: Final = 500
_HOLD_S: Final = 4.0  # a freeze that ends as soon as it is noticed is a hiccup
_LONGEST_S: Final = {"kill -9": 1.0, "freeze": 2.0}
_KINDS: Final = (("kill -9", Process.kill, Process.start), ("freeze", Process.freeze, Process.thaw))


@dataclass
class Faults:
    """Seconds without a send, by kind of fault; `ended` says after which kind no more faults were made, and why."""

    took_s: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind, _, _ in _KINDS})
    ended: dict[str, str] = field(default_factory=dict)

    def figure(self, kind: str) -> str:
        values = sorted(self.took_s[kind])
        ended = f", {len(values)} times, then {self.ended[kind]}" if kind in self.ended else ""
        if not values:
            return f"not measured{ended}"
        return f"{values[len(values) // 2] * 1000:.0f} ms ({values[0] * 1000:.0f}-{values[-1] * 1000:.0f}){ended}"


def measure(start: Callable[[str], AbstractContextManager[Running]], count: int) -> Faults:
    """So many kills and freezes, each of a group that is whole."""
    faults = Faults()
    with start(REPLICAS) as running:
        topic, acknowledged, kind = running.new_topic(1), 0, ""
        try:
            for kind, inject, heal in _KINDS:
                for _ in range(count):
                    took_s, sends = _suffer(running, topic, inject, heal)
                    print(f"    {running.name}: {kind}, {took_s * 1000:.0f} ms", flush=True)
                    faults.took_s[kind].append(took_s)
                    acknowledged += sends
            running.master = running.wait_whole()
        except AssertionError as error:  # a group that does not recover is a finding, not the end of the comparison
            faults.ended[kind] = str(error)
            print(f"    {running.name}: {error}", flush=True)
            return faults
        print(f"    {running.name}: {acknowledged} acknowledged, {running.stored(topic, 1)} stored", flush=True)
    return faults


def _suffer(
    running: Running, topic: str, inject: Callable[[Process], None], heal: Callable[[Process], None]
) -> tuple[float, int]:
    """One fault of the master: seconds until another broker acknowledged a send, and all that were acknowledged."""
    running.master = running.wait_whole()
    process = running.brokers[running.master]
    senders = Senders(running.addresses, topic, _BETWEEN_SENDS_S)
    senders.start()
    try:
        eventually(f"{_SENDS_BEFORE} sends", lambda: senders.acknowledged > _SENDS_BEFORE, 60)
        start_s = time.monotonic()
        inject(process)
        took_s = senders.first_success_elsewhere(running.master, start_s) - start_s
        # not a wait for anything: every fault lasts equally long in both systems, however soon it was noticed
        time.sleep(max(0.0, start_s + _HOLD_S - time.monotonic()))
        heal(process)
    finally:
        senders.abandon()
    senders.stop()
    return took_s, senders.acknowledged


def rows(ours: Faults, theirs: Faults) -> list[Row]:
    """What the final table says."""
    found = []
    for kind, longest_s in _LONGEST_S.items():
        figure = f"{ours.figure(kind)}; Apache RocketMQ {theirs.figure(kind)}"
        met = not ours.ended and max(ours.took_s[kind]) <= longest_s
        found.append(Row(f"{kind} of the master to the next send, {REPLICAS}", figure, f"<= {longest_s:.0f} s", met))
    return found
