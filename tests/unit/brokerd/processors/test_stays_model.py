"""A broker whose clients stay with the carrier's thread beside one where nobody does: whatever clients ask, and whatever
happens to rules, roles, offsets and the log meanwhile, both say the same, and know the same offsets in the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from brokerd.consuming.read_place import PullSettings
from brokerd.processors.pulling.checks import FLAG_COMMIT, FLAG_SUBSCRIPTION, FLAG_SUSPEND
from remoting import codes, frame
from remoting.transport import taking
from tests.support.pulled_broker import PATIENT_S, QUEUES, Broker, Counted, Peer, serving, stay_for_long
from tests.support.pulls import pull_fields
from tests.support.turns import Turns
from tests.unit.brokerd.store.stores import dispatch_all, draft, put

MESSAGES = 300
CLIENTS = 3
TAGS = (*"xyxyxz", *"x" * 40, "rare")  # of the messages of a queue, in turn
WANTED = ("*", "*", "x", "x || y", "y || z", "rare || z", "nobody has it")
GROUPS = "g", "h"
Answer = tuple[int, int, str, bytes, str | None]


@pytest.fixture(autouse=True)
def _in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stays do not end by time, and begin though the test is slow, and soon again."""
    stay_for_long(monkeypatch)
    monkeypatch.setattr(taking, "_OFTEN", 1)
    monkeypatch.setattr(taking, "_LONG", 0)


