"""Some hundred light stories for every run, and mutants of the rules: the harness must find each."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerd.replication.epochs.epoch_file import MASTER_EPOCH_FILE
from remoting import codes
from tests.sim.cluster import SimCluster, Story
from tests.sim.coverage import missing
from tests.sim.faults import Injector
from tests.sim.light import HEALS, LIGHT_CHANGES, LIGHT_FAULTS, STEPS, LightStory, Watch, rot_bit
from tests.sim.mutants import DoesNotFit, Mutant
from tests.sim.registry import MUTANTS
from tests.sim.regressions import LIGHT, TIMERS, regressions
from tests.sim.shrink import shrink
from tests.sim.soak import LightCounts, tell_short_light
from tests.sim.timed_light import TimedLightStory
from tests.sim.world import Violation
from tests.unit.brokerd.replication.group import Group

_STORIES = 200
_TIMED_STORIES = 40
_ROTTEN_PAIR = 15  # a seed of two brokers, the second of which rots
_TRIED_ELSEWHERE = ("cleaned groups begin anew",)  # at length, by the tests of the controllers' rules


def test_every_promise_is_kept_whatever_comes_next() -> None:
    counts = LightCounts()
    for seed in range(_STORIES):
        counts.take(seed)
    assert not counts.failed
    for event in ("append", "flush", "deliver", "deliver_part", "dial", "process", "answer", "tick", "elect", "push"):
        assert counts.operations[event] >= _STORIES, counts.operations
    for fault in LIGHT_FAULTS:
        assert counts.faults[fault] >= _STORIES // 10, counts.faults
    assert counts.operations["refused"] >= _STORIES // 20, counts.operations
    assert counts.operations["start"] >= _STORIES // 10
    assert counts.operations["healed"] == _STORIES // HEALS
    assert counts.steps == STEPS * _STORIES
    # Each kind of fault came close to each change of role.
    assert not missing(counts.pairs, LIGHT_CHANGES, LIGHT_FAULTS, 1)


@pytest.mark.parametrize("seed", [seed for seed, mood in regressions() if mood == LIGHT])
def test_what_once_broke_holds(seed: int) -> None:
    LightStory(seed).run()


@pytest.mark.parametrize("seed", [seed for seed, mood in regressions() if mood == TIMERS])
def test_what_once_broke_of_timers_holds(seed: int) -> None:
    TimedLightStory(seed).run()


@pytest.mark.parametrize("differs", [False, True])
def test_logs_are_compared_by_the_newest_epochs_though_the_highest_one_is_unreadable(differs: bool) -> None:
    """Neither a damaged `masterEpochSeen` nor what it says is about which epoch wrote what."""
    group = Group(3)
    group.elect(2)
    group.append(group[2])
    group.settle_now()
    watch = Watch(group)
    watch.look()
    group.controller.elect(3)
    group.push(group[1])
    group.push(group[3])
    group.append(group[2])  # which has not heard of the election
    group.append(group[3])
    rot_bit(group[1].disk.files[MASTER_EPOCH_FILE], 0, 6)
    watch.look()
    group.settle_without_controllers()
    assert group[1].log.data == group[3].log.data != group[2].log.data
    if differs:
        group[1].log.data[-1] ^= 1
        with pytest.raises(AssertionError, match="b3 and b1 differ below 12"):
            watch.look()
    else:
        watch.look()


def test_a_delayed_request_puts_nobody_into_the_set_who_began_anew() -> None:
    """Its id is that of the directory that was moved away."""
    story = LightStory(_ROTTEN_PAIR)
    group = story.group
    watch = Watch(group)
    group.controller.elect(1)
    group.push_all()
    group.append(group[1])
    while not any(each.kind == "alter" for each in group.requests):
        group.settle_without_controllers()
        for each in [each for each in group.requests if each.kind != "alter"]:
            group.process(each)
        while group.answers:
            group.deliver(group.answers[0])
    (request,) = group.requests
    group.settle_without_controllers()
    assert len(group.acknowledged) == 1, "whoever is about to join has it, and is waited for"
    group.crash(group[2])
    assert story.rot()
    assert story.start()
    assert story.did["refused"] == 1
    watch.look()
    group.process(request)
    watch.look()
    assert group.controller.members == {1}
    assert group.answers[-1].code == codes.CONTROLLER_BROKER_NOT_ALIVE
    group.push_all()
    group.settle(40)
    watch.look()
    assert group.controller.members == {1, 3}
    assert group[3].log.data == group[1].log.data == group[2].log.data


def test_whoever_tells_an_older_epoch_is_not_believed() -> None:
    for seed in range(60):
        LightStory(seed, weights={"push_old": 6, "elect": 5}).run()


def test_the_others_can_do_without_one_that_stays_dead() -> None:
    for seed in range(40):
        LightStory(seed, weights={}, ends_without_one=True).run()


def test_each_timer_comes_once_whatever_becomes_of_its_masters() -> None:
    saw: Counter[str] = Counter()
    for seed in range(_TIMED_STORIES):
        story = TimedLightStory(seed)
        story.run()
        saw += story.saw
    for what in ("came", "rolled", "taken back", "overtook", "moved", "delivered again"):  # the last: of what was cut
        assert saw[what] >= _TIMED_STORIES // 10, saw


def test_a_seed_tells_the_same_light_story_again() -> None:
    traces = []
    for _ in range(2):
        story = LightStory(5)
        story.is_traced = True
        story.run()
        traces.append(story.trace)
    assert traces[0] == traces[1]
    assert len(traces[0]) >= STEPS


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.is_quick], ids=lambda each: each.name.replace(" ", "-")
)
def test_a_rule_that_loses_messages_is_found(mutant: Mutant) -> None:
    found = mutant.find()
    assert found is not None, f"{mutant.within} stories, and none broke a promise: {mutant.what}"


@pytest.mark.parametrize(
    "mutant",
    [each for each in MUTANTS if each.within == 1 and each.name not in _TRIED_ELSEWHERE],
    ids=lambda each: each.name.replace(" ", "-"),
)
def test_a_single_story_finds_nothing_when_no_rule_is_broken(mutant: Mutant) -> None:
    """One that breaks its promise anyhow would find every mutant."""
    mutant.tell(mutant.first)


def test_mutants_have_names_of_their_own() -> None:
    names = [each.name for each in MUTANTS]
    assert len(set(names)) == len(names) >= 40


def test_a_mutant_that_does_not_fit_is_not_taken_for_one_that_was_found() -> None:
    def tell(_seed: int) -> None:
        raise Violation("it lost everything") from TypeError("2 arguments, not 3")

    with pytest.raises(DoesNotFit):
        Mutant("out of date", "", "", (), tell).find()


def test_a_mutant_is_gone_when_it_was_left() -> None:
    mutant = next(each for each in MUTANTS if each.name == "one slot")
    found = mutant.find()
    assert found is not None
    mutant.tell(found[0])


def test_a_failing_story_can_be_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    def loses(self: Injector, rng: object) -> str:
        self._world.require(False, "a promise that a reset of connections breaks, 1 time")
        return ""

    monkeypatch.setattr(Injector, "_reset", loses)
    for seed in range(40):
        story = Story(seed, "network", fault_ms=800)
        cluster = SimCluster(story)
        kinds = [fault.kind for fault in cluster.injector.plan]
        if "reset" in kinds[1:]:
            break
    with pytest.raises(Violation) as violation:
        SimCluster(story).run()
    short = shrink(story, str(violation.value))
    kept = [fault.kind for fault in cluster.injector.plan if fault.index not in short.without_faults]
    assert kept == ["reset"]
    assert len(short.without_clients) >= 5


def test_a_failing_light_story_can_be_shrunk_and_read() -> None:
    mutant = next(each for each in MUTANTS if each.name == "nobody but itself")
    with mutant.entered():
        found = mutant.find()
        assert found is not None
        text = tell_short_light(*found)
    lines = text.splitlines()
    assert lines[0].startswith("BROKEN")
    assert "lacks Acknowledged" in lines[0]
    assert "VIOLATION" in lines[-1]
    assert len(lines) < STEPS // 3
