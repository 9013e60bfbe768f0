"""What it costs to store messages once more that waited elsewhere in the log: at a delay level, or for the end of a transaction.

    python -m tests.bench.copies [--messages N] [--pairs N]

In this process, in a whole broker without sockets on a disk, which does not wait for the disk: from a level's due entries, or
from decisions about half messages, to the consume queues, with the records that say what was done. CPU time of each message.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from brokerd.composition.core import BrokerCore, open_store
from brokerd.composition.environment import BrokerIdentity, CoreSettings, Environment
from brokerd.composition.ground import make_ground
from brokerd.composition.log_access import StoreReplicatedLog
from brokerd.delay.levels import SCHEDULE_GROUP
from brokerd.loop import tuning
from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import load
from brokerd.replication.roles.effects import Role
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.settings import StoreSettings
from brokerd.transactions.decide import EndTransaction, Outcome
from remoting.disk import LocalDisk
from remoting.names import SCHEDULE_TOPIC
from remoting.record.properties import encode_properties
from tests.bench.harness import Row
from tests.support.alone import AloneReplica, Nobody
from tests.support.open_guard import anybody_may
from tests.support.turns import Turns

MESSAGES: Final = 20_000

_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 42, 159))
_TOPIC: Final = "Orders"
_QUEUES: Final = 8
_BODY_BYTES: Final = 1000
_SENT_AT_ONCE: Final = 1000
_DELAY_MS: Final = 3_600_000  # of the level that is measured
_LEVEL: Final = 17


class _Broker:
    """A master that everybody acknowledges at once."""

    def __init__(self, directory: Path) -> None:
        self.turns = turns = Turns()
        ground = make_ground(
            BrokerIdentity("c", "broker-a", _HOST),
            CoreSettings(StoreSettings(index_enabled=False)),  # it follows at its own pace, as for any message
            Environment(LocalDisk(directory), turns, turns.wall_ms, random.Random(1), library=load()),
        )
        store = open_store(ground)
        log = StoreReplicatedLog(store, lambda: None)
        replica = AloneReplica(log, store.confirm_offset)
        self.core = BrokerCore(ground, Nobody(), log, replica)
        replica.become(Role.MASTER)
        self.core.metadata.put_topic(TopicConfig(_TOPIC, _QUEUES, _QUEUES), lambda _: None)
        turns.run(10)

    def send(self, messages: int, more: Mapping[str, str], host: bytes = _HOST) -> list[SendOutcome]:
        outcomes: list[SendOutcome] = []
        for first in range(0, messages, _SENT_AT_ONCE):
            for n in range(first, min(messages, first + _SENT_AT_ONCE)):
                properties = encode_properties(_properties(n) | more)
                draft = Draft(_TOPIC, n % _QUEUES, _body(n), properties, self.turns.wall_ms(), host)
                self.core.sender.send([draft], outcomes.extend)
            self.turns.run(1)
        assert len(outcomes) == messages
        return outcomes

    @property
    def delivered(self) -> int:
        self.turns.run(1)
        return sum(self.core.store.max_offset(_TOPIC, queue_id) for queue_id in range(_QUEUES))


@contextmanager
def _broker() -> Iterator[_Broker]:
    with tempfile.TemporaryDirectory(prefix="copies-") as directory:
        broker = _Broker(Path(directory))
        yield broker
        broker.core.close()
        broker.core.store.abandon()


def level_us(messages: int, host: bytes = _HOST) -> float:
    """Of messages from that host that are due at a delay level at once."""
    with _broker() as broker:
        broker.send(messages, {"DELAY": str(_LEVEL)}, host)
        broker.turns.run(_DELAY_MS - 60_000)
        assert broker.delivered == 0
        took_us = _cpu_us(lambda: broker.turns.run(120_000))
        assert broker.delivered == messages
        offset = broker.core.metadata.consumer_offset(SCHEDULE_GROUP, SCHEDULE_TOPIC, _LEVEL - 1)
        assert offset == messages
        return took_us / messages


def commit_us(messages: int) -> float:
    """Of half messages that are committed, one after the other."""
    with _broker() as broker:
        halves = broker.send(messages, {"TRAN_MSG": "true", "PGROUP": "producers"})
        answers: list[Any] = []

        def commit() -> None:
            for each in halves:
                request = EndTransaction("producers", each.queue_offset, each.physical_offset, Outcome.COMMIT)
                broker.core.transactions.end(request, answers.append, anybody_may)

        took_us = _cpu_us(commit)
        broker.turns.run(10)
        assert answers == [None] * messages
        assert broker.delivered == messages
        return took_us / messages


def run(messages: int = MESSAGES, pairs: int = 3) -> list[Row]:
    tuning.settle()
    measured: dict[str, Callable[[], float]] = {
        "due at a delay level": lambda: level_us(messages),
        "due at a delay level, each decoded": lambda: level_us(messages, bytes(12) + _HOST),  # an IPv6 host
        "committed": lambda: commit_us(messages),
    }
    found: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(pairs):
        for name, measure in measured.items():
            found[name].append(measure())
    rows = [
        Row(f"{messages:,} messages {name}: CPU time of each", f"{statistics.median(each):.1f} us")
        for name, each in found.items()
    ]
    for row in rows:
        print(f"{row.name}: {row.figure}  {row.goal}", flush=True)
    return rows


def _cpu_us(run: Callable[[], object]) -> float:
    began_s = time.process_time()
    run()
    return 1e6 * (time.process_time() - began_s)


def _body(n: int) -> bytes:
    return b"%08d" % n + bytes(_BODY_BYTES - 8)


def _properties(n: int) -> dict[str, str]:
    return {"UNIQ_KEY": f"{n:032X}", "WAIT": "true", "TAGS": "paid", "KEYS": f"order-{n}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=MESSAGES, help="that waited (%(default)s)")
    parser.add_argument("--pairs", type=int, default=3, help="measurements of each (%(default)s)")
    options = parser.parse_args()
    run(options.messages, options.pairs)


if __name__ == "__main__":
    main()
