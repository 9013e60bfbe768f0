"""Retiring a broker group: closed first, then drained, uploaded and kept; stopped, it is as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from remoting.client.blocking import NodeOutcome
from remoting.errors import ConnectionLost
from remoting.facts.broker_state import BrokerState, TimerState, TopicState, TransactionState
from remoting.facts.tier_state import TierState
from remoting.facts.words import BrokerRole, Outcome, TierCondition
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped
from tasks.retiring import retire


class Group:
    """A broker group; each look at it is a moment later; `script` says what is left: timers, transactions, not uploaded."""

    def __init__(self, *script: tuple[int, int, int]) -> None:
        self.script = list(script)
        self.perms = {"Orders": 6, "Late": 2, "Read": 4, "%RETRY%readers": 6, "rmq_sys_x": 6}
        self.rounds, self.epoch, self.looks = 7, 3, 0
        self.has_tier, self.condition = True, TierCondition.OPEN
        self.silent_looks = 0
        self.refusal = ""
        self.closed_at: int | None = None

    def masters(self) -> dict[str, str]:
        self.looks += 1
        if self.silent_looks:
            self.silent_looks -= 1
            return {}
        return {"a": "127.0.0.1:1"}

    def broker_state(self, address: str) -> BrokerState:
        timers, transactions, waiting = self.script.pop(0) if self.script else (0, 0, 0)
        self.rounds += 1
        tier = TierState(url="memory:///", condition=self.condition, waiting_messages=waiting, state_rounds=self.rounds)
        return BrokerState(
            cluster_name="c",
            broker_name="a",
            broker_id=1,
            role=BrokerRole.MASTER,
            master_epoch=self.epoch,
            topics=tuple(
                TopicState(name=name, perm=perm, system=name.startswith("rmq_sys")) for name, perm in self.perms.items()
            ),
            timers=TimerState(waiting=timers),
            transactions=TransactionState(open=transactions),
            tier=tier if self.has_tier else None,
        )

    def put_permissions(self, group: str, perms: Mapping[str, int]) -> list[NodeOutcome]:
        if self.refusal:
            return [NodeOutcome(group, Outcome.REFUSED, self.refusal)]
        self.closed_at = self.looks
        self.perms |= perms
        return [NodeOutcome(group, Outcome.CONFIRMED)]


class Asked:
    def __init__(self, group: Group, place: Any = None, stops: Callable[[str], bool] = lambda text: False) -> None:
        self.now_s, self.places, self.texts = 0.0, [], []
        self.stops = stops
        self.change = Change(
            group,  # type: ignore[arg-type]
            {"cluster": "c", "group": "a"},
            lambda node, outcome, detail: None,
            lambda done, total, text: None,
            now_s=lambda: self.now_s,
            pause=self.pause,
            place=place,
            tell_place=self.tell,
        )

    def pause(self, seconds: float) -> None:
        self.now_s += seconds

    def tell(self, done: int, total: int | None, text: str, place: Any) -> bool:
        self.places.append(place)
        self.texts.append(text)
        return self.stops(text)


def test_producers_are_kept_out_and_everything_else_is_waited_for() -> None:
    group = Group((5, 2, 9), (5, 1, 9), (0, 0, 4))
    asked = Asked(group)
    result = retire(asked.change)
    assert result["closed"] == ["Late", "Orders"]
    assert group.perms == {"Orders": 4, "Late": 0, "Read": 4, "%RETRY%readers": 6, "rmq_sys_x": 6}
    assert group.closed_at == 1
    assert asked.places[0]["closed"] == {"Orders": 6, "Late": 2}  # known before anything is changed
    assert "waiting for 5 waiting for a time, 2 in open transactions, 9 not uploaded" in asked.texts
    assert "waiting for 4 not uploaded" in asked.texts
    assert "`manage.py group down a`); `manage.py group mount a` serves" in result["sentence"]


def test_the_last_state_is_written_after_the_last_message() -> None:
    group = Group()
    retire(Asked(group).change)
    assert group.looks == 3  # a round that ended may have begun before


def test_rounds_of_another_master_do_not_count() -> None:
    group = Group()
    asked = Asked(group, place={"closed": {}, "settled": [2, 0]})
    retire(asked.change)
    assert group.looks == 3


def test_a_stop_gives_the_topics_back() -> None:
    group = Group(*[(1, 0, 0)] * 9)
    before = dict(group.perms)
    with pytest.raises(Stopped) as stopped:
        retire(Asked(group, stops=lambda text: text.startswith("waiting")).change)
    assert group.perms == before
    assert stopped.value.result["opened"] == ["Late", "Orders"]


def test_a_long_one_gives_others_their_turn_and_knows_what_to_give_back() -> None:
    group = Group(*[(1, 0, 0)] * 99)
    first = Asked(group)
    with pytest.raises(GoOnLater):
        retire(first.change)
    with pytest.raises(Stopped) as stopped:
        retire(Asked(group, place=first.places[-1], stops=lambda text: True).change)
    assert stopped.value.result["opened"] == ["Late", "Orders"]


def test_a_change_of_master_is_waited_for_and_silence_is_not_for_ever() -> None:
    group = Group()
    group.silent_looks = 3
    retire(Asked(group).change)
    group = Group()
    group.silent_looks = 1000
    with pytest.raises(ChangeFailed, match="has no master") as failed:
        retire(Asked(group).change)
    assert isinstance(failed.value.__cause__, ConnectionLost)


def test_what_waiting_would_not_help_is_said() -> None:
    group = Group()
    group.has_tier = False
    with pytest.raises(ChangeFailed, match="has no tier"):
        retire(Asked(group).change)
    group = Group()
    group.condition = TierCondition.FENCED
    with pytest.raises(ChangeFailed, match="does not upload"):
        retire(Asked(group).change)
    group = Group()
    group.refusal = "no"
    with pytest.raises(ChangeFailed, match="does not change its topics"):
        retire(Asked(group).change)
