"""Requests of administrators about the controllers themselves: who is a member, change that, hand leadership over.

Any controller lists the members as it knows them; only the leader knows who is heard and how far each one is. Changes and
transfers are the serving leader's. A change is answered when it is complete, so after a success nothing of it is left to be done;
an outcome that is not known is an error. Administrators know controllers by name; which incarnation is meant is found here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import orjson

from controllerd.metrics import Counters
from controllerd.processors.serving import Handles
from controllerd.raft.driver import RaftDriver
from controllerd.raft.incarnations import incarnations, name_of
from controllerd.raft.members import Members
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange, Transition, change, check_reachable
from controllerd.raft.messages import Role
from controllerd.raft.quorum import Configuration
from controllerd.settings import MAX_NODES, NODE_ID, ControllerSettings
from remoting import codes
from remoting.errors import InvalidParameter
from remoting.frame import Command
from remoting.transport.client import split_address
from remoting.transport.connection import RemotingConnection

_CHANGE_TIMEOUT_MS: Final = 8000
_NEEDS_ADDRESS: Final = (ChangeKind.ADD_LEARNER, ChangeKind.ADD_VOTER, ChangeKind.MOVE)
_KINDS: Final = {str(kind): kind for kind in ChangeKind}


class MembershipProcessor:
    """Handlers over the group of controllers."""

    def __init__(self, settings: ControllerSettings, driver: RaftDriver, members: Members, counters: Counters) -> None:
        self._settings = settings
        self._driver = driver
        self._members = members
        self._counters = counters

    def handles(self) -> Handles:
        return {
            codes.CONTROLLER_MEMBERS: self._list,
            codes.CHANGE_CONTROLLER_MEMBERS: self._change,
            codes.TRANSFER_CONTROLLER_LEADER: self._transfer,
        }

    def _list(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=self._listing())

    async def _change(self, connection: RemotingConnection, request: Command) -> None:
        changes, force = _decode_changes(bytes(request.body))
        core, addresses = self._driver.node.core, self._members.table()
        changes = [change for named in changes for change in _of_incarnations(core.configuration, named)]
        after = change(core.configuration, changes, Transition.AUTO, addresses)
        if len(after.voters) > MAX_NODES:
            raise ChangeRefused(f"more than {MAX_NODES} voters only make decisions slower; add learners, or remove one")
        if not force:
            check_reachable(core.configuration, after, core.active)
        self._counters.proposals += 1
        await self._driver.change_membership(changes, addresses, _CHANGE_TIMEOUT_MS)
        connection.respond(request, body=self._listing())

    async def _transfer(self, connection: RemotingConnection, request: Command) -> None:
        name = _checked_id(request.ext.get("controllerId", ""))
        target = self._members.present(name)
        raft = self._settings.raft
        # The transfer is given up after an election timeout; then it takes the new leader's first message to know of it.
        await self._driver.transfer_leader(target, 2 * raft.election_ticks * raft.tick_ms)
        ext = {"controllerLeaderId": name, "controllerLeaderAddress": self._members.address(target) or ""}
        connection.respond(request, ext=ext)

    def _listing(self) -> bytes:
        core = self._driver.node.core
        configuration = core.configuration
        return orjson.dumps(
            {
                "group": self._settings.raft.group,
                "cluster": configuration.cluster,
                "leaderId": name_of(core.leader) if core.leader else None,
                "isLeader": core.role is Role.LEADER,
                "term": core.term,
                "commitIndex": core.log.committed,
                "changing": configuration.is_joint,
                "transferringTo": name_of(core.transferee) if core.transferee else None,
                "members": [self._member(name, address) for name, address in self._members.named().items()],
                "retired": self._members.retired(),
            }
        )

    def _member(self, name: str, address: str) -> dict[str, Any]:
        core = self._driver.node.core
        node = self._members.present(name)
        progress = core.progress.get(node)
        is_own = node == self._members.node_id
        return {
            "id": name,
            "address": address,
            "role": self._members.role(node),
            "leader": node == core.leader,
            "alive": True if is_own else progress.was_active if progress else None,
            "matchIndex": progress.match if progress else None,
            "behind": max(0, core.log.committed - progress.match) if progress else None,
            "sending": str(progress.state) if progress and not is_own else None,
        }


def _of_incarnations(configuration: Configuration, named: MemberChange) -> list[MemberChange]:
    """The same for the ids in Raft. Who is removed goes with all that it was; who is promoted takes the place of what it was."""
    found = incarnations(configuration, named.node)
    if not found or named.kind in (ChangeKind.ADD_LEARNER, ChangeKind.ADD_VOTER):
        return [named]
    if named.kind in (ChangeKind.REMOVE, ChangeKind.MOVE):
        return [replace(named, node=node) for node in found]
    lost = [MemberChange(ChangeKind.REMOVE, node) for node in found[1:]]
    return [replace(named, node=found[0]), *(lost if named.kind is ChangeKind.PROMOTE else [])]


def _checked_id(text: object) -> str:
    if not isinstance(text, str) or not NODE_ID.fullmatch(text):
        raise InvalidParameter("a controller's id has 1 to 32 letters, digits, dots, dashes or underscores")
    return text


def _decode_changes(body: bytes) -> tuple[list[MemberChange], bool]:
    try:
        value = orjson.loads(body)
        wanted, force = value["changes"], value.get("force", False)
        if not isinstance(wanted, list) or not 0 < len(wanted) <= MAX_NODES or not isinstance(force, bool):
            raise ValueError(f"1 to {MAX_NODES} changes")
        changes = [_decode_change(each) for each in wanted]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameter(
            f'the body must be {{"changes":[{{"kind":...,"id":...,"address":...}}],"force":false}}: {error}'
        ) from error
    return changes, force


def _decode_change(value: dict[str, Any]) -> MemberChange:
    kind = _KINDS.get(value["kind"])
    if kind is None:
        raise InvalidParameter(f"kind must be one of {', '.join(_KINDS)}, not {str(value['kind'])[:40]!r}")
    node, address = _checked_id(value["id"]), value.get("address") or ""
    if not isinstance(address, str) or len(address) > 255 or (kind in _NEEDS_ADDRESS and not address):
        raise InvalidParameter(f"{kind} needs the address of {node} as host:port, at most 255 characters")
    if address:
        split_address(address)
    return MemberChange(kind, node, address)
