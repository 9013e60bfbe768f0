"""Names that a request has in other fields than usual, or not at all: what is checked is what is done."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
import pytest

from remoting import codes
from remoting.access.decision import Demand, decide
from remoting.access.model import (
    ALL,
    ALLOW,
    CLUSTER,
    CUSTOM,
    GROUP,
    SUB,
    SUPER,
    TOPIC,
    AccessState,
    Entry,
    User,
    resource,
)
from remoting.client.access_admin import AccessAdmin
from tests.security.people import Person
from tests.support.cluster import Cluster, eventually

OPEN, CLOSED = {"group": "spelt-group", "topic": "spelt"}, {"group": "spelt-closed-group", "topic": "spelt-closed"}


@pytest.fixture(scope="module")
def dora(secured: Cluster) -> Person:
    """May do everything with every topic and group but one of each."""
    for each in (OPEN, CLOSED):
        secured.admin.create_topic(each["topic"], 1)
        secured.admin.create_group(each["group"])
    person = Person(secured, "dora", {"Topic:*": ("All",), "Group:*": ("All",)})
    for name in (f"Topic:{CLOSED['topic']}", f"Group:{CLOSED['group']}"):
        entry = {"resource": name, "actions": ["All"], "decision": "Deny"}
        AccessAdmin(secured.admin).put_permission(person.name, entry)
    address = secured.broker_addresses[secured.master()]
    closed = {"topic": CLOSED["topic"], "queueId": "0"}
    eventually(
        "the denial counts", lambda: person.ask(address, codes.GET_MAX_OFFSET, closed).code == codes.NO_PERMISSION
    )
    return person


def ack(**names: str) -> bytes:
    handle = {"retry": "0", "startOffset": 0, "queueId": 0, "reviveQueueId": 0, "popTime": 1, "invisibleTime": 1}
    return orjson.dumps({"acks": [{**handle, "bitSet": "AQ==", **names}]})


@pytest.mark.parametrize(
    ("names", "is_let_in"),
    [
        ({"consumerGroup": OPEN["group"], "topic": OPEN["topic"]}, True),
        ({"c": OPEN["group"], "t": OPEN["topic"], "consumerGroup": CLOSED["group"], "topic": CLOSED["topic"]}, True),
        ({"consumerGroup": CLOSED["group"], "topic": OPEN["topic"]}, False),
        ({"consumerGroup": OPEN["group"], "topic": CLOSED["topic"]}, False),
        ({"c": "", "t": "", "consumerGroup": CLOSED["group"], "topic": CLOSED["topic"]}, False),
        ({"c": OPEN["group"], "topic": CLOSED["topic"]}, False),
        ({}, False),
    ],
)
def test_a_batch_of_acks_is_of_the_names_by_which_it_is_carried_out(
    secured: Cluster, dora: Person, names: Mapping[str, str], is_let_in: bool
) -> None:
    address = secured.broker_addresses[secured.master()]
    answer = dora.ask(address, codes.BATCH_ACK_MESSAGE, {}, ack(**names))
    assert (answer.code != codes.NO_PERMISSION) is is_let_in, answer


@pytest.mark.parametrize("kind", [TOPIC, GROUP, CLUSTER])
def test_no_entry_gives_what_has_no_name(kind: str) -> None:
    everything = {"mia": {CUSTOM: (Entry(resource("*"), (ALL,), ALLOW), Entry(resource(f"{kind}:*"), (ALL,), ALLOW))}}
    state = AccessState(1, {"mia": User("mia", ""), "root": User("root", "", SUPER)}, everything)
    assert not decide(state, "mia", Demand(kind, "", (SUB,)), "10.0.0.1").allowed
    assert decide(state, "root", Demand(kind, "", (SUB,)), "10.0.0.1").allowed, "who may do everything hears the rule"
