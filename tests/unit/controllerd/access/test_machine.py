"""Changes of users and permissions as the controllers' log decides them, alone and in a snapshot with the replicas."""

from __future__ import annotations

import pytest

from controllerd.access.commands import (
    AccessCommand,
    CreateUser,
    DeleteUser,
    PutEntries,
    RemoveEntries,
    UpdateUser,
    decode_access,
    encode_access,
)
from controllerd.machine import AccessReply, ControllerMachine
from controllerd.replicas.commands import ApplyBrokerId, encode_command
from controllerd.replicas.machine import ReplicasMachine
from remoting import codes
from remoting.access.model import CUSTOM, MAX_ENTRIES, AccessState, Entry, resource
from remoting.access.sealing import INNER_USER
from remoting.errors import ProtocolError

ENTRY = Entry(resource("Topic:a"), ("Pub",), "Allow", ("10.0.0.0/8",))
COMMANDS: list[AccessCommand] = [
    CreateUser("alice", "sealed", "Normal", "enable", by_super=True),
    CreateUser("root", "sealed", "Super", "enable", by_super=True, only_first=True),
    UpdateUser("alice", None, None, "disable", by_super=False),
    DeleteUser("alice", by_super=False),
    PutEntries("alice", {CUSTOM: (ENTRY,)}),
    RemoveEntries("alice", CUSTOM, resource("Topic:a")),
    RemoveEntries("alice", CUSTOM, None),
]


class Machine(ControllerMachine):
    def __init__(self) -> None:
        self.seen: list[AccessState] = []
        super().__init__(ReplicasMachine(), self.seen.append)

    def do(self, command: AccessCommand) -> AccessReply:
        reply = self.apply(encode_access(command))
        assert isinstance(reply, AccessReply)
        assert reply.version == self.access.version
        return reply


def with_users() -> Machine:
    machine = Machine()
    machine.do(CreateUser("root", "s1", "Super", "enable", by_super=True))
    machine.do(CreateUser("alice", "s2", "Normal", "enable", by_super=False))
    return machine


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_read_as_they_were_written(command: AccessCommand) -> None:
    assert decode_access(encode_access(command)) == command


@pytest.mark.parametrize(
    "content", [b"\x01", b"\x01{}", b"\x01[]", b'\x01{"format":1,"kind":"Other"}', b'\x01{"format":2}']
)
def test_what_cannot_be_read_changes_nothing(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_access(content)
    machine = with_users()
    before = machine.access
    assert machine.apply(content).code == codes.SYSTEM_ERROR
    assert machine.access is before


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
        reply = machine.do(command)
        assert (reply.code, reply.remark, reply.version) == (codes.SUCCESS, "unchanged", version)


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
    machine.apply(encode_command(ApplyBrokerId("c", "broker-a", 1, "127.0.0.1:1;7")))
    copy = Machine()
    copy.restore(machine.snapshot())
    assert copy.access == machine.access
    assert copy.seen == [machine.access]
    assert copy.replicas.state == machine.replicas.state
    assert copy.snapshot() == machine.snapshot()
    for content in (machine.snapshot()[:6], machine.snapshot()[:-1], machine.snapshot()[:40]):
        with pytest.raises(ProtocolError):
            Machine().restore(content)


def test_without_users_a_snapshot_is_what_earlier_versions_wrote_and_read() -> None:
    machine = Machine()
    machine.apply(encode_command(ApplyBrokerId("c", "broker-a", 1, "127.0.0.1:1;7")))
    assert machine.snapshot() == machine.replicas.snapshot()
    copy = with_users()
    copy.restore(machine.snapshot())
    assert copy.access == AccessState()
