"""Requests of components are carried out once, and little is remembered of them."""

from __future__ import annotations

from remoting.access.component import WINDOW_MS, Claims
from remoting.guarding import replays
from remoting.guarding.replays import Replays


def claims(nonce: str, number: int, sent_at_ms: int = 0) -> Claims:
    return Claims(sent_at_ms, nonce, number, ())


def test_a_number_counts_once_on_its_connection() -> None:
    seen = Replays()
    assert seen.is_new(claims("a", 1), 0)
    assert seen.is_new(claims("b", 1), 0)
    assert seen.is_new(claims("a", 3), 0)
    assert not any(seen.is_new(claims("a", number), WINDOW_MS) for number in (1, 2, 3))


def test_what_is_remembered_is_refused_for_its_age_when_it_is_forgotten() -> None:
    seen = Replays()
    assert seen.is_new(claims("a", 1, sent_at_ms=0), 0)
    assert seen.is_new(claims("ahead", 1, sent_at_ms=WINDOW_MS), 0)
    assert not seen.is_new(claims("a", 1), WINDOW_MS)  # the last moment at which its age counts
    assert not seen.is_new(claims("ahead", 1, WINDOW_MS), 2 * WINDOW_MS)


def test_as_many_connections_as_may_be_are_remembered() -> None:
    seen = Replays()
    for number in range(replays.MOST):
        assert seen.is_new(claims(str(number), 1), 0)
    assert not seen.is_new(claims("one more", 1), 0)
    assert seen.is_new(claims("0", 2), 0)
    assert seen.is_new(claims("one more", 1), WINDOW_MS + 1)
    assert seen.count < replays.MOST
