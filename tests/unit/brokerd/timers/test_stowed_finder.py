"""Finding timers that wait in the tier: by time and topic, by key, page by page while they move, and by a dead store."""

from __future__ import annotations

import re

import pytest

from brokerd.timers import stowed_search
from brokerd.timers.finder import LookedIn, Question, TimerFinder
from brokerd.timers.finder_places import Part, Place, read_token
from brokerd.timers.interface import Recalled
from brokerd.timers.stowed_search import StowedPlace
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.facts.timers import RecallOutcome, TimerItem, TimerPage, TimerStanding
from remoting.tier import stowed
from tests.unit.brokerd.timers.test_stowing import DAY_MS, HOUR_MS, Tiered

NEVER_MS = 1 << 53


class Searched(Tiered):
    @property
    def finder(self) -> TimerFinder:
        if not hasattr(self, "_finder"):
            service = self.service
            self._finder = TimerFinder(
                self.log,
                LookedIn(None, service.stowed),
                service.table,
                lambda: service.least_window_ms,
                service.now_ms,
                self.turns,
            )
        return self._finder

    def page(self, after: str = "", wait_ms: int = 6000, **asked: object) -> TimerPage:
        question = Question("", 0, NEVER_MS, read_token(after), 10)._replace(**asked)  # type: ignore[arg-type]
        answers: list[TimerPage | LogboomError] = []
        self.finder.find(question, answers.append)
        for _ in range(wait_ms):
            if answers:
                break
            self.turns.run(1)
        (page,) = answers
        assert isinstance(page, TimerPage), page
        return page

    def pages(self, **asked: object) -> list[TimerPage]:
        found = [self.page(**asked)]
        while (token := found[-1].next) is not None:
            found.append(self.page(token, **asked))
            assert len(found) < 500
        return found

    def by_key(self, key: str, **more: object) -> TimerPage:
        return self.page(place=Place(Part.TIER), key=key, **more)


def items_of(pages: list[TimerPage]) -> list[TimerItem]:
    return [item for page in pages for item in page.items]


def keys_of(pages: list[TimerPage]) -> list[str]:
    return [item.unique_key for item in items_of(pages)]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stowed, "_LEAST_BLOCK_BYTES", 1)
    monkeypatch.setattr(stowed, "_BLOCK_BYTES", 1200)


@pytest.fixture
def broker(small_blocks: None) -> Searched:
    """Two objects of forty timers, an hour between any two of them, and three that are near."""
    broker = Searched()
    for half in range(2):
        for number in range(40):
            broker.put_in(f"f{half}{number:02}", DAY_MS + number * HOUR_MS + half)
        broker.let_all_go()
    for number in range(3):
        broker.put_in(f"n{number}", 2 * HOUR_MS + number)
    assert (broker.service.state().tier_objects, broker.service.state().in_tier) == (2, 80)
    return broker


def test_all_pages_together_have_each_once(broker: Searched) -> None:
    pages = broker.pages()
    far = [f"f{half}{number:02}" for half in range(2) for number in range(40)]
    assert keys_of(pages) == ["n0", "n1", "n2", *far]
    assert [item.is_in_tier for item in items_of(pages)] == [False] * 3 + [True] * 80
    assert all(item.standing is TimerStanding.WAITING for item in items_of(pages))
    assert all(len(page.items) == 10 for page in pages[:-1])
    assert sum(page.unread_in_tier for page in pages) == 0


def test_a_range_of_time_reads_its_blocks_alone(broker: Searched) -> None:
    now_ms = broker.service.now_ms()
    first_ms = min(each.due_ms for each in broker.service.table.objects.values())
    sizes: list[int] = []
    get = broker.objects.get

    async def counted(name: str, start: int, length: int) -> bytes:
        sizes.append(length)
        return await get(name, start, length)

    broker.objects.get = counted  # type: ignore[method-assign]
    pages = broker.pages(from_ms=first_ms + 20 * HOUR_MS, to_ms=first_ms + 22 * HOUR_MS)
    assert sorted(keys_of(pages)) == ["f020", "f021", "f120", "f121"]
    assert len(sizes) == 4, "the head of each object, and a range"
    assert sum(sizes) < sum(map(len, broker.stored.objects.values())) // 3
    sizes.clear()
    assert keys_of(broker.pages(to_ms=now_ms + 3 * HOUR_MS)) == ["n0", "n1", "n2"]
    assert sizes == [], "what is due later than the range is not asked for"
    assert keys_of(broker.pages(topic="another")) == []


def test_by_key_in_every_standing(broker: Searched) -> None:
    (item,) = broker.by_key("f117").items
    assert (item.unique_key, item.is_in_tier, item.standing) == ("f117", True, TimerStanding.WAITING)
    recalled = Recalled(item.topic, item.unique_key, item.place, item.due_ms)
    assert broker.service.standing(recalled) is RecallOutcome.RECALLED
    assert broker.recall(recalled) is None
    (item,) = broker.by_key("f117").items
    assert item.standing is TimerStanding.RECALLED
    assert "f117" not in keys_of(broker.pages())
    assert broker.by_key("none").items == ()
    assert broker.by_key("f117", topic="another").items == ()


