"""How long the event loop stands still for the state of POP: a snapshot, a takeover, a step-down, with many messages in flight.

    python -m tests.bench.ledger_turns [--messages N] [--batch N]

The pop service runs in this process on a log in memory, so nothing but its own work is counted; what it does at once is one
turn of the loop, and CPU time is what a turn takes. Every message is in flight when the service is told to write a snapshot, to
step down and follow, and to lead again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, Final

from brokerd.loop import tuning
from tests.bench.harness import Row
from tests.support.pop_broker import PopBroker
from tests.support.turns import Turn, Turns

MESSAGES: Final = 200_000  # a million take five times as long, and 3 GB
GOAL_MS: Final = 20.0

_QUEUES: Final = 8
_SENT_AT_ONCE: Final = 1000
_HIDDEN_MS: Final = 3_600_000
_SETTLED_MS: Final = 60_000.0  # of the hand-moved clock, for what goes on in further turns


class TimedTurns(Turns):
    """Keeps the longest turn since `longest_ms` was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._longest_s = 0.0
        self._inside_s = 0.0  # of turns that a callback runs itself

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Turn:
        return super().call_later(delay, self.timed, callback, *args)

    def timed(self, callback: Callable[..., Any], *args: Any) -> None:
        """One turn, which runs the callback."""
        before_s, self._inside_s = self._inside_s, 0.0
        began_s = time.thread_time()
        callback(*args)
        took_s = time.thread_time() - began_s
        self._longest_s = max(self._longest_s, took_s - self._inside_s)
        self._inside_s = before_s + took_s

    def longest_ms(self) -> float:
        longest_s, self._longest_s = self._longest_s, 0.0
        return 1000 * longest_s


def run(messages: int = MESSAGES, batches: tuple[int, ...] = (1, 32)) -> list[Row]:
    tuning.settle()
    return [row for batch in batches for row in _rows(messages, batch)]


def _rows(messages: int, batch: int) -> list[Row]:
    turns = TimedTurns()
    broker = PopBroker(turns=turns, max_in_flight_per_group=2 * messages).become_master()
    broker.topic(queues=_QUEUES)
    broker.group()
    service = broker.pop_service
    for first in range(0, messages, _SENT_AT_ONCE):
        broker.send(*[""] * min(_SENT_AT_ONCE, messages - first), queue_id=first // _SENT_AT_ONCE % _QUEUES)
    turns.run()
    turns.longest_ms()
    taken = 0
    while taken < messages:
        turns.timed(_take, broker, batch)
        taken += batch
        turns.run()
    assert service.ledger.in_flight("g") == messages
    name = f"{messages:,} in flight in batches of {batch}: longest turn of the loop"
    rows = [_row(f"{name} while they are taken", turns)]
    for what, step in (
        ("by a snapshot for a new file", lambda: turns.timed(service.rolled)),
        ("by stepping down", lambda: _step_down(broker, turns)),
        ("by taking over", lambda: _take_over(broker, turns)),
    ):
        step()
        turns.run(_SETTLED_MS)
        rows.append(_row(f"{name} {what}", turns))
    assert service.ledger.in_flight("g") == messages
    return rows


def _take(broker: PopBroker, batch: int) -> None:
    assert broker.receive(batch, invisible_time_ms=_HIDDEN_MS).messages


def _step_down(broker: PopBroker, turns: TimedTurns) -> None:
    broker.log.is_master = False
    turns.timed(broker.pop_service.step_down)
    turns.timed(broker.pop_service.rebuild)


def _take_over(broker: PopBroker, turns: TimedTurns) -> None:
    broker.log.is_master = True
    turns.timed(broker.pop_service.catch_up)
    turns.timed(broker.pop_service.lead)


def _row(name: str, turns: TimedTurns) -> Row:
    longest_ms = turns.longest_ms()
    row = Row(name, f"{longest_ms:.1f} ms", f"<= {GOAL_MS:.0f} ms", longest_ms <= GOAL_MS)
    print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="in flight (%(default)s)")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32], help="taken at once (%(default)s)")
    options = parser.parse_args()
    run(options.messages, tuple(options.batch))


if __name__ == "__main__":
    main()
