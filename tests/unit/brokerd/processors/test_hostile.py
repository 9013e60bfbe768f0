"""Any fields and any body get one answer, and never one that speaks of our own mistake."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerd.filters.message_filter import compile_filter
from remoting.record.properties import encode_properties
from tests.support.remoting_broker import Peer, RemotingBroker, remoting_master

NAMES = (
    *("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subscription"),
    *("suspendTimeoutMillis", "subVersion", "expressionType", "maxMsgBytes", "timestamp", "boundaryType", "offset"),
    *("invisibleTime", "pollTime", "bornTime", "initMode", "exp", "expType", "order", "attemptId", "extraInfo"),
    *("readQueueNums", "writeQueueNums", "perm", "attributes", "groupName", "cleanOffset", "clientID", "topicList"),
)
VALUES = st.one_of(
    st.sampled_from(
        ["g", "t", "0", "1", "-1", "", "true", "*", "A || B", "SQL92", "TAG", "a > 5", "%RETRY%g", "²", "1e3"]
    ),
    st.sampled_from(
        [str(2**31), str(2**63), "9" * 19, "0 1 2 0 0 broker-a 0 0", "0 1700000000000 10000 0 2 broker-a 0 0"]
    ),
    st.text(max_size=12),
    st.integers(-(2**65), 2**65).map(str),
)
BODY_NAMES = (
    *("clientID", "producerDataSet", "consumerDataSet", "groupName", "subscriptionDataSet", "topic", "subVersion"),
    *("consumeType", "messageModel", "acks", "c", "t", "r", "so", "q", "rq", "pt", "it", "b", "subscriptionData"),
    *("retryMaxTimes", "consumeMessageOrderly", "heartbeatFingerprint", "withoutSub", "subString", "expressionType"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(BODY_NAMES), inner, max_size=5),
    max_leaves=12,
)
BODIES = st.one_of(st.binary(max_size=20), JSON.map(orjson.dumps))


@pytest.fixture(scope="module")
def broker() -> RemotingBroker:
    made = remoting_master()
    made.topic("t", 2)
    made.send("a", "b", tag="x")
    made.receive(1)
    return made


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 1000),
    ext=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=12),
    body=BODIES,
    base=st.booleans(),
)
def test_any_request_gets_one_answer(
    broker: RemotingBroker, which: int, ext: dict[str, str], body: bytes, base: bool
) -> None:
    table = sorted(broker.handlers)
    code = table[which % len(table)]
    if base:
        ext = {"consumerGroup": "g", "topic": "t", "queueId": "0", "maxMsgNums": "1", "sysFlag": "4", **ext}
    peer = Peer()
    opaque = broker.send_request(code, ext, body, peer)
    broker.turns.run(100_000)
    answer = peer.answers[opaque]
    assert not (answer.remark or "").startswith("internal error"), (code, answer.remark)


@given(properties=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=4), tag=st.text(max_size=3))
def test_filters_read_any_properties(properties: dict[str, Any], tag: str) -> None:
    encoded = encode_properties({**properties, "TAGS": tag})
    for kind, expression in (("TAG", "a || b"), ("SQL92", "a > 5 OR b IS NULL OR c CONTAINS 'x'"), ("TAG", "*")):
        compile_filter(kind, expression).admits(encoded)
