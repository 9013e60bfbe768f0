"""Users and permissions as values: words of the protocol, changes, and the form they are kept in."""

from __future__ import annotations

import pytest

from remoting.access.model import (
    CUSTOM,
    AccessState,
    Entry,
    User,
    acl_info,
    acls_like,
    decode_state,
    encode_state,
    read_entry,
    read_policies,
    resource,
    subject_name,
    user_name,
)
from remoting.errors import InvalidParameter, ProtocolError

ENTRY = {"resource": "Topic:a*", "actions": ["pub", "SUB", "Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "allow"}


@pytest.mark.parametrize("text", ["*", "Topic:*", "Topic:a", "Topic:a*", "Group:g", "Cluster:c", "Topic:ns%t"])
def test_resources_are_written_as_they_are_read(text: str) -> None:
    assert str(resource(text)) == text


@pytest.mark.parametrize(
    "text", ["", "a", "Topic", "Topic:", "Disk:a", "Topic:a*b", "Topic:**", "Topic:" + "a" * 300, 7]
)
def test_what_is_no_resource(text: object) -> None:
    with pytest.raises(InvalidParameter, match="resource is"):
        resource(text)


def test_entries_take_words_in_either_case() -> None:
    assert read_entry(ENTRY) == Entry(resource("Topic:a*"), ("Pub", "Sub"), "Allow", ("10.0.0.0/8",))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("actions", []),
        ("actions", ["Any"]),
        ("actions", "Pub"),
        ("sourceIps", ["10.0.0.300"]),
        ("sourceIps", ["10.0.0.1"] * 101),
        ("decision", "Perhaps"),
        ("decision", None),
        ("resource", None),
    ],
)
def test_entries_that_are_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidParameter):
        read_entry(ENTRY | {field: value})


def test_policies() -> None:
    assert set(read_policies([{"entries": [ENTRY]}])) == {CUSTOM}
    for wrong in (None, [], [{}], [{"entries": []}], [{"policyType": "Other", "entries": [ENTRY]}], ["x"]):
        with pytest.raises(InvalidParameter):
            read_policies(wrong)


def test_names() -> None:
    assert subject_name("User:alice") == "alice"
    for wrong in ("alice", "Role:alice", "User:", None):
        with pytest.raises(InvalidParameter):
            subject_name(wrong)
    for name in ("", "a b", "a" * 65, "a:b", "a/b", None):
        with pytest.raises(InvalidParameter):
            user_name(name)


def entry(name: str, action: str = "Pub") -> Entry:
    return Entry(resource(name), (action,), "Allow")


def test_an_entry_takes_the_place_of_one_for_the_same_resource() -> None:
    state = (
        AccessState().with_user(User("u", "sealed")).with_entries("u", {CUSTOM: (entry("Topic:a"), entry("Topic:b"))})
    )
    state = state.with_entries("u", {CUSTOM: (entry("Topic:a", "Sub"),)})
    assert state.acls["u"][CUSTOM] == (entry("Topic:a", "Sub"), entry("Topic:b"))
    state = state.without_entries("u", CUSTOM, resource("Topic:b"))
    assert state.acls["u"][CUSTOM] == (entry("Topic:a", "Sub"),)
    assert state.without_entries("u", CUSTOM, resource("Topic:a")).acls == {}
    assert state.without_entries("u", CUSTOM, None).acls == {}
    assert state.without_user("u").acls == {}
    assert state.version == 4


def test_the_kept_form() -> None:
    state = AccessState().with_user(User("b", "1", "Super")).with_user(User("a", "2", status="disable"))
    state = state.with_entries("a", {CUSTOM: (read_entry(ENTRY),)})
    assert decode_state(encode_state(state)) == state
    assert encode_state(decode_state(encode_state(state))) == encode_state(state)
    for content in (b"", b"{}", b"[]", b'{"format":2}', encode_state(state).replace(b"Topic", b"Disk")):
        with pytest.raises(ProtocolError):
            decode_state(content)


def test_lists_are_filtered_by_subject_and_resource() -> None:
    state = AccessState().with_user(User("u", "")).with_entries("u", {CUSTOM: (entry("Topic:a"), entry("Group:b"))})
    assert acls_like(state, "", "") == [acl_info("u", state.acls["u"])]
    assert acls_like(state, "User:u", "Topic") == [acl_info("u", {CUSTOM: (entry("Topic:a"),)})]
    assert acls_like(state, "x", "") == acls_like(state, "", "Cluster") == []


def test_a_user_does_not_show_its_secret() -> None:
    assert "hidden" not in repr(User("u", "hidden"))
