"""What a connection asked of late: how long it is known, and where it goes on."""

from __future__ import annotations

from typing import Any

from brokerd.native.stays import MOST_KINDS, ToldOfKind
from brokerd.processors.pulling.asked_before import AskedBefore, note_asked

NOTHING = ToldOfKind(0, 0, 0, 0, -1, 0, 0)
SOME = ToldOfKind(5, 15, 1500, 70, -1, 0, 1000)
UNTIL_LEFT = 4  # stays in which others were asked much


def terms() -> Any:
    """Of which only it counts whether they are the same."""
    return object()


def noted(asked: AskedBefore, *told: ToldOfKind) -> None:
    """That was done in stays in which others were asked much."""
    for each in told:
        asked.note(each, is_much=True)


def test_what_is_not_asked_while_others_are_is_left() -> None:
    asked = AskedBefore(1, terms())
    noted(asked, *[NOTHING] * (UNTIL_LEFT - 1))
    assert not asked.is_left
    noted(asked, NOTHING)
    assert asked.is_left


def test_what_is_asked_again_in_time_is_not_left_wherever_that_was_answered() -> None:
    there, here = AskedBefore(1, terms()), AskedBefore(2, terms())
    for _ in range(3):
        noted(there, *[NOTHING] * (UNTIL_LEFT - 1), SOME)
        noted(here, *[NOTHING] * (UNTIL_LEFT - 1))
        here.asked(100, 3)
    noted(there, *[NOTHING] * (UNTIL_LEFT - 1))
    noted(here, *[NOTHING] * (UNTIL_LEFT - 1))
    assert not there.is_left
    assert not here.is_left


def test_stays_in_which_little_was_asked_say_nothing() -> None:
    asked = AskedBefore(1, terms())
    for _ in range(5 * UNTIL_LEFT):
        asked.note(NOTHING, is_much=False)
    assert not asked.is_left


def test_it_goes_on_where_its_last_answer_ended() -> None:
    asked = AskedBefore(1, terms())
    asked.asked(30, 3)
    noted(asked, NOTHING)
    assert asked.next_offset == 30
    noted(asked, SOME)
    assert (asked.next_offset, asked.advance) == (70, 3)
    noted(asked, NOTHING)
    assert asked.next_offset == 70


def test_what_is_to_be_forgotten_is_left() -> None:
    asked = AskedBefore(1, terms())
    asked.leave()
    assert asked.is_left


def test_other_terms_in_a_slot_are_another_kind() -> None:
    kinds: dict[int, AskedBefore] = {}
    one, other = terms(), terms()
    first = note_asked(kinds, 7, one)
    first.asked(30, 3)
    assert note_asked(kinds, 7, one) is first
    second = note_asked(kinds, 7, other)
    assert (second.terms, second.next_offset) == (other, 0)
    assert list(kinds.values()) == [second]


def test_what_is_known_longest_makes_room() -> None:
    kinds: dict[int, AskedBefore] = {}
    same = terms()
    for slot in range(MOST_KINDS):
        note_asked(kinds, slot, same)
    note_asked(kinds, 3, terms())  # in its own place
    assert list(kinds) == list(range(MOST_KINDS))
    note_asked(kinds, 100, same)
    assert list(kinds) == [*range(1, MOST_KINDS), 100]
