"""What the leader puts into the membership for a controller that lost its log, and how its incarnations share one name."""

from __future__ import annotations

import pytest

from controllerd.raft.incarnations import incarnations, name_of, names, node_id, present
from controllerd.raft.members import Members
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange, change, leave_joint
from controllerd.raft.quorum import Configuration
from controllerd.raft.returning import admission, replacement

ADDRESSES = {"n0": "a:1", "n1": "b:1", "n2": "c:1"}
GROUP = Configuration(("n0", "n1", "n2"), addresses=tuple(ADDRESSES.items()), cluster="c")
HEALTHY = ("n0", "n2")


def admitted(group: Configuration, node: str) -> Configuration:
    return change(group, admission(group, HEALTHY, node, "b:1"))


def replaced(group: Configuration) -> Configuration:
    joint = change(group, replacement(group))
    assert joint.is_joint
    assert joint.auto_leave
    return leave_joint(joint)


def test_names_and_ids() -> None:
    assert node_id("n1", "") == "n1"
    assert node_id("n1", "ab12") == "n1~ab12"
    assert name_of("n1~ab12") == name_of("n1") == "n1"


def test_a_lost_controller_is_a_learner_first_and_then_takes_its_place() -> None:
    group = admitted(GROUP, "n1~a")
    assert (group.voters, group.learners) == (("n0", "n1", "n2"), ("n1~a",))
    assert group.address("n1~a") == group.address("n1") == "b:1"
    assert admission(group, HEALTHY, "n1~a", "b:1") == (), "who asks again is told so again"
    assert replacement(group) == (MemberChange(ChangeKind.PROMOTE, "n1~a"), MemberChange(ChangeKind.REMOVE, "n1"))
    joint = change(group, replacement(group))
    assert replacement(joint) == ()
    assert joint.has_majority(("n0", "n2"))
    after = leave_joint(joint)
    assert (after.voters, after.learners, after.retired) == (("n0", "n1~a", "n2"), (), ("n1",))
    assert replacement(after) == ()


def test_one_that_loses_its_log_again_gives_up_what_it_was_about_to_be() -> None:
    group = admitted(admitted(GROUP, "n1~a"), "n1~b")
    assert (group.voters, group.learners, group.retired) == (("n0", "n1", "n2"), ("n1~b",), ("n1~a",))
    after = replaced(group)
    assert (after.voters, after.retired) == (("n0", "n1~b", "n2"), ("n1", "n1~a"))
    again = replaced(admitted(after, "n1~c"))
    assert again.voters == ("n0", "n1~c", "n2")
    with pytest.raises(ChangeRefused, match="ids are never used again"):
        admitted(again, "n1~a")


def test_a_learner_stays_one() -> None:
    group = change(GROUP, [MemberChange(ChangeKind.ADD_LEARNER, "n3", "d:1")])
    after = change(group, admission(group, HEALTHY, "n3~a", "d:1"))
    assert (after.voters, after.learners, after.retired) == (("n0", "n1", "n2"), ("n3~a",), ("n3",))
    assert replacement(after) == ()


def test_who_is_heard_has_lost_nothing_and_a_stranger_is_to_be_added() -> None:
    with pytest.raises(ChangeRefused, match="another process is controller n1"):
        admission(GROUP, ("n0", "n1"), "n1~a", "b:1")
    with pytest.raises(ChangeRefused, match="no controller n7 is a member"):
        admission(GROUP, HEALTHY, "n7~a", "b:1")


def test_people_see_one_controller_of_each_name() -> None:
    members = Members("n0", {})
    joint = change(admitted(GROUP, "n1~a"), replacement(admitted(GROUP, "n1~a")))
    for group, now in ((GROUP, "n1"), (admitted(GROUP, "n1~a"), "n1~a"), (joint, "n1~a"), (leave_joint(joint), "n1~a")):
        members.configured(group)
        assert members.named() == ADDRESSES
        assert members.present("n1") == present(group, "n1") == now
        assert members.retired() == []
        assert names(group) == ("n0", "n1", "n2")
    assert incarnations(joint, "n1") == ("n1~a", "n1")
    members.configured(change(GROUP, [MemberChange(ChangeKind.REMOVE, "n1")]))
    assert members.retired() == ["n1"]
    assert members.present("n1") == "n1"
