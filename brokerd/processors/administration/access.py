"""Users and permissions: codes 3001 to 3010. The controllers keep them; every broker passes requests about them on.

A change is answered when this broker's own copy has it, too. Questions are answered from the copy while no controller is there,
without secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from brokerd.cluster.access_copy import AccessFollower
from remoting import codes
from remoting.access.answers import answer_query
from remoting.access.component import INNER_USER
from remoting.access.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, access_key
from remoting.errors import ConnectionLost, NotLeader, RequestTimeout
from remoting.frame import Command
from remoting.guarding.guard import Guard
from remoting.registry import ROWS, By
from remoting.transport.connection import Handler, RemotingConnection
from remoting.transport.server import spawned
from remoting.transport.tasks import TaskOwner

CALLER: Final = "caller"
QUERIES: Final = frozenset({codes.AUTH_GET_USER, codes.AUTH_LIST_USERS, codes.AUTH_GET_ACL, codes.AUTH_LIST_ACLS})
CHANGES: Final = {code for code, row in ROWS.items() if row.by == By.BROKER | By.LEADER} - QUERIES
_NOT_PASSED_ON: Final = (ACCESS_KEY, SIGNATURE, SECURITY_TOKEN, "OnsChannel", CALLER)


@dataclass(frozen=True, slots=True)
class AccessProcessor:
    guard: Guard
    follower: AccessFollower
    owner: TaskOwner

    def handlers(self) -> dict[int, Handler]:
        """Request code -> handler."""
        query, change = spawned(self.owner, self._query), spawned(self.owner, self._change)
        return dict.fromkeys(QUERIES, query) | dict.fromkeys(CHANGES, change)

    async def _change(self, connection: RemotingConnection, request: Command) -> None:
        answer = await self.follower.ask(request.code, self._fields(request), bytes(request.body))
        if answer.code == codes.SUCCESS:
            await self.follower.refresh()
        connection.respond(request, answer.code, remark=answer.remark)

    async def _query(self, connection: RemotingConnection, request: Command) -> None:
        try:
            answer = await self.follower.ask(request.code, self._fields(request), bytes(request.body))
        except (ConnectionLost, RequestTimeout, NotLeader):
            document = answer_query(self.follower.copy.state, request.code, request.ext, lambda _user: None)
            connection.respond(request, body=b"" if document is None else orjson.dumps(document))
        else:
            connection.respond(request, answer.code, body=answer.body, remark=answer.remark)

    def _fields(self, request: Command) -> dict[str, str]:
        """What the controllers get to know: the request's fields, and (checked here, as it is not to them) who asks."""
        fields = {key: value for key, value in request.ext.items() if key not in _NOT_PASSED_ON}
        if not self.guard.is_on:
            fields[CALLER] = (
                ""  # nobody was asked who it is; controllers that are switched on already take it for nobody
            )
        elif access_key(request) != INNER_USER:
            fields[CALLER] = access_key(request)
        return fields
