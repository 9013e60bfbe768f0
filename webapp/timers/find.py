"""Which timers somebody means, as pages and REST ask for them, and where the broker groups are looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from django.utils import timezone

from remoting.facts.timers import TimerItem, TimerPage
from remoting.names import MAX_TOPIC_LENGTH
from webapp import gateway, snapshot
from webapp.errors import NotFound
from webapp.rules import MAX_INT64, Rules

DEFAULT_COUNT: Final = 50
MAX_COUNT: Final = 100
MAX_KEY: Final = 1000
MAX_AFTER: Final = 128
_PAGES: Final = 8  # that are asked for until one has something


@dataclass(frozen=True, slots=True)
class Chosen:
    """Timers for a topic, with a key or id, or due in `[from_ms, to_ms)`; each None or "" when it does not matter. `place`
    names one of those with a key."""

    group: str = ""
    topic: str = ""
    key: str = ""
    from_ms: int | None = None
    to_ms: int | None = None
    place: int | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """As an operation keeps them."""
        names = ("group", "topic", "key", "from_ms", "to_ms", "place")
        return {name: value for name in names if (value := getattr(self, name)) not in ("", None)}

    def asked(self, **more: Any) -> dict[str, Any]:
        """For `gateway.find_timers`."""
        return {"topic": self.topic, "key": self.key, "from_ms": self.from_ms, "to_ms": self.to_ms, **more}

    def means(self, item: TimerItem) -> bool:
        """Whether this is one of them: a search by key looks at nothing else."""
        return (
            self.place in (None, item.place)
            and (self.from_ms is None or item.due_ms >= self.from_ms)
            and (self.to_ms is None or item.due_ms < self.to_ms)
        )


@dataclass(frozen=True, slots=True)
class FoundTimers:
    """Timers of one broker group; `next` finds more, and those before may have been passed over with nothing found.
    `unread_in_tier` timers of the object store, or fewer, may be among them and could not be looked at; `problem` says why."""

    group: str
    items: Sequence[TimerItem] = field(default_factory=tuple)
    next: str | None = None
    scanned: int = 0
    unread: int = 0
    unread_in_tier: int = 0
    problem: str = ""

    @property
    def complete(self) -> bool:
        return self.next is None and not self.unread and not self.unread_in_tier


def choose(rules: Rules) -> Chosen:
    """What the fields `group`, `topic`, `key`, `due_from`, `due_before` and `place` choose. The rules remember what is wrong."""
    zone = timezone.get_current_timezone()
    topic = rules.name("topic", most=MAX_TOPIC_LENGTH, what="topic") if rules.has("topic") else ""
    first, last = rules.moment("due_from", zone), rules.moment("due_before", zone)
    if first is not None and last is not None and first >= last:
        rules.refuse("due_before", "must be later than the beginning")
    return Chosen(
        group=rules.text("group", most=MAX_TOPIC_LENGTH),
        topic=topic,
        key=rules.text("key", most=MAX_KEY),
        from_ms=int(first.timestamp() * 1000) if first is not None else None,
        to_ms=int(last.timestamp() * 1000) if last is not None else None,
        place=rules.integer("place", least=0, most=MAX_INT64) if rules.has("place") else None,
    )


def groups(chosen: Chosen) -> list[str]:
    """The broker groups in question. Raises NotFound for one that is not there."""
    names = [each.name for each in snapshot.current().facts.groups]
    if chosen.group and chosen.group not in names:
        raise NotFound(f"There is no broker group {chosen.group}.", code="group-not-found")
    return [chosen.group] if chosen.group else names


def find(given: Mapping[str, Any]) -> FoundTimers:
    """A page of the timers that a query string asks for: of one broker group, and behind the last of one those of the next.

    Raises Problem.
    """
    rules = Rules(given)
    chosen = choose(rules)
    after, _, at_group = rules.text("after", most=MAX_AFTER + MAX_TOPIC_LENGTH).partition("@")
    count = rules.integer("count", least=1, most=MAX_COUNT, default=DEFAULT_COUNT)
    rules.finish()
    names = groups(chosen)
    if not names or (at_group and at_group not in names):
        raise NotFound("There is no such broker group.", code="group-not-found")
    left = names[names.index(at_group) :] if at_group else names
    scanned = 0
    for group, *later in (left[number:] for number in range(len(left))):
        found = look(group, chosen, after, count)
        scanned += found.scanned
        following = f"{found.next}@{group}" if found.next is not None else f"@{later[0]}" if later else None
        if found.items or found.next is not None or found.unread_in_tier or not later:
            return replace(found, next=following, scanned=scanned)
        after = ""
    raise AssertionError("the last broker group is answered")


def look(group: str, chosen: Chosen, after: str = "", count: int = DEFAULT_COUNT) -> FoundTimers:
    """The next ones of a broker group: a broker looks at a bounded number for each request, so it is asked a few times."""
    scanned = unread_in_tier = 0
    problem = ""
    for _ in range(_PAGES):
        page: TimerPage = gateway.find_timers(group, **chosen.asked(after=after, count=count))
        items = tuple(each for each in page.items if chosen.means(each))
        scanned += page.looked
        unread_in_tier += page.unread_in_tier
        problem = problem or page.problem
        if items or page.next is None:
            break
        after = page.next
    return FoundTimers(group, items, page.next, scanned, page.unread, unread_in_tier, problem)
