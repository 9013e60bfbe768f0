"""A broker whose clients have what they send taken by the carrier's thread beside one where nobody has: whatever they send, and
whatever happens meanwhile, both answer the same, and store the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.sending import lending
from brokerd.sending.unique_ids import UniqueIds
from remoting import codes, frame
from remoting.frame import Command
from remoting.names import SCHEDULE_TOPIC, TIMER_TOPIC
from remoting.record.codec import Record
from remoting.record.properties import decode_properties
from remoting.transport import connection
from tests.support.client_bytes import encode_batch_body, encode_compact
from tests.support.sending_broker import NOW_MS, QUEUES, Broker, Lending, Peer, serving, stay_soon
from tests.unit.brokerd.sending.kernel_sends import BATCH, FIELDS, SINGLE, item, json_send
from tests.unit.brokerd.store.stores import draft, queue_contents

CLIENTS = 4
STEPS = 250
SEGMENT_BYTES = 1 << 20
TOPICS = ("T", "U", "V")
STORED = (*TOPICS, SCHEDULE_TOPIC, TIMER_TOPIC)
PROPERTIES = (
    *("{i}", "", "TAGS\x01x\x02", "{i}a\x01b\x02a\x01c", "{i}DELAY\x010\x02"),
    "UNIQ_KEY\x01k\x02WAIT\x01false",
)
Answer = tuple[int, int, str, bytes, str | None]


@pytest.fixture(autouse=True)
def _densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends stays at once, though the test is slow, and soon again; files are small."""
    stay_soon(monkeypatch)
    monkeypatch.setattr(connection, "_READS_AFTER_VAIN_OFFER", 0)
    monkeypatch.setattr(lending, "_USUAL", lending.Measures(least_bytes=1 << 14))
    monkeypatch.setattr(lending, "_COUNTED", 1 << 60)


class Client:
    """One with what he sends: all of it follows from the seed."""

    def __init__(self, peer: Peer, rng: Random) -> None:
        self.peer = peer
        self.rng = rng
        self.opaque = 0
        self.places: dict[str, int] = {}  # of single messages: what number is said to be in the log at a place

    def single(self, **changes: Any) -> bytes:
        rng = self.rng
        properties = rng.choice(PROPERTIES)
        fields = {
            **SINGLE,
            "b": rng.choice(TOPICS),
            "e": str(rng.choice((0, 0, 1, 2, 3))),
            "i": properties.replace("{i}", SINGLE["i"]),
            **changes,
        }
        self.opaque += 1
        body = b"%d " % self.opaque + rng.randbytes(rng.choice((0, 10, 100, 3000)))
        if rng.random() < 0.2:
            return encode_compact(Command(310, self.opaque, fields, body))
        return json_send(fields, body, self.opaque)

    def batch(self) -> bytes:
        items = [item(n, self.rng.randbytes(self.rng.randrange(1, 200))) for n in range(self.rng.choice((1, 5, 100)))]
        self.opaque += 1
        return json_send({**BATCH, "b": self.rng.choice(TOPICS)}, encode_batch_body(items), self.opaque, code=320)

    def odd(self) -> bytes:
        """What the thread leaves, mostly."""
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return self.single(e="-1")
            case 1:
                return self.single(
                    i=SINGLE["i"]
                    + rng.choice(("DELAY\x013\x02", "TIMER_DELIVER_MS\x011700003600000\x02", "DELAY\x0199\x02"))
                )
            case 2:
                return self.single(b="nowhere")
            case 3:
                return self.single(e="900")
            case 4:
                self.opaque += 1
                return json_send({**FIELDS, "b": "T", "i": SINGLE["i"]}, rng.randbytes(150_000), self.opaque)
            case _:
                self.opaque += 1
                return frame.encode_request(12345, self.opaque, {"a": "b"}, b"x" * rng.choice((0, 3000)))

    def oneway(self) -> bytes:
        opaque, self.opaque = self.opaque, -1
        found = json_send({**SINGLE, "b": self.rng.choice(TOPICS)}, b"one-way", -1, flag=2)
        self.opaque = opaque
        return found

    async def some(self) -> list[Answer]:
        """What is answered to a burst, which comes in pieces."""
        rng, before, requests = self.rng, self.opaque, []
        for _ in range(rng.choice((0, 0, 1, 9, 9, 200))):
            make = rng.choices((self.single, self.odd, self.oneway, self.batch), (90, 1, 4, 5))[0]
            requests.append(make())
        burst = b"".join((*requests, self.single()))  # the last one tells that all is done
        count = self.opaque - before
        cuts = sorted(rng.randrange(len(burst)) for _ in range(rng.choice((0, 0, 1, 3))))
        for begin, end in zip((0, *cuts), (*cuts, len(burst)), strict=True):
            self.peer.writer.write(burst[begin:end])
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
        answers = await self.peer.answers(count)
        stored = [each for each in answers if "queueOffset" in each.ext]
        self.places |= {
            each.ext["msgId"][-16:]: int(each.ext["queueOffset"]) for each in stored if "," not in each.ext["msgId"]
        }
        return sorted(map(told, answers))


