"""Who may do what: precedence, actions, addresses; compared with a slow, obvious model."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.access.decision import Demand, decide
from remoting.access.model import (
    ACTIONS,
    ALL,
    ALLOW,
    CUSTOM,
    DEFAULT,
    DENY,
    GET,
    PUB,
    SUB,
    TOPIC,
    AccessState,
    Entry,
    User,
    resource,
)

HERE = "10.0.0.1"


def entry(name: str, actions: Sequence[str], decision: str = ALLOW, *sources: str) -> Entry:
    return Entry(resource(name), tuple(actions), decision, sources)


def state(*entries: Entry, policy: str = CUSTOM, user: User | None = None) -> AccessState:
    return AccessState(1, {"u": user or User("u", "")}, {"u": {policy: entries}} if entries else {})


def may(found: AccessState, name: str = "orders", *actions: str, source: str = HERE) -> bool:
    return decide(found, "u", Demand(TOPIC, name, actions or (PUB,)), source).allowed


def test_nothing_is_allowed_by_default() -> None:
    assert not may(state())
    assert not may(state(entry("Topic:other", [ALL])))
    assert not may(state(entry("Group:orders", [ALL])))
    assert not may(state(entry("Topic:orders", [SUB])))


def test_unknown_and_disabled_users_may_nothing_and_super_users_everything() -> None:
    assert not decide(state(), "nobody", Demand(TOPIC, "orders", (PUB,)), HERE).allowed
    everything = entry("*", [ALL])
    assert not may(state(everything, user=User("u", "", status="disable")))
    assert may(state(entry("*", [ALL], DENY), user=User("u", "", "Super")))
    assert not may(state(user=User("u", "", "Super", "disable")))


@pytest.mark.parametrize("wider", ["*", "Topic:*", "Topic:o*", "Topic:orde*"])
def test_the_most_specific_resource_decides(wider: str) -> None:
    order = ["*", "Topic:*", "Topic:o*", "Topic:orde*", "Topic:orders"]
    for narrower in order[order.index(wider) + 1 :]:
        for entries in ((wider, narrower), (narrower, wider)):
            assert may(state(*(entry(each, [PUB], ALLOW if each == narrower else DENY) for each in entries)))
            assert not may(state(*(entry(each, [PUB], DENY if each == narrower else ALLOW) for each in entries)))


def test_an_entry_for_other_actions_does_not_hide_a_wider_one() -> None:
    assert may(state(entry("Topic:*", [PUB]), entry("Topic:orders", [SUB], DENY)))


def test_one_of_the_demanded_actions_is_enough() -> None:
    assert may(state(entry("Topic:orders", [GET])), "orders", PUB, SUB, GET)
    assert may(state(entry("Topic:orders", [ALL])), "orders", GET)


def test_addresses() -> None:
    for sources in (["10.0.0.1"], ["192.168.0.0/16", "10.0.0.0/8"], ["::1", "10.0.0.1/32"]):
        assert may(state(entry("*", [ALL], ALLOW, *sources)))
    for sources in (["10.0.0.2"], ["10.0.1.0/24"], ["::/0"]):
        assert not may(state(entry("*", [ALL], ALLOW, *sources)))
    assert may(state(entry("*", [ALL], ALLOW, "fd00::/8")), source="fd00::7")
    assert not may(state(entry("*", [ALL], ALLOW, "0.0.0.0/0")), source="nonsense")
    # a Deny for another address leaves the wider Allow in force
    assert may(state(entry("*", [ALL]), entry("Topic:orders", [ALL], DENY, "10.9.0.0/16")))


def test_the_default_policy_counts_when_no_other_entry_fits() -> None:
    users = {"u": User("u", "")}
    both = {CUSTOM: (entry("Topic:orders", [PUB], DENY),), DEFAULT: (entry("*", [ALL]),)}
    found = AccessState(1, users, {"u": both})
    assert not may(found)
    assert may(found, "invoices")
    verdict = decide(found, "u", Demand(TOPIC, "invoices", (PUB,)), HERE)
    assert verdict.policy == DEFAULT
    assert "*" in verdict.reason


resources = st.sampled_from(["*", "Topic:*", "Topic:a*", "Topic:ab*", "Topic:ab", "Topic:abc", "Group:*", "Group:ab"])
entries = st.builds(
    lambda name, actions, decision, sources: entry(name, sorted(actions), decision, *sources),
    resources,
    st.sets(st.sampled_from(ACTIONS), min_size=1, max_size=3),
    st.sampled_from([ALLOW, DENY]),
    st.lists(st.sampled_from(["10.0.0.1", "10.0.0.0/8", "11.0.0.0/8"]), max_size=2),
)


def model(table: Sequence[Entry], demand: Demand, source: str) -> bool:
    """Level by level, from the narrowest name to `*`."""
    names = [f"{demand.type}:{demand.name}"]
    names += [f"{demand.type}:{demand.name[:length]}*" for length in range(len(demand.name), 0, -1)]
    names += [f"{demand.type}:*", "*"]
    for name in names:
        found = [
            each
            for each in table
            if str(each.resource) == name
            and (set(each.actions) & {*demand.actions, ALL})
            and (
                not each.sources
                or any(ipaddress.ip_address(source) in ipaddress.ip_network(net) for net in each.sources)
            )
        ]
        if found:
            return all(each.decision == ALLOW for each in found)
    return False


@given(
    st.lists(entries, max_size=8),
    st.sampled_from(["a", "ab", "abc", "abcd", "x"]),
    st.sets(st.sampled_from([PUB, SUB, GET]), min_size=1),
)
def test_decisions_are_those_of_the_model(table: list[Entry], name: str, actions: set[str]) -> None:
    demand = Demand(TOPIC, name, tuple(sorted(actions)))
    assert decide(state(*table), "u", demand, HERE).allowed == model(table, demand, HERE)
