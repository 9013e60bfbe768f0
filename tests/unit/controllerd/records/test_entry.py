"""Entries are read as they were written; what a later version wrote is refused, and so is what nobody wrote."""

from __future__ import annotations

import string
from typing import Any, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllerd.access.records import EntriesPut, EntriesRemoved, UserDeleted, UserPut
from controllerd.records.decision import Decision, Reply
from controllerd.records.entry import MAX_ENTRY_BYTES, MAX_RECORDS, decode_entry, encode_entry
from controllerd.records.subject import UnknownFormat
from controllerd.replicas.records import MasterElected, MasterLost, Record, SyncStateSetChanged
from controllerd.state.features import LevelRaised
from controllerd.state.subjects import ACCESS, FEATURES, REPLICAS, SUBJECTS
from remoting.access.model import ACTIONS, ALLOW, CUSTOM, DEFAULT, DENY, Entry, Resource, User
from remoting.errors import ProtocolError, RequestError
from tests.unit.controllerd.records.newer import LEVEL, NEWER

texts = st.text(max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
names = st.text(string.ascii_letters, min_size=1, max_size=10)
resources = st.one_of(
    st.just(Resource("*")),
    st.builds(Resource, st.sampled_from(("Topic", "Group", "Cluster"))),
    st.builds(Resource, st.just("Topic"), names, st.booleans()),
)
actions = st.lists(st.sampled_from(ACTIONS), min_size=1, unique=True).map(tuple)
sources = st.sampled_from(((), ("10.0.0.1",), ("::1", "10.0.0.0/8")))
entries = st.builds(Entry, resources, actions, st.sampled_from((ALLOW, DENY)), sources)
lists = st.lists(entries, min_size=1, max_size=3).map(tuple)
policies = st.dictionaries(st.sampled_from((CUSTOM, DEFAULT)), lists, min_size=1)
replies = st.builds(Reply, st.integers(0, 2**31 - 1), st.none() | texts)
for annotation, strategy in ((str, texts), (int, whole)):
    st.register_type_strategy(annotation, strategy)


def about(*kinds: Any) -> st.SearchStrategy[Any]:
    return st.lists(st.one_of([st.from_type(kind) for kind in kinds]), max_size=4).map(tuple)


access_records = st.one_of(
    st.builds(UserPut, st.builds(User, texts, texts, texts, texts)),
    st.builds(UserDeleted, texts),
    st.builds(EntriesPut, texts, policies),
    st.builds(EntriesRemoved, texts, st.sampled_from((CUSTOM, DEFAULT)), st.none() | resources),
)
decisions = st.one_of(
    st.tuples(st.just(REPLICAS), about(*get_args(Record))),
    st.tuples(st.just(ACCESS), st.lists(access_records, max_size=3).map(tuple)),
    st.tuples(st.just(FEATURES), about(LevelRaised)),
)


@given(decisions, replies)
def test_an_entry_is_read_as_it_was_written(about_what: Any, reply: Reply) -> None:
    subject, records = about_what
    decision = Decision(records, reply)
    content = encode_entry(subject, decision, LEVEL - 1)
    assert decode_entry(content, SUBJECTS) == (subject.name, decision)
    assert decode_entry(content, NEWER) == (subject.name, decision), "a later version reads what was written before it"


@given(st.binary(max_size=200))
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_entry(content, SUBJECTS)


json = st.recursive(
    st.none() | st.booleans() | whole | texts | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
KINDS = [(name, each.kind, each.version) for name, subject in SUBJECTS.items() for each in subject.formats]


@given(st.sampled_from(KINDS), json)
def test_other_fields_are_refused(kind: tuple[str, str, int], fields: object) -> None:
    subject, name, version = kind
    content = {"format": 2, "subject": subject, "records": [[name, version, fields]], "reply": [0, None]}
    with pytest.raises(ProtocolError):
        decode_entry(orjson.dumps(content), SUBJECTS)


@given(decisions, replies, st.data())
def test_what_was_changed_under_way_is_refused_or_is_another_entry(about_what: Any, reply: Reply, data: Any) -> None:
    subject, records = about_what
    content = bytearray(encode_entry(subject, Decision(records, reply), LEVEL - 1))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(0, len(content))) :]
    try:
        entry = decode_entry(bytes(content), SUBJECTS)
    except (ProtocolError, UnknownFormat):
        return
    assert isinstance(entry[1], Decision)


