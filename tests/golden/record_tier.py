"""Record a tier as a broker of today writes it, for brokers of later releases to read.

    python -m tests.golden.record_tier DIRECTORY

Run once for each layout; the files are committed, and tests/unit/brokerd/tiers/test_golden.py has a later broker mount them.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Final

from brokerd.store.draft import Draft
from brokerd.tiers.mounting.leases import Clock, LeaseHolder
from remoting.record.properties import encode_properties
from tests.support.tiered_broker import HOST, SETTINGS, TieredBroker

GIVEN: Final = "given.json"
HOLDER: Final = "10.0.0.9:10911"
_ROUNDS: Final = 3
_MESSAGES: Final = 20  # of a round
_HOUR_MS: Final = 3_600_000


def record(directory: Path) -> None:
    """Two queues, one of which was merged to an archive; keys; consumer offsets; and the lease of a mount that rests."""
    broker = TieredBroker(replace(SETTINGS, archive=True, segment_bytes=8192))
    bodies = {0: list[str](), 1: list[str]()}
    for number in range(_ROUNDS):
        _send(broker, bodies, 0)
        broker.turns.run(10_000)
        broker.turns.set_wall_clock((number + 1) * _HOUR_MS)
        broker.turns.run(600_000)
    _send(broker, bodies, 1)
    broker.core.metadata.commit_offset("readers", "T", 0, 17, None)
    broker.turns.run(60_000)
    clock = Clock(broker.turns.time, broker.objects._steps.pause, broker.turns.wall_ms, random.Random(3).getrandbits)
    holder = LeaseHolder(broker.objects, HOLDER, clock, "holder")

    async def mount() -> None:
        await holder.take(lambda _: None, 0)
        await holder.rest()

    broker.objects._steps.spawn(mount(), "mount")
    broker.turns.run(60_000)
    for name, content in broker.objects.stored.objects.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (directory / GIVEN).write_text(json.dumps(bodies, indent=1) + "\n")


def _send(broker: TieredBroker, bodies: dict[int, list[str]], queue_id: int) -> None:
    sent = bodies[queue_id]
    for _ in range(_MESSAGES):
        sent.append(f"message {len(sent)} of queue {queue_id}, {'some more of it, ' * 8}")
        properties = encode_properties({"KEYS": f"all key{len(sent) - 1}", "UNIQ_KEY": f"{queue_id}-{len(sent)}"})
        message = Draft("T", queue_id, sent[-1].encode(), properties, broker.turns.wall_ms(), HOST)
        broker.core.record_log.append_messages([message])
    broker.turns.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path)
    record(parser.parse_args().directory)


if __name__ == "__main__":
    main()
