"""The JSON tables beside the log: what RocketMQ wrote is understood, and what we write says the same."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.config import documents
from brokerd.metadata.configs import GroupConfig, TopicConfig
from remoting.errors import CorruptedFile

GOLDEN = Path(__file__).parents[3] / "golden" / "rocketmq-5.3.3"
VERSION = {"counter": 3, "stateVersion": 1, "timestamp": 5}


def golden(path: str) -> bytes:
    return (GOLDEN / path).read_bytes()


def test_the_originals_topics_are_understood() -> None:
    document = documents.parse(golden(documents.TOPICS), documents.TOPICS)
    assert not documents.is_ours(document)
    topics = documents.decode_topics(document)
    assert topics["Orders"] == TopicConfig("Orders", 4, 4, 6)
    assert topics["DefaultCluster"].perm == 7
    assert topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18


def test_the_originals_groups_are_understood() -> None:
    groups = documents.decode_groups(documents.parse(golden(documents.GROUPS), documents.GROUPS))
    assert groups["GID_a"].retry_max_times == 16
    assert not groups["GID_a"].broadcast_enable
    assert not groups["GID_a"].fifo


def test_the_originals_offsets_are_understood_although_they_are_no_json() -> None:
    content = golden(documents.OFFSETS)
    with pytest.raises(ValueError, match="expected"):
        orjson.loads(content)
    assert documents.decode_offsets(documents.parse(content, documents.OFFSETS)) == {("GID_a", "Orders"): {1: 7}}


def test_texts_are_left_alone_when_names_are_quoted() -> None:
    content = rb'{"a":"{1:2,3:4} \" {5:6}",7:{-8:9 , 10 :"x"}}'
    assert documents.parse(content, "file") == {"a": '{1:2,3:4} " {5:6}', "7": {"-8": 9, "10": "x"}}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"topicConfigTable":[7]}', "no object"),
        (b'{"topicConfigTable":{"a":7}}', "'a' in config/topics.json is no object"),
        (
            b'{"topicConfigTable":{"a":{"perm":[]}}}',
            "'a' in config/topics.json is not understood: perm must be a number",
        ),
        (b'{"topicConfigTable":{"a":{"attributes":7}}}', "is not understood"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_file_and_the_entry(content: bytes, why: str) -> None:
    with pytest.raises(CorruptedFile, match=why):
        documents.decode_topics(documents.parse(content, documents.TOPICS))


def test_offsets_of_impossible_queues_are_refused() -> None:
    with pytest.raises(CorruptedFile, match=r"'t@g' in config/consumerOffset\.json"):
        documents.decode_offsets({"offsetTable": {"t@g": {"first": 1}}})


NAMES = st.text(st.sampled_from("abcXYZ019_-%|"), min_size=1, max_size=20)
COUNTS = st.integers(1, 4096)
TOPICS = st.builds(
    TopicConfig,
    NAMES,
    COUNTS,
    COUNTS,
    st.integers(0, 7),
    st.integers(0, 7),
    st.booleans(),
    st.dictionaries(st.just("message.type"), st.sampled_from(["FIFO", "NORMAL"])),
    st.booleans(),
)
GROUPS = st.builds(
    GroupConfig, NAMES, st.booleans(), st.integers(0, 99), st.booleans(), st.booleans(), st.integers(0, 9)
)


@given(st.lists(TOPICS), st.lists(GROUPS), st.frozensets(st.tuples(NAMES, NAMES)))
def test_what_is_written_is_read_again(
    topics: list[TopicConfig], groups: list[GroupConfig], forbidden: frozenset[tuple[str, str]]
) -> None:
    document = documents.parse(documents.encode_topics(topics, VERSION), "file")
    assert documents.decode_topics(document) == {topic.name: topic for topic in topics}
    assert documents.is_ours(document)
    assert document["dataVersion"] == VERSION
    document = documents.parse(documents.encode_groups(groups, VERSION, forbidden), "file")
    assert documents.decode_forbidden(document) == forbidden
    assert documents.decode_groups(document) == {group.name: group for group in groups}


@given(
    st.dictionaries(
        st.tuples(NAMES, NAMES), st.dictionaries(st.integers(0, 99), st.integers(0, 1 << 60), max_size=5), max_size=5
    )
)
def test_offsets_that_are_written_are_read_again(offsets: dict[tuple[str, str], dict[int, int]]) -> None:
    document = documents.parse(documents.encode_offsets(offsets, VERSION), "file")
    assert documents.decode_offsets(document) == offsets
