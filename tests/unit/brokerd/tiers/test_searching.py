"""A query of a key reads one range of each object that may know it, and of the others nothing; many objects side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from brokerd.store.index.hashing import key_hash
from brokerd.store.index.search import Question
from brokerd.tiers.index import searching
from brokerd.tiers.index.keys import PlainKeys
from brokerd.tiers.index.searching import ColdIndex
from brokerd.tiers.objects.interface import NotThere, Unknown
from remoting.errors import LogboomError, RequestError
from remoting.record.codec import encode_record
from remoting.tier.contents import Queue, TierContents, indexed, unindexed
from remoting.tier.index import ITEM, IndexObject, describe, encode_index, mixed
from tests.support.tiers import Steps
from tests.support.turns import Turns

HOST = b"\x7f\0\0\x01\0\0\x2a\x9f"
EVER = 1 << 60
Answer = tuple[Sequence[bytes] | LogboomError, bool]


class World:
    """An index of objects, the newest last. Message n of queue 0 has the keys kn and all, and was stored at n ms."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.turns = Turns()
        self.steps = Steps(self.turns)
        self.contents = TierContents()
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.asking = self.most_asking = 0
        self.slow_s: Callable[[str], float] = lambda _: slow_s
        them: Any = self
        self.index = ColdIndex(them, lambda: self.contents, them, self.steps.loop())

    def add(self, number: int, offsets: range, *keys: str) -> IndexObject:
        """An object with a key of each message, and with these."""
        named = [(f"k{each}", each) for each in offsets] + [(key, each) for key in keys for each in offsets]
        items = b"".join(ITEM.pack(mixed(key_hash("T", key)), 0, each, each) for key, each in named)
        content = encode_index(*PlainKeys().sorted(items))
        entry = describe(content, 1, number)
        self.objects[entry.name] = content
        self.contents.apply(indexed(entry))
        return entry

    def many(self, count: int) -> list[IndexObject]:
        return [self.add(number, range(number * 10, number * 10 + 10), "all") for number in range(count)]

    async def get(self, name: str, start: int, length: int) -> bytes:
        self.asked.append((name, length))
        self.asking += 1
        self.most_asking = max(self.most_asking, self.asking)
        await self.steps.pause(self.slow_s(name))
        self.asking -= 1
        if name not in self.objects:
            raise NotThere(name)
        return self.objects[name][start : start + length]

    async def fetched_record(self, queue: Queue, queue_offset: int) -> bytes | None:
        numbers = {"queue_id": 0, "queue_offset": queue_offset, "physical_offset": 0, "born_timestamp_ms": 0}
        key = f"KEYS\x01k{queue_offset} all\x02".encode()
        hosts: dict[str, Any] = {"born_host": HOST, "store_host": HOST}
        return encode_record(topic=b"T", body=b"", properties=key, store_timestamp_ms=queue_offset, **numbers, **hosts)

    def find(self, key: str, most: int = 64, begin_ms: int = 0, end_ms: int = EVER) -> list[Answer]:
        """What it will be answered."""
        answers: list[Answer] = []
        self.index.find(Question("T", key, most, begin_ms, end_ms), (), lambda *answer: answers.append(answer))
        return answers

    def found(self, key: str, most: int = 64, begin_ms: int = 0, end_ms: int = EVER) -> int:
        """So many, when everything was looked at."""
        answers = self.find(key, most, begin_ms, end_ms)
        self.turns.run(60_000)
        ((records, is_complete),) = answers
        assert is_complete
        assert not isinstance(records, LogboomError)
        return len(records)


def test_one_request_for_each_object() -> None:
    world = World()
    for number in range(3):
        world.add(number, range(number * 20_000, (number + 1) * 20_000))
    assert world.found("k25000") == 1
    assert len({name for name, _ in world.asked}) == len(world.asked) == 3
    assert sum(length for _, length in world.asked) * 10 < sum(map(len, world.objects.values()))
    world.asked.clear()
    assert world.found("k25000", begin_ms=21_000, end_ms=39_000) == 1
    assert len(world.asked) == 1
    assert world.found("k25000", end_ms=10) == 0


def test_nothing_is_found_where_nothing_is() -> None:
    assert World().found("k1") == 0


def test_many_objects_take_as_long_as_some_requests() -> None:
    world = World(slow_s=0.03)
    world.many(300)
    answers = world.find("k7")
    world.turns.run(1000)
    ((records, is_complete),) = answers
    assert (len(records), is_complete) == (1, True)
    assert len(world.asked) == 300
    assert world.most_asking == searching._SIDE_BY_SIDE


