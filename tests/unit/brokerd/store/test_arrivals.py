"""What became visible is put together for those who wait for it, and as it was."""

from __future__ import annotations

from brokerd.store.derived.dispatcher import Arrival, Arrivals
from brokerd.store.queues.queue_offsets import QueueKey
from brokerd.store.queues.round_codes import RoundCodes

CODES = {("A", 0): [1], ("B", 3): [2, 3], ("A", 7): [4]}


def test_each_topic_is_asked_about_once_and_nothing_is_put_together_for_nobody() -> None:
    asked: list[str] = []
    ends: list[tuple[str, int]] = []

    def end_of(key: tuple[str, int]) -> int:
        ends.append(key)
        return 10 + key[1]

    def is_awaited(topic: str) -> bool:
        asked.append(topic)
        return False

    arrivals = Arrivals(RoundCodes(CODES), end_of)
    assert arrivals.topics == {"A", "B"}
    assert len(arrivals) == 3
    assert not arrivals.awaited(is_awaited)
    assert (sorted(asked), ends) == (["A", "B"], [])
    assert arrivals.awaited(lambda topic: topic == "A") == [Arrival("A", 0, 10, [1]), Arrival("A", 7, 17, [4])]
    assert list(arrivals) == [Arrival("A", 0, 10, [1]), Arrival("B", 3, 13, [2, 3]), Arrival("A", 7, 17, [4])]
    assert len(ends) == 3


class NoCodes(RoundCodes):
    """Whose codes nobody may want."""

    def all(self) -> dict[QueueKey, list[int]]:
        raise AssertionError("they are put together")


def test_where_queues_end_is_known_without_what_is_in_them() -> None:
    arrivals = Arrivals(NoCodes(CODES), lambda key: 10 + key[1])
    assert list(arrivals.ends()) == [(("A", 0), 10), (("B", 3), 13), (("A", 7), 17)]


def test_who_hears_later_hears_of_the_ends_that_the_first_one_heard_of() -> None:
    table = dict.fromkeys(CODES, 5)
    arrivals = Arrivals(RoundCodes(CODES), table.__getitem__)
    first = arrivals.all()
    table.update(dict.fromkeys(CODES, 9))
    assert arrivals.all() == first
    assert [each.max_offset for each in arrivals] == [5, 5, 5]
    assert [end for _, end in arrivals.ends()] == [5, 5, 5]
    assert arrivals[0] == first[0]
    assert arrivals[1:] == first[1:]