class Client:
    """What one asks, and where he is."""

    def __init__(self, peer: Peer, turns: Turns, rng: Random, number: int) -> None:
        self.peer = peer
        self.turns = turns
        self.rng = rng
        self.number = number
        self.queue_id = rng.randrange(QUEUES)
        self.group = rng.choice(GROUPS)
        self.offset = rng.randrange(MESSAGES // 2)
        self.count = rng.choice((1, 3, 10, 32))
        self.code = rng.choice((codes.PULL_MESSAGE, codes.PULL_MESSAGE, codes.LITE_PULL_MESSAGE))
        self.flags = FLAG_SUBSCRIPTION | rng.choice((0, FLAG_COMMIT))
        self.tags = rng.choice(WANTED)
        self.opaque = 0
        # where he goes on in each of the other queues that he asks for in turn
        others = range((0, 1, QUEUES - 1)[number % 3])
        self.round = [((self.queue_id + 1 + other) % QUEUES, 20 * other) for other in others]
        if self.round:
            # so that what is seen of each queue is enough for several times, and they go on where an answer ends
            self.tags, self.count = "*", min(self.count, 3)

    def go_round(self) -> None:
        """Ask for the next queue from now on; now and then for another one."""
        if not self.round:
            return
        self.round.append((self.queue_id, self.offset))
        goes_on = self.rng.random() < 0.9
        self.queue_id, self.offset = self.round.pop(0 if goes_on else self.rng.randrange(len(self.round)))

    def frame(self, code: int, fields: dict[str, Any], body: bytes = b"", *, oneway: bool = False) -> bytes:
        self.opaque += not oneway
        texts = {name: str(value) for name, value in fields.items()}
        return frame.encode_request(code, self.opaque, texts, body, oneway=oneway)

    def pull(self, **changes: Any) -> bytes:
        """The next messages, or from elsewhere; what was committed goes up, or down, or beyond the end."""
        self.go_round()
        rng = self.rng
        if rng.random() < 0.02:
            self.offset = rng.choice((0, 5, MESSAGES - 1, MESSAGES, MESSAGES + 1, 9999, -1, rng.randrange(MESSAGES)))
        commit_offset = rng.choice((self.offset, self.offset, self.offset - 1, -1, 3, 5000))
        asked = {"consumerGroup": self.group, "queueId": self.queue_id, "sysFlag": self.flags, "maxMsgNums": self.count}
        asked["subscription"] = self.tags
        fields = pull_fields(self.offset, commitOffset=max(commit_offset, -1), **{**asked, **changes})
        self.offset = max(0, self.offset) + min(self.count, 3)
        return self.frame(self.code, fields)

    def other(self) -> bytes:
        """Something else on the same connection."""
        queue = {"consumerGroup": self.group, "topic": "t", "queueId": self.queue_id}
        match self.rng.randrange(7):
            case 0:
                return self.frame(codes.UPDATE_CONSUMER_OFFSET, {**queue, "commitOffset": self.rng.randrange(MESSAGES)})
            case 1:
                return self.frame(codes.GET_MAX_OFFSET, queue)
            case 2:
                return self.frame(12345, {}, b"x" * self.rng.choice((0, 3000)))
            case 3:
                return self.frame(codes.UNREGISTER_CLIENT, {"clientID": f"c{self.number}", "consumerGroup": self.group})
            case 4:
                return self.pull(maxMsgNums=self.rng.choice((2, 40)))
            case 5:
                return self.pull(queueId=self.rng.choice((0, 1, 900)))
            case _:
                return self.pull(topic=self.rng.choice(("t", "u")), subscription=self.rng.choice(("*", "x", "y")))

    def oneway(self) -> bytes:
        fields = pull_fields(self.offset, queueId=self.queue_id, sysFlag=FLAG_SUBSCRIPTION | FLAG_COMMIT)
        return self.frame(codes.PULL_MESSAGE, fields, oneway=True)

    async def answers(self, requests: list[bytes], count: int) -> list[Answer]:
        """To all of these, sent in pieces."""
        burst = b"".join(requests)
        cut = self.rng.randrange(len(burst)) if self.rng.random() < 0.3 else len(burst)
        for piece in filter(None, (burst[:cut], burst[cut:])):
            self.peer.writer.write(piece)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        answers = asyncio.ensure_future(self.peer.answers(count))
        while not answers.done():
            self.turns.run(10)  # who commits waits for a record of several
            await asyncio.sleep(0)
        found = await answers
        return sorted((each.opaque, each.code, str(each.ext), bytes(each.body), each.remark) for each in found)

    async def some(self) -> list[Answer]:
        """What is answered to a burst."""
        opaque, requests = self.opaque, []
        for _ in range(self.rng.choice((1, 2, 9, 9) if self.round else (1, 1, 1, 2, 9))):
            kind = self.rng.random()
            if 0.05 <= kind < 0.08:
                requests.append(self.oneway())  # before what is answered: when that is there, this was taken
            requests.append(self.other() if kind < 0.05 else self.pull())
        return await self.answers(requests, self.opaque - opaque) if self.opaque > opaque else []


class World:
    """A broker, its clients, and what happens. All of it follows from the seed, whoever answers."""

    def __init__(self, broker: Broker, peers: list[Peer], seed: int) -> None:
        self.broker, self.inner = broker, broker.inner
        self.rng = Random(seed)
        turns = broker.inner.turns
        self.clients = [Client(peer, turns, Random(f"{seed} {number}"), number) for number, peer in enumerate(peers)]
        self.is_damaged = False

    def settle(self) -> None:
        """What was told of offsets counts."""
        self.inner.pull.settle()
        self.inner.turns.run(100)

    def offsets(self) -> list[int | None]:
        self.settle()
        offset = self.inner.progress.consumer_offset
        return [offset(group, "t", queue_id) for group in GROUPS for queue_id in range(QUEUES)]

    def mend(self) -> None:
        """Whoever asks may pull again."""
        self.settle()
        self.inner.is_master = True
        self.inner.topic("t", queues=QUEUES)
        for group in GROUPS:
            self.inner.group(group)
            allowed = {"group": group, "topic": "t", "readable": "true"}
            self.inner.answer(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, allowed)

    def go_back(self, client: Client) -> None:
        """Who is where the queue has nothing goes on where it has, mostly."""
        low, high = (
            find("t", client.queue_id) for find in (self.broker.store.min_offset, self.broker.store.max_offset)
        )
        if not low <= client.offset < high and self.rng.random() < 0.7:
            client.offset = low + self.rng.randrange(max(1, (high - low) // 2))

    def happen(self) -> None:
        """Anything but what clients ask."""
        inner, rng = self.inner, self.rng
        group, queue_id = rng.choice(GROUPS), rng.randrange(QUEUES)
        match rng.randrange(13):
            case 0:
                inner.topic("t", queues=rng.choice((QUEUES, QUEUES, 2)), perm=rng.choice((6, 6, 6, 4, 2)))
            case 1:
                inner.group(group, consume_enable=rng.random() < 0.8)
            case 2:
                forbidden = {"group": group, "topic": "t", "readable": str(rng.random() < 0.8).lower()}
                inner.answer(codes.UPDATE_AND_GET_GROUP_FORBIDDEN, forbidden)
            case 3:
                inner.answer(codes.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
                inner.topic("t", queues=QUEUES)
            case 4:
                inner.answer(codes.DELETE_SUBSCRIPTIONGROUP, {"groupName": group, "cleanOffset": "true"})
                inner.group(group)
            case 5:
                reset = {"group": group, "topic": "t", "timestamp": 0, "isForce": "true"}
                inner.answer(codes.INVOKE_BROKER_TO_RESET_OFFSET, reset)
            case 6:
                inner.pull_settings.change(PullSettings(slave_read=rng.random() < 0.5))
            case 7:
                self.settle()  # a replica takes none
                inner.is_master = not inner.is_master or rng.random() < 0.8
                inner.is_master_known = True
                inner.pull.answer_all()
            case 8:
                self.settle()
                commit = {"consumerGroup": group, "topic": "t", "queueId": queue_id, "commitOffset": 7}
                inner.ask(codes.UPDATE_CONSUMER_OFFSET, commit)
            case 9:
                self.broker.carrier.finish_all()  # how far queues go may be as it was
                self.broker.fill(3)
            case 10:
                [(keep, _, _)] = self.broker.store.read_units("t", 0, self.broker.store.max_offset("t", 0) - 2, 1)
                self.broker.store.truncate(keep)
                put(self.broker.store, *(draft(rng.randbytes(500), topic="t", queue_id=queue_id) for _ in range(3)))
                dispatch_all(self.broker.store)
            case 11 if not self.is_damaged:
                self.is_damaged = True
                self.broker.damage(queue_id, rng.randrange(MESSAGES // 2, MESSAGES - 20))
            case 12 if len(self.broker.store.commitlog._segments) > 1 and rng.random() < 0.3:
                self.broker.store.mark_flushed(self.broker.store.sync())
                self.broker.store.commitlog.forget_oldest()()
                self.broker.carrier.finish_all()  # likewise where they begin

    async def hold(self, client: Client) -> list[Answer]:
        """A client waits, and is woken."""
        client.offset = self.broker.store.max_offset("t", client.queue_id)
        request = client.pull(sysFlag=FLAG_SUBSCRIPTION | FLAG_SUSPEND)
        answers = asyncio.ensure_future(client.answers([request], 1))
        async with asyncio.timeout(PATIENT_S):
            while not answers.done() and not self.inner.pull.waiting_count:
                await asyncio.sleep(0)
        self.broker.fill(1)
        self.inner.pull.wake("t", client.queue_id)
        self.inner.turns.run()
        return await answers


async def told(broker: Broker, seed: int) -> list[object]:
    """All that clients were answered, and what is known in the end."""
    world = World(broker, await broker.connected(CLIENTS), seed)
    broker.inner.group("h")
    broker.inner.topic("u", queues=QUEUES)
    found: list[object] = []
    for _ in range(300):
        client = world.rng.choice(world.clients)
        kind = world.rng.random()
        if kind < 0.1:
            world.happen()
        elif kind < 0.15:
            world.mend()
        elif kind < 0.17:
            found.append(await world.hold(client))
        else:
            found.append(await client.some())
            world.go_back(client)
        if world.rng.random() < 0.1:
            found.append(world.offsets())
    found.append(world.offsets())
    found.append([connection._in_flight for connection in broker.server.connections])
    if not world.is_damaged:  # what was to be given of that is counted before it is found out
        found.append((broker.inner.counters.out_messages, broker.inner.counters.missed))
    return found


@pytest.mark.parametrize("seed", range(14))
def test_whatever_happens_who_stays_gets_what_the_loop_would_give(seed: int, tmp_path: Path) -> None:
    async def ask(*, has_thread: bool) -> tuple[list[object], int]:
        directory = tmp_path / str(has_thread)
        async with serving(
            directory, Counted(has_thread=has_thread), messages=MESSAGES, body_bytes=400, tags=TAGS
        ) as broker:
            found = await told(broker, seed)
            return found, sum(each.answers for each in broker.carrier.stays)

    got, many = asyncio.run(ask(has_thread=True))
    expected, none = asyncio.run(ask(has_thread=False))
    assert len(got) == len(expected)
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one == other, number
    assert none == 0
    assert many > 10