def test_a_common_key_is_found_in_the_newest_objects_and_the_others_are_not_asked() -> None:
    world = World(slow_s=0.03)
    entries = world.many(300)
    assert world.found("all", most=15) == 15
    assert {name for name, _ in world.asked} == {entry.name for entry in entries[-3:]}, (
        "two, and one that was on its way"
    )


def test_who_asked_is_answered_before_he_gives_up() -> None:
    world = World(slow_s=1.0)
    world.many(300)
    answers = world.find("k7")
    world.turns.run(9000)
    assert not answers
    world.turns.run(2500)
    assert answers == [([], False)]
    asked = len(world.asked)
    world.turns.run(60_000)
    assert (len(world.asked), len(answers)) == (asked, 1), "and nothing goes on behind that"


@pytest.mark.parametrize("hangs", ["the index", "a message"])
def test_a_store_that_hangs_keeps_nobody_waiting_and_what_was_found_is_given(hangs: str) -> None:
    world = World(slow_s=1000.0 if hangs == "the index" else 0.0)
    world.many(8)
    fetched = world.fetched_record

    async def fetched_record(queue: Queue, queue_offset: int) -> bytes | None:
        await world.steps.pause(3.0)
        return await fetched(queue, queue_offset)

    world.fetched_record = fetched_record
    answers = world.find("all")
    world.turns.run(9900)
    assert not answers
    world.turns.run(200)
    ((records, is_complete),) = answers
    assert (len(records), is_complete) == (3 if hangs == "a message" else 0, False)
    world.turns.run(2_000_000)
    assert (len(answers), world.index.asking) == (1, 0)


@pytest.mark.parametrize("first", ["the newest", "the oldest"])
def test_whichever_object_comes_first_the_newest_messages_are_given(first: str) -> None:
    world = World()
    entries = world.many(40)
    slow = {entry.name: number for number, entry in enumerate(entries)}
    world.slow_s = lambda name: (slow[name] if first == "the oldest" else 40 - slow[name]) / 100
    answers = world.find("all", most=35)
    world.turns.run(60_000)
    ((records, is_complete),) = answers
    assert is_complete
    assert not isinstance(records, LogboomError)
    assert [int.from_bytes(record[20:28], "big") for record in records] == list(range(365, 400))


def test_many_questions_together_ask_for_so_many_objects_at_a_time() -> None:
    world = World(slow_s=0.03)
    world.many(100)
    answers = [world.find(f"k{number}") for number in range(50)]
    world.turns.run(9000)
    assert [len(records) for ((records, _),) in answers] == [1] * 50
    assert searching._MOST_ASKED <= world.most_asking <= searching._MOST_ASKED + 50
    assert world.index.asking == 0


def test_an_object_that_is_damaged_or_missing_fails_who_needs_it_and_nobody_else() -> None:
    world = World(slow_s=0.03)
    entries = world.many(8)
    name = entries[0].name
    world.objects[name] = world.objects[name][:-6] + b"!" + world.objects[name][-5:]
    assert world.found("all", most=55) == 55, "that was asked for, and not looked at"
    assert world.found("all", most=60) == 60, "it is asked for, and not needed"
    for lost in (False, True):
        if lost:
            del world.objects[name]
        answers = world.find("k7")
        world.turns.run(5000)
        ((error, is_complete),) = answers
        assert isinstance(error, RequestError)
        assert not is_complete
    world.contents.apply(unindexed([entries[0]]))
    assert world.found("k17") == 1, "what the contents do not name any more is not missed"


def test_an_object_that_goes_while_it_is_asked_for_is_not_missed() -> None:
    world = World(slow_s=0.03)
    entries = world.many(8)
    answers = world.find("k77")
    del world.objects[entries[0].name]
    world.contents.apply(unindexed([entries[0]]))
    world.turns.run(5000)
    ((records, is_complete),) = answers
    assert (len(records), is_complete) == (1, True)


def test_what_the_store_does_not_say_is_told() -> None:
    world = World()
    world.many(3)

    async def fail(*_: object) -> bytes:
        raise Unknown("nobody knows")

    world.get = fail
    answers = world.find("k7")
    world.turns.run(5000)
    ((error, is_complete),) = answers
    assert "nobody knows" in str(error)
    assert not is_complete