NAMED_HERE = UniqueIds(NOW_MS).prefix


def told(answer: Command) -> Answer:
    """But for names that are given here, of which some may be passed over, and for places: others append when they have time."""
    ext = {name: value for name, value in answer.ext.items() if name != "msgId"}
    if ext.get("transactionId", "").startswith(NAMED_HERE):
        ext["transactionId"] = "named"
    return answer.opaque, answer.code, str(sorted(ext.items())), bytes(answer.body), answer.remark


def stored(record: Record) -> list[object]:
    """But for whom it is from, where it is, and checksums."""
    properties = decode_properties(record.properties)
    properties.pop("__CRC32#", None)
    if properties.get("UNIQ_KEY", "").startswith(NAMED_HERE):
        properties["UNIQ_KEY"] = "named"
    return [
        *(record.topic, record.queue_id, record.queue_offset, record.body, record.flag),
        *(record.store_timestamp_ms, properties),
    ]


class World:
    """A broker, its clients, and what else happens."""

    def __init__(self, broker: Broker, peers: list[Peer], seed: int) -> None:
        self.broker = broker
        self.rng = Random(seed)
        self.clients = [Client(peer, Random(f"{seed} {number}")) for number, peer in enumerate(peers)]

    async def happen(self) -> object:
        broker, rng = self.broker, self.rng
        topic = rng.choice(TOPICS)
        match rng.randrange(8):
            case 0:
                if topic != "T":
                    broker.delete_topic(topic)
                    if rng.random() < 0.7:
                        broker.topic(topic, queues=rng.choice((1, QUEUES)))
            case 1:
                broker.topic(topic, queues=QUEUES, perm=rng.choice((6, 6, 4)))
                if topic == "T":
                    broker.topic(topic)
            case 2:
                drafts = [draft(b"own", topic="T", queue_id=n % QUEUES) for n in range(5)]
                return [place.queue_offset for place in broker.store.append_messages(drafts)]
            case 3:
                return broker.next_offset(rng.randrange(QUEUES), topic)
            case 4:
                broker.store.set_full(True)
                found = await rng.choice(self.clients).some()
                broker.store.set_full(False)
                return found
            case 5:
                broker.store.mark_flushed(broker.store.sync())
            case 6:
                broker.carrier.finish_all()
            case _:
                return await self.read(topic)
        return None

    async def read(self, topic: str) -> object:
        """What a reader gets of what was just answered."""
        reader, queue_id = self.clients[-1].peer, self.rng.randrange(QUEUES)
        reader.opaque = 1 << 20
        reader.ask(codes.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
        answer = await reader.answer()
        if answer.code != codes.SUCCESS:
            return answer.code
        offset = max(0, int(answer.ext["offset"]) - 3)
        reader.pull(offset, queue_id, topic, maxMsgNums=32)
        found = await reader.answer()
        return answer.ext["offset"], found.code, found.ext.get("nextBeginOffset"), found.ext.get("maxOffset")


async def story(broker: Broker, seed: int) -> list[object]:
    """All that clients were answered, and what is stored in the end."""
    for topic in TOPICS[1:]:
        broker.topic(topic)
    world = World(broker, await broker.connected(CLIENTS), seed)
    found: list[object] = []
    for _ in range(STEPS):
        if world.rng.random() < 0.15:
            found.append(await world.happen())
        else:
            found.append(await world.rng.choice(world.clients).some())
    await broker.all_back()
    broker.store.settle()  # else the log may end behind what is known of it
    await broker.until(lambda: broker.store.dispatch_offset == broker.store.commitlog.end_offset)
    records = broker.records()
    numbers = {f"{record.physical_offset:016X}": record.queue_offset for record in records}
    for client in world.clients:
        assert client.places.items() <= numbers.items()
    found.append([stored(record) for record in records if record.topic in STORED])
    queues = queue_contents(broker.store).items()
    found.append({key: (first, len(units)) for key, (first, units) in queues if key[0] in STORED})
    counters = broker.core.counters
    found.append((counters.in_messages, counters.in_bytes, counters.refused))
    found.append([each._in_flight for each in broker.server.connections])
    return found


@pytest.mark.parametrize("waits_for_disk", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_what_is_sent_is_stored_and_answered_as_by_the_loop(
    seed: int, waits_for_disk: bool, tmp_path: Path
) -> None:
    async def ask(*, has_thread: bool) -> tuple[list[object], int]:
        carrier, directory = Lending(has_thread=has_thread), tmp_path / str(has_thread)
        async with serving(directory, carrier, segment_bytes=SEGMENT_BYTES, waits_for_disk=waits_for_disk) as broker:
            found = await story(broker, seed)
            return found, broker.taken

    got, many = asyncio.run(ask(has_thread=True))
    expected, none = asyncio.run(ask(has_thread=False))
    assert len(got) == len(expected)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one == other, number
    assert none == 0
    assert many > 50
