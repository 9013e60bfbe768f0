"""Each broken rule of Raft does its harm in its story, and no story finds fault with the rules as they are."""

from __future__ import annotations

import pytest

from tests.unit.controllerd.raft.broken_rules import BROKEN_RULES, BrokenRule


@pytest.mark.parametrize("rule", BROKEN_RULES, ids=lambda rule: rule.name)
def test_a_broken_rule_is_found_in_its_story(rule: BrokenRule) -> None:
    rule.story()
    with rule.entered(), pytest.raises(AssertionError, match=r"two leaders|misses|different entries"):
        rule.story()
