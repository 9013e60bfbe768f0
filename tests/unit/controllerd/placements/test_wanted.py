"""What is kept of differences while things change is what one look at all topics finds."""

from __future__ import annotations

import random
from collections.abc import Mapping

from controllerd.placements.compare import Told
from controllerd.placements.decide import decide
from controllerd.placements.records import apply
from controllerd.placements.requests import Abort, Prepare
from controllerd.placements.state import PlacementsState
from controllerd.placements.wanted import Wanted
from tests.support.placement_differences import differences

TOPICS = [f"t{number}" for number in range(15)]


def some_topics(rng: random.Random) -> dict[str, int]:
    return {topic: rng.randrange(3) for topic in TOPICS if rng.random() < 0.7}


def change_of(rng: random.Random, told: Told) -> Told:
    groups: dict[str, Mapping[str, int]] = dict(told.groups)
    members = set(told.members)
    there = told.are_all_there
    name = rng.choice("abc")
    match rng.randrange(5):
        case 0:
            groups[name] = some_topics(rng)
            members.add(name)
        case 1:
            groups.pop(name, None)
        case 2 if name in groups:
            groups[name] = {**groups[name], rng.choice(TOPICS): rng.randrange(3)}
        case 3:
            members ^= {name}
            groups = {each: topics for each, topics in groups.items() if each in members}
        case 4:
            there = not there
    return Told(groups, members, there)


def test_some_at_a_time_is_all_in_the_end() -> None:
    rng = random.Random(3)
    state, told, wanted = PlacementsState(), Told({}, set(), are_all_there=False), Wanted()
    looks = 0
    for now_ms in range(4000):
        if rng.random() < 0.1:
            told = change_of(rng, told)
            wanted.tell(told, state)
        present = list(wanted.requests.values())
        if present and rng.random() < 0.5:
            request = rng.choice(present)[0]
            for record in decide(state, request).records:
                state = apply(state, record)
                wanted.changed(record.topic)
        for topic, each in list(state.topics.items()):
            if each.proposed is not None and rng.random() < 0.1:
                asked = Abort(topic, each.proposed.version)
                answer = asked if rng.random() < 0.2 else Prepare(topic, asked.version, rng.choice("abc"))
                for record in decide(state, answer).records:
                    state = apply(state, record)
                    wanted.changed(record.topic)
        if rng.random() < 0.01:
            wanted.replaced(state)
        if rng.random() < 0.7:
            wanted.compare(state, now_ms, rng.randint(1, 4))
        if not wanted.is_due:
            looks += 1
            assert {topic: each for topic, (each, _) in wanted.requests.items()} == {
                each.topic: each for each in differences(state, told)
            }
    assert looks > 500


def test_since_when_a_request_is_wanted_stays() -> None:
    wanted, state = Wanted(), PlacementsState()
    wanted.tell(Told({"a": {"t": 4}}, {"a"}, are_all_there=True), state)
    wanted.compare(state, 5, 10)
    wanted.changed("t")
    wanted.compare(state, 9, 10)
    assert [since for _, since in wanted.requests.values()] == [5]
    wanted.tell(Told({"a": {"t": 3}}, {"a"}, are_all_there=True), state)
    wanted.compare(state, 12, 10)
    assert [since for _, since in wanted.requests.values()] == [12]


def test_what_may_have_changed_since_is_not_asked_for() -> None:
    state, wanted = PlacementsState(), Wanted()
    told = Told({"a": dict.fromkeys(TOPICS[:4], 2)}, {"a"}, are_all_there=True)
    wanted.tell(told, state)
    wanted.compare(state, 0, 10)
    assert [each.topic for each in wanted.settled(299, 300)] == []
    assert [each.topic for each in wanted.settled(300, 300)] == TOPICS[:4]
    wanted.tell(Told({"a": dict.fromkeys(TOPICS[2:4], 2)}, {"a"}, are_all_there=True), state)
    wanted.compare(state, 300, 1)
    assert [each.topic for each in wanted.settled(300, 300)] == TOPICS[2:4]
    wanted.compare(state, 300, 1)
    assert [each.topic for each in wanted.settled(300, 300)] == TOPICS[2:4]
