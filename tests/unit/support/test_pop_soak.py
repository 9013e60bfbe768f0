"""The verdict of the POP soak finds what it is there to find."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from tests.bench.pop_soak import Seen, violations

PLAIN, FIRST, SECOND = "SoakPlain/good/1", "SoakOrdered/k1/9", "SoakOrdered/k1/21"
POISON, GOOD, HALF = "SoakDead/poison/1", "SoakDead/good/2", "SoakTransactions/rollback/3"

KEPT = [
    ["got", 1.0, 2.0, [PLAIN, GOOD, FIRST, POISON]],
    ["acked", 2.0, 3.0, [PLAIN, GOOD, FIRST]],
    ["got", 3.5, 4.0, [SECOND]],
]


def seen(*more: list[object], lines: list[list[object]] = KEPT) -> Seen:
    found = Seen(stored={PLAIN, FIRST, SECOND, POISON, GOOD}, hidden={HALF})
    for line in (*lines, *more):
        found.take(json.dumps(line))
    return found


def test_what_was_kept_is_no_violation() -> None:
    asked_meanwhile = ["got", 2.5, 3.5, [POISON]]
    assert not list(violations(seen(asked_meanwhile), Counter({POISON: 1})))


@pytest.mark.parametrize(
    ("found", "dead", "said"),
    [
        (seen(lines=KEPT[:2]), {POISON: 1}, f"{SECOND} is lost"),
        (seen(["got", 5.0, 6.0, [HALF]]), {POISON: 1}, f"{HALF} was delivered, and never committed"),
        (seen(["got", 3.1, 6.0, [PLAIN]]), {POISON: 1}, f"{PLAIN} was acked and delivered again"),
        (seen(), {POISON: 2}, f"{POISON} is a dead letter 2 times"),
        (seen(), {POISON: 1, GOOD: 1}, f"{GOOD} was acked and is a dead letter"),
        (seen(), {}, f"{POISON} is no dead letter"),
        (seen(["got", 0.5, 1.5, [SECOND]]), {POISON: 1}, f"{SECOND} was delivered before {FIRST} was done"),
    ],
)
def test_what_was_not_kept_is_named(found: Seen, dead: dict[str, int], said: str) -> None:
    assert said in list(violations(found, Counter(dead)))
