"""A broker's copy of users and permissions: kept, never older, left out when it cannot be read; and how it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from brokerd.cluster.access_copy import FILE, AccessCopy, AccessFollower
from remoting import codes
from remoting.access.model import AccessState, User, encode_state
from remoting.errors import ConnectionLost, NotLeader, RequestTimeout
from remoting.facts.cluster_view import ClusterView
from remoting.frame import Command
from remoting.guarding.guard import AccessSettings, Guard
from tests.support.disks import MemoryDisk

SECRET = b"0123456789abcdef"


def make_guard() -> Guard:
    return Guard(AccessSettings(authentication=True), "c", (SECRET,), lambda: 0)


def state(*names: str) -> AccessState:
    found = AccessState()
    for name in names:
        found = found.with_user(User(name, "sealed"))
    return found


def test_the_copy_survives_a_restart() -> None:
    disk, guard = MemoryDisk(), make_guard()
    AccessCopy(disk, guard).take("id", state("alice"))
    assert guard.state == state("alice")
    later = make_guard()
    assert AccessCopy(disk, later).cluster == "id"
    assert later.state == state("alice")


def test_it_never_goes_back_within_a_cluster() -> None:
    copy = AccessCopy(MemoryDisk(), make_guard())
    copy.take("id", state("alice", "bob"))
    copy.take("id", state("eve"))
    assert copy.state == state("alice", "bob")
    assert not copy.wants("id", 2)
    assert copy.wants("id", 3)
    assert copy.wants("another", 0)  # the controllers were made anew
    copy.take("another", state("carol"))
    assert copy.state == state("carol")


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"nonsense", b'{"cluster":"id","state":"{}"}', b'{"cluster":"id","state":7}']
)
def test_what_cannot_be_read_lets_nobody_in(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk, guard = MemoryDisk(), make_guard()
    disk.replace_bytes(FILE, content)
    copy = AccessCopy(disk, guard)
    assert guard.state == AccessState()
    assert "no user is known" in caplog.text
    copy.take("id", state("alice"))
    assert guard.state == state("alice")


class FakeControllers:
    """Answers by address: a command, or an error; like a `RemotingClient`."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def connection(self, address: str) -> FakeControllers:
        self.asked.append(address)
        if isinstance(self.answers.get(address), ConnectionLost):
            raise self.answers[address]
        self._present = address
        return self

    async def call(self, *arguments: Any, **_: Any) -> Command:
        if isinstance(arguments[0], str):  # RemotingClient.call(address, code)
            return Command(codes.SUCCESS, ext={"controllerLeaderAddress": "joined"})
        if isinstance(self.answers[self._present], RequestTimeout):
            raise self.answers[self._present]
        answer: Command = self.answers[self._present]
        return answer


def follower(answers: Mapping[str, Any]) -> tuple[AccessFollower, FakeControllers]:
    controllers = FakeControllers(answers)
    copy = AccessCopy(MemoryDisk(), make_guard())
    return AccessFollower(copy, controllers, ["a", "b"]), controllers  # type: ignore[arg-type]


NOT_LEADER = Command(codes.CONTROLLER_NOT_LEADER)
WHOLE = Command(codes.SUCCESS, ext={"cluster": "id"}, body=encode_state(state("alice")))


async def test_the_leader_is_found() -> None:
    one, controllers = follower({"a": NOT_LEADER, "b": WHOLE})
    await one.refresh()
    assert one.copy.state == state("alice")
    assert controllers.asked == ["a", "b"]
    one, controllers = follower({"a": ConnectionLost("gone"), "b": NOT_LEADER, "joined": WHOLE})
    await one.refresh()  # it joined after this broker was told its controllers
    assert controllers.asked == ["a", "b", "joined"]
    one, _ = follower({"a": NOT_LEADER, "b": NOT_LEADER, "joined": NOT_LEADER})
    with pytest.raises(NotLeader):
        await one.refresh()


async def test_who_led_last_is_asked_first() -> None:
    answers: dict[str, Any] = {"a": NOT_LEADER, "b": NOT_LEADER, "joined": WHOLE}
    one, controllers = follower(answers)
    await one.refresh()
    await one.refresh()
    assert controllers.asked == ["a", "b", "joined", "joined"]
    answers |= {"a": WHOLE, "joined": NOT_LEADER}
    await one.refresh()  # another one leads now
    await one.refresh()
    assert controllers.asked[4:] == ["joined", "a", "a"]
    answers |= {"a": ConnectionLost("gone"), "b": WHOLE}
    await one.refresh()
    assert controllers.asked[7:] == ["a", "b"]


async def test_a_leader_that_owes_an_answer_is_not_asked_first_again() -> None:
    answers: dict[str, Any] = {"a": NOT_LEADER, "b": WHOLE}
    one, controllers = follower(answers)
    await one.refresh()
    answers["b"] = RequestTimeout("frozen")
    with pytest.raises(RequestTimeout):
        await one.refresh()
    answers["a"] = WHOLE
    await one.refresh()
    assert controllers.asked == ["a", "b", "b", "a"]


async def test_a_view_with_another_version_makes_it_ask_once() -> None:
    one, controllers = follower({"a": WHOLE})
    one.look(ClusterView())
    one.look(ClusterView(cluster="id"))
    one.look(ClusterView(cluster="id", access_version=1))
    one.look(ClusterView(cluster="id", access_version=1))
    while one.copy.state.version == 0:
        await asyncio.sleep(0)
    one.look(ClusterView(cluster="id", access_version=1))
    await one.close()
    assert controllers.asked == ["a"]