def test_the_keys_of_a_message_find_it_too(small_blocks: None) -> None:
    broker = Searched()
    broker.put("k", broker.service.now_ms() + DAY_MS, KEYS="order-7 customer-9")
    broker.put("j", broker.service.now_ms() + DAY_MS, KEYS="order-8 customer-9")
    broker.let_all_go()
    assert [each.unique_key for each in broker.by_key("order-7").items] == ["k"]
    assert [each.unique_key for each in broker.by_key("customer-9").items] == ["k", "j"]
    page = broker.by_key("customer-9", most=1)
    assert ([each.unique_key for each in page.items], page.next is None) == (["k"], False)
    assert keys_of(broker.pages(place=read_token(page.next or ""), key="customer-9")[:1]) == ["j"]


@pytest.mark.parametrize("part", ["the log", "the tier"])
def test_what_moves_while_pages_are_asked_for_is_come_to(broker: Searched, part: str) -> None:
    found: list[TimerPage] = [broker.page(most=2 if part == "the log" else 4)]
    for number in range(5):
        broker.put_in(f"late{number}", 5 * DAY_MS + number)
    if part == "the log":
        broker.let_all_go()  # what it has not come to in the log goes to the tier
    else:
        broker.pass_ms(30 * HOUR_MS)  # and what it has not come to in the tier comes back
        assert 0 < broker.service.state().in_tier < 80
    while (token := found[-1].next) is not None:
        found.append(broker.page(token, most=4))
    delivered = set(broker.delivered)
    waiting = {f"f{half}{number:02}" for half in range(2) for number in range(40)} - delivered
    assert waiting <= set(keys_of(found))


def test_a_dead_store_is_told_of_and_the_log_is_found_all_the_same(broker: Searched) -> None:
    broker.objects.is_down = True
    page = broker.page()
    assert [each.unique_key for each in page.items] == ["n0", "n1", "n2"]
    assert (page.unread_in_tier, page.next) == (80, None)
    assert page.problem
    assert broker.service.state().tier_failures == 0, "that is no trouble of timers"
    by_key = broker.by_key("f117")
    assert (by_key.items, by_key.unread_in_tier) == ((), 80)
    begun = broker.objects.faults
    broker.page()
    assert broker.objects.faults == begun + 1, "one request says it"
    broker.objects.is_down = False
    assert broker.by_key("f117").unread_in_tier == 0


def test_nobody_waits_for_a_store_that_hangs(broker: Searched) -> None:
    broker.objects.slow_s = 1e6
    began_s = broker.turns.time()
    page = broker.page()
    assert broker.turns.time() - began_s < 1.1 * stowed_search.PATIENCE_S
    assert (len(page.items), page.unread_in_tier) == (3, 80)
    assert "does not answer in time" in page.problem
    began_s = broker.turns.time()
    page = broker.page()
    assert broker.turns.time() - began_s < 0.1, "the next one knows"
    assert (len(page.items), page.unread_in_tier) == (3, 80)


def test_a_damaged_object_is_missing_alone(broker: Searched) -> None:
    (first, second) = broker.service.table.objects.values()
    content = broker.stored.objects[first.name]
    broker.stored.objects[first.name] = content[:20] + b"?" + content[21:]
    pages = broker.pages()
    assert keys_of(pages) == ["n0", "n1", "n2", *(f"f1{number:02}" for number in range(40))]
    assert sum(page.unread_in_tier for page in pages) == 40
    assert first.name in next(page.problem for page in pages if page.problem)
    del broker.stored.objects[second.name]
    assert sum(page.unread_in_tier for page in broker.pages()) == 80


def test_an_object_that_went_meanwhile_is_not_missing(broker: Searched) -> None:
    (first, _) = broker.service.table.objects.values()
    del broker.stored.objects[first.name]
    get = broker.objects.get

    async def late(name: str, start: int, length: int) -> bytes:
        if name == first.name:
            broker.service.table.objects.pop(first.key, None)
        return await get(name, start, length)

    broker.objects.get = late  # type: ignore[method-assign]
    pages = broker.pages()
    assert sum(page.unread_in_tier for page in pages) == 0
    assert len(keys_of(pages)) == 43


def test_much_is_looked_at_in_parts(broker: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stowed_search, "MOST_LOOKED", 7)
    monkeypatch.setattr(stowed_search, "MOST_ASKED", 2)
    pages = broker.pages(topic="another")
    assert len(pages) > 10
    assert all(page.looked <= 7 for page in pages[1:])
    assert sum(page.looked for page in pages) >= 83
    assert keys_of(broker.pages(most=100))[3:] == [f"f{half}{number:02}" for half in range(2) for number in range(40)]


def test_places_are_text_and_back() -> None:
    assert read_token("") == Place()
    for token in ("5.6", "5.6~7", "t1.2.3~4", "t1.2.3", "~9"):
        assert read_token(token).token == token
    assert read_token("t1.2.3~4") == Place(Part.TIER, stowed=StowedPlace(1, 2, 3), since=4)
    for token in ("t1.2", "x", "5", "~", "5.6~", "5.6@7", "t1.2.3~-1", "5.6t1.2.3", "9" * 20 + ".1"):
        with pytest.raises(RequestError, match=re.escape("after: pass `next`")) as refused:
            read_token(token)
        assert refused.value.code == codes.INVALID_PARAMETER
