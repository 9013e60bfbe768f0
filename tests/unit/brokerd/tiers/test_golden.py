"""A tier that an earlier release left (tests/golden/logboom-tier): another broker mounts it, and has all that was in it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Final

import pytest

from brokerd.composition.environment import Tier
from brokerd.replication.roles.effects import Role
from brokerd.store.index.search import Question
from brokerd.store.queues.queue_reads import GetStatus
from brokerd.tiers.mounting.group import MountedGroup, read_group
from remoting.record.codec import Record, body_is_intact, decode_record
from remoting.settings import Live
from remoting.tier.index import decode_index, encode_index
from remoting.tier.leases import LeaseState, decode_lease, encode_lease
from remoting.tier.manifest import decode_part, encode_part
from remoting.tier.segments import Form
from remoting.tier.states import decode_state, encode_state
from tests.support.alone import AloneBroker
from tests.support.disks import MemoryDisk
from tests.support.tiered_broker import HOST, SETTINGS, STORE
from tests.support.tiers import FaultyObjects, Steps, Stored
from tests.support.turns import Turns

GOLDEN: Final = Path(__file__).parents[3] / "golden" / "logboom-tier"
BODIES: Final[dict[str, list[str]]] = json.loads((GOLDEN / "given.json").read_text())
OBJECTS: Final = {
    str(path.relative_to(GOLDEN)): path.read_bytes()
    for path in sorted(GOLDEN.rglob("*"))
    if path.is_file() and path.suffix != ".json"
}


class Mounted:
    """A broker that mounts it."""

    def __init__(self) -> None:
        self.turns = turns = Turns()
        steps = Steps(turns)
        stored = Stored()
        stored.objects |= OBJECTS
        stored.times |= dict.fromkeys(OBJECTS, 0)
        objects = FaultyObjects(stored, steps, turns, random.Random(1))
        found: list[MountedGroup] = []

        async def read() -> None:
            found.append(await read_group(objects, "broker-a"))

        steps.spawn(read(), "read")
        turns.run(10_000)
        (self.group,) = found
        tier = Tier(objects, steps.loop(), self.group)
        self.broker = AloneBroker(MemoryDisk(), turns, STORE, HOST, tier=tier, tiers=Live(SETTINGS))
        self.broker.replica.become(Role.MASTER, epoch=7)
        turns.run(10_000)
        assert self.broker.core.tiers.is_open

    def read(self, queue_id: int) -> list[Record]:
        """All of a queue."""
        store = self.broker.core.store
        found: list[Record] = []
        offset, patience = 0, 100
        while offset < store.max_offset("T", queue_id):
            result = store.read_messages("T", queue_id, offset, 32, 1 << 20)
            if result.status is GetStatus.BEING_FETCHED:
                patience -= 1
                assert patience
                self.turns.run(100)
                continue
            assert result.status is GetStatus.FOUND
            found += map(decode_record, result.records)
            offset = result.next_offset
        return found


def test_all_messages_are_there_and_readers_go_on_where_they_were() -> None:
    mounted = Mounted()
    segments = [segment for queue in mounted.group.contents.queues.values() for segment in queue]
    assert {segment.form for segment in segments} == {Form.RAW, Form.BLOCKS}
    for queue_id, bodies in BODIES.items():
        records = mounted.read(int(queue_id))
        assert [record.body.decode() for record in records] == bodies
        assert [record.queue_offset for record in records] == list(range(len(bodies)))
        assert all(map(body_is_intact, records))
    core = mounted.broker.core
    assert core.progress.consumer_offset("readers", "T", 0) == 17
    topic = core.metadata.topic("T")
    assert topic is not None
    assert topic.perm == 4, "nobody sends to a mount"


@pytest.mark.parametrize(("key", "wanted"), [("key3", ["0-4", "1-4"]), ("0-60", ["0-60"]), ("none", [])])
def test_keys_find_them(key: str, wanted: list[str]) -> None:
    mounted = Mounted()
    index = mounted.broker.core.tiers.index
    assert index is not None
    answers: list[Any] = []
    index.find(Question("T", key, 64, 0, 1 << 60), (), lambda *answer: answers.append(answer))
    mounted.turns.run(10_000)
    ((records, is_complete),) = answers
    assert is_complete
    assert sorted(decode_record(each).property_map()["UNIQ_KEY"] for each in records) == wanted


def test_what_is_read_is_written_again_as_it_was() -> None:
    entries = {entry.name: entry for entry in Mounted().group.contents.index.values()}
    kinds = set[str]()
    for name, content in OBJECTS.items():
        kind = name.partition("/")[0]
        if kind == "manifest":
            part = decode_part(content, name)
            assert decode_part(encode_part(part), name) == part
        elif kind == "state":
            rows = decode_state(content, name)
            assert decode_state(encode_state(rows), name) == rows
        elif kind == "lease":
            assert encode_lease(decode_lease(content, int(name.partition("/")[2]), name)) == content
        elif name in entries:
            assert encode_index(decode_index(content, entries[name]), entries[name].spread) == content
        else:
            continue
        kinds.add(kind)
    assert kinds == {"manifest", "state", "lease", "rmq_sys_INDEX"}
    last = decode_lease(OBJECTS["lease/00000000000000000002"], 2, "it")
    assert (last.who, last.state) == ("10.0.0.9:10911", LeaseState.RESTING)
