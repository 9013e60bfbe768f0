"""Changes of users and permissions as the controllers' log decides them, alone and in a snapshot with the replicas."""

from __future__ import annotations

import pytest

from controllerd.access.requests import CreateUser, DeleteUser, PutEntries, RemoveEntries, Request, UpdateUser
from controllerd.records.decision import Reply
from controllerd.replicas.requests import ApplyBrokerId
from controllerd.state.machine import ControllerMachine
from remoting import codes
from remoting.access.component import INNER_USER
from remoting.access.model import CUSTOM, MAX_ENTRIES, AccessState, Entry, resource
from remoting.errors import ProtocolError

ENTRY = Entry(resource("Topic:a"), ("Pub",), "Allow", ("10.0.0.0/8",))


class Machine(ControllerMachine):
    """A leader alone, about users and permissions."""

    def __init__(self) -> None:
        self.seen: list[AccessState] = []
        super().__init__({"access": lambda _record, state: self.seen.append(state)})

    def do(self, request: Request) -> Reply:
        applied = self.apply(self.decide(request))
        assert applied.state is self.access
        return applied.reply

    def claim(self) -> None:
        self.apply(self.decide(ApplyBrokerId("c", "broker-a", 1, "127.0.0.1:1;7")))


def with_users() -> Machine:
    machine = Machine()
    machine.do(CreateUser("root", "s1", "Super", "enable", by_super=True))
    machine.do(CreateUser("alice", "s2", "Normal", "enable", by_super=False))
    return machine


def test_users_come_change_and_go() -> None:
    machine = with_users()
    assert machine.do(UpdateUser("alice", "s3", None, "disable", by_super=False)).code == codes.SUCCESS
    assert (machine.access.users["alice"].sealed, machine.access.users["alice"].status) == ("s3", "disable")
    machine.do(PutEntries("alice", {CUSTOM: (ENTRY,)}))
    assert machine.do(DeleteUser("alice", by_super=False)).code == codes.SUCCESS
    assert "alice" not in machine.access.acls
    assert [state.version for state in machine.seen] == [1, 2, 3, 4, 5]


def test_repetitions_change_nothing() -> None:
    machine = with_users()
    machine.do(PutEntries("alice", {CUSTOM: (ENTRY,)}))
    version = machine.access.version
    for command in (
        PutEntries("alice", {CUSTOM: (ENTRY,)}),
        UpdateUser("alice", None, "Normal", "enable", by_super=False),
        DeleteUser("nobody", by_super=False),
        RemoveEntries("root", CUSTOM, None),
        RemoveEntries("alice", CUSTOM, resource("Topic:b")),
        CreateUser("first", "s", "Super", "enable", by_super=True, only_first=True),
    ):
        assert machine.do(command) == Reply(codes.SUCCESS, "unchanged")
        assert machine.access.version == version


def test_what_is_refused() -> None:
    machine = with_users()
    version = machine.access.version
    for command, code in (
        (CreateUser("alice", "other", "Normal", "enable", by_super=True), codes.NO_PERMISSION),
        (CreateUser(INNER_USER, "s", "Super", "enable", by_super=True), codes.NO_PERMISSION),
        (CreateUser("eve", "s", "Super", "enable", by_super=False), codes.NO_PERMISSION),
        (UpdateUser("alice", None, "Super", None, by_super=False), codes.NO_PERMISSION),
        (UpdateUser("root", "mine", None, None, by_super=False), codes.NO_PERMISSION),
        (DeleteUser("root", by_super=False), codes.NO_PERMISSION),
        (UpdateUser("nobody", "s", None, None, by_super=True), codes.USER_NOT_EXIST),
        (PutEntries("nobody", {CUSTOM: (ENTRY,)}), codes.USER_NOT_EXIST),
    ):
        assert machine.do(command).code == code
    assert machine.access.version == version


def test_permissions_of_a_user_are_bounded() -> None:
    machine = with_users()
    many = tuple(Entry(resource(f"Topic:t{number}"), ("Pub",), "Allow") for number in range(MAX_ENTRIES))
    assert machine.do(PutEntries("alice", {CUSTOM: many})).code == codes.SUCCESS
    assert machine.do(PutEntries("alice", {CUSTOM: (ENTRY,)})).code == codes.NO_PERMISSION
    assert machine.do(PutEntries("alice", {CUSTOM: many[:1]})).remark == "unchanged"


def test_a_snapshot_holds_everything() -> None:
    machine = with_users()
    machine.do(PutEntries("alice", {CUSTOM: (ENTRY,)}))
    machine.claim()
    copy = Machine()
    copy.restore(machine.snapshot())
    assert copy.access == machine.access
    assert copy.seen == [machine.access]
    assert copy.replicas == machine.replicas
    assert copy.snapshot() == machine.snapshot()
    for content in (
        machine.snapshot()[:6],
        machine.snapshot()[:-1],
        machine.snapshot()[:40],
        machine.snapshot() + b"x",
    ):
        with pytest.raises(ProtocolError):
            Machine().restore(content)


def test_a_snapshot_without_users_takes_them_away() -> None:
    machine = Machine()
    machine.claim()
    copy = with_users()
    copy.restore(machine.snapshot())
    assert copy.access == copy.seen[-1] == AccessState()
