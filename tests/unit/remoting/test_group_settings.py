"""Settings of a consumer group that are its attributes at the brokers."""

from __future__ import annotations

from dataclasses import fields

import pytest

from brokerd.metadata.configs import ORDER_SCOPES as KEPT_SCOPES
from brokerd.metadata.configs import GroupConfig
from remoting.facts.broker_state import GroupState
from remoting.facts.snapshot import ConsumerGroup
from remoting.group_settings import NAMES, ORDER_SCOPES, attribute_changes, named_settings, settings_of


def test_each_setting_is_an_attribute_that_says_it_again() -> None:
    settings = {"order_scope": "MESSAGE_GROUP", "invisible_min_ms": 1, "invisible_max_ms": 3, "invisible_default_ms": 2}
    assert list(settings) == list(NAMES)
    told = attribute_changes(settings)
    assert told == {
        **{"+order.scope": "MESSAGE_GROUP", "+invisible.min.ms": "1"},
        **{"+invisible.max.ms": "3", "+invisible.default.ms": "2"},
    }
    assert settings_of({name.removeprefix("+"): value for name, value in told.items()}) == settings


def test_what_is_none_is_taken_away_and_what_is_not_named_stays() -> None:
    changes = named_settings({"name": "g", "invisible_max_ms": None, "fifo": True})
    assert attribute_changes(changes) == {"-invisible.max.ms": ""}


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", "\u0661", "9" * 13])
def test_a_bound_that_is_no_number_is_none(text: str) -> None:
    assert settings_of({"invisible.min.ms": text})["invisible_min_ms"] is None


@pytest.mark.parametrize("attributes", [{}, {"order.scope": "TOPIC"}, {"order.scope": "MESSAGE_GROUP"}])
def test_the_scope_is_told_as_brokers_keep_it(attributes: dict[str, str]) -> None:
    keeps_message_groups = GroupConfig("g", attributes=attributes).keeps_message_groups
    assert (settings_of(attributes)["order_scope"] == "MESSAGE_GROUP") == keeps_message_groups
    assert set(ORDER_SCOPES) == set(KEPT_SCOPES)


@pytest.mark.parametrize("kind", [GroupState, ConsumerGroup])
def test_facts_have_each_setting(kind: type[GroupState | ConsumerGroup]) -> None:
    assert set(NAMES) <= {each.name for each in fields(kind)}