@pytest.mark.parametrize(
    "changed",
    [
        {"format": 0},
        {"format": "2"},
        {"subject": 1},
        {"records": {}},
        {"records": [["master_lost", 1]]},
        {"records": [["master_lost", "1", {}]]},
        {"records": [["master_lost", 1, {"broker_name": "a", "master_epoch": True}]]},
        {"records": [["master_lost", 1, {"broker_name": "a", "master_epoch": 1.0}]]},
        {"records": [["master_lost", 1, {"broker_name": "a", "master_epoch": 1, "more": 1}]]},
        {"records": [["master_lost", 1, {"broker_name": "a"}]]},
        {"records": [["master_lost", 1, {"broker_name": "a", "master_epoch": 1}]] * (MAX_RECORDS + 1)},
        {"reply": [0]},
        {"reply": [None, None]},
        {"more": 1},
    ],
)
def test_an_entry_has_one_shape(changed: dict[str, object]) -> None:
    right = {"format": 2, "subject": "replicas", "records": [], "reply": [0, None]}
    assert decode_entry(orjson.dumps(right), SUBJECTS)[1] == Decision()
    with pytest.raises(ProtocolError):
        decode_entry(orjson.dumps({**right, **changed}), SUBJECTS)


def test_an_entry_is_bounded() -> None:
    content = encode_entry(REPLICAS, Decision((), Reply(1, "x" * MAX_ENTRY_BYTES)), 1)
    with pytest.raises(ProtocolError, match="limit"):
        decode_entry(content, SUBJECTS)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"format": 3}, "an entry of format 3"),
        ({"subject": "tiers"}, "the subject 'tiers'"),
        ({"records": [["master_lost", 2, {}]]}, "version 2 of the record 'master_lost' about replicas"),
        ({"records": [["master_found", 1, {}]]}, "version 1 of the record 'master_found' about replicas"),
    ],
)
def test_what_a_later_version_wrote_is_refused_with_what_to_do(changed: dict[str, object], what: str) -> None:
    content = {"format": 2, "subject": "replicas", "records": [], "reply": [0, None], **changed}
    with pytest.raises(UnknownFormat, match=f"{what} is not known .* start a newer one"):
        decode_entry(orjson.dumps(content), SUBJECTS)


def test_records_are_written_in_the_newest_format_of_the_level_in_force() -> None:
    lost, elected = MasterLost("a", 7), MasterElected("a", 1, 8, 0)
    replicas = NEWER["replicas"]
    before, after = (orjson.loads(encode_entry(replicas, Decision((lost, elected)), level)) for level in (1, LEVEL))
    assert [each[:2] for each in before["records"]] == [["master_lost", 1], ["master_elected", 1]]
    assert [each[:2] for each in after["records"]] == [["master_lost", 2], ["master_elected", 1]]
    for entry in (before, after):
        assert decode_entry(orjson.dumps(entry), NEWER)[1].records == (lost, elected)


def test_what_needs_a_higher_level_is_refused_before_it_is_written() -> None:
    notes = NEWER["notes"]
    decision = notes.decide(notes.initial, notes.requests[0]("x"))
    with pytest.raises(RequestError, match=f"needs feature level {LEVEL}, and the controllers are at 1; upgrade"):
        encode_entry(notes, decision, 1)
    assert decode_entry(encode_entry(notes, decision, LEVEL), NEWER)[1] == decision


def test_tuples_and_nested_values_keep_their_types() -> None:
    decision = Decision((SyncStateSetChanged("a", (1, 2)),))
    (record,) = decode_entry(encode_entry(REPLICAS, decision, 1), SUBJECTS)[1].records
    assert isinstance(record.sync_state_set, tuple)
