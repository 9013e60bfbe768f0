"""Recalling all that somebody chose: in pages, at a rate, stopped, gone on with by another task, and past a change of master."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from remoting import codes
from remoting.errors import ConnectionLost, RequestError
from remoting.facts.timers import Recall, RecallOutcome, RecallRequest, TimerItem, TimerPage, TimerStanding
from tasks import operations, timer_recalls
from tasks.changes import Change, ChangeFailed, GoOnLater, Stopped
from tasks.timer_recalls import ASK_AGAIN_S, WAIT_FOR_S, WORK_FOR_S, recall
from tests.unit.tasks.fake_redis import FakeRedis
from webapp.operations import progress
from webapp.operations.models import Operation


class TimerAdmin:
    """Broker groups with timers; a page has three of them. `errors` are raised one after the other, before anything is done."""

    def __init__(self, **timers: int) -> None:
        self.items = {group: [item(number) for number in range(count)] for group, count in timers.items()}
        self.recalled: list[tuple[str, int, str]] = []
        self.delivered: set[int] = set()
        self.errors: list[Exception] = []
        self.unknown: set[int] = set()
        self.missed = 0  # of the tier, at the end

    def masters(self) -> dict[str, str]:
        return dict.fromkeys(self.items, "127.0.0.1:1")

    def find_timers(
        self, group: str, *, after: str = "", count: int = 100, key: str = "", topic: str = "", **_: Any
    ) -> TimerPage:
        if self.errors:
            raise self.errors.pop(0)
        gone = {place for name, place, _ in self.recalled if name == group}
        begin = int(after) if after else 0
        items = [each for each in self.items[group] if each.offset >= begin and each.place not in gone]
        if key:
            items = [each for each in self.items[group] if each.unique_key == key]
        shown = items[: min(3, count)]
        following = str(shown[-1].offset + 1) if len(items) > len(shown) else None
        if following is None and self.missed:
            unread = {"unread_in_tier": self.missed, "problem": "no answer"}
            return TimerPage(items=tuple(shown), looked=len(shown), **unread)  # type: ignore[arg-type]
        return TimerPage(items=tuple(shown), next=following, looked=len(shown))

    def recall_timers(self, group: str, timers: Sequence[RecallRequest], by: str) -> Sequence[Recall]:
        found = []
        for each in timers:
            outcome = RecallOutcome.RECALLED
            if each.place in self.delivered:
                outcome = RecallOutcome.DELIVERED
            elif each.place in self.unknown:
                outcome = RecallOutcome.UNKNOWN
            else:
                self.recalled.append((group, each.place, by))
            found.append(Recall(place=each.place, outcome=outcome, detail="too slow" if outcome == "unknown" else ""))
        return found


def item(number: int, standing: TimerStanding = TimerStanding.WAITING) -> TimerItem:
    return TimerItem(
        offset=number,
        place=number,
        standing=standing,
        topic="orders",
        queue_id=0,
        unique_key=f"K{number}",
        due_ms=1000 + number,
        stored_ms=1,
        born_ms=1,
        size=9,
    )


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


class Asked:
    """A change that is asked for, and what is stored of it."""

    def __init__(self, client: TimerAdmin, stored: Any = None, **parameters: Any) -> None:
        self.clock, self.places, self.texts, self.nodes = Clock(), [], [], {}
        self.stops_after: int | None = None
        chosen = {"topic": "orders", "rate": 500, "recalled_by": "ann", **parameters}
        self.change = Change(
            client,  # type: ignore[arg-type]
            chosen,
            lambda node, outcome, detail: self.nodes.__setitem__(node, (str(outcome), detail)),
            lambda done, total, text: None,
            now_s=lambda: self.clock.now_s,
            pause=self.clock.pause,
            place=stored,
            tell_place=self.tell,
        )

    def tell(self, done: int, total: int | None, text: str, place: Any) -> bool:
        self.places.append(place)
        self.texts.append((done, total, text))
        return self.stops_after is not None and done >= self.stops_after


def test_all_that_were_chosen_are_recalled_in_every_broker_group() -> None:
    admin = TimerAdmin(a=7, b=2)
    asked = Asked(admin, expected=9)
    assert recall(asked.change) == {"outcomes": {"recalled": 9}, "sentence": "9 recalled."}
    assert {(group, by) for group, _, by in admin.recalled} == {("a", "ann"), ("b", "ann")}
    assert asked.nodes == {"a": ("CONFIRMED", "7 recalled"), "b": ("CONFIRMED", "2 recalled")}
    assert asked.texts[-1] == (9, 9, "9 recalled")


def test_what_was_delivered_meanwhile_is_told_apart() -> None:
    admin = TimerAdmin(a=4)
    admin.delivered = {1, 2}
    outcomes = {"recalled": 2, "delivered": 2}
    assert recall(Asked(admin).change) == {"outcomes": outcomes, "sentence": "2 recalled, 2 delivered already."}


def test_the_rate_is_kept() -> None:
    asked = Asked(TimerAdmin(a=9), rate=3)
    recall(asked.change)
    assert asked.clock.now_s == pytest.approx(2.0)  # nobody waits behind the last page


def test_a_long_one_gives_others_their_turn_and_goes_on_at_its_place() -> None:
    admin = TimerAdmin(a=200)
    first = Asked(admin, rate=3)
    with pytest.raises(GoOnLater):
        recall(first.change)
    assert first.clock.now_s >= WORK_FOR_S
    done = len(admin.recalled)
    assert 0 < done < 200
    assert recall(Asked(admin, stored=first.places[-1], rate=100_000).change)["outcomes"] == {"recalled": 200}
    assert len({place for _, place, _ in admin.recalled}) == 200


def test_a_stop_ends_it_behind_a_page() -> None:
    admin = TimerAdmin(a=50)
    asked = Asked(admin)
    asked.stops_after = 5
    with pytest.raises(Stopped) as stopped:
        recall(asked.change)
    sentence = "Stopped when it had come to this: 6 recalled."
    assert stopped.value.result == {"outcomes": {"recalled": 6}, "sentence": sentence}
    assert len(admin.recalled) == 6


@pytest.mark.parametrize(
    "error", [ConnectionLost("gone"), RequestError(codes.SERVICE_NOT_AVAILABLE, "no master at the moment")]
)
def test_a_change_of_master_is_waited_for(error: Exception) -> None:
    admin = TimerAdmin(a=4)
    admin.errors = [error, error]
    asked = Asked(admin)
    assert recall(asked.change)["outcomes"] == {"recalled": 4}
    assert asked.clock.pauses[:2] == [ASK_AGAIN_S] * 2


def test_a_broker_group_that_stays_away_ends_it_with_what_was_done() -> None:
    admin = TimerAdmin(a=2, b=2)
    asked = Asked(admin)
    find = admin.find_timers

    def silent(group: str, **wanted: Any) -> TimerPage:
        if group == "b":
            raise ConnectionLost("nobody answers")
        return find(group, **wanted)

    admin.find_timers = silent  # type: ignore[method-assign]
    with pytest.raises(ChangeFailed, match="So far 2 recalled") as failed:
        recall(asked.change)
    assert failed.value.code == "recall-incomplete"
    assert sum(asked.clock.pauses) >= WAIT_FOR_S
    assert asked.nodes["b"][0] == "UNKNOWN"


def test_a_refusal_ends_it_at_once() -> None:
    admin = TimerAdmin(a=2)
    admin.errors = [RequestError(codes.INVALID_PARAMETER, "no such field")]
    with pytest.raises(ChangeFailed, match="no such field"):
        recall(Asked(admin).change)


def test_what_the_tier_does_not_give_leaves_it_open() -> None:
    admin = TimerAdmin(a=4)
    admin.missed = 7
    asked = Asked(admin)
    with pytest.raises(
        ChangeFailed, match=r"4 recalled\. Up to 7 more may wait in the object store.*: no answer"
    ) as failed:
        recall(asked.change)
    assert failed.value.code == "recall-incomplete"
    assert len(admin.recalled) == 4


def test_what_is_not_known_to_hold_fails_it() -> None:
    admin = TimerAdmin(a=3)
    admin.unknown = {1}
    asked = Asked(admin)
    with pytest.raises(ChangeFailed, match="Of 1 it is not known"):
        recall(asked.change)
    assert asked.nodes["a"] == ("UNKNOWN", "2 recalled, 1 not known: too slow")


def test_without_a_master_nothing_is_claimed() -> None:
    with pytest.raises(ChangeFailed, match="No broker group has a master"):
        recall(Asked(TimerAdmin()).change)


def test_one_by_its_place_is_asked_for_though_it_is_over() -> None:
    admin = TimerAdmin(a=1)
    admin.items["a"] = [item(4, TimerStanding.OVER)]
    admin.delivered = {4}
    assert recall(Asked(admin, group="a", key="K4", place=4).change)["outcomes"] == {"delivered": 1}
    assert recall(Asked(admin, group="a", key="K4", place=5).change) == {"outcomes": {}, "sentence": "None found."}


# ---- as an operation


@pytest.fixture
def made(db: None, redis: FakeRedis) -> Operation:
    parameters = {"topic": "orders", "rate": 3, "recalled_by": "ann"}
    return Operation.objects.create(
        kind="timer.recall", target="orders", parameters=parameters, requested_by_name="ann"
    )


def test_a_stopped_operation_says_what_it_made(made: Operation) -> None:
    progress.start(made.pk)
    progress.request_cancel(made.pk)
    assert operations.carry_out(str(made.pk), TimerAdmin(a=9))  # type: ignore[arg-type]
    made.refresh_from_db()
    sentence = "Stopped when it had come to this: 3 recalled."
    assert (made.state, made.result) == ("cancelled", {"outcomes": {"recalled": 3}, "sentence": sentence})


def test_an_operation_is_queued_again_until_it_is_done(made: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = TimerAdmin(a=7)
    monkeypatch.setattr(timer_recalls, "WORK_FOR_S", 0.0)
    monkeypatch.setattr(operations, "AdminClient", lambda controllers: admin)
    queued: list[str] = []
    monkeypatch.setattr(operations.run, "delay", queued.append)
    made.parameters = {**made.parameters, "rate": 10_000}
    made.save()
    rounds = 0
    queued.append(str(made.pk))
    while queued:
        operations.run(queued.pop())
        rounds += 1
    made.refresh_from_db()
    assert made.result is not None
    assert (made.state, made.result["outcomes"], rounds) == ("succeeded", {"recalled": 7}, 3)


def test_another_worker_goes_on_where_one_was_killed(made: Operation) -> None:
    admin = TimerAdmin(a=7)
    progress.start(made.pk)
    progress.report(
        made.pk, done=3, text="3 recalled", place={"groups": ["a"], "after": "3", "counts": {"a": {"recalled": 3}}}
    )
    admin.recalled = [("a", number, "ann") for number in range(3)]
    made.parameters = {**made.parameters, "rate": 10_000}
    made.save(update_fields=["parameters"])
    assert operations.carry_out(str(made.pk), admin)  # type: ignore[arg-type]
    made.refresh_from_db()
    assert (made.state, made.result) == ("succeeded", {"outcomes": {"recalled": 7}, "sentence": "7 recalled."})
