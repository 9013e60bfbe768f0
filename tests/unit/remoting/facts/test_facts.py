from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.errors import ProtocolError
from remoting.facts.broker_state import BrokerState
from remoting.facts.cluster_view import ClusterView
from remoting.facts.codec import decode, encode, encode_around, encode_item
from remoting.facts.snapshot import ClusterSnapshot
from remoting.facts.words import BrokerRole
from tests.support.examples import examples

RECORDED = Path(__file__).parent / "recorded"
INT64 = st.integers(-(2**63), 2**63 - 1)
st.register_type_strategy(int, INT64)
st.register_type_strategy(float, st.floats(allow_nan=False, allow_infinity=False))
st.register_type_strategy(
    Mapping,
    lambda kind: st.dictionaries(st.text(), st.from_type(kind.__args__[1])),  # the abstract one has many others
)
KINDS = {
    "broker_state_master": BrokerState,
    "broker_state_replica": BrokerState,
    "cluster_view": ClusterView,
    "snapshot": ClusterSnapshot,
}


SAYS_NOTHING = (
    *(("kind", "controllers"), ("lag_at_least", False), ("subscriptions", [])),
    *(("waitingGroups", []), ("waiting_groups", []), ("gates", []), ("placements", [])),
    *(("elections", []), ("history", []), ("recent", []), ("clientTimes", []), ("client_times", [])),
    *(("tierExported", False), ("tier_exported", False)),
)
UNKNOWN = {"ofANewerPeer", "ofANewerCollector", "colour", "weather", "mood"}


def known(document: Any) -> Any:
    """A document without what was put in to be ignored, and without what says as much as its absence."""
    if isinstance(document, dict):
        return {
            name: known(value)
            for name, value in document.items()
            if name not in UNKNOWN and value is not None and (name, value) not in SAYS_NOTHING
        }
    return [known(each) for each in document] if isinstance(document, list) else document


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_documents_as_they_always_were_say_the_same(name: str, kind: type[object]) -> None:
    recorded = (RECORDED / f"{name}.json").read_bytes()
    assert known(orjson.loads(encode(decode(kind, recorded)))) == known(orjson.loads(recorded))


@settings(max_examples=examples(40))
@given(st.data())
@pytest.mark.parametrize("kind", sorted(set(KINDS.values()), key=str))
def test_every_fact_comes_back_as_it_was(kind: type[object], data: st.DataObject) -> None:
    fact = data.draw(st.from_type(kind))
    assert decode(kind, encode(fact)) == fact


@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_document_around_parts_is_the_document(data: st.DataObject) -> None:
    state = data.draw(st.from_type(BrokerState))
    around = replace(state, topics=(), groups=())
    lists = {"topics": map(encode_item, state.topics), "groups": map(encode_item, state.groups)}
    assert orjson.loads(encode_around(around, lists)) == orjson.loads(encode(state))


@settings(max_examples=examples(20))
@given(data=st.data())
def test_so_it_is_where_keys_are_fields_names(data: st.DataObject) -> None:
    snapshot = data.draw(st.from_type(ClusterSnapshot))
    around = replace(snapshot, topics=())
    lists = {"topics": map(encode, snapshot.topics)}
    assert orjson.loads(encode_around(around, lists, camel=False)) == orjson.loads(encode(snapshot))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "BrokerState is not an object"),
        (b"{}", "BrokerState.clusterName is not a text"),
        (orjson.dumps([0] * 100), "more than 100"),
        ({"role": None}, "BrokerState.role is not one of fenced, promoting, master, replica, unreachable"),
        ({"brokerId": True}, "BrokerState.brokerId is not a whole number"),
        ({"endOffset": 1.5}, "BrokerState.endOffset is not a whole number"),
        ({"learner": 1}, "BrokerState.learner is not a boolean"),
        ({"weaknesses": "x"}, "BrokerState.weaknesses is not a list"),
        ({"topics": [{"name": "t", "queues": [{"queueId": "0"}]}]}, "BrokerState.topics.queues.queueId is not a whole"),
        ({"channel": {"refusedPeers": []}}, "BrokerState.channel.refusedPeers is not an object"),
    ],
)
def test_what_is_none_is_refused_with_the_field_s_name(document: Any, words: str) -> None:
    body = document if isinstance(document, bytes) else orjson.dumps(LEAST | document)
    with pytest.raises(ProtocolError, match=re.escape(words)):
        decode(BrokerState, body, most_bytes=100 if body.startswith(b"[0") else 1000)


def test_what_is_missing_or_null_takes_its_default_and_a_role_of_tomorrow_is_no_master() -> None:
    state = decode(BrokerState, orjson.dumps(LEAST | {"topics": None, "role": "arbiter"}))
    assert state == BrokerState(cluster_name="c", broker_name="b", broker_id=1, role=BrokerRole.FENCED)


LEAST = {"clusterName": "c", "brokerName": "b", "brokerId": 1, "role": "master"}
